"""Conv: every output is the sum of a window of the input, weighted by a filter.

Shapes    x (N, C, H, W), w (K, C/group, R, S), b (K) or absent -> y (N, K, P, Q), float32; 1-D: H = R = P = 1
Source    ONNX operator Conv; the variants' .cu files name theirs
Not here  3-D: refused by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.errors import ShapeError
from minicnn.geometry import CHANNEL_PAD, Window, ceil_div, round_up
from minicnn.graph import Epilogue, TensorType
from minicnn.kernels import launch
from minicnn.registry import Case, Cost, Orders, Packing, Problem, Variant, operator
from minicnn.step import Gemm, Kernel, Operand, Step
from minicnn.tiling import VECTOR, tile
from minicnn.window import Windowed, two_axes, window_arguments

SLAB_BYTES = 4 << 20  # of im2col's columns: large enough for a GEMM, small enough for a CPU's cache
FEW_CHANNELS = 16  # below, channels are too few for vectors: im2col reads NCHW


@operator("Conv", opsets=(1, None), fuses=epilogue.FUSIBLE)
@dataclass(frozen=True, kw_only=True)
class Conv(Windowed):
    group: int = 1

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError (3-D)"""
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
            raise ShapeError("kernel_shape isn't the weights'", expected=tuple(kernel), found=self.kernel_shape)
        if b is not None and b.extents != (K,):
            raise ShapeError("a bias is one number for each output channel", tensor="b", expected=(K,), found=b.extents)
        out = [one.out for one in self.windows(tuple(spatial), tuple(kernel))]
        return (TensorType(dtype=x.dtype, shape=(N, K, *out)),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Im2col(), Gemm1x1(), Depthwise())

    def cost(self, problem: Problem) -> Cost:
        weights = problem.inputs[1]
        assert weights is not None
        macs = math.prod(problem.y.shape) * math.prod(weights.shape[1:])
        return Cost(macs=macs, flops=2 * macs)

    def reference(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        K, C_group = w.shape[:2]
        vertical, horizontal = two_axes(self.windows(x.shape[2:], w.shape[2:]))
        filters = w.astype(np.float64).reshape(self.group, K // self.group, C_group, vertical.kernel, horizontal.kernel)
        image = x.astype(np.float64).reshape(x.shape[0], self.group, C_group, vertical.extent, horizontal.extent)
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
        magnitude = self.reference(np.abs(x), np.abs(w), None if b is None else np.abs(b))
        return 4 * math.sqrt(terms) * epilogue.UNIT_ROUNDOFF * magnitude


def _reached(axis: Window, tap: int) -> slice:
    """The padded rows (or columns) that tap number `tap` of the windows falls on."""
    first = tap * axis.dilation
    return slice(first, first + (axis.out - 1) * axis.stride + 1, axis.stride)


@dataclass(frozen=True, kw_only=True)
class _Extents:
    """A convolution in this file's letters, and the two windows. A 1-D one is an image of height 1."""

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    P: int
    Q: int
    vertical: Window
    horizontal: Window

    @property
    def windows(self) -> tuple[Window, Window]:
        return self.vertical, self.horizontal


def _extents(problem: Problem, kernel: tuple[int, ...]) -> _Extents:
    """`kernel` is (R, S), since packed weights no longer have ONNX's shape."""
    x, y, conv = problem.x, problem.y, problem.operator
    vertical, horizontal = two_axes(conv.windows(x.shape[2:], kernel[-(len(x.shape) - 2) :]))
    return _Extents(
        N=x.shape[0],
        C=x.shape[1],
        H=vertical.extent,
        W=horizontal.extent,
        K=y.shape[1],
        R=vertical.kernel,
        S=horizontal.kernel,
        P=vertical.out,
        Q=horizontal.out,
        vertical=vertical,
        horizontal=horizontal,
    )


def _weights(problem: Problem) -> Operand:
    w = problem.inputs[1]
    assert w is not None
    return w


class _Convolution(Variant):
    """What the variants share: float32 alone, and weights known at load wherever they are packed."""

    packs_weights = True

    def applies(self, problem: Problem) -> str:
        if problem.x.dtype != "float32":
            return f"the input is {problem.x.dtype}, not float32"
        if self.packs_weights and not _weights(problem).is_constant:
            return "the weights are computed at run time"
        return self.suits(problem)

    def suits(self, problem: Problem) -> str:
        """As `applies`, for float32 and weights that can be packed."""
        return ""

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")


class Direct(_Convolution):
    """The textbook's seven loops, four of them the grid's. Weights as ONNX has them."""

    name = "direct"
    packs_weights = False

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        e = _extents(problem, _weights(problem).shape[2:])
        block = min(256, round_up(e.Q, 32))
        return launch(
            Kernel(file="conv_direct.cu", entry="conv_direct"),
            grid=(ceil_div(e.Q, block), e.P, e.N * e.K),
            block=(block, 1, 1),
            x=problem.x,
            w=_weights(problem),
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=e.C,
            K=e.K,
            groups=problem.operator.group,
            **window_arguments(e.windows),
            **epilogue.arguments(problem.epilogue),
        )


class Im2col(_Convolution):
    """Windows become rows of a matrix, a slab of output rows at a time; a GEMM writes NHWC; then the epilogue.

    With few channels (an image's three) it reads NCHW and the matrix is transposed.
    """

    name = "im2col"

    def orders(self, problem: Problem) -> Orders:
        orders = epilogue.orders(problem, "NHWC")
        return Orders(inputs=("NCHW", *orders.inputs[1:]), outputs=orders.outputs) if _reads_nchw(problem) else orders

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        groups = problem.operator.group
        K, C, *kernel = _weights(problem).shape
        R, S = (1, *kernel)[-2:]
        split = (groups, K // groups, C, R, S)
        axes = (0, 2, 3, 4, 1) if _reads_nchw(problem) else (0, 3, 4, 2, 1)  # (G, C, R, S, K) or (G, R, S, C, K)
        return {
            1: Packing(
                name="im2col_nchw" if _reads_nchw(problem) else "im2col_nhwc",
                shape=tuple(split[axis] for axis in axes),
                function=lambda w: np.ascontiguousarray(w.reshape(split).transpose(axes)),
            )
        }

    def workspace_bytes(self, problem: Problem) -> int:
        e = _extents(problem, _weights(problem).shape[2:])
        return 4 * _slab_rows(e) * e.Q * e.C * e.R * e.S

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        packed = _weights(problem).shape
        e = _extents(problem, packed[2:4] if _reads_nchw(problem) else packed[1:3])
        rows = _slab_rows(e)
        steps: list[Step] = []
        for first_row in range(0, e.N * e.P, rows):
            steps += self._slab(problem, e, first_row, min(rows, e.N * e.P - first_row))
        return tuple(steps)

    def _slab(self, problem: Problem, e: _Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        groups = problem.operator.group
        columns, y = problem.workspace, problem.y
        assert columns is not None
        gemm_m, gemm_n, gemm_k = rows * e.Q, e.K // groups, e.C // groups * e.R * e.S  # pixels, filters, taps
        if _reads_nchw(problem):
            unfold = self._unfold_nchw(problem, e, first_row, rows)
            lda, stride_a = gemm_m, gemm_k * gemm_m
        else:
            unfold = self._unfold_nhwc(problem, e, first_row, rows)
            lda, stride_a = groups * gemm_k, gemm_k
        product = Gemm(
            m=gemm_m,
            n=gemm_n,
            k=gemm_k,
            a=columns.view(),
            b=_weights(problem).view(),
            c=y.view(first_row * e.Q * y.pixel_stride),
            lda=lda,
            ldb=gemm_n,
            ldc=y.pixel_stride,
            transpose_a=_reads_nchw(problem),
            batch=groups,
            stride_a=stride_a,
            stride_b=gemm_k * gemm_n,
            stride_c=gemm_n,
        )
        bias = epilogue.own_input(problem, 2)
        finish = epilogue.row_step(problem, rows=gemm_m, columns=e.K, bias=bias, first_row=first_row * e.Q)
        return (*unfold, product, *finish)

    def _unfold_nchw(self, problem: Problem, e: _Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        block = min(256, round_up(e.Q, 32))
        return launch(
            Kernel(file="im2col.cu", entry="im2col"),
            grid=(ceil_div(e.Q, block), rows, e.C * e.R * e.S),
            block=(block, 1, 1),
            x=problem.x,
            columns=problem.workspace,
            C=e.C,
            M=rows,
            first_row=first_row,
            **window_arguments(e.windows),
        )

    def _unfold_nhwc(self, problem: Problem, e: _Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        groups = problem.operator.group
        vectors = ceil_div(e.C // groups, VECTOR)
        grid, block = tile(columns=vectors, rows=e.Q, threads=64)
        return launch(
            Kernel(file="im2col.cu", entry="im2col_nhwc"),
            grid=(grid[1], rows, grid[0] * groups),
            block=block,
            x=problem.x,
            columns=problem.workspace,
            groups=groups,
            C=e.C // groups,
            first_row=first_row,
            x_stride=problem.x.pixel_stride,
            **window_arguments(e.windows),
        )


def _reads_nchw(problem: Problem) -> bool:
    return problem.x.shape[1] < FEW_CHANNELS


def _slab_rows(e: _Extents) -> int:
    """Output rows of a slab: slabs of equal height, each within SLAB_BYTES (but a row at least)."""
    row_bytes = 4 * e.Q * e.C * e.R * e.S
    slabs = ceil_div(e.N * e.P, max(1, SLAB_BYTES // row_bytes))
    return ceil_div(e.N * e.P, slabs)


class Gemm1x1(_Convolution):
    """A 1x1 filter sees one pixel: NHWC's pixels are the rows of a matrix already."""

    name = "gemm1x1"

    def suits(self, problem: Problem) -> str:
        e = _extents(problem, _weights(problem).shape[2:])
        if e.R * e.S != 1:
            return f"the filter is {e.R}x{e.S}, not 1x1"
        if problem.operator.group != 1:
            return f"it has {problem.operator.group} groups"
        for axis in e.windows:
            if axis.stride != 1 or axis.pad_before or axis.pad_after:
                return "it has strides or pads"
        return ""

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        K, C = _weights(problem).shape[:2]
        return {1: Packing(name="gemm1x1", shape=(C, K), function=lambda w: np.ascontiguousarray(w.reshape(K, C).T))}

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        e = _extents(problem, (1, 1))
        pixels = e.N * e.P * e.Q
        product = Gemm(
            m=pixels,
            n=e.K,
            k=e.C,
            a=x.view(),
            b=_weights(problem).view(),
            c=y.view(),
            lda=x.pixel_stride,
            ldb=e.K,
            ldc=y.pixel_stride,
        )
        bias = epilogue.own_input(problem, 2)
        return (product, *epilogue.row_step(problem, rows=pixels, columns=e.K, bias=bias))


class Depthwise(_Convolution):
    """One filter a channel: no sum over channels, so no GEMM; memory decides."""

    name = "depthwise"

    def suits(self, problem: Problem) -> str:
        C, K, groups = problem.x.shape[1], problem.y.shape[1], problem.operator.group
        if not groups == C == K:
            return f"{groups} groups, {C} input and {K} output channels aren't one filter a channel"
        bias = epilogue.own_input(problem, 2)
        if bias is not None and not bias.is_constant:
            return "the bias is computed at run time"
        return ""

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        C = problem.x.shape[1]
        padding = -C % CHANNEL_PAD
        R, S = (1, *_weights(problem).shape[2:])[-2:]

        def pack_weights(w: np.ndarray) -> np.ndarray:
            return np.pad(w.reshape(C, R, S).transpose(1, 2, 0), ((0, 0), (0, 0), (0, padding)))

        packings = {1: Packing(name="depthwise", shape=(R, S, C + padding), function=pack_weights)}
        if epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(name="depthwise", shape=(C + padding,), function=lambda b: np.pad(b, (0, padding)))
        return packings

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, _weights(problem), problem.y, problem.residual
        e = _extents(problem, w.shape[:2])
        channels = min(o.channels_padded for o in (x, y, residual) if o is not None)
        grid, block = tile(columns=ceil_div(channels, VECTOR), rows=e.Q, threads=64)
        return launch(
            Kernel(file="depthwise.cu", entry="depthwise"),
            grid=(grid[0], grid[1], e.N * e.P),
            block=block,
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            C=channels,
            x_stride=x.pixel_stride,
            w_stride=w.shape[2],
            y_stride=y.pixel_stride,
            residual_stride=residual.pixel_stride if residual else 0,
            **window_arguments(e.windows),
            **epilogue.arguments(problem.epilogue),
        )


def _case(conv: Conv, x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, fused: Epilogue = Epilogue()) -> Case:
    """Constant weights and bias; the residual's shape follows from the operator."""
    shapes = [x, w, (w[0],) if bias else None]
    types = [None if s is None else TensorType(dtype="float32", shape=s) for s in shapes]
    if fused.has_residual:
        shapes.append(conv.infer(*types)[0].extents)
    elif not bias:
        shapes.pop()
    constants = (1, 2) if bias else (1,)
    return Case(operator=conv, shapes=tuple(shapes), constants=constants, epilogue=fused)


_RELU = Epilogue(activation="Relu")
_CLIP = Epilogue(activation="Clip", alpha=0.0, beta=0.5)
_RESIDUAL_RELU = Epilogue(activation="Relu", has_residual=True)

CASES = {
    "h differs from w": _case(Conv(), (2, 20, 9, 13), (24, 20, 3, 3)),
    "one pixel, one channel": _case(Conv(), (1, 1, 1, 1), (1, 1, 1, 1)),
    "no bias": _case(Conv(), (1, 16, 7, 8), (5, 16, 3, 2), bias=False),
    "uneven pads": _case(Conv(pads=(0, 1, 2, 3)), (1, 17, 7, 6), (9, 17, 3, 4)),
    "pads wider than the input": _case(Conv(pads=(4, 3, 4, 3)), (1, 16, 2, 3), (8, 16, 3, 3)),
    "strides differ": _case(Conv(strides=(2, 3), pads=(1, 1, 1, 1)), (2, 19, 11, 13), (7, 19, 3, 3), fused=_RELU),
    "dilations differ": _case(Conv(dilations=(2, 3), pads=(2, 3, 2, 3)), (1, 18, 10, 11), (6, 18, 3, 3)),
    "SAME_UPPER with a stride": _case(Conv(auto_pad="SAME_UPPER", strides=(2, 2)), (1, 16, 8, 7), (8, 16, 3, 3)),
    "SAME_LOWER with a stride": _case(Conv(auto_pad="SAME_LOWER", strides=(2, 2)), (1, 16, 8, 7), (8, 16, 3, 4)),
    "VALID ignores pads": _case(Conv(auto_pad="VALID"), (1, 16, 6, 7), (8, 16, 3, 3)),
    "an image's three channels": _case(Conv(strides=(2, 2), pads=(3, 3, 3, 3)), (2, 3, 15, 18), (20, 3, 7, 7), fused=_RELU),
    "few channels in groups": _case(Conv(group=2, pads=(1, 1, 1, 1)), (2, 6, 7, 9), (10, 3, 3, 3)),
    "groups": _case(Conv(group=3, pads=(1, 1, 1, 1)), (2, 54, 6, 7), (15, 18, 3, 3), fused=_CLIP),
    "several slabs": _case(Conv(pads=(1, 1, 1, 1)), (3, 48, 34, 41), (3, 48, 5, 5), fused=_RESIDUAL_RELU),
    "more columns than a block": _case(Conv(pads=(1, 1, 1, 1)), (1, 3, 2, 300), (2, 3, 3, 3)),
    "1x1": _case(Conv(), (3, 37, 5, 6), (21, 37, 1, 1)),
    "1x1, nothing to fuse": _case(Conv(kernel_shape=(1, 1)), (1, 32, 4, 5), (48, 32, 1, 1), bias=False),
    "1x1, residual and Relu": _case(Conv(), (2, 16, 5, 3), (40, 16, 1, 1), fused=_RESIDUAL_RELU),
    "1x1, residual without bias": _case(Conv(), (2, 16, 5, 3), (33, 16, 1, 1), bias=False, fused=_RESIDUAL_RELU),
    "1x1 with a stride": _case(Conv(strides=(2, 2)), (1, 20, 7, 8), (12, 20, 1, 1)),
    "1x1 with pads": _case(Conv(pads=(1, 0, 0, 2)), (1, 20, 4, 5), (12, 20, 1, 1)),
    "depthwise": _case(Conv(group=40, pads=(1, 1, 1, 1)), (2, 40, 9, 11), (40, 1, 3, 3), fused=_CLIP),
    "depthwise, stride 2, 5x5": _case(Conv(group=33, strides=(2, 2), pads=(1, 2, 2, 1)), (1, 33, 11, 14), (33, 1, 5, 5)),
    "depthwise, dilated, residual": _case(
        Conv(group=16, dilations=(2, 1), pads=(2, 1, 2, 1)), (2, 16, 6, 7), (16, 1, 3, 3), bias=False, fused=_RESIDUAL_RELU
    ),
    "depthwise with a multiplier": _case(Conv(group=17, pads=(1, 1, 1, 1)), (1, 17, 5, 6), (34, 1, 3, 3)),
    "1-D": _case(Conv(strides=(2,), pads=(2, 1)), (2, 18, 23), (9, 18, 5), fused=_RELU),
    "1-D, few channels": _case(Conv(dilations=(2,), pads=(0, 3)), (2, 4, 23), (9, 4, 3)),
    "weights and bias at run time": Case(operator=Conv(pads=(1, 1, 1, 1)), shapes=((1, 16, 5, 6), (4, 16, 3, 3), (4,))),
    "bias at run time": Case(operator=Conv(), shapes=((1, 16, 5, 6), (4, 16, 1, 1), (4,)), constants=(1,)),
}
