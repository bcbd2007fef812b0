"""Resize and Upsample: a tensor seen at other extents, between its pixels interpolated.

Shapes    x -> y, every extent scaled, float32
Source    ONNX operators Resize, Upsample. Until opset 10 they know scales, nearest and linear, asymmetric
          alone
Not here  scales or sizes computed at run time; tf_crop_and_resize by scales (the standard's extent of the
          output and that of its implementations differ): refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn import tiling
from minicnn.epilogue import UNIT_ROUNDOFF
from minicnn.errors import ShapeError
from minicnn.geometry import INT32_MAX, Shape
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.resampling import COORDINATES, MODES, NEAREST, Axis, Sampling, Taps, taps
from minicnn.step import Kernel, Operand, Step, View
from minicnn.strided import copy_steps

POLICIES = ("stretch", "not_larger", "not_smaller")


class _Tabled(Variant):
    """What both ways share: two tables, of indices and weights, for each axis that they walk."""

    def walked(self, problem: Problem) -> tuple[int, ...]:
        raise NotImplementedError

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        operator, shape = problem.operator, problem.x.shape
        found = [operator.taps(shape, axis) for axis in self.walked(problem)]
        return tuple(array for one in found for array in (one.index, one.weight.astype(np.float32)))


class Passes(_Tabled):
    """One axis after the other, of tensors of any rank."""

    name = "passes"

    def walked(self, problem: Problem) -> tuple[int, ...]:
        """Those that change, the last one first."""
        rank = len(problem.x.shape)
        found = (
            a for a in reversed(range(rank)) if not problem.operator.taps(problem.x.shape, a).is_identity
        )
        return tuple(found)

    def _shapes(self, problem: Problem) -> list[Shape]:
        """What each pass makes."""
        shape, found = list(problem.x.shape), []
        for axis in self.walked(problem):
            shape[axis] = problem.y.shape[axis]
            found.append(tuple(shape))
        return found

    def workspace_bytes(self, problem: Problem) -> int:
        return 4 * sum(math.prod(shape) for shape in self._shapes(problem)[:-1])

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        walked, shapes = self.walked(problem), self._shapes(problem)
        if not walked:
            return copy_steps(problem.x, problem.y)
        source, place = problem.x.view(), 0
        steps: list[Step] = []
        before = problem.x.shape
        for number, (axis, after) in enumerate(zip(walked, shapes, strict=True)):
            target = problem.y.view()
            if number < len(walked) - 1:
                assert problem.workspace is not None
                target, place = problem.workspace.view(place), place + math.prod(after)
            index, weight = problem.tables[2 * number : 2 * number + 2]
            steps += _pass(problem, axis, before, after, source, target, index, weight)
            source, before = target, after
        return tuple(steps)


def _pass(
    problem: Problem,
    axis: int,
    before: Shape,
    after: Shape,
    source: View,
    target: View,
    index: Operand,
    weight: Operand,
) -> tuple[Step, ...]:
    outer, inner = math.prod(before[:axis]), math.prod(before[axis + 1 :])
    L, M = before[axis], after[axis]
    shared: dict[str, Any] = {
        "x": source, "y": target, "index": index, "weight": weight, "L": L, "M": M, "T": index.shape[1],
        "outside": problem.operator.outside,
    }  # fmt: skip
    if inner == 1:
        kernel = Kernel(file="resize.cu", entry="resize_last")
        return launch(kernel, **tiling.matrix(columns=M, rows=outer), OUTER=outer, **shared)
    kernel = Kernel(file="resize.cu", entry="resize_axis")
    return launch(kernel, **tiling.planes(columns=inner, rows=M, planes=outer), INNER=inner, **shared)


class Nhwc(_Tabled):
    """Both axes of an image at once, a vector of channels a thread."""

    name = "nhwc"

    def applies(self, problem: Problem) -> str:
        shape, operator = problem.x.shape, problem.operator
        if len(shape) not in (3, 4):
            return f"{len(shape)} axes, not an image's"
        if not all(operator.taps(shape, axis).is_identity for axis in (0, 1)):
            return "images or channels are resized too"
        return ""

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NHWC",), outputs=("NHWC",))

    def walked(self, problem: Problem) -> tuple[int, ...]:
        return tuple(range(2, len(problem.x.shape)))

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        found = super().tables(problem)
        return found if len(found) == 4 else (np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32), *found)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        h_index, h_weight, w_index, w_weight = problem.tables
        P, Q = h_index.shape[0], w_index.shape[0]
        channels = min(x.channels_padded, y.channels_padded)
        return launch(
            Kernel(file="resize.cu", entry="resize_nhwc"),
            **tiling.vectors(channels=channels, rows=Q, planes=x.shape[0] * P),
            x=x,
            h_index=h_index,
            h_weight=h_weight,
            w_index=w_index,
            w_weight=w_weight,
            y=y,
            C=channels,
            H=(1, *x.shape[2:])[-2],
            W=x.shape[-1],
            P=P,
            Q=Q,
            TH=h_index.shape[1],
            TW=w_index.shape[1],
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            outside=problem.operator.outside,
        )


class _Resampling:
    """What Resize and Upsample share; each says its sampling and what every axis comes to."""

    outside = 0.0

    def sampling(self) -> Sampling:
        raise NotImplementedError

    def axis(self, shape: Shape, axis: int) -> Axis:
        raise NotImplementedError

    def taps(self, shape: Shape, axis: int) -> Taps:
        return taps(self.axis(shape, axis), self.sampling())

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError"""
        shape = tuple(self.axis(x.extents, axis).out for axis in range(len(x.extents)))
        if 0 in shape:
            raise ShapeError("nothing is left of an axis", found=shape, expected="1 or more along each")
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Passes(), Nhwc())

    def cost(self, problem: Problem) -> Cost:
        shape = problem.x.shape
        number = math.prod(self.taps(shape, axis).index.shape[1] for axis in range(len(shape)))
        return Cost(flops=2 * number * math.prod(problem.y.shape) if number > 1 else 0)

    def reference(self, x: np.ndarray) -> np.ndarray:
        """Axis by axis; a neighbour of weight 0 is not looked at."""
        y = x.astype(np.float64)
        outside = np.zeros((1,) * x.ndim, bool)
        for axis in range(x.ndim):
            table = self.taps(x.shape, axis)
            along = tuple(-1 if a == axis else 1 for a in range(x.ndim))
            total = np.zeros((*y.shape[:axis], len(table.index), *y.shape[axis + 1 :]))
            for index, weight in zip(table.index.T, table.weight.T, strict=True):
                term = np.take(y, index, axis=axis) * weight.reshape(along)
                total += np.where(weight.reshape(along) == 0, 0.0, term)
            outside = outside | (table.index[:, 0] < 0).reshape(along)
            y = total
        return np.where(outside, np.float32(self.outside), y)

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        """Weights are rounded, so are their products and the sum; the nearest neighbour is copied."""
        if self.sampling().mode == "nearest":
            return 0.0
        y = np.abs(x).astype(np.float64)
        number = 1
        for axis in range(x.ndim):
            table = self.taps(x.shape, axis)
            number *= table.index.shape[1]
            along = tuple(-1 if a == axis else 1 for a in range(x.ndim))
            y = sum(
                np.take(y, index, axis=axis) * np.abs(weight).reshape(along)
                for index, weight in zip(table.index.T, table.weight.T, strict=True)
            )
        return (4 * math.sqrt(number) + 4) * UNIT_ROUNDOFF * np.maximum(y, abs(self.outside))


@operator("Resize", opsets=(10, None), parameters={1: "roi", 2: "scales", 3: "sizes"})
@dataclass(frozen=True, kw_only=True)
class Resize(_Resampling):
    """roi: starts, then ends, of all axes or of `axes`; in opset 10, where scales come second, the scales."""

    roi: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    sizes: tuple[int, ...] | None = None
    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0
    axes: tuple[int, ...] = ()
    keep_aspect_ratio_policy: str = "stretch"
    opset: int = 19

    def __post_init__(self) -> None:
        names = {
            self.mode: MODES,
            self.coordinate_transformation_mode: COORDINATES,
            self.nearest_mode: NEAREST[:-1],
            self.keep_aspect_ratio_policy: POLICIES,
        }
        for name, known in names.items():
            if name not in known:
                raise ValueError(f"{name}, none of {', '.join(known)}")
        if self.coordinate_transformation_mode == "tf_crop_and_resize" and not self.sizes:
            raise ValueError("tf_crop_and_resize by scales")

    @property
    def outside(self) -> float:  # type: ignore[override]
        return np.float32(self.extrapolation_value).item()

    def sampling(self) -> Sampling:
        if self.opset < 11:
            return Sampling(mode=self.mode, coordinates="asymmetric", nearest_mode="simple")
        return Sampling(
            mode=self.mode,
            coordinates=self.coordinate_transformation_mode,
            nearest_mode=self.nearest_mode,
            cubic_coeff_a=self.cubic_coeff_a,
            exclude_outside=bool(self.exclude_outside),
            antialias=bool(self.antialias),
        )

    def _resized(self, rank: int) -> tuple[int, ...]:
        """The axes that scales, sizes and roi speak of."""
        if any(not -rank <= axis < rank for axis in self.axes):
            raise ShapeError(
                "an axis that isn't the input's", found=self.axes, accepted=f"{-rank} to {rank - 1}"
            )
        return tuple(axis % rank for axis in self.axes) or tuple(range(rank))

    def axis(self, shape: Shape, axis: int) -> Axis:
        axes, scales = self._resized(len(shape)), self.roi if self.opset < 11 else self.scales
        if axis not in axes:
            return Axis(extent=shape[axis], out=shape[axis], scale=1.0)
        place, extent = axes.index(axis), shape[axis]
        if bool(scales) == bool(self.sizes):
            raise ShapeError("scales or sizes, one of the two", found=f"{scales} and {self.sizes}")
        given = scales or self.sizes or ()
        if len(given) != len(axes) or min(given) <= 0:
            raise ShapeError(
                "scales or sizes that don't fit the axes",
                expected=f"{len(axes)} numbers above 0",
                found=given,
            )
        roi = (0.0, 1.0)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            if self.roi is None or len(self.roi) != 2 * len(axes):
                raise ShapeError(
                    "roi doesn't fit the axes", expected=f"{2 * len(axes)} numbers", found=self.roi
                )
            roi = (self.roi[place], self.roi[place + len(axes)])
        if scales:
            scale = np.float32(scales[place])
            with np.errstate(all="ignore"):
                length = scale * np.float32(extent)
            if not length <= INT32_MAX:
                raise ShapeError("an absurd scale", found=float(scale), expected=f"at most 2^31 along {axis}")
            return Axis(extent=extent, out=int(length), scale=float(scale), length=float(length), roi=roi)
        out, scale = self._sized(tuple(shape[a] for a in axes), place)
        return Axis(extent=extent, out=out, scale=float(scale), roi=roi)

    def _sized(self, extents: Shape, place: int) -> tuple[int, np.float32]:
        """The output's extent and the scale along the axis at this place of `sizes`."""
        assert self.sizes is not None
        scales = [np.float32(size) / np.float32(e) for size, e in zip(self.sizes, extents, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return self.sizes[place], scales[place]
        common = min(scales) if self.keep_aspect_ratio_policy == "not_larger" else max(scales)
        return math.floor(common * np.float32(extents[place]) + np.float32(0.5)), common


@operator("Upsample", opsets=(7, 9), parameters={1: "scales"})
@dataclass(frozen=True, kw_only=True)
class Upsample(_Resampling):
    scales: tuple[float, ...]
    mode: str = "nearest"
    opset: int = 9

    def __post_init__(self) -> None:
        if self.mode not in MODES[:2]:
            raise ValueError(f"mode {self.mode}, none of nearest, linear")

    def sampling(self) -> Sampling:
        return Sampling(mode=self.mode, coordinates="asymmetric", nearest_mode="simple")

    def axis(self, shape: Shape, axis: int) -> Axis:
        if len(self.scales) != len(shape) or min(self.scales) < 1:
            raise ShapeError(
                "scales that don't fit", expected=f"{len(shape)} of 1 or more", found=self.scales
            )
        scale = np.float32(self.scales[axis])
        return Axis(extent=shape[axis], out=int(scale * np.float32(shape[axis])), scale=float(scale))


def _resize(x: Shape, **attributes: Any) -> Case:
    return Case(operator=Resize(**attributes), shapes=(x,))


_ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric"}
_CORNERS = {"coordinate_transformation_mode": "align_corners"}
_CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
_IMAGE = (2, 19, 5, 7)
_TWICE = (1.0, 1.0, 2.0, 2.0)
_LESS = (1.0, 1.0, 0.6, 0.7)

CASES = {
    "nearest, twice": _resize(_IMAGE, scales=_TWICE, nearest_mode="floor", **_ASYMMETRIC),
    "nearest, more pixels than a block": _resize(
        (1, 3, 2, 35), scales=_TWICE, nearest_mode="floor", **_ASYMMETRIC
    ),
    "nearest, round_prefer_floor": _resize(_IMAGE, scales=(1.0, 1.0, 1.5, 1.5)),
    "nearest, round_prefer_ceil": _resize(
        _IMAGE, scales=(1.0, 1.0, 1.5, 2.5), nearest_mode="round_prefer_ceil"
    ),
    "nearest, floor": _resize(_IMAGE, scales=_LESS, nearest_mode="floor"),
    "nearest, ceil": _resize(_IMAGE, scales=_LESS, nearest_mode="ceil"),
    "nearest, a scale that float32 rounds up": _resize(
        (1, 2, 20, 30), scales=(1.0, 1.0, 0.6, 0.3), nearest_mode="floor", **_ASYMMETRIC
    ),
    "nearest, by sizes": _resize(_IMAGE, sizes=(2, 19, 7, 10)),
    "nearest, align_corners": _resize(_IMAGE, sizes=(2, 19, 8, 3), **_CORNERS),
    "nearest, tf_half_pixel_for_nn": _resize(
        _IMAGE,
        sizes=(2, 19, 8, 3),
        coordinate_transformation_mode="tf_half_pixel_for_nn",
        opset=11,
        roi=(),
        scales=(),
    ),
    "linear, twice": _resize(_IMAGE, scales=_TWICE, mode="linear"),
    "linear, fewer": _resize(_IMAGE, scales=_LESS, mode="linear"),
    "linear, pytorch_half_pixel, one column": _resize(
        _IMAGE, sizes=(2, 19, 8, 1), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"
    ),
    "linear, align_corners": _resize(_IMAGE, sizes=(2, 19, 9, 13), mode="linear", **_CORNERS),
    "linear, align_corners, twice": _resize(_IMAGE, scales=_TWICE, mode="linear", **_CORNERS),
    "linear, align_corners, one row": _resize(_IMAGE, sizes=(2, 19, 1, 13), mode="linear", **_CORNERS),
    "linear, asymmetric": _resize(_IMAGE, scales=(1.0, 1.0, 1.7, 2.3), mode="linear", **_ASYMMETRIC),
    "linear, half_pixel_symmetric": _resize(
        _IMAGE,
        scales=(1.0, 1.0, 1.7, 2.3),
        mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
    ),
    "linear, cropped": _resize(
        (1, 3, 6, 7), roi=(0.0, 0.0, 0.2, 0.3, 1.0, 1.0, 0.7, 0.9), sizes=(1, 3, 4, 5), mode="linear", **_CROP
    ),
    "linear, cropped beyond the image": _resize(
        (1, 3, 6, 7),
        roi=(0.0, 0.0, -0.2, 0.3, 1.0, 1.0, 0.7, 1.4),
        sizes=(1, 3, 4, 9),
        mode="linear",
        **_CROP,
        extrapolation_value=10.0,
    ),
    "cubic, twice": _resize(_IMAGE, scales=_TWICE, mode="cubic"),
    "cubic, a of its own": _resize(_IMAGE, scales=(1.0, 1.0, 1.3, 2.2), mode="cubic", cubic_coeff_a=-0.5),
    "cubic, fewer": _resize(_IMAGE, scales=_LESS, mode="cubic"),
    "cubic, exclude_outside": _resize(_IMAGE, scales=_TWICE, mode="cubic", exclude_outside=1),
    "cubic, align_corners": _resize(_IMAGE, sizes=(2, 19, 9, 13), mode="cubic", **_CORNERS),
    "antialias, linear": _resize(_IMAGE, scales=_LESS, mode="linear", antialias=1),
    "antialias, cubic": _resize((1, 3, 11, 13), scales=(1.0, 1.0, 0.4, 0.3), mode="cubic", antialias=1),
    "two axes": _resize(_IMAGE, scales=(2.0, 1.5), axes=(2, 3), mode="linear"),
    "two axes, sizes, not_larger": _resize(
        _IMAGE, sizes=(9, 9), axes=(2, 3), mode="linear", keep_aspect_ratio_policy="not_larger"
    ),
    "two axes, sizes, not_smaller": _resize(
        _IMAGE, sizes=(9, 9), axes=(3, 2), keep_aspect_ratio_policy="not_smaller"
    ),
    "opset 10, nearest, more": _resize(_IMAGE, roi=(1.0, 1.0, 1.5, 2.0), opset=10),
    "opset 10, nearest, fewer": _resize((1, 1, 4, 6), roi=(1.0, 1.0, 0.6, 0.6), opset=10),
    "opset 10, linear": _resize(_IMAGE, roi=(1.0, 1.0, 1.5, 0.7), mode="linear", opset=10),
    "opset 11": _resize(_IMAGE, roi=(), scales=_TWICE, mode="linear", opset=11),
    "1-D": _resize((2, 18, 9), scales=(1.0, 1.0, 2.0)),
    "1-D, linear": _resize((2, 5, 9), scales=(1.0, 1.0, 1.5), mode="linear"),
    "channels too": _resize((2, 3, 4, 5), scales=(1.0, 2.0, 2.0, 1.0)),
    "3-D": _resize((1, 2, 3, 4, 5), scales=(1.0, 1.0, 2.0, 1.5, 2.0), mode="linear"),
    "rank 2": _resize((3, 4), sizes=(5, 6), mode="linear"),
    "nothing changes": _resize((2, 3, 4, 5), scales=(1.0, 1.0, 1.0, 1.0)),
    "many channels": _resize((1, 1100, 2, 3), scales=_TWICE, mode="linear"),
    "upsample": Case(operator=Upsample(scales=_TWICE), shapes=(_IMAGE,)),
    "upsample, opset 7": Case(operator=Upsample(scales=(1.0, 1.0, 1.5, 3.0), opset=7), shapes=(_IMAGE,)),
    "upsample, linear": Case(operator=Upsample(scales=_TWICE, mode="linear"), shapes=(_IMAGE,)),
}
