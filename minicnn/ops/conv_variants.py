"""The ways a convolution is done: textbook first, then what memory and GEMMs like better.

Source    the .cu files name theirs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import elements, epilogue, tiling
from minicnn.geometry import CHANNEL_PAD, Window, ceil_div
from minicnn.kernels import launch
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Gemm, Kernel, Operand, Step
from minicnn.window import two_axes, window_arguments

SLAB_BYTES = 4 << 20  # of im2col's columns: large enough for a GEMM, small enough for a CPU's cache
FEW_CHANNELS = 16  # below, channels are too few for vectors: im2col reads NCHW


@dataclass(frozen=True, kw_only=True)
class Extents:
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


def extents_of(problem: Problem, kernel: tuple[int, ...]) -> Extents:
    """`kernel` is (R, S), since packed weights no longer have ONNX's shape."""
    x, y, conv = problem.x, problem.y, problem.operator
    vertical, horizontal = two_axes(conv.windows(x.shape[2:], kernel[-(len(x.shape) - 2) :]))
    return Extents(
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


def weights_of(problem: Problem) -> Operand:
    w = problem.inputs[1]
    assert w is not None
    return w


class Convolution(Variant):
    """What the variants share: weights known at load wherever they are packed."""

    packs_weights = True

    def applies(self, problem: Problem) -> str:
        if len(problem.x.shape) > 4:
            return "x is a volume"
        if self.packs_weights and not weights_of(problem).is_constant:
            return "the weights are computed at run time"
        return self.suits(problem)

    def suits(self, problem: Problem) -> str:
        """As `applies`, for weights that can be packed."""
        return ""

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")


class Direct(Convolution):
    """The textbook's seven loops, four of them the grid's. Weights as ONNX has them."""

    name = "direct"
    packs_weights = False

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        e = extents_of(problem, weights_of(problem).shape[2:])
        return launch(
            Kernel(file="conv_direct.cu", entry="conv_direct"),
            **tiling.planes(columns=e.Q, rows=e.P, planes=e.N * e.K),
            x=problem.x,
            w=weights_of(problem),
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=e.C,
            K=e.K,
            groups=problem.operator.group,
            **window_arguments(e.windows),
            **epilogue.arguments(problem.epilogue),
        )


class Im2col(Convolution):
    """Windows become a matrix, a slab of output rows at a time; a GEMM writes NHWC; then the epilogue.

    With few channels (an image's three) it reads NCHW and the matrix is transposed.
    """

    name = "im2col"

    def orders(self, problem: Problem) -> Orders:
        orders = epilogue.orders(problem, "NHWC")
        return (
            Orders(inputs=("NCHW", *orders.inputs[1:]), outputs=orders.outputs)
            if reads_nchw(problem)
            else orders
        )

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        groups = problem.operator.group
        K, C, *kernel = weights_of(problem).shape
        R, S = (1, *kernel)[-2:]
        split = (groups, K // groups, C, R, S)
        axes = (
            (0, 2, 3, 4, 1) if reads_nchw(problem) else (0, 3, 4, 2, 1)
        )  # (G, C, R, S, K) or (G, R, S, C, K)
        return {
            1: Packing(
                name="im2col_nchw" if reads_nchw(problem) else "im2col_nhwc",
                shape=tuple(split[axis] for axis in axes),
                function=lambda w: np.ascontiguousarray(w.reshape(split).transpose(axes)),
            )
        }

    def workspace_bytes(self, problem: Problem) -> int:
        e = extents_of(problem, weights_of(problem).shape[2:])
        return 4 * _slab_rows(e) * e.Q * e.C * e.R * e.S

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        packed = weights_of(problem).shape
        e = extents_of(problem, packed[2:4] if reads_nchw(problem) else packed[1:3])
        rows = _slab_rows(e)
        steps: list[Step] = []
        for first_row in range(0, e.N * e.P, rows):
            steps += self._slab(problem, e, first_row, min(rows, e.N * e.P - first_row))
        return tuple(steps)

    def _slab(self, problem: Problem, e: Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        groups = problem.operator.group
        columns, y = problem.workspace, problem.y
        assert columns is not None
        gemm_m, gemm_n, gemm_k = rows * e.Q, e.K // groups, e.C // groups * e.R * e.S  # pixels, filters, taps
        if reads_nchw(problem):
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
            b=weights_of(problem).view(),
            c=y.view(first_row * e.Q * y.pixel_stride),
            lda=lda,
            ldb=gemm_n,
            ldc=y.pixel_stride,
            transpose_a=reads_nchw(problem),
            batch=groups,
            stride_a=stride_a,
            stride_b=gemm_k * gemm_n,
            stride_c=gemm_n,
        )
        bias = epilogue.own_input(problem, 2)
        finish = epilogue.row_step(problem, rows=gemm_m, columns=e.K, bias=bias, first_row=first_row * e.Q)
        return (*unfold, product, *finish)

    def _unfold_nchw(self, problem: Problem, e: Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        return launch(
            Kernel(file="im2col.cu", entry="im2col"),
            **tiling.planes(columns=e.Q, rows=rows, planes=e.C * e.R * e.S),
            x=problem.x,
            columns=problem.workspace,
            C=e.C,
            M=rows,
            first_row=first_row,
            **window_arguments(e.windows),
        )

    def _unfold_nhwc(self, problem: Problem, e: Extents, first_row: int, rows: int) -> tuple[Step, ...]:
        groups = problem.operator.group
        tile = tiling.vectors(channels=e.C // groups, rows=e.Q)
        chunks, strips, _ = tile["grid"]
        return launch(
            Kernel(file="im2col.cu", entry="im2col_nhwc"),
            grid=(strips, rows, chunks * groups),
            block=tile["block"],
            x=problem.x,
            columns=problem.workspace,
            groups=groups,
            C=e.C // groups,
            first_row=first_row,
            x_stride=problem.x.pixel_stride,
            **window_arguments(e.windows),
        )


def reads_nchw(problem: Problem) -> bool:
    return problem.x.shape[1] < FEW_CHANNELS


def _slab_rows(e: Extents) -> int:
    """Output rows of a slab: slabs of equal height within SLAB_BYTES, but of a row at least."""
    row_bytes = 4 * e.Q * e.C * e.R * e.S
    slabs = ceil_div(e.N * e.P, max(1, SLAB_BYTES // row_bytes))
    return ceil_div(e.N * e.P, slabs)


class Gemm1x1(Convolution):
    """A 1x1 filter sees one pixel: NHWC's pixels are the rows of a matrix already."""

    name = "gemm1x1"

    def suits(self, problem: Problem) -> str:
        e = extents_of(problem, weights_of(problem).shape[2:])
        if e.R * e.S != 1:
            return f"the filter is {e.R}x{e.S}, not 1x1"
        if problem.operator.group != 1:
            return f"it has {problem.operator.group} groups"
        for axis in e.windows:
            if axis.stride != 1 or axis.pad_before or axis.pad_after:
                return "it has strides or pads"
        return ""

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        K, C = weights_of(problem).shape[:2]
        return {
            1: Packing(
                name="gemm1x1", shape=(C, K), function=lambda w: np.ascontiguousarray(w.reshape(K, C).T)
            )
        }

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        e = extents_of(problem, (1, 1))
        pixels = e.N * e.P * e.Q
        product = Gemm(
            m=pixels,
            n=e.K,
            k=e.C,
            a=x.view(),
            b=weights_of(problem).view(),
            c=y.view(),
            lda=x.pixel_stride,
            ldb=e.K,
            ldc=y.pixel_stride,
        )
        bias = epilogue.own_input(problem, 2)
        return (product, *epilogue.row_step(problem, rows=pixels, columns=e.K, bias=bias))


class Depthwise(Convolution):
    """One filter a channel: no sum over channels, so no GEMM; memory decides."""

    name = "depthwise"
    dtypes = elements.FLOATS

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
        R, S = (1, *weights_of(problem).shape[2:])[-2:]

        def pack_weights(w: np.ndarray) -> np.ndarray:
            return np.pad(w.reshape(C, R, S).transpose(1, 2, 0), ((0, 0), (0, 0), (0, padding)))

        packings = {1: Packing(name="depthwise", shape=(R, S, C + padding), function=pack_weights)}
        if epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(
                name="depthwise", shape=(C + padding,), function=lambda b: np.pad(b, (0, padding))
            )
        return packings

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, weights_of(problem), problem.y, problem.residual
        e = extents_of(problem, w.shape[:2])
        channels = min(o.channels_padded for o in (x, y, residual) if o is not None)
        return launch(
            Kernel(file="depthwise.cu", entry="depthwise", defines=elements.defines(x.dtype)),
            **tiling.vectors(channels=channels, rows=e.Q, planes=e.N * e.P),
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
