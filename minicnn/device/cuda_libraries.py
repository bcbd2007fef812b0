"""NVIDIA's libraries of products and transforms: as scikit-cuda loads them, or found here.

scikit-cuda 0.5.3 is of 2019: it asks for pkg_resources, for np.typeDict and for libraries under names that
today's CUDA no longer has. `_as_in_2019` lends it these while it is imported.

Needs     a current CUDA context as a library is looked for: scikit-cuda makes a handle when it is imported
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.device import nvcc
from minicnn.device.base import Action
from minicnn.errors import DeviceError

_MAJORS = ("13", "12", "11", "10", "1")


class Functions:
    """Functions of one library, each called with what its prototype says; any status but 0 is an error.

    name         "cublas" or "cufft": lib{name}, and the module of scikit-cuda that loads it
    prototypes   function -> its arguments' types
    statuses     what the library's status numbers mean
    Raises       DeviceError: no such library, or one that lacks a function
    """

    def __init__(
        self, name: str, prototypes: Mapping[str, list[Any]], statuses: Mapping[int, str], remedy: str
    ):
        self._name, self._statuses = name, statuses
        library, self.found_by = _find(name, remedy)
        self._functions = {
            function: _declare(library, f"lib{name}", function, arguments, remedy)
            for function, arguments in prototypes.items()
        }

    def call(self, function: str, *arguments: object) -> None:
        self.prepare(function, *arguments)()

    def prepare(self, function: str, *arguments: object) -> Action:
        """A call, to be made again and again."""
        call = self._functions[function]

        def act() -> None:
            if status := call(*arguments):
                found = self._statuses.get(status, f"status {status}")
                raise DeviceError(f"lib{self._name} refused {function}", found=found)

        return act


def _declare(library: ctypes.CDLL, name: str, function: str, arguments: list[Any], remedy: str) -> Any:
    """A function object of our own, so that scikit-cuda's declarations stay as they are."""
    try:
        found = library[function]
    except AttributeError:
        raise DeviceError(f"this {name} lacks a function", expected=function, remedy=remedy) from None
    found.argtypes, found.restype = arguments, ctypes.c_int
    return found


def _find(name: str, remedy: str) -> tuple[ctypes.CDLL, str]:
    """The library, and who found it."""
    # Whatever keeps a package of 2019 from being imported, there is another way.
    with contextlib.suppress(Exception):
        return _scikit_cuda_library(name)
    library = _open(f"lib{name}")
    if library is None:
        raise DeviceError(f"lib{name} isn't there", remedy=remedy)
    return library, "name"


def _open(stem: str) -> ctypes.CDLL | None:
    """A CUDA library under any of the names it goes by: the loader's path, NVIDIA's wheels, the toolkit."""
    names = [f"{stem}.so.{major}" for major in _MAJORS] + [f"{stem}.so"]
    paths = [folder / name for folder in _library_folders() for name in names]
    for name in names + [str(path) for path in paths if path.is_file()]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _library_folders() -> list[Path]:
    folders = [
        lib for path in sys.path for lib in sorted(Path(path or ".").glob("nvidia/*/lib"), reverse=True)
    ]
    folders += [Path(compiler).resolve().parent.parent / "lib64" for compiler in nvcc.candidates()]
    return [*folders, Path("/usr/local/cuda/lib64")]


def _scikit_cuda_library(name: str) -> tuple[ctypes.CDLL, str]:
    with _as_in_2019(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from skcuda import __version__

        module = importlib.import_module(f"skcuda.{name}")
    return getattr(module, f"_lib{name}"), f"scikit-cuda {__version__}"


@contextlib.contextmanager
def _as_in_2019() -> Iterator[None]:
    """What scikit-cuda 0.5.3 expects: pkg_resources, np.typeDict, libraries whose name has no version."""
    original = ctypes.cdll.LoadLibrary

    def load_library(name: str) -> ctypes.CDLL:
        library = _open(name.removesuffix(".so")) if name.endswith(".so") else None
        return library or original(name)

    old_resources = sys.modules.get("pkg_resources")
    resources: Any = types.ModuleType("pkg_resources")
    resources.declare_namespace = lambda _: None
    resources.require = lambda _: [types.SimpleNamespace(version="0.5.3")]
    sys.modules["pkg_resources"] = resources
    scalar_types: Any = np
    has_type_dict = hasattr(np, "typeDict")
    if not has_type_dict:
        scalar_types.typeDict = {code: np.dtype(code).type for code in np.typecodes["All"]}
    loader: Any = ctypes.cdll
    loader.LoadLibrary = load_library
    try:
        yield
    finally:
        del loader.LoadLibrary
        if not has_type_dict:
            del scalar_types.typeDict
        if old_resources is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = old_resources
