"""LayerNormalization: the last axes normalized by their own mean and variance.

Shapes    x (..., L), scale and B of the last axes' shape or broadcast to it -> y like x; Mean and InvStdDev,
          where a node names them, with the last axes of extent 1; float32
Source    ONNX operator LayerNormalization; Ba, Kiros, Hinton 2016
Not here  scales that differ from row to row
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import normalization
from minicnn.errors import ShapeError
from minicnn.geometry import Shape, broadcast_shape
from minicnn.graph import TensorType
from minicnn.normalization import Normalized, Roots, normalized
from minicnn.registry import Case, Cost, Packing, Problem, Variant, operator
from minicnn.step import Step


class Rows(Variant):
    """A row's chunks a thread each, then every element a thread."""

    name = "rows"
    may_overwrite = True

    def applies(self, problem: Problem) -> str:
        _, L = problem.operator.rows(problem.x.shape)
        stretched = [o for o in problem.inputs[1:] if o is not None and math.prod(o.shape) != L]
        return (
            "a scale to be stretched is computed at run time"
            if any(not o.is_constant for o in stretched)
            else ""
        )

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        _, L = problem.operator.rows(problem.x.shape)
        inner = problem.operator.inner(problem.x.shape)
        return {
            index: Packing(
                name=f"stretched{inner}",
                shape=(L,),
                function=lambda a: np.ascontiguousarray(np.broadcast_to(_without_ones(a), inner)).reshape(-1),
            )
            for index, operand in enumerate(problem.inputs)
            if index and operand is not None and math.prod(operand.shape) != L
        }

    def workspace_bytes(self, problem: Problem) -> int:
        return normalization.row_space(*problem.operator.rows(problem.x.shape)).nbytes

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, operator = problem.x, problem.operator
        rows, L = operator.rows(x.shape)
        views = normalization.row_space(rows, L).views(problem.workspace)
        for name, output in zip(("group_mean", "reciprocal"), problem.outputs[1:], strict=False):
            views[name] = output.view()
        roots = Roots(inside=operator.epsilon)
        statistics = normalization.row_statistics(x.view(), views, rows=rows, L=L, roots=roots)
        scale, bias = problem.input(1), problem.input(2)
        return statistics + normalization.normalize_rows(
            x, problem.y, views, rows=rows, L=L, scale=scale, bias=bias
        )


def _without_ones(a: np.ndarray) -> np.ndarray:
    """Leading axes of extent 1 mean nothing to a broadcast."""
    shape = a.shape
    while shape and shape[0] == 1:
        shape = shape[1:]
    return a.reshape(shape)


@operator("LayerNormalization", opsets=(17, None))
@dataclass(frozen=True, kw_only=True)
class LayerNormalization:
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1  # of sums: float32
    outputs: int = 1  # how many the node names

    def __post_init__(self) -> None:
        if self.stash_type != 1:
            raise ValueError(f"stash_type {self.stash_type}, not 1 (float32)")

    def _first(self, rank: int) -> int:
        if not -rank <= self.axis < rank:
            raise ShapeError("the axis isn't the input's", found=self.axis, accepted=f"{-rank} to {rank - 1}")
        return self.axis % rank

    def inner(self, shape: Shape) -> Shape:
        return shape[self._first(len(shape)) :]

    def rows(self, shape: Shape) -> tuple[int, int]:
        L = math.prod(self.inner(shape))
        return math.prod(shape) // max(L, 1), L

    def infer(self, x: TensorType, scale: TensorType, b: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        inner = self.inner(x.extents)
        if 0 in x.extents:
            raise ShapeError("nothing to normalize", found=x.extents)
        for name, found in (("Scale", scale), ("B", b)):
            if found is None:
                continue
            own = _without_ones(np.empty(found.extents, bool)).shape
            if broadcast_shape(own, inner) != inner:
                raise ShapeError(
                    "doesn't broadcast to the normalized axes",
                    tensor=name,
                    expected=inner,
                    found=found.extents,
                )
        first = len(x.extents) - len(inner)
        statistic = TensorType(dtype=x.dtype, shape=(*x.extents[:first], *(1 for _ in inner)))
        return (x, statistic, statistic)[: max(self.outputs, 1)]

    def variants(self) -> tuple[Variant, ...]:
        return (Rows(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=9 * math.prod(problem.y.shape))

    def _normalized(self, x: np.ndarray) -> Normalized:
        axes = tuple(range(self._first(x.ndim), x.ndim))
        return normalized(x, axes, Roots(inside=self.epsilon))

    def reference(
        self, x: np.ndarray, scale: np.ndarray, b: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        found = self._normalized(x)
        y, _ = normalization.affine(found, _without_ones(scale), None if b is None else _without_ones(b))
        return (y, found.mean, found.reciprocal)[: self.outputs]

    def bound(self, x: np.ndarray, scale: np.ndarray, b: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        found = self._normalized(x)
        _, bound = normalization.affine(found, _without_ones(scale), None if b is None else _without_ones(b))
        return (bound, found.mean_bound, found.reciprocal_bound)[: self.outputs]


def _case(
    norm: LayerNormalization, shape: Shape, scale: Shape, *, bias: bool = True, run_time: bool = False
) -> Case:
    shapes = (shape, scale, scale) if bias else (shape, scale)
    constants = () if run_time else (1, 2) if bias else (1,)
    return Case(operator=norm, shapes=shapes, constants=constants)


CASES = {
    "a transformer's tokens": _case(LayerNormalization(), (2, 7, 96), (96,)),
    "no bias": _case(LayerNormalization(epsilon=1e-3), (5, 33), (33,), bias=False),
    "several chunks, the last short": _case(LayerNormalization(), (3, 1000), (1000,)),
    "channels last, as ConvNeXt has them": _case(LayerNormalization(epsilon=1e-6), (1, 5, 7, 48), (48,)),
    "a whole image": _case(LayerNormalization(axis=1), (2, 3, 5, 7), (3, 5, 7)),
    "axis 0": _case(LayerNormalization(axis=0), (3, 17), (3, 17)),
    "counted from the end": _case(LayerNormalization(axis=-2), (2, 3, 5, 7), (5, 7)),
    "a scale for all": _case(LayerNormalization(axis=1), (2, 3, 5, 7), (1,)),
    "a scale a row of the inner axes": _case(LayerNormalization(axis=1), (2, 3, 5), (3, 1)),
    "scales at run time": _case(LayerNormalization(), (4, 21), (21,), run_time=True),
    "with mean": _case(LayerNormalization(outputs=2), (4, 21), (21,)),
    "with mean and deviation": _case(LayerNormalization(axis=2, outputs=3), (2, 3, 5, 7), (5, 7)),
    "a row of one": _case(LayerNormalization(), (4, 1), (1,)),
    "rows far from zero": Case(
        operator=LayerNormalization(), shapes=((3, 300), (300,)), constants=(1,), ranges={0: (999.0, 1001.0)}
    ),
}  # fmt: skip
