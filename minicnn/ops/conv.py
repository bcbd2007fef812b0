"""Conv: every output is the sum of a window of the input, weighted by a filter.

Shapes    x (N, C, H, W), w (K, C/group, R, S), b (K) or absent -> y (N, K, P, Q), float32; 1-D: H = R = P = 1
          3-D: x (N, C, D, H, W), w (K, C/group, T, R, S)
Source    ONNX operator Conv; the variants' .cu files name theirs
Not here  more than 3-D: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import elements, epilogue
from minicnn.errors import ShapeError
from minicnn.geometry import Window
from minicnn.graph import Epilogue, TensorType
from minicnn.ops.conv_depthwise import DepthwiseQuads, DepthwiseStrips
from minicnn.ops.conv_fft import Spectral
from minicnn.ops.conv_igemm import IMPLICIT_GEMMS
from minicnn.ops.conv_tiled import Tiled
from minicnn.ops.conv_variants import Depthwise, Direct, Gemm1x1, Im2col
from minicnn.ops.conv_volume import Planes, Volume
from minicnn.ops.conv_volume import reference as volume_reference
from minicnn.ops.conv_winograd import Winograd
from minicnn.ops.conv_winograd_gemm import WinogradGemm
from minicnn.registry import Case, Cost, Problem, Variant, operator
from minicnn.window import Windowed, two_axes


@operator("Conv", opsets=(1, None), fuses=epilogue.FUSIBLE)
@dataclass(frozen=True, kw_only=True)
class Conv(Windowed):
    group: int = 1

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (more than 3-D)"""
        if len(x.extents) < 3 or len(x.extents) != len(w.extents):
            raise ShapeError(
                "input and weights of different or too few axes",
                expected="x (N, C, H, W), w (K, C/group, R, S)",
                found=f"{x.extents}, {w.extents}",
            )
        N, C, *spatial = x.extents
        K, C_group, *kernel = w.extents
        if self.group < 1 or C != C_group * self.group or K % self.group:
            raise ShapeError(
                "channels don't fit the groups",
                tensor="w",
                expected=f"({self.group} x any, {C} / {self.group}, ...)",
                found=w.extents,
            )
        if self.kernel_shape and self.kernel_shape != tuple(kernel):
            raise ShapeError(
                "kernel_shape isn't the weights'", expected=tuple(kernel), found=self.kernel_shape
            )
        if b is not None and b.extents != (K,):
            raise ShapeError(
                "a bias is one number for each output channel", tensor="b", expected=(K,), found=b.extents
            )
        out = [one.out for one in self.windows(tuple(spatial), tuple(kernel))]
        return (TensorType(dtype=x.dtype, shape=(N, K, *out)),)

    def variants(self) -> tuple[Variant, ...]:
        return (
            Direct(),
            Spectral(),
            Im2col(),
            Gemm1x1(),
            Depthwise(),
            DepthwiseStrips(),
            DepthwiseQuads(),
            Tiled(),
            WinogradGemm(outputs=2),
            WinogradGemm(outputs=4),
            Winograd(outputs=2),
            Winograd(outputs=4),
            *IMPLICIT_GEMMS,
            Volume(),
            Planes(),
        )

    def cost(self, problem: Problem) -> Cost:
        weights = problem.inputs[1]
        assert weights is not None
        macs = math.prod(problem.y.shape) * math.prod(weights.shape[1:])
        return Cost(macs=macs, flops=2 * macs)

    def reference(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        K, C_group = w.shape[:2]
        if x.ndim == 5:
            y = volume_reference(x, w, self.windows(x.shape[2:], w.shape[2:]), self.group)
            return y if b is None else y + b.astype(np.float64).reshape(-1, 1, 1, 1)
        vertical, horizontal = two_axes(self.windows(x.shape[2:], w.shape[2:]))
        filters = w.astype(np.float64).reshape(
            self.group, K // self.group, C_group, vertical.kernel, horizontal.kernel
        )
        image = x.astype(np.float64).reshape(
            x.shape[0], self.group, C_group, vertical.extent, horizontal.extent
        )
        padding = ((0, 0), (0, 0), (0, 0), *((a.pad_before, a.pad_after) for a in (vertical, horizontal)))
        image = np.pad(image, padding)
        y = np.zeros((x.shape[0], self.group, K // self.group, vertical.out, horizontal.out))
        for r in range(vertical.kernel):
            for s in range(horizontal.kernel):
                tap = image[..., _reached(vertical, r), :][..., _reached(horizontal, s)]
                y += np.einsum("ngcpq,gkc->ngkpq", tap, filters[..., r, s], optimize=True)
        y = y.reshape(x.shape[0], K, *(one.out for one in self.windows(x.shape[2:], w.shape[2:])))
        return y if b is None else y + b.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))

    def bound(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        terms = math.prod(w.shape[1:]) + (b is not None)
        own = 4 * math.sqrt(terms) * epilogue.UNIT_ROUNDOFF * self.magnitude(x, w, b)
        if x.dtype == np.float16:
            own = own + elements.storage_bound(self.reference(x, w, b), x.dtype)
        return own

    def magnitude(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        """The sum of what its products amount to, which bounds of errors are about."""
        return self.reference(np.abs(x), np.abs(w), None if b is None else np.abs(b))


def _reached(axis: Window, tap: int) -> slice:
    """The padded rows (or columns) that tap number `tap` of the windows falls on."""
    first = tap * axis.dilation
    return slice(first, first + (axis.out - 1) * axis.stride + 1, axis.stride)


_NOTHING = Epilogue()
_RELU = Epilogue(activation="Relu")
_CLIP = Epilogue(activation="Clip", alpha=0.0, beta=0.5)
_RESIDUAL_RELU = Epilogue(activation="Relu", has_residual=True)


def _case(
    conv: Conv,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    bias: bool = True,
    fused: Epilogue = _NOTHING,
    dtype: str = "float32",
) -> Case:
    """Constant weights and bias; the residual's shape follows from the operator."""
    x_type, w_type = (TensorType(dtype=dtype, shape=shape) for shape in (x, w))
    residual = (conv.infer(x_type, w_type)[0].extents,) if fused.has_residual else ()
    constants = (1, 2) if bias else (1,)
    shapes = (x, w, (w[0],) if bias else None, *residual)
    return Case(operator=conv, shapes=shapes, constants=constants, dtype=dtype, epilogue=fused)


CASES = {
    "h differs from w": _case(Conv(), (2, 20, 9, 13), (24, 20, 3, 3)),
    "one pixel, one channel": _case(Conv(), (1, 1, 1, 1), (1, 1, 1, 1)),
    "no bias": _case(Conv(), (1, 16, 7, 8), (5, 16, 3, 2), bias=False),
    "uneven pads": _case(Conv(pads=(0, 1, 2, 3)), (1, 17, 7, 6), (9, 17, 3, 4)),
    "pads wider than the input": _case(Conv(pads=(4, 3, 4, 3)), (1, 16, 2, 3), (8, 16, 3, 3)),
    "strides differ": _case(
        Conv(strides=(2, 3), pads=(1, 1, 1, 1)), (2, 19, 11, 13), (7, 19, 3, 3), fused=_RELU
    ),
    "dilations differ": _case(Conv(dilations=(2, 3), pads=(2, 3, 2, 3)), (1, 18, 10, 11), (6, 18, 3, 3)),
    "SAME_UPPER with a stride": _case(
        Conv(auto_pad="SAME_UPPER", strides=(2, 2)), (1, 16, 8, 7), (8, 16, 3, 3)
    ),
    "SAME_LOWER with a stride": _case(
        Conv(auto_pad="SAME_LOWER", strides=(2, 2)), (1, 16, 8, 7), (8, 16, 3, 4)
    ),
    "VALID ignores pads": _case(Conv(auto_pad="VALID"), (1, 16, 6, 7), (8, 16, 3, 3)),
    "an image's three channels": _case(
        Conv(strides=(2, 2), pads=(3, 3, 3, 3)), (2, 3, 15, 18), (20, 3, 7, 7), fused=_RELU
    ),
    "few channels, pads wider than what is seen": _case(
        Conv(strides=(5, 5), pads=(4, 4, 0, 0)), (2, 2, 1, 1), (20, 2, 3, 3)
    ),
    "few channels, all axes different": _case(
        Conv(strides=(1, 3), dilations=(2, 1), pads=(1, 2, 0, 1)), (2, 3, 9, 14), (10, 3, 3, 2)
    ),
    "few channels in groups": _case(Conv(group=2, pads=(1, 1, 1, 1)), (2, 6, 7, 9), (10, 3, 3, 3)),
    "groups": _case(Conv(group=3, pads=(1, 1, 1, 1)), (2, 54, 6, 7), (15, 18, 3, 3), fused=_CLIP),
    "several slabs": _case(Conv(pads=(1, 1, 1, 1)), (3, 48, 34, 41), (3, 48, 5, 5), fused=_RESIDUAL_RELU),
    "more columns than a block": _case(Conv(pads=(1, 1, 1, 1)), (1, 3, 2, 300), (2, 3, 3, 3)),
    "3x3, tails in tiles and channels": _case(
        Conv(pads=(1, 1, 1, 1)), (2, 21, 11, 15), (83, 21, 3, 3), fused=_RESIDUAL_RELU
    ),
    "3x3, uneven pads": _case(
        Conv(pads=(0, 1, 1, 0)), (1, 48, 9, 6), (144, 48, 3, 3), fused=_CLIP
    ),
    "3x3, more than one slab of tiles": _case(Conv(pads=(1, 1, 1, 1)), (1, 130, 25, 29), (16, 130, 3, 3)),
    "3x3, blocks of unequal width": _case(Conv(pads=(1, 1, 1, 1)), (1, 17, 6, 7), (70, 17, 3, 3)),
    **{
        f"rows of whole tiles, {vectors} x 16 filters": _case(
            Conv(pads=(0, 1, 0, 1)), (1, 2, 1, 252), (16 * vectors, 2, 1, 3)
        )
        for vectors in (1, 2, 3, 4)  # tiles of 14, 12, 9 and 7 pixels, or of 6 or 3
    },
    "17 taps a side": _case(Conv(pads=(8, 8, 8, 8)), (1, 16, 9, 20), (20, 16, 17, 17)),
    "groups of 34": _case(Conv(group=4), (1, 136, 5, 7), (136, 34, 1, 1), fused=_RESIDUAL_RELU),
    "groups, strides and dilations": _case(
        Conv(group=2, strides=(2, 1), dilations=(1, 2), pads=(1, 2, 1, 2)),
        (2, 32, 9, 12),
        (160, 16, 3, 3),
        fused=_RELU,
    ),
    "1x1": _case(Conv(), (3, 37, 5, 6), (21, 37, 1, 1)),
    "1x1, nothing to fuse": _case(Conv(kernel_shape=(1, 1)), (1, 32, 4, 5), (48, 32, 1, 1), bias=False),
    "1x1, residual and Relu": _case(Conv(), (2, 16, 5, 3), (40, 16, 1, 1), fused=_RESIDUAL_RELU),
    "1x1, residual in the bias's place": Case(
        operator=Conv(),
        shapes=((2, 16, 5, 3), (33, 16, 1, 1), (2, 33, 5, 3)),
        constants=(1,),
        epilogue=_RESIDUAL_RELU,
    ),
    "1x1 with a stride": _case(Conv(strides=(2, 2)), (1, 20, 7, 8), (12, 20, 1, 1)),
    "1x1 with pads": _case(Conv(pads=(1, 0, 0, 2)), (1, 20, 4, 5), (12, 20, 1, 1)),
    "depthwise": _case(Conv(group=40, pads=(1, 1, 1, 1)), (2, 40, 9, 11), (40, 1, 3, 3), fused=_CLIP),
    "depthwise, stride 2, 5x5": _case(
        Conv(group=33, strides=(2, 2), pads=(1, 2, 2, 1)), (1, 33, 11, 14), (33, 1, 5, 5)
    ),
    "depthwise, wider than a block": _case(Conv(group=33, pads=(1, 1, 1, 1)), (2, 33, 3, 19), (33, 1, 3, 3)),
    "depthwise, more channels than a block": _case(
        Conv(group=1040, pads=(1, 0, 1, 0)), (1, 1040, 3, 4), (1040, 1, 3, 3), fused=_RELU
    ),
    "depthwise, dilated, residual": _case(
        Conv(group=16, dilations=(2, 1), pads=(2, 1, 2, 1)),
        (2, 16, 6, 7),
        (16, 1, 3, 3),
        bias=False,
        fused=_RESIDUAL_RELU,
    ),
    "depthwise, rows wider than a strip": _case(
        Conv(group=24, pads=(1, 2, 1, 2)), (2, 24, 5, 31), (24, 1, 3, 5), fused=_RESIDUAL_RELU
    ),
    "depthwise, all axes different": _case(
        Conv(group=18, strides=(1, 2), dilations=(2, 1), pads=(2, 1, 0, 3)), (1, 18, 9, 10), (18, 1, 3, 5)
    ),
    "depthwise, columns dilated": _case(
        Conv(group=18, strides=(3, 1), dilations=(1, 2), pads=(0, 2, 1, 1)), (1, 18, 9, 10), (18, 1, 4, 3)
    ),
    "depthwise with a multiplier": _case(Conv(group=17, pads=(1, 1, 1, 1)), (1, 17, 5, 6), (34, 1, 3, 3)),
    "3-D": _case(
        Conv(strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 1)),
        (2, 5, 4, 7, 6),
        (6, 5, 2, 3, 3),
        fused=_RESIDUAL_RELU,
    ),
    "3-D, groups, dilated": _case(
        Conv(group=2, dilations=(2, 1, 2), pads=(2, 0, 1, 1, 1, 1)), (1, 6, 5, 4, 9), (4, 3, 3, 2, 2)
    ),
    "3-D, all axes different": _case(
        Conv(group=2, strides=(3, 1, 6), dilations=(4, 2, 5), pads=(1, 2, 0, 0, 1, 3)),
        (1, 4, 6, 9, 17),
        (6, 2, 2, 3, 4),
    ),
    "3-D, weights at run time": Case(operator=Conv(), shapes=((1, 3, 3, 4, 5), (2, 3, 2, 2, 2))),
    "1-D": _case(Conv(strides=(2,), pads=(2, 1)), (2, 18, 23), (9, 18, 5), fused=_RELU),
    "1-D, few channels": _case(Conv(dilations=(2,), pads=(0, 3)), (2, 4, 23), (9, 4, 3)),
    "weights and bias at run time": Case(
        operator=Conv(pads=(1, 1, 1, 1)), shapes=((1, 16, 5, 6), (4, 16, 3, 3), (4,))
    ),
    "float16": _case(
        Conv(strides=(2, 1), pads=(1, 1, 1, 1)), (2, 21, 9, 11), (37, 21, 3, 3), fused=_RESIDUAL_RELU,
        dtype="float16",
    ),
    "float16, groups": _case(
        Conv(group=2, dilations=(1, 2)), (1, 24, 6, 9), (34, 12, 3, 2), fused=_CLIP, dtype="float16"
    ),
    "float16, depthwise": _case(
        Conv(group=24, strides=(1, 2), pads=(1, 2, 1, 2)), (2, 24, 5, 31), (24, 1, 3, 5),
        fused=_RESIDUAL_RELU, dtype="float16",
    ),
    "float16, depthwise, columns dilated": _case(
        Conv(group=18, dilations=(1, 2), pads=(0, 2, 1, 1)), (1, 18, 9, 10), (18, 1, 4, 3), dtype="float16"
    ),
    "float16, an image's three channels": _case(
        Conv(strides=(2, 2), pads=(3, 3, 3, 3)), (1, 3, 15, 18), (20, 3, 7, 7), bias=False, dtype="float16"
    ),
    "bias at run time": Case(operator=Conv(), shapes=((1, 16, 5, 6), (4, 16, 1, 1), (4,)), constants=(1,)),
}
