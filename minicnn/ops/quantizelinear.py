"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: real numbers as 8-bit integers, and back.

Shapes    x, scale () or (1) or (extent of axis), zero point like scale -> y of x's shape
          DynamicQuantizeLinear: x -> y, scale (), zero point ()
Source    ONNX operators of these names
Not here  blocks along an axis, 16-bit, 4-bit and 8-bit floating-point types: left to the fallback
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn import elements
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.ops.cast import TYPES
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Operand, Step
from minicnn.strided import walked_shape, walks

BYTES = ("uint8", "int8")
_THREADS = 1024  # of a search for the extremes; as in the .cu file


@dataclass(frozen=True, kw_only=True)
class _Linear:
    """What both directions share. `saturate` and `precision` are about 8-bit floats and float16."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    saturate: int = 1
    precision: int = 0

    def __post_init__(self) -> None:
        if self.output_dtype and self.output_dtype not in TYPES:
            raise ValueError(f"output_dtype {self.output_dtype}, none of {', '.join(TYPES.values())}")

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=2 * math.prod(problem.y.shape))

    def along(self, shape: tuple[int, ...], scale: tuple[int, ...]) -> int | None:
        """The axis that has a scale for each of its entries; None where one scale does for all."""
        if self.block_size or len(scale) > 1:
            raise UnsupportedError("scales for blocks of an axis", found=scale, accepted="a scalar, one axis")
        if math.prod(scale) == 1:
            return None
        axis = self.axis + len(shape) * (self.axis < 0)
        if not 0 <= axis < len(shape) or scale != (shape[axis],):
            raise ShapeError(
                f"a scale for each entry of axis {self.axis}", expected=shape, found=scale, tensor="scale"
            )
        return axis

    def check(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> None:
        """Raises    ShapeError, UnsupportedError (blocks)"""
        self.along(x.extents, scale.extents)
        if zero is not None and math.prod(zero.extents) != math.prod(scale.extents):
            raise ShapeError(
                "as many zero points as scales", expected=scale.extents, found=zero.extents, tensor="zero"
            )

    def spread(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Scales or zero points in a shape that broadcasts to x."""
        axis = self.along(x.shape, values.shape)
        if axis is None:
            return values.reshape(())
        return values.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


class Direct(Variant):
    name = "direct"
    dtypes = ("float32", *BYTES, "int32")

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any", "NCHW"), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        scale, zero = problem.inputs[1], problem.input(2)
        assert scale is not None
        axis = problem.operator.along(problem.x.shape, scale.shape)
        quantises = problem.y.dtype in BYTES
        return _steps(problem.x, scale, zero, problem.y, axis=axis, quantises=quantises)


def _steps(
    x: Operand, scale: Operand, zero: Operand | None, y: Operand, *, axis: int | None, quantises: bool
) -> tuple[Step, ...]:
    integers = y.dtype if quantises else x.dtype
    limits: dict[str, Any] = {}
    if quantises:
        known = np.iinfo(integers)
        limits = {"low": float(known.min), "high": float(known.max)}
    entry = "quantizelinear" if quantises else "dequantizelinear"
    kernel = Kernel(file="quantizelinear.cu", entry=entry, defines=elements.defines(integers))
    extents = walked_shape(y, x) if axis is None else y.shape  # there is no scale for channel padding
    along = tuple(int(i == axis) for i in range(len(y.shape)))
    steps: list[Step] = []
    for walk in walks(extents, x.strides, along, y.strides):
        x_first, s_first, y_first = walk.starts
        steps += launch(
            kernel, **walk.geometry(), x=x.view(x_first), scale=scale.view(s_first),
            zero=None if zero is None else zero.view(s_first), y=y.view(y_first),
            **walk.arguments("x", "s", "y"), **limits,
        )  # fmt: skip
    return tuple(steps)


@operator("QuantizeLinear", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class QuantizeLinear(_Linear):
    def infer(
        self, x: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        self.check(x, scale, zero)
        dtype = zero.dtype if zero is not None else TYPES[self.output_dtype or 2]
        if dtype not in BYTES or x.dtype != "float32":
            found = f"y is {dtype}, not uint8 or int8; x is {x.dtype}, not float32"
            raise UnsupportedError("other types", found=found)
        return (replace(x, dtype=dtype),)

    def reference(self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
        """The quotient is rounded to float32 first, as a kernel's and onnxruntime's are."""
        dtype = zero.dtype if zero is not None else np.dtype(TYPES[self.output_dtype or 2])
        quotient = np.rint(x.astype(np.float32) / self.spread(x, scale))
        moved = quotient.astype(np.float64) + (0 if zero is None else self.spread(x, zero).astype(np.float64))
        return saturated(moved, dtype)

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


@operator("DequantizeLinear", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class DequantizeLinear(_Linear):
    def infer(
        self, x: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        self.check(x, scale, zero)
        if x.dtype not in (*BYTES, "int32") or scale.dtype != "float32" or self.output_dtype not in (0, 1):
            found = f"x is {x.dtype}, not uint8, int8 or int32; scale is {scale.dtype}, not float32"
            raise UnsupportedError("other types", found=found)
        return (replace(x, dtype="float32"),)

    def reference(self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
        moved = x.astype(np.int64) - (0 if zero is None else self.spread(x, zero).astype(np.int64))
        return moved * self.spread(x, scale).astype(np.float64)

    def bound(self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None) -> np.ndarray:
        """Two roundings: of an integer of 32 bits, and of the product."""
        magnitude = np.abs(self.reference(x, scale, zero))
        return 2 * elements.UNIT_ROUNDOFF * (1 + 2.0**-20) * magnitude + 2.0**-149


def saturated(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Whole numbers in an integer type, those beyond it at its ends; NaN becomes the least."""
    limits = np.iinfo(dtype)
    above = np.where(values > limits.min, values, limits.min)
    return np.where(above < limits.max, above, limits.max).astype(dtype)


@operator("DynamicQuantizeLinear", opsets=(11, None))
@dataclass(frozen=True, kw_only=True)
class DynamicQuantizeLinear:
    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (
            replace(x, dtype="uint8"),
            TensorType(dtype="float32", shape=()),
            TensorType(dtype="uint8", shape=()),
        )

    def variants(self) -> tuple[Variant, ...]:
        return (Extremes(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=4 * math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        if np.isnan(x).any():
            return np.zeros(x.shape, np.uint8), np.asarray(np.nan), np.asarray(0)
        least, greatest = np.float32(min(x.min(initial=0), 0)), np.float32(max(x.max(initial=0), 0))
        scale = np.float32((greatest - least) / np.float32(255))
        ratio = np.rint(-least / scale) if scale > 0 else np.float32(0)
        zero = saturated(np.asarray(ratio, np.float64), np.dtype(np.uint8))
        y = saturated(np.rint(x / scale).astype(np.float64) + float(zero), np.dtype(np.uint8))
        return y, np.asarray(scale), zero

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


class Extremes(Variant):
    """The least and greatest value first, by a fixed number of threads; then as with a given scale."""

    name = "extremes"
    dtypes = ("float32", "uint8")

    def workspace_bytes(self, problem: Problem) -> int:
        return 8 * _THREADS

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, (y, scale, zero), parts = problem.x, problem.outputs, problem.workspace
        macros = (("THREADS", _THREADS),)
        search = Kernel(file="quantizelinear.cu", entry="dynamic_extremes", defines=macros)
        finish = Kernel(file="quantizelinear.cu", entry="dynamic_scale", defines=macros)
        count = math.prod(x.shape)
        return (
            *launch(search, grid=(_THREADS // 128, 1, 1), block=(128, 1, 1), x=x, parts=parts, count=count),
            *launch(finish, grid=(1, 1, 1), block=(32, 1, 1), parts=parts, scale=scale, zero=zero),
            *_steps(x, scale, zero, y, axis=None, quantises=True),
        )


_IMAGE = (2, 5, 3, 7)
_SCALES = {1: (0.01, 0.02)}


def _quantise(shape: tuple[int, ...], scales: tuple[int, ...], dtype: str | None, axis: int = 1) -> Case:
    given = (shape, scales) if dtype is None else (shape, scales, scales)
    ranges = {0: (-3.0, 3.0), 2: (0, 9), **_SCALES}
    return Case(
        operator=QuantizeLinear(axis=axis), shapes=given, dtypes={2: dtype or "uint8"}, ranges=ranges
    )


def _dequantise(
    shape: tuple[int, ...], scales: tuple[int, ...], dtype: str, axis: int = 1, high: int = 120
) -> Case:
    return Case(
        operator=DequantizeLinear(axis=axis), shapes=(shape, scales, scales), dtypes={0: dtype, 2: dtype},
        ranges={0: (0 if dtype == "uint8" else -high, high), 2: (0, 0 if dtype == "int32" else 9), **_SCALES},
    )  # fmt: skip


CASES = {
    "unsigned, beyond both ends": _quantise(_IMAGE, (), "uint8"),
    "signed, beyond both ends": _quantise(_IMAGE, (), "int8"),
    "no zero point": _quantise((3, 17), (), None),
    "a scale for each channel": _quantise(_IMAGE, (5,), "int8"),
    "a scale for each row": _quantise(_IMAGE, (3,), "uint8", axis=2),
    "a scale for each image": _quantise(_IMAGE, (2,), "uint8", axis=-4),
    "a scale for each column": _quantise((3, 5, 4, 7), (7,), "int8", axis=3),
    "one scale in a list, rank 1": _quantise((33,), (1,), "uint8"),
    "from unsigned": _dequantise(_IMAGE, (), "uint8", high=255),
    "from signed": _dequantise((3, 17), (), "int8"),
    "from signed, a scale for each channel": _dequantise(_IMAGE, (5,), "int8"),
    "from signed, a scale for each column": _dequantise(_IMAGE, (7,), "int8", axis=-1),
    "from signed, a scale for each row": _dequantise((3, 5, 4, 7), (4,), "int8", axis=2),
    "from unsigned, a scale for each image": _dequantise((3, 5, 4, 7), (3,), "uint8", axis=0),
    "from 4 bytes": _dequantise((40,), (), "int32", axis=0, high=2**31 - 1),
    "dynamic": Case(operator=DynamicQuantizeLinear(), shapes=((2, 33, 9, 11),)),
    "dynamic, none below 0": Case(operator=DynamicQuantizeLinear(), shapes=((40,),), ranges={0: (0.5, 2.0)}),
}
