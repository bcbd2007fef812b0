"""GridSample: an image looked at where a grid says.

Shapes    x (N, C, H, W), grid (N, P, Q, 2) of (w, h) in -1..1 -> y (N, C, P, Q), float32
Source    ONNX operator GridSample; Jaderberg et al., "Spatial Transformer Networks", 2015. Cubic beyond a
          border as PyTorch and onnxruntime have it: ONNX's evaluator clamps the coordinate instead
Not here  volumes: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import tiling
from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Operand, Step

MODES = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}  # bi-: until opset 19
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}  # both as in cuda/gridsample.cu
TAPS = {0: (0, 1), 1: (0, 2), 2: (-1, 4)}  # first neighbour, counted from the one before, and how many
CUBIC_A = -0.75


def _arguments(problem: Problem) -> dict[str, Any]:
    operator, grid = problem.operator, problem.inputs[1]
    assert isinstance(grid, Operand)
    _, C, H, W = problem.x.shape
    _, _, P, Q = problem.y.shape
    return {
        "x": problem.x, "places": grid, "y": problem.y, "C": C, "H": H, "W": W, "P": P, "Q": Q,
        "mode": MODES[operator.mode], "padding": PADDINGS[operator.padding_mode],
        "align_corners": operator.align_corners,
    }  # fmt: skip


class Direct(Variant):
    """A place of the grid a thread, over NCHW planes."""

    name = "direct"

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        N, _, P, Q = problem.y.shape
        return launch(
            Kernel(file="gridsample.cu", entry="gridsample"),
            **tiling.planes(columns=Q, rows=P, planes=N),
            **_arguments(problem),
        )


class Nhwc(Variant):
    """A vector of channels a thread."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC", "NCHW"), outputs=("NHWC",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        N, _, P, Q = y.shape
        channels = min(x.channels_padded, y.channels_padded)
        return launch(
            Kernel(file="gridsample.cu", entry="gridsample_nhwc"),
            **tiling.vectors(channels=channels, rows=Q, planes=N * P),
            **(_arguments(problem) | {"C": channels}),
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
        )


@operator("GridSample", opsets=(16, None))
@dataclass(frozen=True, kw_only=True)
class GridSample:
    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: int = 0
    opset: int = 20

    def __post_init__(self) -> None:
        if self.mode not in MODES or self.padding_mode not in PADDINGS:
            known = ", ".join((*MODES, *PADDINGS))
            raise ValueError(f"mode {self.mode}, padding_mode {self.padding_mode}, not of {known}")

    def infer(self, x: TensorType, grid: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (volumes)"""
        if len(x.extents) == 5:
            raise UnsupportedError("a grid over a volume", found=x.extents, accepted="x (N, C, H, W)")
        if len(x.extents) != 4 or 0 in x.extents:
            raise ShapeError("not an image", found=x.extents, expected="x (N, C, H, W)")
        if len(grid.extents) != 4 or grid.extents[0] != x.extents[0] or grid.extents[3] != 2:
            raise ShapeError(
                "a grid that doesn't fit", found=grid.extents, expected=f"({x.extents[0]}, P, Q, 2)"
            )
        return (TensorType(dtype=x.dtype, shape=(*x.extents[:2], *grid.extents[1:3])),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=2 * math.prod(problem.y.shape) * TAPS[MODES[self.mode]][1] ** 2)

    def _brought_back(self, at: np.ndarray, extent: int) -> np.ndarray:
        """Coordinates beyond the outermost pixels' edges, except with zeros; float32."""
        low = np.float32(0 if self.align_corners else -0.5)
        high = np.float32(extent - 1) - low
        is_beyond = (at < low) | (at > high)
        if self.padding_mode == "border":
            return np.where(is_beyond, np.clip(at, 0, np.float32(extent - 1)), at)
        if self.padding_mode == "zeros":
            return at
        if high <= low:
            return np.where(is_beyond, np.float32(0), at)
        away = np.where(at < low, low - at, at - high)
        turns = np.floor(away / (high - low))
        rest = away - turns * (high - low)
        is_from_low = (at < low) == (turns % 2 == 0)
        return np.where(is_beyond, np.where(is_from_low, low + rest, high - rest), at).astype(np.float32)

    def _taps(self, at: np.ndarray, extent: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Along one axis: place (-1: none) and weight of every neighbour."""
        at, length = at.astype(np.float32), np.float32(extent)
        half, one = np.float32(0.5), np.float32(1)
        x = (at + one) * half * (length - one) if self.align_corners else ((at + one) * length - one) * half
        mode = MODES[self.mode]
        if mode == 0:
            x = np.rint(x)
        if mode != 2 or self.padding_mode != "border":  # a cubic's 16 pixels are each brought to the border
            x = self._brought_back(x, extent)
        base = np.floor(x)
        part = (x - base).astype(np.float64)
        first, number = TAPS[mode]
        found = []
        for step in range(first, first + number):
            place = self._brought_back(base + np.float32(step), extent)
            if self.padding_mode != "zeros":
                place = np.clip(place, 0, extent - 1)
            is_there = (place >= 0) & (place <= extent - 1)
            weight = (np.ones_like(part), np.abs(1 - step - part), _cubic(np.abs(part - step)))[mode]
            found.append((np.where(is_there, place, -1).astype(np.int64), weight))
        return found

    def _sums(self, x: np.ndarray, grid: np.ndarray, *, of_sizes: bool = False) -> np.ndarray:
        """The definition; of_sizes: sums of |x| * |weight|."""
        N, C, H, W = x.shape
        y = np.zeros((N, C, *grid.shape[1:3]))
        images = np.arange(N)[:, None, None]
        exact = np.abs(x.astype(np.float64)) if of_sizes else x.astype(np.float64)
        for h, h_weight in self._taps(grid[..., 1], H):
            for w, w_weight in self._taps(grid[..., 0], W):
                weight = np.where((h < 0) | (w < 0), 0.0, h_weight * w_weight)
                seen = exact[images, :, h, w] * (np.abs(weight) if of_sizes else weight)[..., None]
                y += np.where(weight[..., None] == 0, 0.0, seen).transpose(0, 3, 1, 2)
        return y

    def reference(self, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
        return self._sums(x, grid)

    def bound(self, x: np.ndarray, grid: np.ndarray) -> np.ndarray | float:
        """Weights round by 16 units at most, sums as everywhere. A coordinate is off by 3 units of its
        size (no grid with places just between two nearest pixels is tested), a cubic's slope is 2 at most."""
        if MODES[self.mode] == 0:
            return 0.0
        extent = max(x.shape[2:]) * (1 + float(np.abs(grid).max(initial=0.0)))
        of_coordinates = 12 * UNIT_ROUNDOFF * extent * float(np.abs(x).max(initial=0.0))
        units = 4 * TAPS[MODES[self.mode]][1] + 16
        return units * UNIT_ROUNDOFF * self._sums(x, grid, of_sizes=True) + of_coordinates


def _cubic(d: np.ndarray) -> np.ndarray:
    near = ((CUBIC_A + 2) * d - (CUBIC_A + 3)) * d * d + 1
    far = ((CUBIC_A * d - 5 * CUBIC_A) * d + 8 * CUBIC_A) * d - 4 * CUBIC_A
    return np.where(d <= 1, near, far)


def _case(
    reach: float = 1.5, x: tuple[int, ...] = (2, 19, 5, 7), P: int = 6, Q: int = 9, **attributes: Any
) -> Case:
    grid = (x[0], P, Q, 2)
    return Case(operator=GridSample(**attributes), shapes=(x, grid), ranges={1: (-reach, reach)})


CASES = {
    "linear, zeros": _case(),
    "linear, zeros, corners": _case(align_corners=1),
    "linear, border": _case(padding_mode="border"),
    "linear, reflection": _case(padding_mode="reflection"),
    "linear, reflection, corners, many times": _case(7.0, padding_mode="reflection", align_corners=1),
    "nearest, zeros": _case(mode="nearest"),
    "nearest, border, corners": _case(mode="nearest", padding_mode="border", align_corners=1),
    "nearest, reflection, many times": _case(7.0, mode="nearest", padding_mode="reflection"),
    "cubic, zeros": _case(mode="cubic"),
    "cubic, border": _case(mode="cubic", padding_mode="border"),
    "cubic, reflection, corners": _case(mode="cubic", padding_mode="reflection", align_corners=1),
    "opset 16: bilinear": _case(mode="bilinear", opset=16),
    "opset 16: bicubic": _case(mode="bicubic", opset=16, align_corners=1),
    "one pixel, border": _case(x=(1, 3, 1, 1), padding_mode="border"),
    "one pixel, reflection, corners": _case(x=(1, 3, 1, 1), padding_mode="reflection", align_corners=1),
    "one channel": _case(x=(1, 1, 8, 6)),
    "many channels": _case(x=(1, 1100, 3, 2)),
    "more pixels than a block": _case(x=(1, 3, 4, 5), P=2, Q=70),
    "far away": _case(1e9, padding_mode="border"),
}
