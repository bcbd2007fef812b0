"""Compiles the simulator into a shared library, once for each state of its sources, compiler and flags."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minicnn.errors import BuildError

SOURCES = Path(__file__).parent
# Directed rounding is done in the host's rounding modes; contraction would fuse what PTX does not.
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-frounding-math", "-ffp-contract=off")
LIBRARY = "libminicnnsim.so"


def build(into: Path) -> Path:
    """The path of `libminicnnsim.so` in a folder of its own below `into`, compiled where it isn't there yet.

    Raises  BuildError where there is no C++17 compiler, or where it refuses a source.
    """
    compiler = find_compiler()
    flags = [*FLAGS, *machine_flags()]
    folder = Path(into) / f"sim-{key(compiler, flags)}"
    library = folder / LIBRARY
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = link(compiler, compile_all(compiler, flags, Path(scratch)), Path(scratch) / LIBRARY)
            os.replace(made, library)  # another process may have been faster: either library is whole
    return library


def find_compiler() -> list[str]:
    """$CXX, which may carry arguments, or g++, c++, clang++."""
    named = os.environ.get("CXX")
    candidates = [shlex.split(named)] if named else [["g++"], ["c++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    raise BuildError(
        "the simulator needs a C++17 compiler",
        found=f"CXX={named}" if named else "no compiler on PATH",
        accepted="g++ or clang++",
        remedy="install g++, or name the compiler in CXX",
    )


def machine_flags() -> list[str]:
    """On x86-64 with AVX2 and FMA: an fma is an instruction there, else a call into libm."""
    if platform.machine() != "x86_64":
        return []
    try:
        flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    except (OSError, IndexError):
        return []
    return ["-march=x86-64-v3"] if {"avx2", "fma", "f16c", "bmi2", "movbe"} <= set(flags) else []


def key(compiler: list[str], flags: list[str]) -> str:
    """Names everything the library depends on."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest.update(repr((compiler, version, flags)).encode())
    return digest.hexdigest()[:16]


def compile_all(compiler: list[str], flags: list[str], scratch: Path) -> list[Path]:
    """One object per source, as many at a time as there are processors."""

    def compile_one(source: Path) -> Path:
        made = scratch / (source.stem + ".o")
        run([*compiler, *flags, "-c", str(source), "-o", str(made)], f"the simulator's {source.name}")
        return made

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compile_one, sorted(SOURCES.glob("*.cpp"))))


def link(compiler: list[str], objects: list[Path], library: Path) -> Path:
    run([*compiler, "-shared", "-o", str(library), *map(str, objects)], "the simulator")
    return library


def run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        first_error = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise BuildError(f"{what} did not compile", found=first_error, expected="a compiler for C++17")
