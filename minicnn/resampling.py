"""Which inputs an output of Resize is made of, and their weights: one table for each axis.

Everything Resize knows (nearest, linear, cubic, antialiasing, seven ways to say where a pixel lies) comes to
such a table, so that kernels have nothing to decide.

Units     coordinates count pixels of the input, pixel i at i. They are float32, as everybody computes them:
          whether one is just below or just above a half decides which neighbour is the nearest
Source    ONNX operators Resize and Upsample; Keys 1981 (cubic)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a resize.

    length   of the output as the scale says it, which needn't be whole; 0: `out`. The standard aligns corners
             by it, onnxruntime by `out`
    roi      (start, end) as fractions of the input, for tf_crop_and_resize alone
    """

    extent: int
    out: int
    scale: float
    length: float = 0.0
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How outputs are made from neighbours; the fields are Resize's attributes."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True, kw_only=True)
class Taps:
    """index, weight: (out, T); index[o, 0] < 0: output o lies outside and takes the extrapolation value."""

    index: np.ndarray
    weight: np.ndarray
    extent: int  # of the input

    @property
    def is_identity(self) -> bool:
        return self.index.shape == (self.extent, 1) and bool(
            (self.index[:, 0] == np.arange(self.extent)).all()
        )


def coordinates(axis: Axis, way: str) -> np.ndarray:
    """Where each output lies on the input, float32."""
    one = np.float32(1)
    x = np.arange(axis.out, dtype=np.float32)
    scale, extent, out = np.float32(axis.scale), np.float32(axis.extent), np.float32(axis.out)
    half = np.float32(0.5)
    if way == "asymmetric":
        return x / scale
    if way == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if way == "align_corners":
        length = np.float32(axis.length or axis.out)
        return x * (extent - one) / (length - one) if axis.out > 1 else np.zeros_like(x)
    if way == "tf_crop_and_resize":
        start, end = np.float32(axis.roi[0]), np.float32(axis.roi[1])
        if axis.out == 1:
            return np.full_like(x, half * (start + end) * (extent - one))
        return start * (extent - one) + x * (end - start) * (extent - one) / (out - one)
    centred = (x + half) / scale - half
    if way == "pytorch_half_pixel" and axis.out <= 1:
        return np.zeros_like(x)
    if way == "half_pixel_symmetric":
        adjustment = out / (scale * extent)
        return extent / np.float32(2) * (one - adjustment) + centred
    return centred


def taps(axis: Axis, sampling: Sampling) -> Taps:
    """The table of one axis; weights in float64."""
    x = coordinates(axis, sampling.coordinates)
    is_outside = np.zeros(x.shape, bool)
    if sampling.coordinates == "tf_crop_and_resize":
        is_outside = (x < 0) | (x > axis.extent - 1)
    if sampling.mode == "nearest":
        index = _nearest(x, sampling.nearest_mode, axis.scale < 1)[:, None]
        weight = np.ones(index.shape)
    else:
        index, weight = _weighted(x.astype(np.float64), axis, sampling)
    index = np.clip(index, 0, axis.extent - 1).astype(np.int32)
    index[is_outside] = -1
    used = (weight != 0).any(axis=0)  # the neighbour beyond the last has weight 0 wherever x is whole
    return Taps(index=index[:, used], weight=weight[:, used], extent=axis.extent)


def _nearest(x: np.ndarray, way: str, shrinks: bool) -> np.ndarray:
    if way == "simple":  # until opset 10
        way = "ceil" if shrinks else "floor"
    half = np.float32(0.5)
    if way == "round_prefer_floor":
        return np.ceil(x - half).astype(np.int64)
    if way == "round_prefer_ceil":
        return np.floor(x + half).astype(np.int64)
    return (np.floor(x) if way == "floor" else np.ceil(x)).astype(np.int64)


def _weighted(x: np.ndarray, axis: Axis, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of every coordinate and their weights, which sum to one."""
    is_linear = sampling.mode == "linear"
    if is_linear and not sampling.antialias:
        x = np.clip(x, 0, axis.extent - 1)
    stretch = min(axis.scale, 1.0) if sampling.antialias else 1.0
    reach = 1 if is_linear else 2
    first = int(np.floor(-reach / stretch)) + 1  # of the neighbours, counted from the one at or before x
    steps = np.arange(first, 2 - first)
    base = np.floor(x)
    distance = np.abs((steps - (x - base)[:, None]) * stretch)
    weight = np.clip(1 - distance, 0, None) if is_linear else _cubic(distance, sampling.cubic_coeff_a)
    index = base.astype(np.int64)[:, None] + steps
    if sampling.exclude_outside:
        weight = np.where((index >= 0) & (index < axis.extent), weight, 0.0)
    return index, weight / weight.sum(axis=1, keepdims=True)


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
