"""Builds the stand-in driver libraries, and PTX from the test kernels, once for each state of their sources.

`build(into)` gives the folder to put on LD_LIBRARY_PATH: the real PyCUDA then runs on the simulator.
`python tests/simgpu/build.py` prints it.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache as remember
from pathlib import Path

from minicnn import cache
from minicnn.device import nvcc
from minicnn.errors import BuildError
from minicnn.sim import build as sim_build

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
DRIVER = HERE / "driver"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
LIBRARIES = {"cublas": (13, 15), "cufft": (12, 16)}  # name -> its version, and its status for "not supported"
# What CUDA 13 added and PyCUDA built with its headers needs: a driver of CUDA 12 lacks it.
MISSING_IN_OLD_DRIVERS = ("cuCtxCreate_v4", "cuEventElapsedTime_v2")


@remember
def cuda_include() -> Path:
    """The folder that holds cuda.h: nvcc's own, that of a toolkit, or that of an NVIDIA wheel.

    Raises  BuildError where there is none.
    """
    candidates: list[Path] = []
    compiler = nvcc.find()
    if compiler is not None:
        candidates += _folders_of(compiler)
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


def _folders_of(compiler: nvcc.Nvcc) -> list[Path]:
    """What nvcc passes to its compiler, asked of nvcc itself: it may be a script that calls another one."""
    dry = subprocess.run(
        [compiler.path, "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    said = re.findall(r'-I"?([^"\s]+)', dry.stderr)
    top = re.findall(r"^#\$ TOP=(.*)$", dry.stderr, re.MULTILINE)
    beside = [Path(folder.strip()) / "include" for folder in top]
    beside.append(Path(compiler.path).resolve().parent.parent / "include")
    return [Path(folder) for folder in said] + beside


def ptx(name: str, architecture: str = "sm_80") -> str:
    """The PTX that nvcc makes of kernels/NAME.cu, with the source lines; kept in the cache folder."""
    return _compiled(name, ["-lineinfo", "-ptx", f"-arch={architecture}"]).decode()


def fat_binary(name: str) -> bytes:
    """A fat binary with PTX for two architectures, beside a cubin that is of no use to the simulator."""
    targets = [("compute_75", "compute_75"), ("compute_80", "sm_80"), ("compute_80", "compute_80")]
    return _compiled(name, ["-fatbin", "--no-compress", *(f"-gencode=arch={a},code={c}" for a, c in targets)])


def _compiled(name: str, arguments: list[str]) -> bytes:
    compiler = nvcc.find()
    assert compiler is not None, nvcc.REMEDY
    source = KERNELS / f"{name}.cu"
    digest = hashlib.sha256(source.read_bytes() + repr((arguments, compiler.version)).encode())
    made = cache.folder("simgpu") / f"{name}-{digest.hexdigest()[:16]}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            fresh = Path(scratch) / made.name
            done = subprocess.run(
                [compiler.path, "-std=c++17", *arguments, source.name, "-o", str(fresh)],
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
    """The folder with libcuda.so.1, libcublas.so.13 and libcufft.so.12, below `into`.

    `is_old_driver`: one without the functions that CUDA 13 brought.
    Raises  BuildError where there is no compiler or no cuda.h.
    """
    compiler = sim_build.find_compiler()
    include = cuda_include()
    simulator = sim_build.build(cache.folder("sim"))
    folder = Path(into) / f"simgpu-{_key(compiler, include, simulator)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            made = Path(scratch) / "made"
            (made / "old").mkdir(parents=True)
            shutil.copy(simulator, made)
            objects = _compile(compiler, include, Path(scratch))
            _link_cuda(compiler, objects, made, made, hidden=())
            _link_cuda(compiler, objects, made, made / "old", hidden=MISSING_IN_OLD_DRIVERS)
            for name in LIBRARIES:
                _link_library(name, compiler, objects, made)
            try:
                os.rename(made, folder)
            except OSError:  # another process was faster
                assert folder.exists()
    return folder / "old" if is_old_driver else folder


def _key(compiler: list[str], include: Path, simulator: Path) -> str:
    names = [library_names(library) for library in LIBRARIES]
    digest = hashlib.sha256(repr((compiler, simulator.parent.name, names)).encode())
    for path in [*sorted(DRIVER.iterdir()), Path(__file__), include / "cuda.h"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: list[str], include: Path, scratch: Path) -> list[Path]:
    (scratch / "cuda_stubs.c").write_text(stubs(cuda_names(compiler, include), 801))  # not supported
    for name, (_, unsupported) in LIBRARIES.items():
        (scratch / f"{name}_stubs.c").write_text(stubs(library_names(name), unsupported))

    def compile_one(source: Path) -> Path:
        is_stub = source.suffix == ".c"
        flags = ["-x", "c", "-w", "-fPIC"] if is_stub else [*FLAGS, "-I", str(sim_build.SOURCES)]
        target = scratch / f"{source.stem}.o"
        sim_build.run(
            [*compiler, *flags, "-I", str(include), "-c", str(source), "-o", str(target)],
            f"the stand-in driver's {source.name}",
        )
        return target

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(
            pool.map(compile_one, [*sorted(DRIVER.glob("*.cpp")), *sorted(scratch.glob("*_stubs.c"))])
        )


def _link_cuda(
    compiler: list[str], objects: list[Path], libraries: Path, into: Path, hidden: Sequence[str]
) -> None:
    listed = into / "hidden.map"
    listed.write_text("{ local: " + " ".join(f"{name};" for name in [*hidden, "nothing_more"]) + " };\n")
    command = [*compiler, "-shared", "-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={listed}"]
    command += ["-Wl,-rpath,$ORIGIN:$ORIGIN/..", "-o", str(into / "libcuda.so.1")]
    command += [str(o) for o in objects if not o.stem.startswith(tuple(LIBRARIES))]
    sim_build.run([*command, f"-L{libraries}", "-lminicnnsim", "-ldl", "-lpthread"], "the stand-in libcuda")


def _link_library(name: str, compiler: list[str], objects: list[Path], folder: Path) -> None:
    file = f"lib{name}.so.{LIBRARIES[name][0]}"
    command = [*compiler, "-shared", f"-Wl,-soname,{file}", "-Wl,-rpath,$ORIGIN", "-o", str(folder / file)]
    command += [str(o) for o in objects if o.stem.startswith(name)]
    sim_build.run([*command, f"-L{folder}", "-l:libcuda.so.1"], f"the stand-in lib{name}")


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


def library_names(name: str) -> list[str]:
    """What scikit-cuda looks up in a library while it is imported."""
    found = importlib.util.find_spec("skcuda")
    if found is None or not found.submodule_search_locations:
        return []
    source = Path(found.submodule_search_locations[0]) / f"{name}.py"
    return sorted(set(re.findall(rf"_lib{name}\.({name}\w+)", source.read_text())))


def stubs(names: list[str], status: int) -> str:
    """Functions that say who was called and fail; what is simulated takes their place."""
    lines = ["#include <stdio.h>", "#define STUB(name) __attribute__((weak)) int name(void) { \\"]
    lines += [f'  fprintf(stderr, "simgpu: %s is not simulated\\n", #name); return {status}; }}']
    return "\n".join([*lines, *(f"STUB({name})" for name in sorted(set(names)))]) + "\n"


if __name__ == "__main__":
    print(build(cache.folder("simgpu")))
