"""Add, Sub, Mul, Div, Sum, PRelu: operands combined element by element, each stretched to the common shape.

Shapes    a, b -> y of the shape they broadcast to (PRelu: of a's), any rank, float32
Source    ONNX operators of these names: numpy's broadcasting; before opset 7 attributes `broadcast`, `axis`
Not here  integers: shape arithmetic is folded when the model is loaded
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape, broadcast_shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch, Operand
from minicnn.strided import broadcast_walks, copy_steps

UNIT_ROUNDOFF = 2.0**-24
FORMS = {(1, 1, 1): 0, (1, 0, 1): 1, (0, 1, 1): 2}
SMALLEST = 2.0**-149  # of float32: what an underflow may lose


def combine_steps(entry: str, a: Operand, b: Operand, y: Operand) -> tuple[Launch, ...]:
    """y = a op b, all strides honoured; y may be a where it has a's shape and layout."""
    kernel = Kernel(file="broadcast.cu", entry=entry)
    launches: list[Launch] = []
    for walk in broadcast_walks(y, a, b):
        a_view, b_view, y_view = (o.view(start) for o, start in zip((a, b, y), walk.starts, strict=True))
        arguments = walk.arguments("a", "b", "y")
        form = FORMS.get(tuple(own[0] for own in walk.strides), 3)
        launches += launch(kernel, **walk.geometry(), a=a_view, b=b_view, y=y_view, form=form, stretched=a_view if form == 2 else b_view, **arguments)
    return tuple(launches)


def covers_output(problem: Problem) -> bool:
    """Whether the first input has y's shape: the thread that reads an element of it then writes y's."""
    return problem.x.shape == problem.y.shape


class Broadcast(Variant):
    """The general rung: either operand stretched."""

    name = "broadcast"

    def applies(self, problem: Problem) -> str:
        return "nothing is stretched but the second input" if covers_output(problem) else ""

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        a, b = problem.inputs
        assert a is not None and b is not None
        b = replace(b, shape=problem.operator.aligned(b.shape, len(a.shape)))
        return combine_steps(problem.operator.ENTRY, a, b, problem.y)


class Elementwise(Broadcast):
    """The first operand has y's shape."""

    name = "elementwise"
    may_overwrite = True

    def applies(self, problem: Problem) -> str:
        return "" if covers_output(problem) else "the first input is stretched"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))


@dataclass(frozen=True, kw_only=True)
class _Arithmetic:
    """What Add, Sub, Mul and Div share. `broadcast` and `axis` (where b's first axis falls) are opset 6's."""

    ENTRY: ClassVar[str]  # of broadcast.cu

    broadcast: int = 0
    axis: int | None = None
    opset: int = 14

    def aligned(self, shape: Shape, rank: int) -> Shape:
        """b's shape with the axes behind it that numpy's rule needs."""
        if self.opset >= 7 or self.axis is None:
            return shape
        return shape + (1,) * (rank - self.axis % max(rank, 1) - len(shape))

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        shape = broadcast_shape(a.extents, self.aligned(b.extents, len(a.extents)))
        if shape is None:
            raise ShapeError("the two shapes don't broadcast", found=f"{a} and {b}")
        return (TensorType(dtype=a.dtype, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Broadcast(), Elementwise())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape))

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        b = b.reshape(self.aligned(b.shape, a.ndim))
        return np.asarray(self.combine(a.astype(np.float64), b.astype(np.float64)))

    def bound(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return UNIT_ROUNDOFF * np.abs(self.reference(a, b)) + SMALLEST  # one rounding


@operator("Add", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Add(_Arithmetic):
    ENTRY = "add"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b


@operator("Sub", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Sub(_Arithmetic):
    ENTRY = "subtract"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a - b


@operator("Mul", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Mul(_Arithmetic):
    ENTRY = "multiply"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * b


@operator("Div", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Div(_Arithmetic):
    ENTRY = "divide"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a / b


@operator("PRelu", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class PRelu(_Arithmetic):
    """y = a < 0 ? a * slope : a. Before opset 7 a list of slopes is one a channel."""

    ENTRY = "prelu"

    def aligned(self, shape: Shape, rank: int) -> Shape:
        return shape + (1,) * (rank - 2) if self.opset < 7 and len(shape) == 1 else shape

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        if broadcast_shape(a.extents, self.aligned(b.extents, len(a.extents))) != a.extents:
            raise ShapeError("the slope doesn't broadcast to the input", expected=a, found=b)
        return (a,)

    def variants(self) -> tuple[Variant, ...]:
        return (Elementwise(),)

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(a < 0, a * b, a)


class Pair(Elementwise):
    """Two operands: the same as Add."""

    name = "pair"

    def applies(self, problem: Problem) -> str:
        if len(problem.inputs) != 2:
            return f"{len(problem.inputs)} inputs, not two"
        return super().applies(problem)


class Chain(Variant):
    """The first two into y, then one after the other onto it."""

    name = "chain"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        y = problem.y
        first, *others = [o for o in problem.inputs if o is not None]
        if not others:
            return copy_steps(first, y)
        launches: list[Launch] = []
        for total, operand in zip((first, *(y for _ in others[1:])), others, strict=True):
            launches += combine_steps("add", total, operand, y)
        return tuple(launches)


@operator("Sum", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Sum:
    ENTRY: ClassVar[str] = "add"

    def aligned(self, shape: Shape, rank: int) -> Shape:
        return shape

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        shape = broadcast_shape(*(t.extents for t in types))
        if shape is None:
            raise ShapeError("the shapes don't broadcast", found=", ".join(map(str, types)))
        return (replace(types[0], shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Chain(), Pair())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=(len(problem.inputs) - 1) * math.prod(problem.y.shape))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        total = np.zeros(np.broadcast_shapes(*(a.shape for a in arrays)))
        for array in arrays:
            total = total + array.astype(np.float64)
        return total

    def bound(self, *arrays: np.ndarray) -> np.ndarray:
        return (len(arrays) - 1) * UNIT_ROUNDOFF * self.reference(*map(np.abs, arrays)) + SMALLEST


_IMAGE = (2, 5, 3, 7)
_ADD_AT_AXIS_1 = Add(opset=6, broadcast=1, axis=1)

CASES = {
    "add, equal shapes": Case(operator=Add(), shapes=(_IMAGE, _IMAGE)),
    "add, channels fill their padding": Case(operator=Add(), shapes=((2, 32, 5, 3), (2, 32, 5, 3))),
    "add, a constant a channel": Case(operator=Add(), shapes=((2, 19, 3, 7), (19, 1, 1)), constants=(1,)),
    "add, a constant of y's shape": Case(operator=Add(), shapes=(_IMAGE, (5, 3, 7)), constants=(1,)),
    "add, a constant a column": Case(operator=Add(), shapes=(_IMAGE, (7,)), constants=(1,)),
    "add, a constant scalar": Case(operator=Add(), shapes=(_IMAGE, ()), constants=(1,)),
    "add, both stretched": Case(operator=Add(), shapes=((3, 1, 1), (1, 5))),
    "add, one channel for all": Case(operator=Add(), shapes=((2, 1, 3, 7), _IMAGE)),
    "add, one channel": Case(operator=Add(), shapes=((2, 1, 3, 7), (2, 1, 3, 7))),
    "add, lower rank first": Case(operator=Add(), shapes=((5, 3, 7), _IMAGE)),
    "add, scalars": Case(operator=Add(), shapes=((), ())),
    "add, five axes that don't merge": Case(operator=Add(), shapes=((2, 1, 3, 1, 2), (1, 3, 1, 4, 1))),
    "add, six axes that don't merge": Case(operator=Add(), shapes=((2, 1, 3, 1, 2, 1), (1, 3, 1, 4, 1, 5))),
    "add, at an axis": Case(operator=_ADD_AT_AXIS_1, shapes=(_IMAGE, (5, 3)), constants=(1,)),
    "sub, the constant first": Case(operator=Sub(), shapes=((), _IMAGE), constants=(0,)),
    "sub, equal shapes": Case(operator=Sub(), shapes=(_IMAGE, _IMAGE)),
    "mul, an excitation": Case(operator=Mul(), shapes=((2, 21, 3, 7), (2, 21, 1, 1))),
    "mul, the excitation first": Case(operator=Mul(), shapes=((2, 21, 1, 1), (2, 21, 3, 7))),
    "mul, rank 2 and a row": Case(operator=Mul(), shapes=((3, 10), (10,)), constants=(1,)),
    "div, by a tensor": Case(operator=Div(), shapes=(_IMAGE, _IMAGE), ranges={1: (0.1, 2.0)}),
    "div, of a constant": Case(operator=Div(), shapes=((1,), _IMAGE), constants=(0,), ranges={1: (0.1, 2.0)}),
    "prelu, a slope a channel": Case(operator=PRelu(), shapes=((2, 19, 3, 7), (19, 1, 1)), constants=(1,)),
    "prelu, one slope": Case(operator=PRelu(), shapes=(_IMAGE, (1,)), constants=(1,)),
    "prelu, a slope an element": Case(operator=PRelu(), shapes=(_IMAGE, (5, 3, 7)), constants=(1,)),
    "prelu, rank 2": Case(operator=PRelu(), shapes=((3, 10), (10,)), constants=(1,)),
    "prelu, a list of slopes": Case(operator=PRelu(opset=6), shapes=(_IMAGE, (5,)), constants=(1,)),
    "sum of one": Case(operator=Sum(), shapes=(_IMAGE,)),
    "sum of two": Case(operator=Sum(), shapes=(_IMAGE, _IMAGE)),
    "sum of four, one stretched": Case(operator=Sum(), shapes=((1, 5, 1, 1), _IMAGE, _IMAGE, (7,))),
}  # fmt: skip
