"""InstanceNormalization, GroupNormalization, MeanVarianceNormalization: images by their own statistics.

Shapes    x (N, C, any spatial axes) -> y of the same shape, float32; scale, bias (C) or, until opset 20, one
          a group
Source    ONNX operators of these names; Ulyanov, Vedaldi, Lempitsky 2016; Wu, He 2018
Not here  MeanVarianceNormalization over axes that are neither the last ones nor (0, spatial): refused by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import normalization
from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.normalization import Normalized, Roots, normalized
from minicnn.registry import Case, Cost, Orders, Packing, Problem, Variant, operator
from minicnn.step import Step


class Direct(Variant):
    """A group's row of memory at a time, over NCHW planes."""

    name = "direct"
    may_overwrite = True

    def _rows(self, problem: Problem) -> tuple[int, int]:
        rows = problem.x.shape[0] * problem.operator.groups(problem.x.shape[1])
        return rows, math.prod(problem.x.shape) // rows

    def workspace_bytes(self, problem: Problem) -> int:
        return normalization.row_space(*self._rows(problem)).nbytes

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, operator = problem.x, problem.operator
        rows, L = self._rows(problem)
        views = normalization.row_space(rows, L).views(problem.workspace)
        statistics = normalization.row_statistics(x.view(), views, rows=rows, L=L, roots=operator.roots())
        group = x.shape[1] // operator.groups(x.shape[1])
        scale, bias = problem.input(1), problem.input(2)
        return statistics + normalization.normalize_planes(
            x, problem.y, views, group=group, scale=scale, bias=bias
        )


class Nhwc(Variant):
    """A vector of channels a thread."""

    name = "nhwc"
    may_overwrite = True

    def applies(self, problem: Problem) -> str:
        C = problem.x.shape[1]
        wrong = [o for o in problem.inputs[1:] if o is not None and o.shape != (C,) and not o.is_constant]
        return "scales of groups are computed at run time" if wrong else ""

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC", "NCHW"), outputs=("NHWC",))

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """Scales of groups become scales of channels."""
        C = problem.x.shape[1]
        return {
            index: Packing(name=f"repeated{C}", shape=(C,), function=lambda a: np.repeat(a, C // len(a)))
            for index, operand in enumerate(problem.inputs)
            if index and operand is not None and operand.shape != (C,)
        }

    def workspace_bytes(self, problem: Problem) -> int:
        return normalization.channel_space(problem.x).nbytes

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, operator = problem.x, problem.operator
        views = normalization.channel_space(x).views(problem.workspace)
        group = x.shape[1] // operator.groups(x.shape[1])
        statistics = normalization.channel_statistics(
            x, views, group=group, joins_images=False, roots=operator.roots()
        )
        scale, bias = problem.input(1), problem.input(2)
        return statistics + normalization.normalize_channels(x, problem.y, views, scale=scale, bias=bias)


@dataclass(frozen=True, kw_only=True)
class _Grouped:
    """What Instance- and GroupNormalization share; each says how many groups C channels make."""

    epsilon: float = 1e-5

    def groups(self, C: int) -> int:
        raise NotImplementedError

    def scales(self, C: int) -> int:
        """How many numbers scale and bias have."""
        return C

    def roots(self) -> Roots:
        return Roots(inside=self.epsilon)

    def infer(self, x: TensorType, scale: TensorType, b: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        if len(x.extents) < 3 or 0 in x.extents:
            raise ShapeError("too few axes, or an empty one", expected="x (N, C, H, W)", found=x.extents)
        C = x.extents[1]
        groups = self.groups(C)
        if groups < 1 or C % groups:
            raise ShapeError("channels don't fit the groups", expected=f"a multiple of {groups}", found=C)
        for name, found in (("scale", scale), ("bias", b)):
            if found.extents != (self.scales(C),):
                raise ShapeError(
                    "one number for each channel or group",
                    tensor=name,
                    expected=(self.scales(C),),
                    found=found.extents,
                )
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=9 * math.prod(problem.y.shape))

    def _affine(self, x: np.ndarray, scale: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        N, C = x.shape[:2]
        grouped = x.reshape(N, self.groups(C), -1)
        found = normalized(grouped, (2,), self.roots())
        along = (C, *(1,) * (x.ndim - 2))
        scale, b = (np.repeat(a, C // len(a)).reshape(along) for a in (scale, b))
        reshaped = Normalized(
            mean=found.mean,
            reciprocal=found.reciprocal,
            y=found.y.reshape(x.shape),
            mean_bound=found.mean_bound,
            reciprocal_bound=found.reciprocal_bound,
            bound=found.bound.reshape(x.shape),
        )
        return normalization.affine(reshaped, scale, b)

    def reference(self, x: np.ndarray, scale: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._affine(x, scale, b)[0]

    def bound(self, x: np.ndarray, scale: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._affine(x, scale, b)[1]


@operator("InstanceNormalization", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class InstanceNormalization(_Grouped):
    consumed_inputs: tuple[int, ...] = ()  # until opset 5

    def groups(self, C: int) -> int:
        return C


@operator("GroupNormalization", opsets=(18, None))
@dataclass(frozen=True, kw_only=True)
class GroupNormalization(_Grouped):
    num_groups: int
    stash_type: int = 1  # of sums: float32
    opset: int = 21

    def __post_init__(self) -> None:
        if self.stash_type != 1:
            raise ValueError(f"stash_type {self.stash_type}, not 1 (float32)")

    def groups(self, C: int) -> int:
        return self.num_groups

    def scales(self, C: int) -> int:
        return self.num_groups if self.opset < 21 else C


class _MeanVariance(Variant):
    may_overwrite = True


class MeanVarianceDirect(_MeanVariance):
    """Rows of memory; those of one channel are joined where images are averaged over too."""

    name = "direct"

    def applies(self, problem: Problem) -> str:
        rank = len(problem.x.shape)
        axes = problem.operator.averaged(rank)
        fits = axes == tuple(range(axes[0], rank)) or (rank >= 3 and axes == (0, *range(2, rank)))
        return "" if fits else f"averages over axes {axes}, neither the last ones nor (0, spatial)"

    def _rows(self, problem: Problem) -> tuple[int, int, int]:
        """rows, their length, how many of them are one group"""
        shape, axes = problem.x.shape, problem.operator.averaged(len(problem.x.shape))
        joins = axes[0] == 0 and 1 not in axes
        rows = math.prod(shape[: 2 if joins else axes[0]])
        return rows, math.prod(shape) // rows, shape[0] if joins else 1

    def workspace_bytes(self, problem: Problem) -> int:
        rows, L, _ = self._rows(problem)
        return normalization.row_space(rows, L).nbytes

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        rows, L, joined = self._rows(problem)
        views = normalization.row_space(rows, L).views(problem.workspace)
        steps = normalization.row_statistics(
            x.view(), views, rows=rows, L=L, roots=problem.operator.roots(), joined=joined
        )
        if joined > 1:
            return steps + normalization.normalize_planes(x, y, views, group=1, joins_images=True)
        return steps + normalization.normalize_rows(x, y, views, rows=rows, L=L, scale=None, bias=None)


class MeanVarianceNhwc(_MeanVariance):
    """A vector of channels a thread."""

    name = "nhwc"

    def applies(self, problem: Problem) -> str:
        axes, rank = problem.operator.averaged(len(problem.x.shape)), len(problem.x.shape)
        fits = rank >= 3 and axes in (tuple(range(2, rank)), (0, *range(2, rank)), tuple(range(1, rank)))
        return "" if fits else f"averages over axes {axes}"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def workspace_bytes(self, problem: Problem) -> int:
        return normalization.channel_space(problem.x).nbytes

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, operator = problem.x, problem.operator
        axes = operator.averaged(len(x.shape))
        views = normalization.channel_space(x).views(problem.workspace)
        statistics = normalization.channel_statistics(
            x, views, group=x.shape[1] if 1 in axes else 1, joins_images=0 in axes, roots=operator.roots()
        )
        return statistics + normalization.normalize_channels(x, problem.y, views)


@operator("MeanVarianceNormalization", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class MeanVarianceNormalization:
    axes: tuple[int, ...] = (0, 2, 3)

    def roots(self) -> Roots:
        return Roots(outside=1e-9)

    def averaged(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted({axis % rank for axis in self.axes}))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        rank = len(x.extents)
        if not self.axes or any(not -rank <= axis < rank for axis in self.axes) or 0 in x.extents:
            raise ShapeError(
                "axes that aren't the input's, or empty ones",
                found=f"axes {self.axes} of {x}",
                accepted=f"{-rank} to {rank - 1}",
            )
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (MeanVarianceDirect(), MeanVarianceNhwc())

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=8 * math.prod(problem.y.shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return normalized(x, self.averaged(x.ndim), self.roots()).y

    def bound(self, x: np.ndarray) -> np.ndarray:
        return normalized(x, self.averaged(x.ndim), self.roots()).bound


def _instance(
    shape: Shape, *, low: float = -1.0, high: float = 1.0, constants: tuple[int, ...] = (1, 2)
) -> Case:
    C = (shape[1],)
    return Case(
        operator=InstanceNormalization(),
        shapes=(shape, C, C),
        constants=constants,
        ranges={0: (low, high)},
    )


def _group(shape: Shape, groups: int, *, opset: int = 21, constants: tuple[int, ...] = (1, 2)) -> Case:
    number = (groups if opset < 21 else shape[1],)
    norm = GroupNormalization(num_groups=groups, opset=opset, epsilon=1e-3)
    return Case(operator=norm, shapes=(shape, number, number), constants=constants)


def _mean_variance(shape: Shape, axes: tuple[int, ...] = (0, 2, 3)) -> Case:
    return Case(operator=MeanVarianceNormalization(axes=axes), shapes=(shape,))


CASES = {
    "instance, h differs from w": _instance((2, 19, 5, 7)),
    "instance, a mean a thousand deviations away": _instance((2, 5, 9, 11), low=999.0, high=1001.0),
    "instance, several chunks, the last short": _instance((1, 18, 33, 37)),
    "instance, two pixels": _instance((2, 16, 1, 2)),
    "instance, one pixel: zero": _instance((3, 17, 1, 1)),
    "instance, more channels than a block": _instance((1, 1100, 2, 3)),
    "instance, more images than a block": _instance((9, 19, 2, 3)),
    "instance, more chunks than a block": _instance((1, 67, 24, 24)),
    "instance, three whole vectors, two chunks": _instance((2, 48, 9, 10)),
    "instance, scales at run time": _instance((2, 6, 3, 4), constants=()),
    "instance, 1-D": _instance((2, 18, 23)),
    "instance, 3-D": _instance((1, 3, 2, 5, 4)),
    "groups": _group((2, 24, 5, 7), 4),
    "groups, one": _group((2, 19, 5, 7), 1),
    "groups, not of a vector's width": _group((1, 35, 9, 8), 5),
    "groups, as many as channels": _group((2, 6, 3, 4), 6),
    "groups, opset 18: a scale a group": _group((2, 24, 5, 7), 4, opset=18),
    "groups, opset 18, scales at run time": _group((2, 24, 5, 7), 4, opset=18, constants=()),
    "groups, 1-D": _group((2, 8, 300), 2),
    "mean and variance of a channel": _mean_variance((3, 19, 5, 7)),
    "mean and variance of a plane": _mean_variance((2, 5, 9, 11), (2, 3)),
    "mean and variance of an image": _mean_variance((2, 18, 5, 7), (1, 2, 3)),
    "mean and variance of all": _mean_variance((2, 5, 9, 7), (0, 1, -2, -1)),
    "mean and variance, one image": _mean_variance((1, 16, 40, 50)),
    "mean and variance of rows": _mean_variance((5, 300), (1,)),
}  # fmt: skip
