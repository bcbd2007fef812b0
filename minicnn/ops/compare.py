"""Equal, Greater, Less, GreaterOrEqual, LessOrEqual, And, Or, Xor, Not, Where: what is true, what follows.

Shapes    a, b -> y of the shape they broadcast to, bool; condition, a, b -> y; any rank
Source    ONNX operators of these names: numpy's broadcasting; before opset 7 attributes `broadcast`, `axis`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError
from minicnn.geometry import broadcast_shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.ops.broadcast import Broadcast
from minicnn.ops.broadcast import _Arithmetic as _OfTwo
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import broadcast_walks, row_steps


class Compare(Broadcast):
    """y is bool, whatever a and b are."""

    name = "compare"
    dtypes = tuple(elements.CODES)

    def applies(self, problem: Problem) -> str:
        return ""


class _Comparison(_OfTwo):
    FILE = "compare.cu"

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        (y,) = super().infer(a, b)
        return (replace(y, dtype="bool"),)

    def variants(self) -> tuple[Variant, ...]:
        return (Compare(),)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(self.combine(a, b.reshape(self.aligned(b.shape, a.ndim))))

    def bound(self, a: np.ndarray, b: np.ndarray) -> float:
        return 0.0


@operator("Equal", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Equal(_Comparison):
    ENTRY = "equal"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a == b


@operator("Greater", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Greater(_Comparison):
    ENTRY = "greater"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a > b


@operator("Less", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Less(_Comparison):
    ENTRY = "less"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a < b


@operator("GreaterOrEqual", opsets=(12, None))
@dataclass(frozen=True, kw_only=True)
class GreaterOrEqual(_Comparison):
    ENTRY = "greater_or_equal"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a >= b


@operator("LessOrEqual", opsets=(12, None))
@dataclass(frozen=True, kw_only=True)
class LessOrEqual(_Comparison):
    ENTRY = "less_or_equal"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a <= b


@operator("Xor", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Xor(_Comparison):
    ENTRY = "unequal"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a != b


@operator("And", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class And(_Comparison):
    ENTRY = "both"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a & b


@operator("Or", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Or(_Comparison):
    ENTRY = "either"

    def combine(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a | b


class Flip(Variant):
    name = "flip"
    dtypes = ("bool",)
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        kernel = Kernel(file="unary.cu", entry="unary_not", defines=elements.defines("bool"))
        return row_steps(kernel, problem.x, problem.y)


@operator("Not", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Not:
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Flip(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return ~x

    def bound(self, x: np.ndarray) -> float:
        return 0.0


class Choice(Variant):
    """One of two elements is read, the other perhaps."""

    name = "choice"
    dtypes = tuple(elements.CODES)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        condition, a, b = problem.inputs
        assert condition is not None and a is not None and b is not None
        y = problem.y
        kernel = Kernel(file="where.cu", entry="where", defines=elements.defines(y.dtype))
        launches: list[Launch] = []
        for walk in broadcast_walks(y, condition, a, b):
            starts = zip((condition, a, b, y), walk.starts, strict=True)
            c_view, a_view, b_view, y_view = (o.view(start) for o, start in starts)
            launches += launch(
                kernel, **walk.geometry(), c=c_view, a=a_view, b=b_view, y=y_view,
                is_dense=all(strides[0] == 1 for strides in walk.strides),
                **walk.arguments("c", "a", "b", "y"),
            )  # fmt: skip
        return tuple(launches)


@operator("Where", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Where:
    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        shape = broadcast_shape(condition.extents, a.extents, b.extents)
        if shape is None:
            raise ShapeError("the shapes don't broadcast", found=f"{condition}, {a} and {b}")
        if a.dtype != b.dtype:
            raise ShapeError("two types to choose from", expected=a, found=b)
        return (TensorType(dtype=a.dtype, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Choice(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def reference(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition, a, b)

    def bound(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        return 0.0


_IMAGE = (2, 5, 3, 7)
_INTEGERS = {0: (-2, 2), 1: (-2, 2)}


def _case(
    op: object, *shapes: tuple[int, ...], dtype: str = "float32", constants: tuple[int, ...] = ()
) -> Case:
    ranges = {} if dtype.startswith("float") else _INTEGERS
    return Case(operator=op, shapes=shapes, dtype=dtype, constants=constants, ranges=ranges)


def _choice(*shapes: tuple[int, ...], dtype: str = "float32", constants: tuple[int, ...] = ()) -> Case:
    return Case(operator=Where(), shapes=shapes, dtype=dtype, dtypes={0: "bool"}, constants=constants)


CASES = {
    "equal, 8-byte integers": _case(Equal(), _IMAGE, (5, 1, 1), dtype="int64"),
    "equal, 4-byte integers with a constant": _case(Equal(), (7, 9), (), dtype="int32", constants=(1,)),
    "equal, bools": _case(Equal(), (7, 9), (9,), dtype="bool"),
    "equal, floats": _case(Equal(), _IMAGE, _IMAGE),
    "greater": _case(Greater(), (2, 33, 9, 11), (2, 33, 9, 11)),
    "greater, five axes that don't merge": _case(Greater(), (2, 1, 3, 1, 2), (1, 3, 1, 4, 1)),
    "greater than a constant": _case(Greater(), _IMAGE, (), constants=(1,)),
    "greater, a constant first": _case(Greater(), (), _IMAGE, constants=(0,)),
    "greater, 8-byte integers": _case(Greater(), _IMAGE, _IMAGE, dtype="int64"),
    "greater, float16": _case(Greater(), _IMAGE, (7,), dtype="float16"),
    "less": _case(Less(), _IMAGE, (2, 1, 3, 7)),
    "less, both stretched": _case(Less(), (5, 1), (1, 7)),
    "less, one channel": _case(Less(), (2, 1, 3, 7), (2, 1, 3, 7)),
    "less, 8-byte integers": _case(Less(), (7,), (7,), dtype="int64"),
    "less, nothing": _case(Less(), (0, 3), (3,)),
    "less, at an axis": _case(Less(opset=6, broadcast=1, axis=1), _IMAGE, (5, 3)),
    "greater or equal": _case(GreaterOrEqual(), _IMAGE, _IMAGE),
    "greater or equal, 4-byte integers": _case(GreaterOrEqual(), (7, 9), (9,), dtype="int32"),
    "less or equal": _case(LessOrEqual(), _IMAGE, _IMAGE),
    "less or equal, 8-byte integers": _case(LessOrEqual(), (7, 9), (9,), dtype="int64"),
    "and": _case(And(), _IMAGE, _IMAGE, dtype="bool"),
    "and, stretched": _case(And(), (5, 1), (7,), dtype="bool"),
    "or": _case(Or(), _IMAGE, _IMAGE, dtype="bool"),
    "or, stretched": _case(Or(), (5, 1), (7,), dtype="bool"),
    "xor": _case(Xor(), _IMAGE, (5, 1, 1), dtype="bool"),
    "not": _case(Not(), _IMAGE, dtype="bool"),
    "not, a scalar": _case(Not(), (), dtype="bool"),
    "where, a mask for all channels": _choice((2, 1, 3, 7), _IMAGE, _IMAGE),
    "where, equal shapes": _choice((2, 33, 9, 11), (2, 33, 9, 11), (2, 33, 9, 11)),
    "where, a constant instead": _choice(_IMAGE, (), _IMAGE, constants=(1,)),
    "where, all stretched": _choice((5, 1, 1), (3, 1), (7,)),
    "where, one channel": _choice((2, 1, 3, 7), (2, 1, 3, 7), (2, 1, 3, 7)),
    "where, five axes that don't merge": _choice((2, 1, 3, 1, 2), (1, 3, 1, 4, 1), (2, 3, 1, 1, 2)),
    "where, 8-byte integers": _choice((7, 9), (7, 9), (9,), dtype="int64"),
    "where, float16": _choice((7, 9), (7, 9), (9,), dtype="float16"),
    "where, bools": _choice((7, 9), (7, 9), (9,), dtype="bool"),
    "where, scalars": _choice((), (), ()),
}
