"""Kernels for the CPU: a .cu file, wrapped by host_shim.h, through the C++ compiler into a shared library.

Libraries that were built when the package was installed are used where they fit what is asked for (no
compiler is needed then); else they are compiled and kept in the cache. A library's name carries a hash of
all that went into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from minicnn import cache
from minicnn.device import prebuilt
from minicnn.errors import BuildError, DeviceError
from minicnn.kernels import entries, included_files, source_folder, source_path
from minicnn.step import Kernel

RUNTIME_SOURCES = (
    "host_context.cpp",
    "host_fiber.cpp",
    "host_pool.cpp",
    "host_gemm.cpp",
    "host_commands.cpp",
)
# What the processor must have for each level (x86-64 psABI), best first. Names as in /proc/cpuinfo.
_X86_LEVELS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma bmi1 bmi2 f16c movbe",
    "x86-64-v3": "avx2 fma bmi1 bmi2 f16c movbe",
    "x86-64-v2": "sse4_2 ssse3 popcnt cx16",
}
_ARM_LEVEL = "armv8-a"
# The compiler may contract and reorder signs of zero, but NaN and infinity keep their meaning.
# It must leave loads in front of a kernel's bounds guard there: behind it they are conditional, and no
# vectors.
_FLAGS = (
    "-std=c++17 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-signed-zeros"
    " -fno-strict-aliasing -fno-tree-sink -fvisibility=hidden -fPIC -shared"
).split()
_SANITIZER_FLAGS = {
    "address": "-fsanitize=address -fsanitize-sections=mc_shared",
    "undefined": "-fsanitize=undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined",
    "thread": "-fsanitize=thread",
}
_TRAILER = b"minicnn1"  # after the library, before its SHA-256: loaders ignore what follows an ELF file
_ERROR_LINE = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A checked build: shared memory NaN-filled before each block, divergent barriers refused, one thread.

    `order` is that of a block's threads and a grid's blocks: "forward", "reverse", or "random" from `seed`.
    Results that depend on it point to a missing barrier. `sanitize`: "", or of "address", "undefined" (also
    both, with a comma) or "thread" (only for kernels that compile inside a struct, host_shim.h); the process
    must then have been started with `sanitizer_environment`.
    """

    order: str = "forward"
    seed: int = 1
    sanitize: str = ""

    def __post_init__(self) -> None:
        if self.order not in ("forward", "reverse", "random"):
            raise DeviceError("no such order", found=self.order, accepted="forward, reverse, random")
        if any(name not in _SANITIZER_FLAGS for name in self.sanitizers):
            raise DeviceError("no such sanitizer", found=self.sanitize, accepted=", ".join(_SANITIZER_FLAGS))

    @property
    def sanitizers(self) -> tuple[str, ...]:
        return tuple(filter(None, self.sanitize.split(",")))


@dataclass(frozen=True, kw_only=True)
class Library:
    """One shared library to be: what is compiled, and a hash of all it is made from but the compiler."""

    name: str  # "relu", "runtime"
    level: str
    key: str
    flags: tuple[str, ...]
    sources: tuple[str, ...] = ()  # of the runtime
    wrapper: str = ""  # of a kernel file

    @property
    def prebuilt_name(self) -> str:
        return f"{self.name}-{self.level}-{self.key[:20]}.so"

    def cached_name(self, compiler: Compiler) -> str:
        return f"{self.name}-{self.level}-{_digest(self.key, compiler.identity)[:20]}.so"


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A C++ compiler's command; `identity` changes when it is replaced by another."""

    command: tuple[str, ...]
    identity: str


def prebuilt_folder() -> Path:
    """Where installing the package leaves libraries."""
    return Path(__file__).parent.parent / "prebuilt"


@once
def cpu_level() -> str:
    """The best level that this processor has.

    Raises    DeviceError: an older processor, or one of another kind
    """
    machine = platform.machine()
    if machine == "aarch64":
        return _ARM_LEVEL
    if machine == "x86_64":
        flags = set(cpu_facts().get("flags", "").split())
        for level, needed in _X86_LEVELS.items():
            if flags.issuperset(needed.split()):
                return level
    raise DeviceError(
        "the host device doesn't know this processor",
        found=f"{machine} {cpu_facts().get('model name', '')}".strip(),
        accepted="x86-64 with SSE 4.2 or more, aarch64, under Linux",
    )


def levels() -> tuple[str, ...]:
    """All levels that a build for this kind of machine may have."""
    return (_ARM_LEVEL,) if platform.machine() == "aarch64" else tuple(_X86_LEVELS)


@once
def cpu_facts() -> Mapping[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def find_compiler() -> Compiler:
    """$CXX, g++ or clang++, whichever is there first.

    Raises    BuildError: none is
    """
    for wanted in (os.environ.get("CXX", ""), "g++", "clang++"):
        words = shlex.split(wanted)
        found = shutil.which(words[0]) if words else None
        if found:
            status = os.stat(found)
            return Compiler(
                command=(found, *words[1:]),
                identity=f"{found} {words[1:]} {status.st_size} {status.st_mtime_ns}",
            )
    raise BuildError(
        "the host device needs a C++ compiler to build this kernel, and none is installed",
        accepted="$CXX, g++, clang++",
        remedy="install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)",
    )


def runtime_library(level: str, check: Check | None = None) -> Library:
    """The library that runs blocks, products and command lists (cuda/host_*.cpp)."""
    flags = [*_flags(level, check), "-pthread"]
    if check is not None and "thread" in check.sanitizers:
        # Not instrumented: it tells TSan itself what its barriers order.
        flags = [*(f for f in flags if not f.startswith("-fsanitize")), "-DMINICNN_TSAN"]
    parts = [
        path.read_bytes()
        for path in sorted((*source_folder().glob("host_*"), source_folder() / "kernel.cuh"))
    ]
    sources = tuple(str(source_folder() / name) for name in RUNTIME_SOURCES)
    return Library(
        name="runtime", level=level, key=_digest(*flags, *parts), flags=tuple(flags), sources=sources
    )


def kernel_library(
    file: str, defines: Sequence[tuple[str, int]], level: str, check: Check | None = None
) -> Library:
    """The library of all entries of a .cu file, compiled with these macros."""
    names = entries(file)
    if not names:
        raise BuildError(
            "the kernel file has no entry",
            file=source_path(file),
            expected="KERNEL(name)(parameters) at a line's start",
        )
    flags = (*_flags(level, check), *(f"-D{name}={value}" for name, value in defines))
    exports = "".join(f"MC_EXPORT({name})\n" for name in names)
    wrapper = (
        f'#include "host_shim.h"\n#include "kernel.cuh"\nMC_OPEN\n#include "{file}"\nMC_CLOSE\n{exports}'
    )
    shim = [source_folder() / name for name in ("host_shim.h", "host_runtime.h", "kernel.cuh")]
    parts = [
        part for path in (*shim, *included_files(file)) for part in (path.name.encode(), path.read_bytes())
    ]
    return Library(
        name=Path(file).stem, level=level, key=_digest(*flags, exports, *parts), flags=flags, wrapper=wrapper
    )


def build(libraries: Iterable[Library]) -> dict[Library, Path]:
    """Where each library lies: as installed, as cached, or compiled now (several at once).

    Raises    BuildError: a kernel doesn't compile, or a compiler is needed and missing
    """
    wanted = list(dict.fromkeys(libraries))
    found = {library: prebuilt_folder() / library.prebuilt_name for library in wanted}
    missing = [library for library in wanted if not is_whole(found[library])]
    if not missing:
        return found
    compiler = find_compiler()
    folder = cache.folder("host")
    for library in missing:
        found[library] = folder / library.cached_name(compiler)
    missing = [library for library in missing if not is_whole(found[library])]
    if missing:
        with _lock(folder):
            # Another process may have built them while this one waited.
            missing = [library for library in missing if not is_whole(found[library])]
            _compile_all(compiler, [(library, found[library]) for library in missing])
    return found


def prebuild(into: Path, levels: Sequence[str]) -> list[Path]:
    """Compiles the runtime and the kernels that prebuilt.py lists: called when installing.

    Raises    BuildError: a kernel doesn't compile, or there is no compiler
    """
    into.mkdir(parents=True, exist_ok=True)
    libraries = [
        library
        for level in levels
        for library in (runtime_library(level), *(kernel_library(*m, level) for m in prebuilt.modules(level)))
    ]
    targets = [(library, into / library.prebuilt_name) for library in libraries]
    _compile_all(find_compiler(), targets)
    return [path for _, path in targets]


def sanitizer_environment(check: Check) -> dict[str, str]:
    """Environment variables for a Python process that is to load libraries of this checked build."""
    environment = {}
    runtime = {"address": "libasan.so", "thread": "libtsan.so"}
    for name in check.sanitizers:
        if name in runtime:
            command = [*find_compiler().command, f"-print-file-name={runtime[name]}"]
            environment["LD_PRELOAD"] = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
    if "address" in check.sanitizers:
        environment["ASAN_OPTIONS"] = "detect_leaks=0"  # Python's own
    return environment


def is_whole(path: Path) -> bool:
    """Whether a library is there and ends in the hash of the rest: loading half a file kills the process."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    end = len(content) - len(_TRAILER) - hashlib.sha256().digest_size
    return end > 0 and content[end:] == _trailer(content[:end])


def _trailer(content: bytes) -> bytes:
    return _TRAILER + hashlib.sha256(content).digest()


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _flags(level: str, check: Check | None) -> list[str]:
    flags = [*_FLAGS, f"-march={level}"]
    if check is not None:
        flags += ["-DMINICNN_CHECKED", "-O1", "-g", "-fno-omit-frame-pointer"]
        for name in check.sanitizers:
            flags += _SANITIZER_FLAGS[name].split()
    return flags


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time; where files can't be locked, each for itself: they still appear whole."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def _compile_all(compiler: Compiler, targets: Sequence[tuple[Library, Path]]) -> None:
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for future in [pool.submit(_compile, compiler, library, path) for library, path in targets]:
            future.result()


def _compile(compiler: Compiler, library: Library, path: Path) -> None:
    """Compiles one library; a kernel file that isn't good inside a struct, in thread-local form."""
    command = [*compiler.command, *library.flags, f"-I{source_folder()}"]
    # TSan would see the object behind which the thread-local form keeps threadIdx as shared by all threads.
    has_one_form = bool(library.sources) or "-fsanitize=thread" in library.flags
    forms = [[]] if has_one_form else [[], ["-DMINICNN_THREAD_LOCAL"]]
    source = list(library.sources) or ["-x", "c++", "-"]
    # A sanitizer preloaded for the kernels would make the compiler thirty times slower.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def write(temporary: Path) -> None:
        for form in forms:
            arguments = [*command, *form, "-o", str(temporary), *source]
            result = subprocess.run(
                arguments, input=library.wrapper, capture_output=True, text=True, env=environment
            )
            if result.returncode == 0:
                content = temporary.read_bytes()
                temporary.write_bytes(content + _trailer(content))
                return
        raise _compile_error(library, result.stderr)

    cache.write_atomically(path, write)


def _compile_error(library: Library, output: str) -> BuildError:
    errors = list(_ERROR_LINE.finditer(output))
    of_the_kernel = [e for e in errors if Path(e["file"]).name not in ("host_shim.h", "<stdin>")]
    if not errors:
        return BuildError("the compiler failed", file=library.name, found=output.strip()[-500:])
    first = (of_the_kernel or errors)[0]
    return BuildError(
        "the kernel doesn't compile for the host",
        file=f"{first['file']}:{first['line']}",
        found=first["text"],
    )


def libraries_of(kernels: Iterable[Kernel], level: str, check: Check | None) -> dict[Kernel, Library]:
    """The library that each kernel is in: one per file and set of macros."""
    result: dict[Kernel, Library] = {}
    seen: dict[tuple, Library] = {}
    for kernel in kernels:
        place = (kernel.file, kernel.defines)
        if place not in seen:
            seen[place] = kernel_library(kernel.file, kernel.defines, level, check)
        result[kernel] = seen[place]
    return result
