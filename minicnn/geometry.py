"""Integers about shapes: layouts in memory, window extents, strides, broadcasting."""

from __future__ import annotations

import math
from dataclasses import dataclass

INT32_MAX = 2**31 - 1
CHANNEL_PAD = 16  # one 512-bit vector of float32, and the K step of a tensor-core tile

Shape = tuple[int, ...]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    return ceil_div(a, multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a logical N C ... tensor lies in memory.

    order           "NCHW": as ONNX counts, row-major, of any rank. "NHWC": the channel axis (axis 1)
                    innermost.
    channel_stride  channels between one pixel and the next (NHWC) or one image and the next (NCHW); 0: dense
    offset          the first channel's place when the tensor is a slice of a wider one (a free Concat)
    channel_pad     NHWC only: channels a kernel may read and write are rounded up to this; padding holds
                    anything, and nothing may let it reach a real channel
    """

    order: str = "NCHW"
    channel_stride: int = 0
    offset: int = 0
    channel_pad: int = 1

    def channels_padded(self, shape: Shape) -> int:
        return round_up(shape[1], self.channel_pad)

    def pixel_stride(self, shape: Shape) -> int:
        """NHWC: elements from one pixel to the next."""
        return self.channel_stride or self.channels_padded(shape)

    def elements(self, shape: Shape) -> int:
        """Elements of memory a dense tensor of this layout takes, channel padding included."""
        if self.order == "NCHW":
            return math.prod(shape)
        return math.prod(shape) // max(shape[1], 1) * self.pixel_stride(shape)

    def strides(self, shape: Shape) -> tuple[int, ...]:
        """Elements between neighbours along each *logical* axis."""
        if self.order == "NCHW":
            strides = row_major(shape)
            if self.channel_stride and len(shape) > 1:
                return (self.channel_stride * strides[1], *strides[1:])
            return strides
        spatial = row_major(shape[2:])
        pixel = self.pixel_stride(shape)
        return (math.prod(shape[2:]) * pixel, 1, *(s * pixel for s in spatial))

    def start(self, shape: Shape) -> int:
        """Elements from the buffer's start to the tensor's first."""
        return self.offset * self.strides(shape)[1] if self.offset else 0

    @property
    def is_slice(self) -> bool:
        return self.channel_stride != 0


PLAIN = Layout()
NHWC = Layout(order="NHWC", channel_pad=CHANNEL_PAD)


def row_major(shape: Shape) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def broadcast_shape(*shapes: Shape) -> Shape | None:
    """numpy's rule; None where the shapes don't broadcast."""
    rank = max(len(s) for s in shapes)
    result = []
    for extents in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        wide = {e for e in extents if e != 1}
        if len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def broadcast_strides(shape: Shape, strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Strides of a tensor seen at `rank` axes, 0 along every axis that it is stretched over."""
    stretched = tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
    return (0,) * (rank - len(shape)) + stretched


def merge_axes(shape: Shape, *operands: tuple[int, ...]) -> tuple[Shape, tuple[tuple[int, ...], ...]]:
    """The same walk over memory with the fewest axes: neighbours merge where all strides allow it.

    Returns the merged extents and each operand's strides; extents of 1 vanish. An axis stays at least.
    """
    axes = [(extent, *(o[i] for o in operands)) for i, extent in enumerate(shape) if extent != 1]
    merged: list[tuple[int, ...]] = []
    for axis in axes:
        outer = merged[-1] if merged else None
        if outer and all(o == i * axis[0] for o, i in zip(outer[1:], axis[1:], strict=True)):
            merged[-1] = (outer[0] * axis[0], *axis[1:])
        else:
            merged.append(axis)
    if not merged:
        merged = [(1,) * (1 + len(operands))]
    columns = list(zip(*merged, strict=True))
    return tuple(columns[0]), tuple(tuple(c) for c in columns[1:])


@dataclass(frozen=True, kw_only=True)
class Window:
    """A sliding window over one spatial axis: where it starts, how often it fits.

    Source    ONNX operators Conv, MaxPool, AveragePool (auto_pad, ceil_mode)
    """

    extent: int
    kernel: int
    stride: int
    dilation: int
    pad_before: int
    pad_after: int
    out: int


def window(
    *,
    extent: int,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    auto_pad: str,
    ceil_mode: bool = False,
) -> Window:
    """Resolves auto_pad and ceil_mode for one axis. With ceil_mode the last window must start inside the
    input or its leading padding."""
    reach = (kernel - 1) * dilation + 1
    before, after = pads
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = max((ceil_div(extent, stride) - 1) * stride + reach - extent, 0)
        less, more = total // 2, total - total // 2
        before, after = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    elif auto_pad == "VALID":
        before = after = 0
    free = extent + before + after - reach
    out = (ceil_div(free, stride) if ceil_mode else free // stride) + 1
    if ceil_mode and (out - 1) * stride >= extent + before:
        out -= 1
    return Window(
        extent=extent,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pad_before=before,
        pad_after=after,
        out=max(out, 0),
    )
