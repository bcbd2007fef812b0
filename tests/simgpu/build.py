"""Builds the stand-in driver libraries, and PTX from the test kernels, once for each state of their sources."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from minicnn import cache
from minicnn.errors import BuildError
from minicnn.sim import build as sim_build

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
SIM = sim_build.SOURCES
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


@lru_cache(maxsize=None)
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
    """What nvcc passes to its compiler, asked of nvcc itself since it may be a script that calls another one."""
    dry = subprocess.run(
        [str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    said = re.findall(r'-I"?([^"\s]+)', dry.stderr)
    top = re.findall(r"^#\$ TOP=(.*)$", dry.stderr, re.MULTILINE)
    beside = [Path(folder.strip()) / "include" for folder in top]
    return [Path(folder) for folder in said] + beside + [nvcc.resolve().parent.parent / "include"]


def ptx(name: str, architecture: str = "sm_80") -> str:
    """The PTX that nvcc makes of kernels/NAME.cu, with the source lines; kept in the cache folder."""
    nvcc = find_nvcc()
    assert nvcc is not None, NO_NVCC
    source = KERNELS / f"{name}.cu"
    arguments = ["-std=c++17", "-lineinfo", "-ptx", f"-arch={architecture}"]
    version = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(source.read_bytes() + repr((arguments, version)).encode()).hexdigest()[:16]
    made = cache.folder("simgpu") / f"{name}-{digest}.ptx"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            fresh = Path(scratch) / made.name
            done = subprocess.run(
                [str(nvcc), *arguments, source.name, "-o", str(fresh)],
                cwd=KERNELS,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise BuildError(f"{source.name} did not compile", found=done.stderr.strip()[:500])
            os.replace(fresh, made)
    return made.read_text()
