"""What the checks under PyCUDA share. Imported only where the stand-in driver is on the loader's path."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as cuda

N = 1000
EXTERNAL, NON_BLOCKING = 1, 1


def module(name: str = "driver") -> Any:
    return cuda.module_from_buffer((Path(sys.argv[2]) / f"{name}.ptx").read_bytes() + b"\0")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(0).standard_normal((2, N)).astype(np.float32)
    return x, y


@contextmanager
def context(device: int = 0) -> Iterator[Any]:
    cuda.init()
    made = cuda.Device(device).retain_primary_context()
    made.push()
    try:
        yield made
    finally:
        cuda.Context.pop()


@contextmanager
def refused(kind: type[Exception], words: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def pinned(values: np.ndarray) -> np.ndarray:
    out = cuda.pagelocked_empty(values.shape, values.dtype)
    out[...] = values
    return out


def to_gpu(values: np.ndarray) -> Any:
    made = cuda.mem_alloc(values.nbytes)
    cuda.memcpy_htod(made, values)
    return made


def from_gpu(memory: object, count: int = N, dtype: type = np.float32) -> np.ndarray:
    out = np.empty(count, dtype)
    cuda.memcpy_dtoh(out, memory)
    return out


def libcuda() -> ctypes.CDLL:
    lib = ctypes.CDLL("libcuda.so.1")
    lib.simgpu_last_fault.restype = ctypes.c_char_p
    lib.simgpu_machine.restype = ctypes.c_void_p
    return lib


class Graph:
    def __init__(self, stream: Any, enqueue: Callable[[], None]):
        self.lib, self.stream = libcuda(), ctypes.c_void_p(stream.handle)
        self.status = self.lib.cuStreamBeginCapture_v2(self.stream, 1)
        graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        enqueue()
        self.status = self.lib.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        if self.status:
            return
        count = ctypes.c_size_t()
        assert self.lib.cuGraphGetNodes(graph, None, ctypes.byref(count)) == 0
        self.nodes = count.value
        assert (
            self.lib.cuGraphInstantiateWithFlags(ctypes.byref(self.executable), graph, ctypes.c_ulonglong(0))
            == 0
        )
        assert self.lib.cuGraphDestroy(graph) == 0

    def launch(self) -> None:
        assert self.lib.cuGraphLaunch(self.executable, self.stream) == 0


def run_named(checks: dict[str, Any]) -> None:
    """Runs the check that the command line names."""
    checks[f"check_{sys.argv[1]}"]()
    print("fine")
    sys.stdout.flush()
