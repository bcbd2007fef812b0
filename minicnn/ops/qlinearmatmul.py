"""QLinearMatMul, MatMulInteger: products of matrices of 8-bit integers, summed exactly in 32 bits.

Shapes    a (..., M, K), b (..., K, N) -> y (..., M, N), vectors as in MatMul
          scales and zero points beside them: of a and y one, of b one or (N)
Source    ONNX operators of these names
Not here  a scale or zero point for each row, or for each matrix of a batch: left to the fallback
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import UnsupportedError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.ops.matmul import MatMul
from minicnn.ops.qlinearconv import macros, requantised, step
from minicnn.ops.quantizelinear import BYTES
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Operand, Step
from minicnn.strided import grid_and_block


class _IntegerProduct:
    def sums(self, a: TensorType, b: TensorType, one: list[TensorType], many: list[TensorType]) -> TensorType:
        """one, many: scales and zero points that are single, and those that may be one a column.

        Raises    ShapeError, UnsupportedError (other types, other scales)
        """
        if a.dtype not in BYTES or b.dtype not in BYTES:
            raise UnsupportedError("integers of other types", found=f"{a.dtype}, {b.dtype}", accepted=BYTES)
        columns = b.extents[-1:] if len(b.extents) > 1 else (1,)
        if any(math.prod(known.extents) != 1 for known in one) or any(
            known.extents not in ((), (1,), columns) for known in many
        ):
            found = [known.extents for known in (*one, *many)]
            raise UnsupportedError("scales of rows or of matrices", found=found, accepted=f"1 or {columns}")
        return replace(MatMul().infer(a, b)[0], dtype="int32")

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        """A problem's inputs by the names of the .cu file; None where the operator has none."""
        raise NotImplementedError

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def cost(self, problem: Problem) -> Cost:
        macs = math.prod(problem.y.shape) * problem.x.shape[-1]
        return Cost(macs=macs, flops=2 * macs)

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


class Direct(Variant):
    name = "direct"
    dtypes = ("float32", "int32", *BYTES)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NCHW",), outputs=("NCHW",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        operands, y = problem.operator.operands(problem), problem.y
        a, b = operands.pop("a"), operands.pop("b")
        assert a is not None and b is not None
        found = MatMul().matrices(replace(problem, inputs=(a, b)))
        kernel = Kernel(file="qlinearmatmul.cu", entry="qlinearmatmul", defines=macros(a, b, y))
        steps: list[Step] = []
        for place in np.ndindex(*found.batch):
            starts = [
                sum(i * stride for i, stride in zip(place, strides, strict=True))
                for strides in (found.a_batch, found.b_batch, found.y_batch)
            ]
            steps += launch(
                kernel, **grid_and_block(found.n, found.m), **operands,
                a=a.view(starts[0]), b=b.view(starts[1]), y=y.view(starts[2]),
                b_scale_step=step(operands["b_scale"]), b_zero_step=step(operands["b_zero"]),
                M=found.m, N=found.n, K=found.k,
            )  # fmt: skip
        return tuple(steps)


def _exact(
    a: np.ndarray, b: np.ndarray, a_zero: np.ndarray | None, b_zero: np.ndarray | None
) -> np.ndarray:
    """The sums, in 64 bits."""
    left, right = a.astype(np.int64), b.astype(np.int64)
    if a_zero is not None:
        left = left - a_zero.astype(np.int64).reshape(())
    if b_zero is not None:
        right = right - b_zero.astype(np.int64)
    return np.asarray(np.matmul(left, right))


@operator("QLinearMatMul", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class QLinearMatMul(_IntegerProduct):
    def infer(
        self, a: TensorType, a_scale: TensorType, a_zero: TensorType, b: TensorType, b_scale: TensorType,
        b_zero: TensorType, y_scale: TensorType, y_zero: TensorType,
    ) -> tuple[TensorType, ...]:  # fmt: skip
        """Raises    ShapeError, UnsupportedError"""
        sums = self.sums(a, b, [a_scale, a_zero, y_scale, y_zero], [b_scale, b_zero])
        if y_zero.dtype not in BYTES or a_scale.dtype != "float32":
            found = f"y is {y_zero.dtype}, not uint8 or int8; scale is {a_scale.dtype}, not float32"
            raise UnsupportedError("other types", found=found)
        return (replace(sums, dtype=y_zero.dtype),)

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        names = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero")
        return {name: problem.input(i) for i, name in enumerate(names)}

    def reference(
        self, a: np.ndarray, a_scale: np.ndarray, a_zero: np.ndarray, b: np.ndarray, b_scale: np.ndarray,
        b_zero: np.ndarray, y_scale: np.ndarray, y_zero: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        sums = _exact(a, b, a_zero, b_zero)
        return requantised(sums, a_scale.reshape(()), b_scale, y_scale.reshape(()), y_zero)


@operator("MatMulInteger", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class MatMulInteger(_IntegerProduct):
    def infer(
        self, a: TensorType, b: TensorType, a_zero: TensorType | None = None, b_zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError"""
        return (self.sums(a, b, [a_zero] if a_zero else [], [b_zero] if b_zero else []),)

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        absent = dict.fromkeys(("a_scale", "b_scale", "y_scale", "y_zero"))
        return absent | {name: problem.input(i) for i, name in enumerate(("a", "b", "a_zero", "b_zero"))}

    def reference(
        self, a: np.ndarray, b: np.ndarray, a_zero: np.ndarray | None = None, b_zero: np.ndarray | None = None
    ) -> np.ndarray:
        return _exact(a, b, a_zero, b_zero).astype(np.int32)


_RANGES = {0: (0.0, 120.0), 1: (0.01, 0.02), 2: (1.0, 9.0), 3: (0.0, 120.0), 4: (0.004, 0.01),
           5: (1.0, 9.0), 6: (0.2, 0.3), 7: (1.0, 9.0)}  # fmt: skip


def _case(a: tuple[int, ...], b: tuple[int, ...], types: str, columns: tuple[int, ...] = ()) -> Case:
    a_type, b_type, y_type = types.split()
    return Case(
        operator=QLinearMatMul(), shapes=(a, (), (), b, columns, columns, (), ()), ranges=_RANGES,
        dtypes={0: a_type, 2: a_type, 3: b_type, 5: b_type, 7: y_type},
    )  # fmt: skip


_BYTES = {0: (0, 255), 1: (0, 255)}

CASES = {
    "unsigned": _case((5, 19), (19, 33), "uint8 uint8 uint8"),
    "signed": _case((5, 19), (19, 33), "int8 int8 int8"),
    "unsigned by signed, a scale for each column": _case((5, 19), (19, 33), "uint8 int8 uint8", (33,)),
    "batches stretched on both sides": _case((2, 1, 4, 9), (1, 3, 9, 5), "uint8 uint8 uint8"),
    "sums, zero points": Case(
        operator=MatMulInteger(), shapes=((5, 19), (19, 33), (), ()), dtype="uint8",
        ranges={**_BYTES, 2: (3, 3), 3: (5, 5)},
    ),
    "sums, a zero point for each column": Case(
        operator=MatMulInteger(), shapes=((5, 19), (19, 33), (), (33,)), dtype="uint8",
        ranges={**_BYTES, 2: (3, 3), 3: (0, 9)},
    ),
    "sums, batches, no zero points": Case(
        operator=MatMulInteger(), shapes=((2, 4, 9), (2, 9, 5)), dtype="uint8", ranges=_BYTES
    ),
}  # fmt: skip
