"""Pad: a frame of one value around a tensor; negative pads cut off.

Shapes    x (E0, E1, ...) -> y (before0 + E0 + after0, ...), at most four axes that don't merge, float32
Source    ONNX operator Pad
Not here  modes reflect, edge, wrap
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import AXES, grid_and_block


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """One loop over y: its extent, x's, the pad in front of x, elements from step to step in both."""

    extent: int
    x_extent: int
    before: int
    x_stride: int
    y_stride: int

    @property
    def is_padded(self) -> bool:
        return (self.before, self.x_extent) != (0, self.extent)

    def merged(self, inner: _Axis) -> _Axis | None:
        """This axis and one inside it as one, where x and y step from the one to the next alike."""
        steps = (inner.x_extent * inner.x_stride, inner.extent * inner.y_stride)
        if inner.is_padded or steps != (self.x_stride, self.y_stride):
            return None
        times = inner.extent
        return _Axis(
            extent=self.extent * times, x_extent=self.x_extent * times, before=self.before * times,
            x_stride=inner.x_stride, y_stride=inner.y_stride,
        )  # fmt: skip


class OnePass(Variant):
    """Every element of y written once, from x or the value."""

    name = "one_pass"

    def applies(self, problem: Problem) -> str:
        return f"more than {AXES} axes that don't merge" if len(self._axes(problem)) > AXES else ""

    def orders(self, problem: Problem) -> Orders:
        order = "any" if len(problem.x.shape) <= AXES else "NCHW"
        return Orders(inputs=(order,), outputs=("same",))

    def _axes(self, problem: Problem) -> list[_Axis]:
        """Innermost of y first."""
        x, y = problem.x, problem.y
        frame = problem.operator.frame(len(x.shape))
        extents, x_extents = list(y.shape), list(x.shape)
        if len(frame) > 1 and frame[1] == (0, 0) and x.layout.order == y.layout.order == "NHWC":
            extents[1] = x_extents[1] = min(x.channels_padded, y.channels_padded)
        before = [b for b, _ in frame]
        axes = [
            _Axis(extent=e, x_extent=x_e, before=b, x_stride=x_step, y_stride=y_step)
            for e, x_e, b, x_step, y_step in zip(extents, x_extents, before, x.strides, y.strides, strict=True)
            if e != 1 or (x_e, b) != (1, 0)
        ]
        merged: list[_Axis] = []
        for inner in sorted(axes, key=lambda a: a.y_stride, reverse=True):
            both = merged[-1].merged(inner) if merged else None
            merged = [*merged[:-1], both] if both else [*merged, inner]
        return merged[::-1]

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        axes = self._axes(problem)
        axes += [_Axis(extent=1, x_extent=1, before=0, x_stride=0, y_stride=0)] * (AXES - len(axes))
        columns, rows, *planes = (a.extent for a in axes)
        x, y = problem.x, problem.y
        if 0 in y.shape:
            return ()
        numbered: dict[str, Any] = {}
        for place, axis in enumerate(axes):
            numbered |= {f"X{place}": axis.x_extent, f"p{place}": axis.before}
            numbered |= {f"x{place}": axis.x_stride, f"y{place}": axis.y_stride}
        geometry = grid_and_block(columns, rows, math.prod(planes))
        return launch(
            Kernel(file="pad.cu", entry="pad"), **geometry, x=x, y=y, value=problem.operator.fill(),
            E0=columns, E1=rows, E2=planes[0], **numbered,
        )  # fmt: skip


@operator("Pad", opsets=(2, None), parameters={1: "pads", 2: "value", 3: "axes"})
@dataclass(frozen=True, kw_only=True)
class Pad:
    """pads: the starts of all axes (or of `axes`), then their ends."""

    pads: tuple[int, ...]
    value: float = 0.0
    axes: tuple[int, ...] | None = None
    mode: str = "constant"

    def __post_init__(self) -> None:
        if self.mode != "constant":
            raise ValueError(f"mode {self.mode}, not constant")

    def fill(self) -> float:
        return np.float32(self.value).item()

    def frame(self, rank: int) -> tuple[tuple[int, int], ...]:
        """(before, after) of every axis."""
        axes = tuple(range(rank)) if self.axes is None else self.axes
        if len(self.pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
            found = f"pads {self.pads} for axes {axes}"
            raise ShapeError("pads that don't fit the input's axes", found=found, expected=f"rank {rank}")
        frame = [(0, 0)] * rank
        for axis, before, after in zip(axes, self.pads, self.pads[len(axes) :], strict=False):
            frame[axis] = (before, after)
        return tuple(frame)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        frame = self.frame(len(x.extents))
        shape = tuple(b + extent + a for extent, (b, a) in zip(x.extents, frame, strict=True))
        if any(extent < 0 for extent in shape):
            raise ShapeError("negative pads cut off more than there is", found=f"pads {self.pads} of {x}")
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (OnePass(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        frame = self.frame(x.ndim)
        y = np.full([b + extent + a for extent, (b, a) in zip(x.shape, frame, strict=True)], self.fill())
        target, source = [], []
        for extent, (before, after) in zip(x.shape, frame, strict=True):
            first, last = max(before, 0), extent + before + min(after, 0)
            target.append(slice(first, max(last, first)))
            source.append(slice(first - before, max(last, first) - before))
        y[tuple(target)] = x[tuple(source)]
        return y

    def bound(self, x: np.ndarray) -> float:
        return 0.0


CASES = {
    "uneven": Case(operator=Pad(pads=(0, 0, 1, 2, 0, 0, 3, 0), value=0.5), shapes=((2, 5, 3, 7),)),
    "channels fill their padding": Case(operator=Pad(pads=(0, 0, 1, 1, 0, 0, 1, 1)), shapes=((2, 16, 3, 5),)),
    "channels too": Case(operator=Pad(pads=(0, 2, 0, 1, 1, 1, 2, 0)), shapes=((2, 5, 3, 7),)),
    "negative: cut off": Case(operator=Pad(pads=(0, 0, -1, 2, 0, 0, 0, -3)), shapes=((2, 5, 4, 7),)),
    "cut off and added at once": Case(operator=Pad(pads=(-1, 3), value=9.0), shapes=((7,),)),
    "cut off beyond the other end": Case(operator=Pad(pads=(-3, 5), value=9.0), shapes=((2,),)),
    "nothing to pad": Case(operator=Pad(pads=(0,) * 8), shapes=((2, 5, 3, 7),)),
    "some axes": Case(operator=Pad(pads=(1, 2), axes=(-1,)), shapes=((2, 5, 3, 7),)),
    "rank 5, two axes": Case(operator=Pad(pads=(0, 0, 0, 1, 0, 0, 0, 0, 0, 2)), shapes=((2, 3, 2, 3, 4),)),
}
