"""ConvTranspose: every input pixel spreads a filter over the output; what falls on one place is added up.

Shapes    x (N, C, H, W), w (C, K/group, R, S), b (K) or absent -> y (N, K, P, Q), float32; 1-D: H = R = P = 1
          P = stride * (H - 1) + output_padding + (R - 1) * dilation + 1 - pads, or what output_shape says
          3-D: x (N, C, D, H, W), w (C, K/group, T, R, S)
Source    ONNX operator ConvTranspose
Not here  more than 3-D: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import epilogue
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.geometry import Shape, Window
from minicnn.graph import Epilogue, TensorType
from minicnn.ops.convtranspose_igemm import PhasedGemm
from minicnn.ops.convtranspose_variants import Col2im, Depthwise, Direct, Volume
from minicnn.registry import Case, Cost, Problem, Variant, operator
from minicnn.window import Windowed


@operator("ConvTranspose", opsets=(1, None), fuses=epilogue.FUSIBLE)
@dataclass(frozen=True, kw_only=True)
class ConvTranspose(Windowed):
    group: int = 1
    output_padding: tuple[int, ...] = ()  # rows and columns more at the end
    output_shape: tuple[int, ...] = ()  # P, Q; pads then follow from it

    def windows_of(self, spatial: Shape, kernel: Shape) -> tuple[Window, ...]:
        """How x comes to lie on y along each axis: `out` is y's extent, pads are what is cut off.

        Raises    ShapeError where attributes and input contradict each other
                  UnsupportedError for more than 3-D
        """
        rank = len(spatial)
        if rank not in (1, 2, 3):
            raise UnsupportedError("windows over this many axes", found=f"{rank}-D", accepted="1-D, 2-D, 3-D")
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads, more = self.pads or (0,) * (2 * rank), self.output_padding or (0,) * rank
        self._check(rank, kernel, strides, dilations, pads)
        if len(more) != rank or min(more) < 0:
            raise ShapeError(
                "output_padding doesn't fit the input", expected=f"{rank} numbers, 0 or more", found=more
            )
        if self.output_shape and len(self.output_shape) not in (rank, rank + 2):
            raise ShapeError(
                "output_shape doesn't fit the input", expected=f"{rank} numbers", found=self.output_shape
            )
        wanted = self.output_shape[-rank:] if self.output_shape else (None,) * rank
        return tuple(
            self._window(
                extent=spatial[axis],
                kernel=kernel[axis],
                stride=strides[axis],
                dilation=dilations[axis],
                pads=(pads[axis], pads[axis + rank]),
                more=more[axis],
                wanted=wanted[axis],
            )
            for axis in range(rank)
        )

    def _window(
        self,
        *,
        extent: int,
        kernel: int,
        stride: int,
        dilation: int,
        pads: tuple[int, int],
        more: int,
        wanted: int | None,
    ) -> Window:
        whole = (extent - 1) * stride + more + (kernel - 1) * dilation + 1
        before, after = pads
        if self.auto_pad == "VALID":
            before = after = 0
        if wanted is None and self.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            wanted = extent * stride
        if wanted is not None:
            surplus = max(whole - wanted, 0)
            half, rest = surplus // 2, surplus - surplus // 2
            before, after = (half, rest) if self.auto_pad == "SAME_UPPER" else (rest, half)
        out = whole - before - after if wanted is None else wanted
        if out < 1 or extent < 1:
            raise ShapeError(
                "nothing is left of the output", expected=f"pads of less than {whole}", found=(before, after)
            )
        return Window(
            extent=extent,
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            pad_before=before,
            pad_after=after,
            out=out,
        )

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (more than 3-D)"""
        if len(x.extents) < 3 or len(x.extents) != len(w.extents):
            raise ShapeError(
                "input and weights of different or too few axes",
                expected="x (N, C, H, W), w (C, K/group, R, S)",
                found=f"{x.extents}, {w.extents}",
            )
        N, C, *spatial = x.extents
        C_weights, K_group, *kernel = w.extents
        if self.group < 1 or C != C_weights or C % self.group:
            raise ShapeError(
                "channels don't fit the weights or groups",
                tensor="w",
                expected=f"({C}, any, ...) in {self.group} groups",
                found=w.extents,
            )
        if self.kernel_shape and self.kernel_shape != tuple(kernel):
            raise ShapeError(
                "kernel_shape isn't the weights'", expected=tuple(kernel), found=self.kernel_shape
            )
        K = K_group * self.group
        if b is not None and b.extents != (K,):
            raise ShapeError(
                "a bias is one number for each output channel", tensor="b", expected=(K,), found=b.extents
            )
        out = [one.out for one in self.windows_of(tuple(spatial), tuple(kernel))]
        return (TensorType(dtype=x.dtype, shape=(N, K, *out)),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Col2im(), Depthwise(), PhasedGemm(), Volume())

    def cost(self, problem: Problem) -> Cost:
        weights = problem.inputs[1]
        assert weights is not None
        macs = math.prod(problem.x.shape) * math.prod(weights.shape[1:])
        return Cost(macs=macs, flops=2 * macs)

    def reference(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        (N, C), K = x.shape[:2], w.shape[1] * self.group
        windows = self.windows_of(x.shape[2:], w.shape[2:])
        image = x.astype(np.float64).reshape(N, self.group, C // self.group, *x.shape[2:])
        filters = w.astype(np.float64).reshape(self.group, C // self.group, K // self.group, *w.shape[2:])
        spread = np.zeros((N, self.group, K // self.group, *map(_whole, windows)))
        for tap in np.ndindex(*w.shape[2:]):
            reached = (_reached(axis, place) for axis, place in zip(windows, tap, strict=True))
            places: tuple[Any, ...] = tuple(reached)
            term = np.einsum("ngc...,gck->ngk...", image, filters[(..., *tap)], optimize=True)
            spread[(..., *places)] += term
        kept: tuple[Any, ...] = tuple(slice(axis.pad_before, axis.pad_before + axis.out) for axis in windows)
        y = spread[(..., *kept)].reshape(N, K, *(one.out for one in windows))
        return y if b is None else y + b.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))

    def bound(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        """Of a sum of as many terms as really fall on each output."""
        terms = self.reference(np.ones_like(x[:1]), np.ones_like(w)) + (b is not None)
        magnitude = self.reference(np.abs(x), np.abs(w), None if b is None else np.abs(b))
        return 4 * np.sqrt(terms) * epilogue.UNIT_ROUNDOFF * magnitude


def _whole(axis: Window) -> int:
    """Extent of what is spread, before pads cut it off, and of what is asked for beyond it."""
    spread = (axis.extent - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
    return max(spread, axis.pad_before + axis.out)


def _reached(axis: Window, tap: int) -> slice:
    """The rows (or columns) that tap number `tap` of every input's filter falls on."""
    first = tap * axis.dilation
    return slice(first, first + (axis.extent - 1) * axis.stride + 1, axis.stride)


_NOTHING = Epilogue()
_RELU = Epilogue(activation="Relu")
_CLIP = Epilogue(activation="Clip", alpha=0.0, beta=0.5)
_RESIDUAL_RELU = Epilogue(activation="Relu", has_residual=True)


def _case(
    conv: ConvTranspose,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    bias: bool = True,
    fused: Epilogue = _NOTHING,
) -> Case:
    """Constant weights and bias; the residual's shape follows from the operator."""
    x_type, w_type = (TensorType(dtype="float32", shape=shape) for shape in (x, w))
    (y_type,) = conv.infer(x_type, w_type)
    residual = (y_type.extents,) if fused.has_residual else ()
    shapes = (x, w, (y_type.extents[1],) if bias else None, *residual)
    return Case(operator=conv, shapes=shapes, constants=(1, 2) if bias else (1,), epilogue=fused)


CASES = {
    "h differs from w": _case(ConvTranspose(), (2, 20, 5, 7), (20, 24, 3, 2)),
    "one pixel, one channel": _case(ConvTranspose(), (1, 1, 1, 1), (1, 1, 1, 1)),
    "U-Net's: twice as large": _case(
        ConvTranspose(strides=(2, 2)), (2, 32, 5, 6), (32, 16, 2, 2), fused=_RELU
    ),
    "DCGAN's: windows overlap": _case(
        ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1)), (1, 33, 4, 5), (33, 19, 4, 4), bias=False
    ),
    "strides differ, uneven pads": _case(
        ConvTranspose(strides=(3, 2), pads=(0, 1, 2, 1)), (2, 18, 4, 5), (18, 17, 4, 3), fused=_CLIP
    ),
    "strides wider than the filter": _case(ConvTranspose(strides=(3, 4)), (1, 16, 3, 4), (16, 8, 2, 2)),
    "dilations differ": _case(ConvTranspose(dilations=(2, 3), strides=(2, 2)), (1, 17, 5, 4), (17, 6, 3, 2)),
    "groups": _case(
        ConvTranspose(group=3, strides=(2, 2), pads=(1, 1, 0, 0)), (2, 12, 4, 5), (12, 7, 3, 3), fused=_RELU
    ),
    "output_padding": _case(
        ConvTranspose(strides=(2, 3), pads=(1, 1, 1, 1), output_padding=(1, 2)), (1, 16, 4, 5), (16, 9, 3, 3)
    ),
    "output_shape": _case(
        ConvTranspose(strides=(3, 2), output_shape=(9, 8)), (1, 5, 3, 4), (5, 6, 3, 3), fused=_RESIDUAL_RELU
    ),
    "output_shape, an odd surplus at the start": _case(
        ConvTranspose(strides=(2, 2), output_shape=(8, 9)), (1, 5, 4, 4), (5, 6, 3, 4)
    ),
    "output_shape, SAME_UPPER: at the end": _case(
        ConvTranspose(strides=(2, 2), output_shape=(8, 9), auto_pad="SAME_UPPER"), (1, 5, 4, 4), (5, 6, 3, 4)
    ),
    "SAME_UPPER": _case(ConvTranspose(auto_pad="SAME_UPPER", strides=(2, 2)), (1, 16, 4, 5), (16, 8, 3, 3)),
    "SAME_LOWER": _case(ConvTranspose(auto_pad="SAME_LOWER", strides=(2, 2)), (1, 16, 4, 5), (16, 8, 3, 3)),
    "VALID ignores pads": _case(ConvTranspose(auto_pad="VALID", strides=(2, 1)), (1, 8, 4, 5), (8, 3, 3, 3)),
    "pads that swallow inputs": _case(ConvTranspose(pads=(3, 2, 3, 2)), (1, 16, 6, 7), (16, 5, 3, 3)),
    "several slabs, windows overlap": _case(
        ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1)), (2, 3, 60, 70), (3, 33, 5, 5), fused=_RESIDUAL_RELU
    ),
    "wider than a block": _case(ConvTranspose(strides=(1, 2)), (1, 2, 2, 350), (2, 3, 2, 2)),
    "depthwise, as bilinear upsampling": _case(
        ConvTranspose(group=21, strides=(2, 2), pads=(1, 1, 1, 1)), (2, 21, 5, 6), (21, 1, 4, 4), bias=False
    ),
    "depthwise, dilated, residual": _case(
        ConvTranspose(group=16, strides=(2, 3), dilations=(2, 1)),
        (1, 16, 4, 3),
        (16, 1, 3, 3),
        fused=_RESIDUAL_RELU,
    ),
    "depthwise, all axes different": _case(
        ConvTranspose(group=18, strides=(2, 3), dilations=(1, 2), pads=(0, 1, 2, 1)),
        (1, 18, 4, 5),
        (18, 1, 3, 4),
    ),
    "3-D": _case(
        ConvTranspose(strides=(2, 1, 2), pads=(1, 0, 1, 0, 1, 1)),
        (2, 5, 3, 4, 5),
        (5, 6, 3, 2, 3),
        fused=_RESIDUAL_RELU,
    ),
    "3-D, wider than a block": _case(
        ConvTranspose(strides=(1, 1, 2), pads=(0, 0, 0, 0, 0, 1)), (1, 1, 1, 1, 258), (1, 1, 1, 1, 2)
    ),
    "3-D, groups, dilated, output_padding": _case(
        ConvTranspose(group=2, strides=(2, 3, 1), dilations=(1, 2, 2), output_padding=(1, 1, 0)),
        (1, 6, 3, 2, 4),
        (6, 2, 2, 2, 3),
    ),
    "3-D, all axes different": _case(
        ConvTranspose(group=2, strides=(2, 3, 1), dilations=(2, 1, 3), pads=(1, 2, 3, 0, 1, 0)),
        (1, 4, 3, 4, 6),
        (4, 3, 2, 3, 4),
    ),
    "1-D": _case(
        ConvTranspose(strides=(2,), pads=(2, 1), output_padding=(1,)), (2, 18, 9), (18, 9, 5), fused=_RELU
    ),
    "1-D, depthwise": _case(ConvTranspose(strides=(2,), group=5), (2, 5, 9), (5, 1, 3)),
    "weights and bias at run time": Case(
        operator=ConvTranspose(strides=(2, 2)), shapes=((1, 16, 5, 6), (16, 4, 3, 3), (4,))
    ),
}
