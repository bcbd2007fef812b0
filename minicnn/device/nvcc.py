"""NVIDIA's compiler: where it is, PTX out of a kernel file, and PTX that an older driver takes.

PTX, not machine code: the driver turns it into the GPU's own instructions when it loads it (and keeps the
result), so one text serves GPUs newer than the compiler, and the simulated GPU reads what the real one would.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from minicnn import cache, kernels
from minicnn.device import prebuilt
from minicnn.device.prebuilt import Defines
from minicnn.errors import BuildError

WHEELS = "nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime"  # together a working nvcc
REMEDY = f"install the CUDA toolkit so that nvcc is on PATH, or `pip install {WHEELS}`"
PREBUILT_ARCHITECTURES = (75, 80)  # the oldest that CUDA 13 knows; that of asynchronous copies and TF32

# Toolkit -> the PTX version that its driver is the first to read. Source: PTX ISA, release notes.
_PTX_OF_CUDA = {
    (11, 0): (7, 0), (11, 1): (7, 1), (11, 2): (7, 2), (11, 3): (7, 3), (11, 4): (7, 4), (11, 5): (7, 5),
    (11, 6): (7, 6), (11, 7): (7, 7), (11, 8): (7, 8), (12, 0): (8, 0), (12, 1): (8, 1), (12, 2): (8, 2),
    (12, 3): (8, 3), (12, 4): (8, 4), (12, 5): (8, 5), (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7),
    (12, 9): (8, 8), (13, 0): (9, 0),
}  # fmt: skip
# Target -> the first PTX version that knows it: text for that target can't be lowered any further.
_PTX_OF_TARGET = {
    75: (6, 5), 80: (7, 0), 86: (7, 1), 87: (7, 4), 89: (7, 8), 90: (7, 8),
    100: (8, 6), 101: (8, 6), 103: (8, 8), 120: (8, 7), 121: (8, 8),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Nvcc:
    """A compiler that was found. `architectures` are the compute capabilities it emits PTX for, times ten."""

    path: str
    version: str
    architectures: tuple[int, ...]

    def architecture_for(self, compute_capability: int) -> int:
        """The newest architecture it knows that a GPU of this compute capability runs."""
        older = [a for a in self.architectures if a <= compute_capability]
        if not older:
            raise BuildError(
                "this nvcc no longer compiles for a GPU as old as this one",
                found=f"compute capability {compute_capability / 10}",
                accepted=f"{min(self.architectures) / 10} or newer with nvcc {self.version}",
                remedy="an older CUDA toolkit",
            )
        return max(older)


def candidates() -> list[str]:
    """Where an nvcc may lie: PATH, the toolkit's usual folder, NVIDIA's wheels."""
    on_path = shutil.which("nvcc")
    beside = [Path("/usr/local/cuda/bin/nvcc")]
    for folder in sys.path:
        beside += sorted(Path(folder or ".").glob("nvidia/*/bin/nvcc"), reverse=True)
    return ([on_path] if on_path else []) + [str(p) for p in beside if p.is_file()]


@lru_cache(maxsize=1)
def find() -> Nvcc | None:
    """The first nvcc that answers, or None."""
    for path in candidates():
        try:
            version = re.search(r"release (\d+\.\d+)", _output(path, "--version"))
            listed = re.findall(r"compute_(\d+)\b", _output(path, "--list-gpu-arch"))
        except (OSError, subprocess.SubprocessError):
            continue
        if version and listed:
            return Nvcc(path=path, version=version[1], architectures=tuple(int(a) for a in listed))
    return None


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def ptx(file: str, defines: Defines, compute_capability: int) -> bytes:
    """PTX of a kernel file for a GPU of that compute capability (90: 9.0): prebuilt, cached or compiled now.

    Raises    BuildError: it doesn't compile, or there is neither a prebuilt form nor a compiler
    """
    for architecture in sorted((a for a in PREBUILT_ARCHITECTURES if a <= compute_capability), reverse=True):
        prebuilt = prebuilt_folder() / _prebuilt_name(file, defines, architecture)
        if prebuilt.is_file():
            return prebuilt.read_bytes()
    compiler = find()
    if compiler is None:
        raise BuildError("no nvcc to build this kernel with, and no prebuilt form", file=file, remedy=REMEDY)
    architecture = compiler.architecture_for(compute_capability)
    name = f"{Path(file).stem}-{key(file, defines, f'{architecture} {compiler.version}')}.ptx"
    path = cache.folder("cuda") / name
    if path.is_file():
        return path.read_bytes()
    text = compile_ptx(compiler, file, defines, architecture, line_info=True)
    cache.write_atomically(path, text)
    return text


def compile_ptx(compiler: Nvcc, file: str, defines: Defines, architecture: int, *, line_info: bool) -> bytes:
    """Runs nvcc. `line_info` ties PTX to source lines, and so writes local paths into it."""
    source = kernels.source_path(file)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernel.ptx"
        command = [compiler.path, "--ptx", f"-arch=compute_{architecture}", "-std=c++17"]
        command += [f"-I{kernels.source_folder()}"]
        command += [f"-D{name}={value}" for name, value in defines]
        command += ["-lineinfo"] if line_info else []
        command += ["-o", str(output), str(source)]
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise BuildError("nvcc doesn't start", file=compiler.path, found=error, remedy=REMEDY) from None
        if result.returncode:
            raise _failure(file, result.stderr + result.stdout)
        return output.read_bytes()


def _failure(file: str, said: str) -> BuildError:
    if "host compiler" in said or "cudafe" in said and "not found" in said:
        return BuildError("nvcc found no C++ compiler", file=file, found=_end(said), remedy="install g++")
    return BuildError("the kernel doesn't compile", file=file, found=_end(said))


def _end(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if "error" in line] or said.strip().splitlines()
    return "\n".join(lines[:8])


def prebuilt_folder() -> Path:
    """Where installing the package leaves PTX."""
    return Path(__file__).parent.parent / "prebuilt"


def prebuild(into: Path) -> list[Path]:
    """PTX of the kernels that prebuilt.py lists, under the names that `ptx` looks for.

    Each for the oldest of PREBUILT_ARCHITECTURES that has what it needs.

    Raises    BuildError: no compiler, or a kernel that doesn't compile
    """
    compiler = find()
    if compiler is None:
        raise BuildError("no nvcc to prebuild kernels with", remedy=REMEDY)
    into.mkdir(parents=True, exist_ok=True)
    architectures = [a for a in PREBUILT_ARCHITECTURES if a in compiler.architectures]
    jobs = [
        (file, defines, architecture)
        for file, defines in prebuilt.modules("cuda")
        for architecture in [a for a in architectures if a >= prebuilt.oldest(file)][:1]
    ]

    def write(job: tuple[str, Defines, int]) -> Path:
        path = into / _prebuilt_name(*job)
        path.write_bytes(compile_ptx(compiler, *job, line_info=False))
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # nvcc is a process of its own
        return list(pool.map(write, jobs))


def _prebuilt_name(file: str, defines: Defines, architecture: int) -> str:
    return f"{Path(file).stem}-{key(file, defines, str(architecture))}.ptx"


def key(file: str, defines: Defines, rest: str) -> str:
    """Names what is made of a kernel file with these macros; `rest` is what else it depends on."""
    parts = f"{kernels.source_hash(file)} {prebuilt.text_of(defines)} {rest}"
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def for_driver(text: bytes, driver_version: tuple[int, int]) -> bytes:
    """PTX with its version number lowered to what a driver of that CUDA version reads.

    nvcc writes its own PTX version whether or not the text needs it, and an older driver refuses the number
    alone; a newer one gets the text unchanged. The number can't go below the first that knows the target.
    """
    head = re.search(rb"^\.version (\d+)\.(\d+)\s+\.target sm_(\d+)", text, re.MULTILINE)
    if head is None:
        return text
    written, target = (int(head[1]), int(head[2])), int(head[3])
    read = max((ptx for cuda, ptx in _PTX_OF_CUDA.items() if cuda <= driver_version), default=(0, 0))
    if driver_version > max(_PTX_OF_CUDA):
        read = max(read, written)
    lowered = min(written, max(read, _PTX_OF_TARGET.get(target, written)))
    start = head.start()
    return text[:start] + text[start:].replace(b".version %d.%d" % written, b".version %d.%d" % lowered, 1)
