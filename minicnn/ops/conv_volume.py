"""Convolution of volumes: the textbook's loops with a depth, and planes as matrices.

Source    volume.cu and im2col.cu name theirs
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from minicnn import epilogue, tiling
from minicnn.geometry import Window
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Convolution, weights_of
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Gemm, Kernel, Step
from minicnn.window import taps, volume_arguments, window_arguments


class Volume(Variant):
    """An output a thread, over N,C,D,H,W. Weights as ONNX has them."""

    name = "volume"

    def applies(self, problem: Problem) -> str:
        return "" if len(problem.x.shape) == 5 else "x is no volume"

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w = problem.x, problem.inputs[1]
        assert w is not None
        N, K, O, P, Q = problem.y.shape  # noqa: E741
        return launch(
            Kernel(file="volume.cu", entry="conv_volume"),
            **tiling.planes(columns=Q, rows=P, planes=N * K * O),
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=x.shape[1],
            K=K,
            groups=problem.operator.group,
            **volume_arguments(problem.operator.windows(x.shape[2:], w.shape[2:])),
            **epilogue.arguments(problem.epilogue),
        )


class Planes(Convolution):
    """Windows of every plane become a matrix once; a GEMM for each depth of the filter adds to the plane of
    the output that it belongs to; then the epilogue."""

    name = "planes"

    def applies(self, problem: Problem) -> str:
        if len(problem.x.shape) != 5:
            return "x is no volume"
        if not weights_of(problem).is_constant:
            return "the weights are computed at run time"
        depth = problem.operator.windows(problem.x.shape[2:], weights_of(problem).shape[2:])[0]
        seen = {o for o, _, _ in _meetings(depth)}
        return "" if len(seen) == depth.out else "a plane of the output sees nothing but pads"

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        groups = problem.operator.group
        K, C, T, R, S = weights_of(problem).shape
        split, axes = (groups, K // groups, C, T, R, S), (3, 0, 4, 5, 2, 1)
        return {
            1: Packing(
                name="planes",
                shape=(T, groups, R, S, C, K // groups),
                function=lambda w: np.ascontiguousarray(w.reshape(split).transpose(axes)),
            )
        }

    def workspace_bytes(self, problem: Problem) -> int:
        R, S = weights_of(problem).shape[3:]
        return 4 * math.prod(problem.y.shape[3:]) * problem.x.shape[1] * R * S

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y = problem.x, problem.y
        T, _, R, S, _, _ = weights_of(problem).shape
        windows = problem.operator.windows(x.shape[2:], (T, R, S))
        steps: list[Step] = []
        for n in range(x.shape[0]):
            begun: set[int] = set()
            unfolded = -1
            for o, t, d in sorted(_meetings(windows[0]), key=lambda meeting: meeting[2]):
                if d != unfolded:
                    steps += _unfold(problem, windows, n * x.shape[2] + d)
                    unfolded = d
                steps.append(_product(problem, t, n * windows[0].out + o, is_first=o not in begun))
                begun.add(o)
        pixels = y.shape[0] * math.prod(y.shape[2:])
        bias = epilogue.own_input(problem, 2)
        return (*steps, *epilogue.row_step(problem, rows=pixels, columns=y.shape[1], bias=bias))


def _meetings(depth: Window) -> list[tuple[int, int, int]]:
    """Which plane of the output, through which depth of the filter, sees which plane of the input."""
    found = []
    for o in range(depth.out):
        for t in range(depth.kernel):
            d = o * depth.stride + t * depth.dilation - depth.pad_before
            if 0 <= d < depth.extent:
                found.append((o, t, d))
    return found


def _unfold(problem: Problem, windows: tuple[Window, ...], plane: int) -> tuple[Step, ...]:
    x, groups = problem.x, problem.operator.group
    _, vertical, horizontal = windows
    C = x.shape[1] // groups
    tile = tiling.vectors(channels=C, rows=horizontal.out)
    chunks, strips, _ = tile["grid"]
    return launch(
        Kernel(file="im2col.cu", entry="im2col_nhwc"),
        grid=(strips, vertical.out, chunks * groups),
        block=tile["block"],
        x=x.view(plane * vertical.extent * horizontal.extent * x.pixel_stride),
        columns=problem.workspace,
        groups=groups,
        C=C,
        first_row=0,
        x_stride=x.pixel_stride,
        **window_arguments((vertical, horizontal)),
    )


def _product(problem: Problem, t: int, plane: int, *, is_first: bool) -> Gemm:
    y, w, columns = problem.y, weights_of(problem), problem.workspace
    assert columns is not None
    _, groups, R, S, C, K = w.shape
    pixels, gemm_k = math.prod(y.shape[3:]), R * S * C
    return Gemm(
        m=pixels,
        n=K,
        k=gemm_k,
        a=columns.view(),
        b=w.view(t * groups * gemm_k * K),
        c=y.view(plane * pixels * y.pixel_stride),
        lda=groups * gemm_k,
        ldb=K,
        ldc=y.pixel_stride,
        beta=0.0 if is_first else 1.0,
        batch=groups,
        stride_a=gemm_k,
        stride_b=gemm_k * K,
        stride_c=K,
    )


def reference(x: np.ndarray, w: np.ndarray, windows: tuple[Window, ...], groups: int) -> np.ndarray:
    """The definition in float64, without bias."""
    N, (K, C_group) = x.shape[0], w.shape[:2]
    filters = w.astype(np.float64).reshape(groups, K // groups, C_group, -1)
    y = np.zeros((N, groups, K // groups, *(one.out for one in windows)))
    for number, (tap, is_inside) in enumerate(taps(x.astype(np.float64), windows)):
        seen = np.where(is_inside, tap, 0.0).reshape(N, groups, C_group, *y.shape[3:])
        y += np.einsum("ngc...,gkc->ngk...", seen, filters[..., number], optimize=True)
    return y.reshape(N, K, *y.shape[3:])
