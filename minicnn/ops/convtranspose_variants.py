"""The ways a transposed convolution is done: gathered as the definition says; a GEMM and then a gathering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import epilogue, tiling
from minicnn.geometry import CHANNEL_PAD, ceil_div
from minicnn.kernels import launch
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Gemm, Kernel, Operand, Step
from minicnn.window import two_axes, volume_arguments, window_arguments

FILE = "convtranspose.cu"
SLAB_BYTES = 4 << 20  # of the columns: large enough for a GEMM, small enough for a CPU's cache


def _weights(problem: Problem) -> Operand:
    w = problem.inputs[1]
    assert w is not None
    return w


def _window_arguments(problem: Problem, kernel: tuple[int, ...]) -> dict[str, int]:
    """`kernel` is (R, S), since packed weights no longer have ONNX's shape."""
    windows = problem.operator.windows_of(problem.x.shape[2:], kernel[-(len(problem.x.shape) - 2) :])
    return window_arguments(two_axes(windows))


class _Flat(Variant):
    """Over images, and over rows as images of height 1."""

    def applies(self, problem: Problem) -> str:
        return "x is a volume" if len(problem.x.shape) > 4 else self.suits(problem)

    def suits(self, problem: Problem) -> str:
        """As `applies`, for images."""
        return ""


class Direct(_Flat):
    """An output a thread, over NCHW planes. Weights as ONNX has them."""

    name = "direct"

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        arguments = _window_arguments(problem, _weights(problem).shape[2:])
        N, K = problem.y.shape[:2]
        phases = arguments["stride_w"]
        tile = tiling.planes(columns=ceil_div(arguments["Q"], phases), rows=arguments["P"], planes=N * K)
        strips, rows, planes = tile["grid"]
        return launch(
            Kernel(file=FILE, entry="convtranspose"),
            grid=(strips * phases, rows, planes),
            block=tile["block"],
            x=problem.x,
            w=_weights(problem),
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=problem.x.shape[1],
            K=K,
            groups=problem.operator.group,
            **arguments,
            **epilogue.arguments(problem.epilogue),
        )


class Volume(Variant):
    """As `direct`, over N,C,D,H,W."""

    name = "volume"

    def applies(self, problem: Problem) -> str:
        return "" if len(problem.x.shape) == 5 else "x is no volume"

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w = problem.x, _weights(problem)
        arguments = volume_arguments(problem.operator.windows_of(x.shape[2:], w.shape[2:]))
        N, K, O, P, Q = problem.y.shape  # noqa: E741
        phases = arguments["stride_w"]
        tile = tiling.planes(columns=ceil_div(Q, phases), rows=P, planes=N * K * O)
        strips, rows, planes = tile["grid"]
        return launch(
            Kernel(file="volume.cu", entry="convtranspose_volume"),
            grid=(strips * phases, rows, planes),
            block=tile["block"],
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=x.shape[1],
            K=K,
            groups=problem.operator.group,
            **arguments,
            **epilogue.arguments(problem.epilogue),
        )


@dataclass(frozen=True, kw_only=True)
class _Slab:
    """Output rows `first_p` and on, and the input rows that reach them; `h_rows` may be 0."""

    first_p: int
    p_rows: int
    first_h: int
    h_rows: int


class Col2im(_Flat):
    """One GEMM gives every input pixel's window (pixels x channels times channels x window), a slab of rows
    at a time; a gathering adds up what falls on each output. Slabs share input rows where windows overlap."""

    name = "col2im"

    def suits(self, problem: Problem) -> str:
        return "" if _weights(problem).is_constant else "the weights are computed at run time"

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        groups = problem.operator.group
        C, K, *kernel = _weights(problem).shape
        R, S = (1, *kernel)[-2:]
        split = (groups, C // groups, K, R, S)
        return {
            1: Packing(
                name="col2im",
                shape=(groups, C // groups, R, S, K),
                function=lambda w: np.ascontiguousarray(w.reshape(split).transpose(0, 1, 3, 4, 2)),
            )
        }

    def workspace_bytes(self, problem: Problem) -> int:
        arguments = _window_arguments(problem, _weights(problem).shape[2:])
        h_rows = max(slab.h_rows for slab in _slabs(arguments, problem.y.shape[1]))
        return 4 * max(h_rows, 1) * _columns_of_row(arguments, problem.y.shape[1])

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        arguments = _window_arguments(problem, _weights(problem).shape[2:4])
        steps: list[Step] = []
        for n in range(problem.x.shape[0]):
            for slab in _slabs(arguments, problem.y.shape[1]):
                if slab.h_rows:
                    steps.append(_product(problem, arguments, n, slab))
                steps += _gather(problem, arguments, n, slab)
        return tuple(steps)


def _columns_of_row(arguments: Mapping[str, int], K: int) -> int:
    """Elements that one input row spreads."""
    return arguments["W"] * arguments["R"] * arguments["S"] * K


def _slabs(arguments: Mapping[str, int], K: int) -> Iterator[_Slab]:
    H, P, stride, pad = (arguments[name] for name in ("H", "P", "stride_h", "pad_top"))
    reach = (arguments["R"] - 1) * arguments["dilation_h"]
    fitting = SLAB_BYTES // (4 * _columns_of_row(arguments, K))
    overlap = reach // stride
    p_rows = max(fitting - overlap, 1 + 3 * overlap) * stride
    for first_p in range(0, P, p_rows):
        rows = min(p_rows, P - first_p)
        first_h = min(max(ceil_div(first_p + pad - reach, stride), 0), H)
        end_h = min((first_p + rows - 1 + pad) // stride + 1, H)
        yield _Slab(first_p=first_p, p_rows=rows, first_h=first_h, h_rows=max(end_h - first_h, 0))


def _product(problem: Problem, arguments: Mapping[str, int], n: int, slab: _Slab) -> Gemm:
    x, columns = problem.x, problem.workspace
    assert columns is not None
    groups, (H, W) = problem.operator.group, (arguments["H"], arguments["W"])
    C, K = x.shape[1] // groups, problem.y.shape[1] // groups
    window = arguments["R"] * arguments["S"] * K
    return Gemm(
        m=slab.h_rows * W,
        n=window,
        k=C,
        a=x.view((n * H + slab.first_h) * W * x.pixel_stride),
        b=_weights(problem).view(),
        c=columns.view(),
        lda=x.pixel_stride,
        ldb=window,
        ldc=groups * window,
        batch=groups,
        stride_a=C,
        stride_b=C * window,
        stride_c=window,
    )


def _gather(problem: Problem, arguments: Mapping[str, int], n: int, slab: _Slab) -> tuple[Step, ...]:
    y, residual, groups = problem.y, problem.residual, problem.operator.group
    pixels, phases = n * arguments["P"] * arguments["Q"], arguments["stride_w"]
    K = y.shape[1] // groups
    tile = tiling.vectors(channels=K, rows=ceil_div(arguments["Q"], phases))
    chunks, strips, _ = tile["grid"]
    shared: dict[str, Any] = {name: value for name, value in arguments.items() if name != "P"}
    return launch(
        Kernel(file=FILE, entry="col2im"),
        grid=(strips * phases, slab.p_rows, chunks * groups),
        block=tile["block"],
        columns=problem.workspace,
        bias=epilogue.own_input(problem, 2),
        residual=residual.view(pixels * residual.pixel_stride) if residual else None,
        y=y.view(pixels * y.pixel_stride),
        groups=groups,
        K=K,
        first_h=slab.first_h,
        first_p=slab.first_p,
        y_stride=y.pixel_stride,
        residual_stride=residual.pixel_stride if residual else 0,
        **shared,
        **epilogue.arguments(problem.epilogue),
    )


class Depthwise(_Flat):
    """One filter a channel, as bilinear upsampling has it: no sum over channels, so no GEMM."""

    name = "depthwise"

    def suits(self, problem: Problem) -> str:
        C, K, groups = problem.x.shape[1], problem.y.shape[1], problem.operator.group
        if not groups == C == K:
            return f"{groups} groups, {C} input and {K} output channels aren't one filter a channel"
        bias = epilogue.own_input(problem, 2)
        if not _weights(problem).is_constant or (bias is not None and not bias.is_constant):
            return "weights or bias are computed at run time"
        return ""

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        C = problem.x.shape[1]
        padding = -C % CHANNEL_PAD
        R, S = (1, *_weights(problem).shape[2:])[-2:]

        def pack_weights(w: np.ndarray) -> np.ndarray:
            return np.pad(w.reshape(C, R, S).transpose(1, 2, 0), ((0, 0), (0, 0), (0, padding)))

        packings = {1: Packing(name="depthwise", shape=(R, S, C + padding), function=pack_weights)}
        if epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(
                name="depthwise", shape=(C + padding,), function=lambda b: np.pad(b, (0, padding))
            )
        return packings

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, _weights(problem), problem.y, problem.residual
        arguments = _window_arguments(problem, w.shape[:2])
        channels = min(o.channels_padded for o in (x, y, residual) if o is not None)
        phases = arguments["stride_w"]
        tile = tiling.vectors(channels=channels, rows=ceil_div(arguments["Q"], phases))
        chunks, strips, _ = tile["grid"]
        return launch(
            Kernel(file=FILE, entry="convtranspose_depthwise"),
            grid=(strips * phases, chunks, x.shape[0] * arguments["P"]),
            block=tile["block"],
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
            **arguments,
            **epilogue.arguments(problem.epilogue),
        )
