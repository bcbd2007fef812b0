"""cuFFT: Fourier transforms on the GPU, through the library that scikit-cuda loads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from minicnn.device.base import Action
from minicnn.device.cuda_libraries import Functions
from minicnn.errors import DeviceError
from minicnn.step import Fft

REMEDY = "install the CUDA toolkit's libcufft, or `pip install nvidia-cufft`"
_R2C, _C2R = 0x2A, 0x2C
_STATUS = {
    1: "invalid plan",
    2: "allocation failed",
    3: "invalid type",
    4: "invalid value",
    5: "internal error",
    6: "execution failed",
    7: "not initialised",
    8: "invalid size",
}

_VOID, _INT = ctypes.c_void_p, ctypes.c_int
_PROTOTYPES: dict[str, list[Any]] = {
    "cufftCreate": [_VOID],
    "cufftDestroy": [_INT],
    "cufftSetAutoAllocation": [_INT, _INT],
    "cufftSetStream": [_INT, _VOID],
    "cufftSetWorkArea": [_INT, _VOID],
    # plan, rank, extents, input's extents, stride and distance, the output's, type, batch, bytes of work area
    "cufftMakePlanMany": [_INT, _INT, _VOID, *(_VOID, _INT, _INT) * 2, _INT, _INT, _VOID],
    "cufftExecR2C": [_INT, _VOID, _VOID],
    "cufftExecC2R": [_INT, _VOID, _VOID],
}


class Cufft:
    """Plans of cuFFT, one for each kind of transform, on one stream.

    alloc     gives device memory for a plan's work area
    Raises    DeviceError: no libcufft, or it refuses
    """

    def __init__(self, *, stream: int, alloc: Callable[[int], int]):
        self._library = Functions("cufft", _PROTOTYPES, _STATUS, REMEDY)
        self._stream = stream
        self._alloc = alloc
        self._plans: dict[tuple[tuple[int, int], int, bool], int] = {}

    def transform(self, step: Fft, *, source: int, target: int) -> Action:
        """The transform, ready to be enqueued again and again: a call for each image, of all its channels."""
        plan = self._plan(step)
        real_bytes = 4 * step.extents[0] * step.extents[1] * step.channels
        spectrum_bytes = 8 * step.extents[0] * (step.extents[1] // 2 + 1) * step.channels
        read, written = (spectrum_bytes, real_bytes) if step.inverse else (real_bytes, spectrum_bytes)
        name = "cufftExecC2R" if step.inverse else "cufftExecR2C"
        images = [
            self._library.prepare(name, plan, source + image * read, target + image * written)
            for image in range(step.batch)
        ]

        def enqueue() -> None:
            for image in images:
                image()

        return enqueue

    def _plan(self, step: Fft) -> int:
        key = (step.extents, step.channels, step.inverse)
        if key not in self._plans:
            handle = _INT()
            self._library.call("cufftCreate", ctypes.byref(handle))
            self._plans[key] = plan = handle.value
            self._library.call("cufftSetAutoAllocation", plan, 0)
            rows, columns = step.extents
            extents = (_INT * 2)(rows, columns)
            real = (extents, step.channels, 1)
            spectrum = ((_INT * 2)(rows, columns // 2 + 1), step.channels, 1)
            sides = (*spectrum, *real) if step.inverse else (*real, *spectrum)
            kind = _C2R if step.inverse else _R2C
            work = ctypes.c_size_t()
            self._library.call(
                "cufftMakePlanMany", plan, 2, extents, *sides, kind, step.channels, ctypes.byref(work)
            )
            self._library.call("cufftSetWorkArea", plan, self._alloc(max(work.value, 1)))
            self._library.call("cufftSetStream", plan, self._stream)
        return self._plans[key]

    def close(self) -> None:
        while self._plans:
            with contextlib.suppress(DeviceError):  # after a fault the context has taken it along
                self._library.call("cufftDestroy", self._plans.popitem()[1])
