"""What this machine has for minicnn, and for everything missing one sentence with the remedy.

`look` asks the machine, `diagnose` (a pure function) makes rows of what it saw, `examine` does both. Nothing
is printed here and nothing is built; no GPU context is made.

    ok        it is there and can be used
    missing   it isn't there; the remedy says what it would bring and how to get it
    unusable  it is there and can't be used; the detail says why
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minicnn import cache
from minicnn.device import cuda_import, host_build, nvcc
from minicnn.device.cuda_driver import DriverFacts, Gpu, facts
from minicnn.errors import DeviceError, MinicnnError

OK, MISSING, UNUSABLE = "ok", "missing", "unusable"
REQUIRED = ("numpy", "onnx", "h5py", "rich", "Pillow")
OPTIONAL = ("pycuda", "scikit-cuda")  # PyCUDA has rows of its own where there is a driver


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the answer."""

    section: str  # "devices", "compilers", "libraries", "caches"
    name: str
    state: str
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheFacts:
    path: Path
    nbytes: int = 0
    files: int = 0
    is_usable: bool = True


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that `diagnose` needs to know. What is missing is empty; a failure is the reason and its remedy."""

    processor: str
    threads: int
    level: str = ""
    level_failure: DeviceError | None = None
    compiler: str = ""
    compiler_failure: DeviceError | None = None
    has_prebuilt_host: bool = False
    has_prebuilt_cuda: bool = False
    driver: DriverFacts = DriverFacts()
    pycuda_failure: DeviceError | None = None
    compiler_of_cuda: nvcc.Nvcc | None = None
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version, of those installed
    python: str = ""
    cache: CacheFacts = CacheFacts(path=Path())


def examine() -> tuple[Row, ...]:
    return diagnose(look())


def look() -> Situation:
    """Asks the machine. Never raises: what fails becomes part of the situation."""
    level, level_failure = _try(host_build.cpu_level)
    compiler, compiler_failure = _try(lambda: " ".join(host_build.find_compiler().command))
    driver = facts()
    _, pycuda_failure = _try(lambda: str(cuda_import.load_pycuda()))
    return Situation(
        processor=host_build.cpu_facts().get("model name", platform.machine()),
        threads=len(os.sched_getaffinity(0)),
        level=level,
        level_failure=level_failure,
        compiler=compiler,
        compiler_failure=compiler_failure,
        has_prebuilt_host=any(host_build.prebuilt_folder().glob("*.so")),
        has_prebuilt_cuda=any(nvcc.prebuilt_folder().glob("*.ptx")),
        driver=driver,
        pycuda_failure=pycuda_failure,
        compiler_of_cuda=nvcc.find(),
        packages={name: version for name in (*REQUIRED, *OPTIONAL) if (version := _version(name))},
        python=sys.version.split()[0],
        cache=_cache_facts(cache.wanted_folder()),
    )


def _try(action: Callable[[], str]) -> tuple[str, DeviceError | None]:
    try:
        return action(), None
    except DeviceError as error:
        return "", error


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cache_facts(path: Path) -> CacheFacts:
    sizes = []
    for file in path.rglob("*"):
        try:
            if file.is_file() and not file.is_symlink():
                sizes.append(file.stat().st_size)
        except OSError:
            continue  # deleted under our eyes, or not ours to look at
    existing = next((p for p in (path, *path.parents) if p.exists()), path)
    is_usable = existing.is_dir() and os.access(existing, os.W_OK)
    return CacheFacts(path=path, nbytes=sum(sizes), files=len(sizes), is_usable=is_usable)


def diagnose(situation: Situation) -> tuple[Row, ...]:
    """The rows: devices first, then what they need, then libraries and caches."""
    return (
        _host(situation),
        *_gpus(situation),
        _compiler(situation),
        _nvcc(situation),
        *_libraries(situation),
        _cache(situation.cache),
    )


def _row(section: str, name: str, state: str, error: MinicnnError) -> Row:
    """What an error says, as a row: its sentence and what was found, and its remedy."""
    found = error.facts.get("found")
    detail = error.sentence if found is None else f"{error.sentence} ({found})"
    remedy = str(error.facts.get("remedy", ""))
    return Row(section=section, name=name, state=state, detail=detail, remedy=remedy)


def _host(situation: Situation) -> Row:
    if situation.level_failure:
        return _row("devices", "host", UNUSABLE, situation.level_failure)
    if situation.compiler_failure and not situation.has_prebuilt_host:
        return _row("devices", "host", UNUSABLE, situation.compiler_failure)
    detail = f"{situation.processor}, {situation.level}, {_count(situation.threads, 'thread')}"
    return Row(section="devices", name="host", state=OK, detail=detail)


def _gpus(situation: Situation) -> tuple[Row, ...]:
    driver = situation.driver
    if not driver.is_present:
        detail = "no NVIDIA driver on this machine"
        remedy = cuda_import.REMEDY_DRIVER
        return (Row(section="devices", name="cuda", state=MISSING, detail=detail, remedy=remedy),)
    about = f"driver {driver.release}".strip() + f" (CUDA {_dotted(driver.cuda_version)})"
    if driver.failure:
        detail = f"{about}, doesn't start ({driver.failure})"
        remedy = cuda_import.REMEDY_DRIVER
        return (Row(section="devices", name="cuda", state=UNUSABLE, detail=detail, remedy=remedy),)
    if not driver.gpus:
        detail = f"{about}, sees no GPU"
        remedy = "look at `nvidia-smi`, and at CUDA_VISIBLE_DEVICES if it is set"
        return (Row(section="devices", name="cuda", state=MISSING, detail=detail, remedy=remedy),)
    return tuple(_gpu(situation, gpu, about) for gpu in driver.gpus)


def _gpu(situation: Situation, gpu: Gpu, about: str) -> Row:
    name = f"cuda:{gpu.index}"
    detail = f"{gpu.name}, sm_{gpu.compute_capability}, {_size(gpu.memory_bytes)}, {about}"
    if situation.pycuda_failure:
        row = _row("devices", name, UNUSABLE, situation.pycuda_failure)
        return replace(row, detail=f"{detail}; {row.detail}")
    if situation.has_prebuilt_cuda and gpu.compute_capability >= min(nvcc.PREBUILT_ARCHITECTURES):
        return Row(section="devices", name=name, state=OK, detail=detail)
    if situation.compiler_of_cuda is None:
        detail = f"{detail}; no compiler for its kernels"
        return Row(section="devices", name=name, state=UNUSABLE, detail=detail, remedy=nvcc.REMEDY)
    oldest = min(situation.compiler_of_cuda.architectures)
    if gpu.compute_capability < oldest:
        remedy = "an older CUDA toolkit, or a newer GPU"
        detail = f"{detail}; this nvcc compiles for sm_{oldest} and newer"
        return Row(section="devices", name=name, state=UNUSABLE, detail=detail, remedy=remedy)
    return Row(section="devices", name=name, state=OK, detail=detail)


def _compiler(situation: Situation) -> Row:
    if situation.compiler_failure:
        return _row("compilers", "C++", MISSING, situation.compiler_failure)
    return Row(section="compilers", name="C++", state=OK, detail=situation.compiler)


def _nvcc(situation: Situation) -> Row:
    compiler = situation.compiler_of_cuda
    if compiler is None:
        needed = "" if situation.driver.gpus else ", and needed for a GPU alone"
        detail = f"nvcc is nowhere{needed}"
        return Row(section="compilers", name="nvcc", state=MISSING, detail=detail, remedy=nvcc.REMEDY)
    detail = f"{compiler.version}, {compiler.path}"
    driver = situation.driver.cuda_version
    if driver != (0, 0) and tuple(int(part) for part in compiler.version.split(".")) > driver:
        detail += f"; newer than the driver's CUDA {_dotted(driver)}: PTX is lowered to that"
    return Row(section="compilers", name="nvcc", state=OK, detail=detail)


def _libraries(situation: Situation) -> tuple[Row, ...]:
    rows = [Row(section="libraries", name="Python", state=OK, detail=situation.python)]
    for name in REQUIRED:
        version = situation.packages.get(name, "")
        remedy = "" if version else f"`pip install {name}`"
        state = OK if version else MISSING
        rows.append(Row(section="libraries", name=name, state=state, detail=version, remedy=remedy))
    return (*rows, _pycuda(situation), _scikit_cuda(situation))


def _pycuda(situation: Situation) -> Row:
    version = situation.packages.get("pycuda", "")
    if not version:
        detail, remedy = "needed for a GPU alone", cuda_import.REMEDY_PYCUDA
        return Row(section="libraries", name="pycuda", state=MISSING, detail=detail, remedy=remedy)
    failure = situation.pycuda_failure
    if failure and situation.driver.is_present:
        row = _row("libraries", "pycuda", UNUSABLE, failure)
        return replace(row, detail=f"{version}; {row.detail}")
    return Row(section="libraries", name="pycuda", state=OK, detail=version)


def _scikit_cuda(situation: Situation) -> Row:
    version = situation.packages.get("scikit-cuda", "")
    if version:
        return Row(section="libraries", name="scikit-cuda", state=OK, detail=version)
    detail, remedy = "optional: without it cuBLAS is loaded by its name", "`pip install scikit-cuda`"
    return Row(section="libraries", name="scikit-cuda", state=MISSING, detail=detail, remedy=remedy)


def _cache(found: CacheFacts) -> Row:
    what = _count(found.files, "file")
    where = shlex.quote(str(found.path))
    if not found.is_usable:
        detail = f"{where} can't be written: what is built lasts as long as the process"
        remedy = "set MINICNN_CACHE to a folder of your own"
        return Row(section="caches", name="kernels and tuning", state=UNUSABLE, detail=detail, remedy=remedy)
    detail = f"{where}, {what}, {_size(found.nbytes)}; safe to delete at any time: rm -r {where}"
    return Row(section="caches", name="kernels and tuning", state=OK, detail=detail)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"
