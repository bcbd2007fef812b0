"""BatchNormalization at inference: each channel moved and scaled by the training set's mean and variance.

Shapes    x (N, C, ...), scale, B, mean, var (C) -> y of x's shape, float32 or float16
Source    ONNX operator BatchNormalization; Ioffe, Szegedy 2015
Not here  training mode, statistics per activation (spatial = 0): refused by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import elements, epilogue, tiling
from minicnn.elements import UNIT_ROUNDOFF
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import Epilogue, TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Packing, Problem, Variant, operator
from minicnn.step import Kernel, Operand, Step, View

_STATISTICS = ("scale", "B", "mean", "var")  # inputs 1 to 4


@operator("BatchNormalization", opsets=(1, None), fuses=epilogue.ACTIVATED)
@dataclass(frozen=True, kw_only=True)
class BatchNormalization:
    epsilon: float = 1e-5
    momentum: float = 0.9  # of training
    spatial: int = 1  # until opset 8
    is_test: int = 0  # until opset 6
    consumed_inputs: tuple[int, ...] = ()  # until opset 5
    training_mode: int = 0

    def infer(
        self, x: TensorType, scale: TensorType, b: TensorType, mean: TensorType, variance: TensorType
    ) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (training, statistics per activation)"""
        if self.training_mode:
            raise UnsupportedError("training mode", found="training_mode 1", accepted="0, inference")
        if not self.spatial:
            raise UnsupportedError("statistics per activation", found="spatial 0", accepted="1, per channel")
        if len(x.extents) < 2:
            raise ShapeError("too few axes", expected="x (N, C, ...)", found=x.extents)
        for name, found in zip(_STATISTICS, (scale, b, mean, variance), strict=True):
            if found.extents != (x.extents[1],):
                raise ShapeError(
                    "one number for each channel", tensor=name, expected=(x.extents[1],), found=found.extents
                )
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        macs = math.prod(problem.y.shape)
        return Cost(macs=macs, flops=2 * macs)

    def reference(
        self, x: np.ndarray, scale: np.ndarray, b: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        scale_shift = self.scale_shift(scale, b, mean, variance).reshape(2, -1, *(1,) * (x.ndim - 2))
        return x.astype(np.float64) * scale_shift[0] + scale_shift[1]

    def bound(
        self, x: np.ndarray, scale: np.ndarray, b: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        """Fewer than 8 roundings on the way to each of the three terms."""
        own = self.reference(np.abs(x), np.abs(scale), np.abs(b), -np.abs(mean), variance)
        stored = elements.storage_bound(self.reference(x, scale, b, mean, variance), x.dtype)
        return 8 * UNIT_ROUNDOFF * own + stored

    def scale_shift(
        self, scale: np.ndarray, b: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        """The same map as y = x * result[0] + result[1], in float64."""
        with np.errstate(all="ignore"):  # statistics that are no numbers make none
            factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + self.epsilon)
            return np.stack([factor, b.astype(np.float64) - mean.astype(np.float64) * factor])


class _Normalization(Variant):
    """The four statistics become [2, C] scales and shifts: at load if constant, else in a first step."""

    may_overwrite = True
    dtypes = elements.FLOATS

    def applies(self, problem: Problem) -> str:
        statistics = _statistics(problem)
        is_wide = all(o.is_constant for o in statistics) or all(o.dtype == "float32" for o in statistics)
        return "" if is_wide else "statistics in half precision are computed at run time"

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        statistics = _statistics(problem)
        if not all(o.is_constant for o in statistics):
            return {}
        fold = problem.operator.scale_shift
        rest = [o.value for o in statistics[1:]]
        # a scale shared by two layers is packed with each one's own statistics
        name = "_".join(["scale_shift", *(o.name for o in statistics[1:]), repr(problem.operator.epsilon)])
        shape = (2, problem.x.shape[1])
        return {
            1: Packing(name=name, shape=shape, function=lambda scale: fold(scale, *rest).astype(np.float32))
        }

    def workspace_bytes(self, problem: Problem) -> int:
        return 0 if self.packings(problem) else 8 * problem.x.shape[1]

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        scale_shift = _statistics(problem)[0]
        if problem.workspace is None:
            return self.apply(problem, scale_shift.view())
        scale, b, mean, variance = _statistics(problem)
        C = problem.x.shape[1]
        fold = launch(
            Kernel(file="batchnormalization.cu", entry="batchnormalization_fold"),
            **tiling.planes(columns=C),
            scale=scale,
            b=b,
            mean=mean,
            variance=variance,
            scale_shift=problem.workspace,
            C=C,
            epsilon=problem.operator.epsilon,
        )
        return (*fold, *self.apply(problem, problem.workspace.view()))

    def apply(self, problem: Problem, scale_shift: View) -> tuple[Step, ...]:
        raise NotImplementedError


def _kernel(entry: str, problem: Problem) -> Kernel:
    return Kernel(file="batchnormalization.cu", entry=entry, defines=elements.defines(problem.x.dtype))


def _statistics(problem: Problem) -> tuple[Operand, ...]:
    return tuple(o for o in problem.inputs[1:5] if o is not None)


class Direct(_Normalization):
    """One value a thread."""

    name = "direct"

    def apply(self, problem: Problem, scale_shift: View) -> tuple[Step, ...]:
        N, C, *spatial = problem.x.shape
        HW = math.prod(spatial)
        return launch(
            _kernel("batchnormalization", problem),
            **tiling.planes(columns=HW, rows=C, planes=N),
            x=problem.x,
            scale_shift=scale_shift,
            y=problem.y,
            C=C,
            HW=HW,
            **epilogue.arguments(problem.epilogue),
        )


class Nhwc(_Normalization):
    """One value a thread, channels side by side."""

    name = "nhwc"

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC", "NCHW"), outputs=("NHWC",))

    def apply(self, problem: Problem, scale_shift: View) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        N, C, *spatial = x.shape
        pixels = N * math.prod(spatial)
        return launch(
            _kernel("batchnormalization_nhwc", problem),
            **tiling.vectors(channels=C, rows=pixels),
            x=x,
            scale_shift=scale_shift,
            y=y,
            pixels=pixels,
            C=C,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            **epilogue.arguments(problem.epilogue),
        )


def _case(
    shape: tuple[int, ...],
    norm: BatchNormalization,
    *,
    constants: tuple[int, ...] = (1, 2, 3, 4),
    fused: Epilogue = Epilogue(),
) -> Case:
    C = (shape[1],)
    ranges = {4: (0.01, 2.0)}
    return Case(operator=norm, shapes=(shape, C, C, C, C), constants=constants, ranges=ranges, epilogue=fused)


CASES = {
    "h differs from w": _case((2, 19, 5, 7), BatchNormalization()),
    "one pixel, one channel": _case((1, 1, 1, 1), BatchNormalization()),
    "more channels than a block": _case((1, 700, 2, 3), BatchNormalization()),
    "epsilon counts": _case((1, 16, 3, 4), BatchNormalization(epsilon=0.5)),
    "statistics at run time": _case((2, 70, 3, 4), BatchNormalization(), constants=()),
    "variance at run time": _case((2, 6, 3, 4), BatchNormalization(epsilon=0.01), constants=(1, 2, 3)),
    "Relu fused": _case((2, 35, 3, 5), BatchNormalization(), fused=Epilogue(activation="Relu")),
    "float16": Case(
        operator=BatchNormalization(),
        shapes=((2, 19, 5, 7), *((19,),) * 4),
        constants=(1, 2, 3, 4),
        ranges={4: (0.01, 2.0)},
        dtype="float16",
    ),
    "float16, statistics of float32": Case(
        operator=BatchNormalization(),
        shapes=((2, 19, 5, 7), *((19,),) * 4),
        ranges={4: (0.01, 2.0)},
        dtypes={0: "float16"},
    ),
    "no spatial axes": _case((5, 37), BatchNormalization()),
    "1-D": _case((2, 18, 9), BatchNormalization()),
    "3-D": _case((1, 3, 2, 5, 4), BatchNormalization()),
}
