"""Windows of convolution and pooling: ONNX's attributes, and what they come to on a given input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from minicnn.errors import ShapeError, UnsupportedError
from minicnn.geometry import Shape, Window, window

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
ONE = Window(
    extent=1, kernel=1, stride=1, dilation=1, pad_before=0, pad_after=0, out=1
)  # the axis a 1-D input lacks


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """The attributes that Conv, MaxPool and AveragePool share; empty tuples mean ONNX's defaults.

    pads hold all beginnings, then all ends: top, left, bottom, right.
    """

    kernel_shape: tuple[int, ...] = ()  # R, S
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    auto_pad: str = "NOTSET"

    def windows(self, spatial: Shape, kernel: Shape, *, ceil_mode: bool = False) -> tuple[Window, ...]:
        """One window for each spatial axis.

        Raises    ShapeError where attributes and input contradict each other or no window fits
                  UnsupportedError for more than three axes
        """
        rank = len(spatial)
        if rank not in (1, 2, 3):
            raise UnsupportedError("windows over this many axes", found=f"{rank}-D", accepted="1-D, 2-D, 3-D")
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads = self.pads or (0,) * (2 * rank)
        self._check(rank, kernel, strides, dilations, pads)
        result = []
        for axis in range(rank):
            one = window(
                extent=spatial[axis],
                kernel=kernel[axis],
                stride=strides[axis],
                dilation=dilations[axis],
                pads=(pads[axis], pads[axis + rank]),
                auto_pad=self.auto_pad,
                ceil_mode=ceil_mode,
            )
            if one.out < 1:
                raise ShapeError(
                    f"the window doesn't fit into the input along {'DHW'[axis - rank]}",
                    expected=f"at least {(one.kernel - 1) * one.dilation + 1} elements",
                    found=f"{one.extent} and pads of {one.pad_before} and {one.pad_after}",
                )
            result.append(one)
        return tuple(result)

    def _check(self, rank: int, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape) -> None:
        extents = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
        for name, values in extents.items():
            if len(values) != rank or min(values) < 1:
                raise ShapeError(
                    f"{name} doesn't fit the input", expected=f"{rank} numbers above 0", found=values
                )
        if len(pads) != 2 * rank or min(pads) < 0:
            raise ShapeError(
                "pads don't fit the input", expected=f"{2 * rank} numbers, 0 or more", found=pads
            )
        if self.auto_pad not in AUTO_PADS:
            raise ShapeError("unknown auto_pad", found=self.auto_pad, accepted=", ".join(AUTO_PADS))


def two_axes(windows: tuple[Window, ...]) -> tuple[Window, Window]:
    """Windows along H and W; a 1-D input is an image of height 1."""
    return (ONE, windows[0]) if len(windows) == 1 else (windows[0], windows[1])


def window_arguments(windows: tuple[Window, Window]) -> dict[str, int]:
    """Extents and windows as the .cu files name them."""
    vertical, horizontal = windows
    return {
        "H": vertical.extent,
        "W": horizontal.extent,
        "R": vertical.kernel,
        "S": horizontal.kernel,
        "P": vertical.out,
        "Q": horizontal.out,
        "stride_h": vertical.stride,
        "stride_w": horizontal.stride,
        "dilation_h": vertical.dilation,
        "dilation_w": horizontal.dilation,
        "pad_top": vertical.pad_before,
        "pad_left": horizontal.pad_before,
    }


def volume_arguments(windows: tuple[Window, ...]) -> dict[str, int]:
    """As `window_arguments`, of three axes: D, T, O are depth, filter depth and output depth."""
    depth, *plane = windows
    vertical, horizontal = plane
    return window_arguments((vertical, horizontal)) | {
        "D": depth.extent,
        "T": depth.kernel,
        "O": depth.out,
        "stride_d": depth.stride,
        "dilation_d": depth.dilation,
        "pad_front": depth.pad_before,
    }


def taps(x: np.ndarray, windows: tuple[Window, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For definitions in numpy: what each position of the filter sees, and whether that lies inside x.

    Shapes    x (N, C, spatial) -> (N, C, out) and a mask that broadcasts to it; outside x values mean nothing
    """
    for offsets in itertools.product(*(range(one.kernel) for one in windows)):
        seen, is_inside = x, np.ones((), bool)
        for axis, (one, offset) in enumerate(zip(windows, offsets, strict=True)):
            place = np.arange(one.out) * one.stride + offset * one.dilation - one.pad_before
            seen = np.take(seen, np.clip(place, 0, one.extent - 1), axis=axis + 2)
            along = [1] * len(windows)
            along[axis] = -1
            is_inside = is_inside & ((place >= 0) & (place < one.extent)).reshape(along)
        yield seen, is_inside
