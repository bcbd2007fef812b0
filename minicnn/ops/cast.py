"""Cast, CastLike: the same numbers in another type.

Shapes    x -> y of the same shape, any rank; float16, float32, float64, bool, int32, int64, int8, uint8
Source    ONNX operators of these names
Not here  text, 8-bit floats, bfloat16 and other integers
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn import elements
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import copy_steps, row_steps

TYPES = {  # of TensorProto.DataType
    1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
}  # fmt: skip


class Convert(Variant):
    name = "convert"
    dtypes = tuple(elements.CODES)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, y = problem.x, problem.y
        if x.dtype == y.dtype:
            return copy_steps(x, y)
        macros = (*elements.defines(x.dtype), *elements.defines(y.dtype, "TO"))
        return row_steps(Kernel(file="cast.cu", entry="cast", defines=macros), x, y)


class _Casting:
    def variants(self) -> tuple[Variant, ...]:
        return (Convert(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


@operator("Cast", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Cast(_Casting):
    """`saturate` and `round_mode` are about 8-bit floats."""

    to: int
    saturate: int = 1
    round_mode: str = "up"

    def __post_init__(self) -> None:
        if self.to not in TYPES:
            raise ValueError(f"to type {self.to}, none of {', '.join(TYPES.values())}")

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (replace(x, dtype=TYPES[self.to]),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.astype(TYPES[self.to])


@operator("CastLike", opsets=(15, None))
@dataclass(frozen=True, kw_only=True)
class CastLike(_Casting):
    """To the second input's type; its numbers aren't read."""

    saturate: int = 1
    round_mode: str = "up"

    def infer(self, x: TensorType, like: TensorType) -> tuple[TensorType, ...]:
        return (replace(x, dtype=like.dtype),)

    def reference(self, x: np.ndarray, like: np.ndarray) -> np.ndarray:
        return x.astype(like.dtype)


_IMAGE = (2, 5, 3, 7)
_CODE = {name: code for code, name in TYPES.items()}


def _case(dtype: str, to: str, low: float = -9, high: float = 9, shape: tuple[int, ...] = _IMAGE) -> Case:
    return Case(operator=Cast(to=_CODE[to]), shapes=(shape,), dtype=dtype, ranges={0: (low, high)})


CASES = {
    "float32 to float16": _case("float32", "float16", shape=(2, 33, 9, 11)),
    "float32 to float16, beyond it": _case("float32", "float16", -9e4, 9e4),
    "float32 to float16, subnormal": _case("float32", "float16", -1e-5, 1e-5),
    "float16 to float32": _case("float16", "float32", shape=(2, 33, 9, 11)),
    "float16 to float32, subnormal": _case("float16", "float32", -1e-5, 1e-5),
    "float32 to 8-byte integers": _case("float32", "int64"),
    "float32 to 4-byte integers": _case("float32", "int32"),
    "float32 to bytes": _case("float32", "uint8", 0, 255),
    "float32 to bool": _case("float32", "bool"),
    "float32 to float64": _case("float32", "float64"),
    "float32 to float32": _case("float32", "float32"),
    "float64 to float32": _case("float64", "float32"),
    "float16 to 8-byte integers": _case("float16", "int64"),
    "8-byte integers to float32": _case("int64", "float32", -(2**40), 2**40),
    "8-byte integers to float16": _case("int64", "float16"),
    "8-byte integers to 4": _case("int64", "int32", -(2**40), 2**40),
    "8-byte integers to bool": _case("int64", "bool", -1, 1),
    "4-byte integers to 8": _case("int32", "int64"),
    "4-byte integers to float32": _case("int32", "float32", -(2**31), 2**31 - 1),
    "bytes to float32": _case("uint8", "float32", 0, 255),
    "signed bytes to float32": _case("int8", "float32", -128, 127),
    "bool to float32": _case("bool", "float32"),
    "bool to 8-byte integers": _case("bool", "int64"),
    "bool to float16": _case("bool", "float16"),
    "rank 2, channels that fill their padding": _case("float32", "int64", shape=(3, 16)),
    "a scalar": _case("int64", "float32", shape=()),
    "like a float16": Case(operator=CastLike(), shapes=(_IMAGE, (1,)), dtypes={1: "float16"}),
    "like a bool": Case(operator=CastLike(), shapes=(_IMAGE, ()), dtypes={1: "bool"}),
}
