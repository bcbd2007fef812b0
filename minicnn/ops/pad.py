"""Pad: a frame around a tensor, of one value or of the tensor's own; negative pads cut off.

Shapes    x (E0, E1, ...) -> y (before0 + E0 + after0, ...), any rank, any type
Source    ONNX operator Pad
Not here  reflections and repetitions that are wider than the tensor
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import move_steps, walked_shape, walks


class FillAndCopy(Variant):
    """The value all over y, then x into it. Where pads only cut off, the copy alone."""

    name = "fill_and_copy"
    dtypes = tuple(elements.CODES)

    def applies(self, problem: Problem) -> str:
        mode = problem.operator.mode
        return "" if mode == "constant" else f"mode {mode}, not constant"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y, operator = problem.x, problem.y, problem.operator
        launches: list[Launch] = []
        if any(pad > 0 for pads in operator.frame(len(x.shape)) for pad in pads):
            kernel = Kernel(file="pad.cu", entry="pad", defines=elements.defines(y.dtype))
            value = operator.fill(y.dtype)
            for walk in walks(walked_shape(y), y.strides):
                target = y.view(walk.starts[0])
                launches += launch(kernel, **walk.geometry(), y=target, value=value, **walk.arguments("y"))
        return (*launches, *_copy_inside(problem))


def _copy_inside(problem: Problem) -> tuple[Launch, ...]:
    """x, or what is left of it, to its place in y."""
    x, y = problem.x, problem.y
    frame, inside = problem.operator.frame(len(x.shape)), problem.operator.inside(x.shape)
    extents = [stop - start for start, stop in inside]
    if len(frame) > 1 and frame[1] == (0, 0):
        extents[1] = walked_shape(y, x)[1]
    y_first = sum(start * stride for (start, _), stride in zip(inside, y.strides, strict=True))
    x_places = (start - before for (start, _), (before, _) in zip(inside, frame, strict=True))
    x_first = sum(place * stride for place, stride in zip(x_places, x.strides, strict=True))
    return move_steps(tuple(extents), x, x.strides, y, y.strides, x_first=x_first, y_first=y_first)


class CopyOutwards(Variant):
    """x into y, then axis by axis what lies beside it from what is there: three modes, three strides."""

    name = "copy_outwards"
    dtypes = None

    def applies(self, problem: Problem) -> str:
        operator = problem.operator
        if operator.mode == "constant":
            return "a frame of one value"
        for (first, last), extent in zip(operator.inside(problem.x.shape), problem.y.shape, strict=True):
            widest = max(first, extent - last)
            there = last - first - (operator.mode == "reflect")
            if widest > there and (operator.mode != "edge" or there < 1):
                return f"{widest} to {operator.mode} where {max(there, 0)} are there"
        return ""

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        y, mode = problem.y, problem.operator.mode
        inside = problem.operator.inside(problem.x.shape)
        launches = list(_copy_inside(problem))
        extents = [stop - start for start, stop in inside]
        firsts = [start for start, _ in inside]
        for axis, (start, stop) in enumerate(inside):
            before = {"reflect": 2 * start, "edge": start, "wrap": stop - start}[mode]
            behind = {"reflect": stop - 2, "edge": stop - 1, "wrap": start}[mode]
            step = {"reflect": -1, "edge": 0, "wrap": 1}[mode] * y.strides[axis]
            strides = (*y.strides[:axis], step, *y.strides[axis + 1 :])
            for place, count, source in ((0, start, before), (stop, y.shape[axis] - stop, behind)):
                extents[axis], firsts[axis] = count, place
                y_first = sum(p * stride for p, stride in zip(firsts, y.strides, strict=True))
                x_first = y_first + (source - place) * y.strides[axis]
                launches += move_steps(
                    tuple(extents), y, strides, y, y.strides, x_first=x_first, y_first=y_first
                )
            extents[axis], firsts[axis] = y.shape[axis], 0
        return tuple(launches)


@operator("Pad", opsets=(2, None), parameters={1: "pads", 2: "value", 3: "axes"})
@dataclass(frozen=True, kw_only=True)
class Pad:
    """pads: the starts of all axes (or of `axes`), then their ends."""

    pads: tuple[int, ...]
    value: float = 0.0
    axes: tuple[int, ...] | None = None
    mode: str = "constant"

    def __post_init__(self) -> None:
        if self.mode not in ("constant", "reflect", "edge", "wrap"):
            raise ValueError(f"mode {self.mode}, not constant, reflect, edge or wrap")

    def fill(self, dtype: str = "float32") -> float:
        """The value as y's type has it."""
        return float(np.dtype(dtype).type(self.value))

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

    def inside(self, shape: Shape) -> tuple[tuple[int, int], ...]:
        """Where x comes to lie in y: first place and the one behind the last, of every axis."""
        found = []
        for extent, (before, after) in zip(shape, self.frame(len(shape)), strict=True):
            first = max(before, 0)
            found.append((first, max(extent + before + min(after, 0), first)))
        return tuple(found)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        frame = self.frame(len(x.extents))
        shape = tuple(b + extent + a for extent, (b, a) in zip(x.extents, frame, strict=True))
        if any(extent < 0 for extent in shape):
            raise ShapeError("negative pads cut off more than there is", found=f"pads {self.pads} of {x}")
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (FillAndCopy(), CopyOutwards())

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, x: np.ndarray) -> np.ndarray:
        frame = self.frame(x.ndim)
        if self.mode != "constant":
            ends = zip(x.shape, frame, strict=True)
            left = tuple(slice(max(-b, 0), extent - max(-a, 0)) for extent, (b, a) in ends)
            wide = [(max(b, 0), max(a, 0)) for b, a in frame]
            return np.pad(x[left], wide, self.mode)  # type: ignore[call-overload]
        shape = [b + extent + a for extent, (b, a) in zip(x.shape, frame, strict=True)]
        y = np.full(shape, self.fill(x.dtype.name), x.dtype)
        inside = self.inside(x.shape)
        target = tuple(slice(*places) for places in inside)
        source = tuple(slice(i - b, k - b) for (i, k), (b, _) in zip(inside, frame, strict=True))
        y[target] = x[source]
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
    "a channel of its own": Case(operator=Pad(pads=(1, 0, 1, 0)), shapes=((2, 1),)),
    "rank 5, two axes": Case(operator=Pad(pads=(0, 0, 0, 1, 0, 0, 0, 0, 0, 2)), shapes=((2, 3, 2, 3, 4),)),
    "8-byte integers": Case(operator=Pad(pads=(1, 2), value=7), shapes=((5,),), dtype="int64"),
    "bools": Case(operator=Pad(pads=(1, 0, 0, 2), value=True), shapes=((3, 5),), dtype="bool"),
    "float16": Case(
        operator=Pad(pads=(0, 0, 1, 1, 0, 0, 1, 1), value=0.1), shapes=((2, 5, 3, 7),), dtype="float16"
    ),
    "reflect": Case(operator=Pad(pads=(0, 0, 2, 3, 0, 0, 1, 6), mode="reflect"), shapes=((2, 5, 3, 7),)),
    "reflect, channels fill their padding": Case(
        operator=Pad(pads=(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), shapes=((2, 16, 3, 5),)
    ),
    "reflect, all axes": Case(operator=Pad(pads=(1, 2, 1, 0, 1, 3), mode="reflect"), shapes=((2, 4, 5),)),
    "reflect, one side cut off": Case(operator=Pad(pads=(-2, 3), mode="reflect"), shapes=((7,),)),
    "edge": Case(operator=Pad(pads=(0, 0, 2, 3, 0, 0, 1, 9), mode="edge"), shapes=((2, 5, 3, 7),)),
    "edge, channels too": Case(
        operator=Pad(pads=(0, 3, 0, 1, 1, 2, 0, 0), mode="edge"), shapes=((2, 5, 3, 7),)
    ),
    "edge, some axes": Case(operator=Pad(pads=(1, 2), axes=(-1,), mode="edge"), shapes=((2, 5, 3, 7),)),
    "wrap": Case(operator=Pad(pads=(0, 0, 2, 3, 0, 0, 1, 7), mode="wrap"), shapes=((2, 5, 3, 7),)),
    "wrap, 8-byte integers": Case(operator=Pad(pads=(2, 1), mode="wrap"), shapes=((3,),), dtype="int64"),
}
