"""Add, Sub, Mul, Div, Pow, Mod, PRelu, Sum, Mean, Max, Min: operands combined element by element, stretched.

Shapes    a, b -> y of the shape they broadcast to (PRelu: of a's), any rank; float32, float16 (computed in
          float32), int32, int64
Source    ONNX operators of these names: numpy's broadcasting; before opset 7 attributes `broadcast`, `axis`
Not here  Pow of integers or to a tensor of another type
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from minicnn import elements
from minicnn.elements import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.geometry import Shape, broadcast_shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Packing, Problem, Variant, operator
from minicnn.step import Kernel, Launch, Operand
from minicnn.strided import broadcast_walks, copy_steps

NUMBERS = (*elements.FLOATS, *elements.INTEGERS)
# Strides of a, b and y along a row: the loop of cuda/broadcast.cuh that is made for them; any others: 3.
FORMS: Mapping[tuple[int, ...], int] = {(1, 1, 1): 0, (1, 0, 1): 1, (0, 1, 1): 2}
SMALLEST = 2.0**-149  # of float32: what an underflow may lose


def combine_steps(
    entry: str, a: Operand, b: Operand, y: Operand, file: str = "broadcast.cu"
) -> tuple[Launch, ...]:
    """y = a op b, all strides honoured; y may be a where it has a's shape and layout."""
    kernel = Kernel(file=file, entry=entry, defines=elements.defines(a.dtype))
    launches: list[Launch] = []
    for walk in broadcast_walks(y, a, b):
        a_view, b_view, y_view = (o.view(start) for o, start in zip((a, b, y), walk.starts, strict=True))
        form = FORMS.get(tuple(strides[0] for strides in walk.strides), 3)
        arguments = walk.arguments("a", "b", "y")
        launches += launch(kernel, **walk.geometry(), a=a_view, b=b_view, y=y_view, form=form, **arguments)
    return tuple(launches)


def covers_output(problem: Problem) -> bool:
    """Whether the first input has y's shape: the thread that reads an element of it then writes y's."""
    return problem.x.shape == problem.y.shape


class Broadcast(Variant):
    """The general rung: either operand stretched."""

    name = "broadcast"
    dtypes: tuple[str, ...] | None = NUMBERS

    def applies(self, problem: Problem) -> str:
        return "nothing is stretched but the second input" if covers_output(problem) else ""

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        a, b = problem.inputs
        assert a is not None and b is not None
        b = replace(b, shape=problem.operator.aligned(b.shape, len(a.shape)))
        return combine_steps(problem.operator.entry(), a, b, problem.y, problem.operator.FILE)


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
    """What operators of two share. `broadcast` and `axis` (where b's first axis falls) are opset 6's."""

    FILE: ClassVar[str] = "broadcast.cu"
    ENTRY: ClassVar[str]

    broadcast: int = 0
    axis: int | None = None
    opset: int = 14

    def entry(self) -> str:
        return self.ENTRY

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
        exact = self.combine(_exact(a), _exact(b))
        return elements.stored(np.asarray(exact), a.dtype)

    def bound(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | float:
        """One rounding; of float16 another when it is stored."""
        if a.dtype.kind != "f":
            return 0.0
        y = np.abs(self.reference(a, b))
        return UNIT_ROUNDOFF * y + SMALLEST + elements.storage_bound(y, a.dtype)


def _exact(array: np.ndarray) -> np.ndarray:
    """Integers wrap around as kernels' do; all else is computed in float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


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
        """Integers towards zero; by 0, where ONNX says nothing, 0."""
        if a.dtype.kind == "f":
            return a / b
        divisor = np.where(b == 0, 1, b)
        towards_zero = np.abs(a) // np.abs(divisor) * np.sign(a) * np.sign(divisor)
        return np.where(b == 0, 0, towards_zero).astype(a.dtype)


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


class FloatBroadcast(Broadcast):
    dtypes = elements.FLOATS


class FloatElementwise(Elementwise):
    """The second operand may be a constant of another type."""

    dtypes = None

    def applies(self, problem: Problem) -> str:
        a, b = problem.x, problem.inputs[1]
        assert b is not None
        if a.dtype not in elements.FLOATS:
            return f"of {a.dtype}, not of {' or '.join(elements.FLOATS)}"
        if b.dtype != a.dtype and not b.is_constant:
            return f"an exponent of {b.dtype} that is no constant"
        return super().applies(problem)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        a, b = problem.x, problem.inputs[1]
        assert b is not None
        if b.dtype == a.dtype:
            return {}
        return {1: Packing(name=a.dtype, shape=b.shape, dtype=a.dtype, function=lambda v: v.astype(a.dtype))}


class Square(FloatElementwise):
    """To the power of 2: a product."""

    name = "square"
    may_overwrite = False  # x is both operands: the second one's row start is read by every thread

    def applies(self, problem: Problem) -> str:
        b = problem.inputs[1]
        is_two = b is not None and b.value is not None and bool(np.all(b.value == 2))
        return super().applies(problem) if is_two else "the exponent isn't the constant 2"

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        return combine_steps("multiply", problem.x, problem.x, problem.y)


@operator("Pow", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Pow(_Arithmetic):
    ENTRY = "power"

    def variants(self) -> tuple[Variant, ...]:
        return (FloatBroadcast(), FloatElementwise(), Square())

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.power(a, b)

    def bound(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """4 ulp, as CUDA's manual says of powf."""
        y = np.abs(self.reference(a, b))
        return 8 * UNIT_ROUNDOFF * y + SMALLEST + elements.storage_bound(y, a.dtype)


@operator("Mod", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class Mod(_Arithmetic):
    """What a division leaves, with the sign of b or (`fmod`) of a."""

    fmod: int = 0

    def entry(self) -> str:
        return "truncated_modulo" if self.fmod else "modulo"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of floats the rest is exact. By 0, where ONNX says nothing, integers leave 0."""
        function = np.fmod if self.fmod else np.mod
        if a.dtype.kind == "f":
            return function(a, b)
        return np.where(b == 0, 0, function(a, np.where(b == 0, 1, b)))

    def bound(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | float:
        """With b's sign, b is added to the rest: one rounding."""
        return 0.0 if a.dtype.kind != "f" else 2 * UNIT_ROUNDOFF * np.abs(b.astype(np.float64))


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
    dtypes: tuple[str, ...] | None = NUMBERS

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        y = problem.y
        first, *others = [o for o in problem.inputs if o is not None]
        if not others:
            return copy_steps(first, y)
        launches: list[Launch] = []
        for total, operand in zip((first, *(y for _ in others[1:])), others, strict=True):
            launches += combine_steps(problem.operator.entry(), total, operand, y)
        return tuple(launches)


class DividedChain(Chain):
    """The sum, divided by how many there were."""

    name = "divided_chain"
    dtypes = ("float32",)  # a float16 sum would round, and overflow, before it is divided

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        return (np.array([len(problem.inputs)], problem.y.dtype),)

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        return (*super().steps(problem), *combine_steps("divide", problem.y, problem.tables[0], problem.y))


@dataclass(frozen=True, kw_only=True)
class _Many:
    """What operators of any number of operands share."""

    FILE: ClassVar[str] = "broadcast.cu"
    ENTRY: ClassVar[str]

    def entry(self) -> str:
        return self.ENTRY

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

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        total = _exact(arrays[0])
        for array in arrays[1:]:
            total = self.combine(total, _exact(array))
        return elements.stored(np.asarray(total), arrays[0].dtype)

    def bound(self, *arrays: np.ndarray) -> np.ndarray | float:
        return 0.0


@operator("Max", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Max(_Many):
    ENTRY = "maximum"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a, b)


@operator("Min", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Min(_Many):
    ENTRY = "minimum"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.minimum(a, b)


class _Total(_Many):
    ENTRY = "add"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a + b


@operator("Sum", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Sum(_Total):
    def bound(self, *arrays: np.ndarray) -> np.ndarray | float:
        """A rounding for every addition; of float16 it is that of what is stored in between."""
        size = np.asarray(sum(np.abs(_exact(array)) for array in arrays))
        stored = elements.storage_bound(size, arrays[0].dtype)
        return (len(arrays) - 1) * (UNIT_ROUNDOFF * size + stored) + SMALLEST


@operator("Mean", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Mean(_Total):
    def variants(self) -> tuple[Variant, ...]:
        return (DividedChain(),)

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return super().reference(*arrays) / len(arrays)

    def bound(self, *arrays: np.ndarray) -> np.ndarray | float:
        size = np.asarray(sum(np.abs(_exact(array)) for array in arrays))
        return UNIT_ROUNDOFF * size + SMALLEST


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
    "add, nothing": Case(operator=Add(), shapes=((2, 0, 3), (3,))),
    "add, 8-byte integers": Case(operator=Add(), shapes=(_IMAGE, (5, 1, 1)), dtype="int64"),
    "add, 4-byte integers": Case(operator=Add(), shapes=(_IMAGE, _IMAGE), dtype="int32"),
    "add, float16": Case(operator=Add(), shapes=(_IMAGE, (5, 1, 1)), dtype="float16"),
    "sub, 8-byte integers, the constant first": Case(
        operator=Sub(), shapes=((), (7,)), constants=(0,), dtype="int64"
    ),
    "mul, 8-byte integers": Case(operator=Mul(), shapes=((2, 3), (3,)), dtype="int64"),
    "mul, float16 with a scalar": Case(operator=Mul(), shapes=(_IMAGE, ()), dtype="float16"),
    "div, 8-byte integers towards zero": Case(operator=Div(), shapes=((5, 9), (9,)), dtype="int64"),
    "div, 4-byte integers with channel padding": Case(
        operator=Div(), shapes=(_IMAGE, _IMAGE), dtype="int32", ranges={1: (1, 5)}
    ),
    "div, float16": Case(operator=Div(), shapes=(_IMAGE, _IMAGE), dtype="float16", ranges={1: (0.1, 2.0)}),
    "pow, squared": Case(operator=Pow(), shapes=(_IMAGE, ()), constants=(1,), ranges={1: (2.0, 2.0)}),
    "pow, squared by an integer": Case(
        operator=Pow(), shapes=(_IMAGE, (1,)), constants=(1,), ranges={1: (2, 2)}, dtypes={1: "int64"}
    ),
    "pow, cubed": Case(operator=Pow(), shapes=(_IMAGE, ()), constants=(1,), ranges={1: (3.0, 3.0)}),
    "pow, of a negative number to a fraction: NaN": Case(operator=Pow(), shapes=((7,), (7,))),
    "pow, of a tensor": Case(operator=Pow(), shapes=(_IMAGE, _IMAGE), ranges={0: (0.1, 9.0), 1: (-3.0, 3.0)}),
    "pow, of a constant": Case(operator=Pow(), shapes=((), (7, 9)), constants=(0,), ranges={0: (2.0, 2.0)}),
    "pow, float16": Case(operator=Pow(), shapes=((7,), (7,)), dtype="float16", ranges={0: (0.1, 9.0)}),
    "mod, 8-byte integers": Case(operator=Mod(), shapes=((5, 9), (9,)), dtype="int64", ranges={1: (1, 5)}),
    "mod, negative divisors": Case(
        operator=Mod(), shapes=((5, 9), (9,)), dtype="int32", ranges={1: (-5, -1)}
    ),
    "mod, the dividend's sign": Case(
        operator=Mod(fmod=1), shapes=((5, 9), (9,)), dtype="int64", ranges={1: (-5, -1)}
    ),
    "mod, floats": Case(
        operator=Mod(fmod=1), shapes=(_IMAGE, _IMAGE), ranges={0: (-9.0, 9.0), 1: (0.1, 2.0)}
    ),
    "mod, of a constant": Case(
        operator=Mod(), shapes=((1,), (7,)), constants=(0,), dtype="int64", ranges={1: (1, 5)}
    ),
    "max of one": Case(operator=Max(), shapes=(_IMAGE,)),
    "max of two": Case(operator=Max(), shapes=(_IMAGE, _IMAGE)),
    "max, with a constant scalar": Case(operator=Max(), shapes=(_IMAGE, ()), constants=(1,)),
    "max of three, one stretched": Case(operator=Max(), shapes=((5, 1, 1), _IMAGE, _IMAGE)),
    "max, 8-byte integers": Case(operator=Max(), shapes=((7,), (7,)), dtype="int64"),
    "max, float16": Case(operator=Max(), shapes=(_IMAGE, _IMAGE), dtype="float16"),
    "min of two, one stretched": Case(operator=Min(), shapes=(_IMAGE, (7,))),
    "min of three": Case(operator=Min(), shapes=(_IMAGE, _IMAGE, _IMAGE)),
    "min, 4-byte integers": Case(operator=Min(), shapes=((7,), ()), dtype="int32"),
    "mean of one": Case(operator=Mean(), shapes=(_IMAGE,)),
    "mean of three, one stretched": Case(operator=Mean(), shapes=(_IMAGE, (7,), _IMAGE)),
    "sum, float16": Case(operator=Sum(), shapes=(_IMAGE, _IMAGE, (7,)), dtype="float16"),
    "sum of one": Case(operator=Sum(), shapes=(_IMAGE,)),
    "sum of two": Case(operator=Sum(), shapes=(_IMAGE, _IMAGE)),
    "sum of four, one stretched": Case(operator=Sum(), shapes=((1, 5, 1, 1), _IMAGE, _IMAGE, (7,))),
}  # fmt: skip
