"""Fourier transforms on the CPU: numpy's, for the devices whose memory numpy can see."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minicnn.step import Fft

AXES = (1, 2)


def transform(
    step: Fft, array: Callable[[int, tuple[int, ...], str], np.ndarray], source: int, target: int
) -> None:
    """Does a transform. `array(pointer, shape, dtype)` shows memory at a pointer."""
    spectrum_pointer, real_pointer = (source, target) if step.inverse else (target, source)
    spectrum = array(spectrum_pointer, step.spectrum_shape, "complex64")
    real = array(real_pointer, step.real_shape, "float32")
    if step.inverse:
        real[...] = np.fft.irfft2(spectrum, s=step.extents, axes=AXES, norm="forward")
    else:
        spectrum[...] = np.fft.rfft2(real, axes=AXES)
