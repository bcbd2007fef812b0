"""Builds PyCUDA where `pip install pycuda` can't: no CUDA toolkit, or one without curand.h. About 3 minutes.

    python tools/build_pycuda.py --install           build (or take the one built before) and install it
    python tools/build_pycuda.py --into DIR          leave the wheel in DIR
    python tools/build_pycuda.py --cuda 12.4         against the headers of that CUDA

PyCUDA is on PyPI as source alone. It needs cuda.h and cudaProfiler.h, which NVIDIA's wheels have, and a
libcuda to link with, which only the driver brings: a stand-in that defines every function of the two headers
does (an empty one wouldn't: the linker drops a library that nothing is taken from). The built module then
loads the real one.

A build asks for the functions of its headers' CUDA, so headers newer than the driver give a module that can't
be loaded. Without --cuda they are the driver's own version, or CUDA 13.0 where there is no driver.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYCUDA = "2026.1"
NEWEST_CUDA = "13.0"  # what this PyCUDA was tried with
LINKS_TO_HOME = (".config", ".pip", ".netrc", ".cache")  # what pip may have of the user's there


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--into", type=Path, metavar="DIR", help="where the wheel goes (default: the cache)")
    parser.add_argument("--cuda", metavar="X.Y", help="headers of that CUDA (default: the driver's, or 13.0)")
    parser.add_argument("--install", action="store_true", help="install the wheel into this Python")
    options = parser.parse_args()
    try:
        cuda = options.cuda or suitable_cuda(driver_cuda())
        wheel = wheel_for(cuda, options.into or cache_folder() / f"cuda-{cuda}")
        if options.install:
            pip("install", "--force-reinstall", "--no-deps", str(wheel))
            pip("install", str(wheel))  # what it depends on
    except Refusal as refusal:
        print(f"build_pycuda: {refusal}", file=sys.stderr)
        return 2
    print(wheel)
    return 0


class Refusal(Exception):
    """Why it can't be built here, with the remedy."""


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA version of this machine's driver, None where there is none."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def suitable_cuda(driver: tuple[int, int] | None) -> str:
    newest = tuple(int(part) for part in NEWEST_CUDA.split("."))
    return NEWEST_CUDA if driver is None or driver >= newest else f"{driver[0]}.{driver[1]}"


def cache_folder() -> Path:
    """Beside minicnn's other cached files; said again here: this runs where minicnn can't be imported."""
    if chosen := os.environ.get("MINICNN_CACHE"):
        return Path(chosen) / "wheels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "minicnn" / "wheels"


def wheel_for(cuda: str, folder: Path) -> Path:
    """The wheel for this Python and that CUDA in `folder`, built if it isn't there."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"pycuda-{PYCUDA}-{tag}-{tag}-*.whl"
    found = sorted(folder.glob(pattern))
    if found:
        return found[0]
    compiler = next((name for name in ("gcc", "cc") if shutil.which(name)), None)
    if compiler is None or not shutil.which("g++"):
        raise Refusal("a C++ compiler is needed and none is installed (Debian, Ubuntu: apt install g++)")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        headers = fetch_headers(cuda, work)
        make_libcuda(compiler, headers, work / "lib")
        build(headers, work)
        built = sorted((work / "wheels").glob(pattern))
        if not built:
            raise Refusal("the build left no wheel")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(shutil.copy2(built[0], folder))


def fetch_headers(cuda: str, work: Path) -> list[Path]:
    """The folders of cuda.h and cudaProfiler.h, out of NVIDIA's wheels."""
    major = cuda.partition(".")[0]
    suffix = "" if int(major) >= 13 else f"-cu{major}"
    names = [f"nvidia-{part}{suffix}=={cuda}.*" for part in ("cuda-runtime", "cuda-profiler-api")]
    target = work / "headers"
    pip("install", "--no-deps", "--target", str(target), *names)
    folders = [path.parent for header in ("cuda.h", "cudaProfiler.h") for path in target.rglob(header)]
    if len(folders) < 2:
        raise Refusal(f"NVIDIA's wheels for CUDA {cuda} have no cuda.h or no cudaProfiler.h")
    return list(dict.fromkeys(folders))


def make_libcuda(compiler: str, headers: list[Path], folder: Path) -> None:
    """A library to link with: every function of the headers, each of which says that there is no device."""
    include = [f"-I{path}" for path in headers]
    command = [compiler, "-E", "-P", "-x", "c", *include, "-"]
    includes = "#include <cuda.h>\n#include <cudaProfiler.h>\n"
    text = subprocess.run(command, input=includes, capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text)))
    if "cuInit" not in names:
        raise Refusal("cuda.h declares no functions as they are known; another CUDA version?")
    folder.mkdir()
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in names)  # CUDA_ERROR_NO_DEVICE
    command = [compiler, "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    subprocess.run([*command, "-o", str(folder / "libcuda.so")], input=source, text=True, check=True)


def build(headers: list[Path], work: Path) -> None:
    """Runs pip in a home folder whose settings file is PyCUDA's, and pip's own the user's."""
    home = work / "home"
    home.mkdir()
    for name in LINKS_TO_HOME:
        if (Path.home() / name).exists():
            (home / name).symlink_to(Path.home() / name)
    settings = {
        "CUDA_INC_DIR": [str(path) for path in headers],
        "CUDADRV_LIB_DIR": [str(work / "lib")],
        "CUDA_ENABLE_CURAND": False,
        "LDFLAGS": ["-Wl,--strip-all"],
    }
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (home / ".aksetup-defaults.py").write_text("".join(lines))
    print(f"building PyCUDA {PYCUDA}: about 3 minutes", file=sys.stderr, flush=True)
    # No cache: a wheel that was built against other headers would be taken for this one.
    arguments = ["--no-deps", "--no-cache-dir", "--no-binary", "pycuda", "--wheel-dir", str(work / "wheels")]
    pip("wheel", *arguments, f"pycuda=={PYCUDA}", HOME=str(home))


def pip(*arguments: str, **settings: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    if result.returncode:
        said = (result.stdout + result.stderr).strip().splitlines()
        raise Refusal("\n".join(["pip failed:", *said[-15:]]))


if __name__ == "__main__":
    raise SystemExit(main())
