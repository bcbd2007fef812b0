"""Builds the stand-in driver libraries, and PTX from the test kernels, once for each state of their sources.

`build(into)` gives the folder to put on LD_LIBRARY_PATH: the real PyCUDA then runs on the simulator.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache as remember
from pathlib import Path

from minicnn import cache
from minicnn.errors import BuildError
from minicnn.sim import build as sim_build

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
DRIVER = HERE / "driver"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
# What CUDA 13 added and PyCUDA built with its headers needs: a driver of CUDA 12 lacks it.
MISSING_IN_OLD_DRIVERS = ("cuCtxCreate_v4", "cuEventElapsedTime_v2")
NO_NVCC = "nvcc is neither on PATH nor in an nvidia-cuda-nvcc wheel"


def find_nvcc() -> Path | None:
    """On PATH, else in the folders of NVIDIA's wheels."""
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    for folder in sys.path:
        for found in sorted(Path(folder or ".").glob("nvidia/*/bin/nvcc")):
            return found
    return None


@remember
def cuda_include() -> Path:
    """The folder that holds cuda.h: nvcc's own, that of a toolkit, or that of an NVIDIA wheel.

    Raises  BuildError where there is none.
    """
    candidates: list[Path] = []
    nvcc = find_nvcc()
    if nvcc is not None:
        candidates += _folders_of(nvcc)
    for folder in sys.path:
        candidates += sorted(Path(folder or ".").glob("nvidia/*/include"))
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if variable in os.environ:
            candidates.append(Path(os.environ[variable]) / "include")
    for folder in candidates:
        if (folder / "cuda.h").is_file():
            return folder
    raise BuildError(
        "cuda.h was not found",
        accepted="a CUDA toolkit with nvcc on PATH, or the wheel nvidia-cuda-runtime",
        remedy="pip install nvidia-cuda-runtime nvidia-cuda-nvcc",
    )


def _folders_of(nvcc: Path) -> list[Path]:
    """What nvcc passes to its compiler, asked of nvcc itself: it may be a script that calls another one."""
    dry = subprocess.run(
        [str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    said = re.findall(r'-I"?([^"\s]+)', dry.stderr)
    top = re.findall(r"^#\$ TOP=(.*)$", dry.stderr, re.MULTILINE)
    beside = [Path(folder.strip()) / "include" for folder in top]
    return [Path(folder) for folder in said] + beside + [nvcc.resolve().parent.parent / "include"]


def ptx(name: str, architecture: str = "sm_80") -> str:
    """The PTX that nvcc makes of kernels/NAME.cu, with the source lines; kept in the cache folder."""
    return _compiled(name, ["-lineinfo", "-ptx", f"-arch={architecture}"]).decode()


def fat_binary(name: str) -> bytes:
    """A fat binary with PTX for two architectures, beside a cubin that is of no use to the simulator."""
    targets = [("compute_75", "compute_75"), ("compute_80", "sm_80"), ("compute_80", "compute_80")]
    return _compiled(name, ["-fatbin", "--no-compress", *(f"-gencode=arch={a},code={c}" for a, c in targets)])


def _compiled(name: str, arguments: list[str]) -> bytes:
    nvcc = find_nvcc()
    assert nvcc is not None, NO_NVCC
    source = KERNELS / f"{name}.cu"
    version = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(source.read_bytes() + repr((arguments, version)).encode()).hexdigest()[:16]
    made = cache.folder("simgpu") / f"{name}-{digest}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            fresh = Path(scratch) / made.name
            done = subprocess.run(
                [str(nvcc), "-std=c++17", *arguments, source.name, "-o", str(fresh)],
                cwd=KERNELS,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise BuildError(f"{source.name} did not compile", found=done.stderr.strip()[:500])
            os.replace(fresh, made)
    return made.read_bytes()


def build(into: Path, *, is_old_driver: bool = False) -> Path:
    """The folder with libcuda.so.1 and libcublas.so.13, below `into`.

    `is_old_driver`: without the functions that CUDA 13 brought.

    Raises  BuildError where there is no compiler or no cuda.h.
    """
    compiler = sim_build.find_compiler()
    include = cuda_include()
    simulator = sim_build.build(into)
    folder = Path(into) / f"simgpu-{_key(compiler, include, simulator, is_old_driver)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _build_libraries(compiler, include, simulator, Path(scratch), made, is_old_driver)
            try:
                os.rename(made, folder)
            except OSError:  # another process was faster
                assert folder.exists()
    return folder


def _key(compiler: list[str], include: Path, simulator: Path, is_old_driver: bool) -> str:
    digest = hashlib.sha256(repr((compiler, simulator.parent.name, is_old_driver, FLAGS)).encode())
    names = cublas_names()
    digest.update(repr(names).encode())
    for path in [*sorted(DRIVER.iterdir()), Path(__file__), include / "cuda.h"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build_libraries(
    compiler: list[str], include: Path, simulator: Path, scratch: Path, made: Path, is_old_driver: bool
) -> None:
    shutil.copy(simulator, made)
    (scratch / "cuda_stubs.c").write_text(
        stubs(cuda_names(compiler, include), "simgpu: {} is not simulated", 801)
    )
    (scratch / "cublas_stubs.c").write_text(stubs(cublas_names(), "simgpu: {} is not simulated", 15))
    sources = [*sorted(DRIVER.glob("*.cpp")), *sorted(scratch.glob("*_stubs.c"))]

    def compile_one(source: Path) -> Path:
        flags = (
            ["-x", "c", "-w", "-fPIC"] if source.suffix == ".c" else [*FLAGS, "-I", str(sim_build.SOURCES)]
        )
        target = scratch / f"{source.stem}.o"
        sim_build.run(
            [*compiler, *flags, "-I", str(include), "-c", str(source), "-o", str(target)],
            f"the stand-in driver's {source.name}",
        )
        return target

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_one, sources))
    of_cublas = [o for o in objects if o.stem.startswith("cublas")]
    of_cuda = [o for o in objects if o not in of_cublas]
    hidden = scratch / "hidden.map"
    local = MISSING_IN_OLD_DRIVERS if is_old_driver else ("nothing_is_hidden",)
    hidden.write_text("{ local: " + "; ".join(local) + "; };\n")
    common = [*compiler, "-shared", "-Wl,-rpath,$ORIGIN", f"-L{made}"]
    cuda = ["-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={hidden}", "-o", str(made / "libcuda.so.1")]
    libraries = ["-lminicnnsim", "-ldl", "-lpthread"]
    sim_build.run([*common, *cuda, *map(str, of_cuda), *libraries], "the stand-in libcuda")
    cublas = ["-Wl,-soname,libcublas.so.13", "-o", str(made / "libcublas.so.13")]
    sim_build.run([*common, *cublas, *map(str, of_cublas), "-l:libcuda.so.1"], "the stand-in libcublas")


def cuda_names(compiler: list[str], include: Path) -> list[str]:
    """Every function that cuda.h and cudaProfiler.h declare."""
    header = "#include <cuda.h>\n"
    if (include / "cudaProfiler.h").is_file():
        header += "#include <cudaProfiler.h>\n"
    done = subprocess.run(
        [*compiler, "-E", "-P", "-x", "c", "-I", str(include), "-"],
        input=header,
        capture_output=True,
        text=True,
        check=False,
    )
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", done.stdout)))
    if not names:
        raise BuildError("cuda.h declares no function", found=done.stderr.strip()[:300])
    return [*names, "cuProfilerInitialize"]  # gone from CUDA 13's header, but PyCUDA asks for it


def cublas_names() -> list[str]:
    """What scikit-cuda looks up in libcublas while it is imported."""
    found = importlib.util.find_spec("skcuda")
    if found is None or not found.submodule_search_locations:
        return []
    source = Path(found.submodule_search_locations[0]) / "cublas.py"
    return sorted(set(re.findall(r"_libcublas\.(cublas\w+)", source.read_text())))


def stubs(names: list[str], message: str, status: int) -> str:
    """Functions that say who was called and fail; what is simulated takes their place."""
    lines = ["#include <stdio.h>"]
    for name in sorted(set(names)):
        text = message.format(name)
        lines.append(
            f'__attribute__((weak)) int {name}(void) {{ fprintf(stderr, "{text}\\n"); return {status}; }}'
        )
    return "\n".join(lines) + "\n"
