"""`tiled`, `dp4a`, `depthwise`: convolutions of 8-bit integers whose constants are known.

Four products an instruction, or 16 channels side by side. Sums are exact: both give the definition's numbers.

Source    cuda/qlinearconv_tiled.cu, cuda/qlinearconv_depthwise.cu
Not here  weights with a zero point other than the middle, groups that are neither one nor one a channel
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minicnn import epilogue, tiling
from minicnn.elements import CODES
from minicnn.geometry import CHANNEL_PAD, ceil_div, round_up
from minicnn.kernels import launch
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Kernel, Operand, Step
from minicnn.window import two_axes, window_arguments

CONSTANTS = {
    1: "x's scale",
    2: "x's zero point",
    3: "the weights",
    4: "their scales",
    5: "their zero points",
    6: "y's scale",
    8: "the bias",
}
HOST_PIXELS = {
    1: 14,
    2: 12,
    3: 8,
    4: 6,
}  # vectors of 16 filters -> pixels: sums that 32 registers hold beside those
GPU_PIXELS = {1: 4}


class _Packed(Variant):
    """What both share: sums begin with the bias and what zero points add; a multiplier for each filter."""

    dtypes = ("float32", "int32", "uint8", "int8")

    def applies(self, problem: Problem) -> str:
        for index, words in CONSTANTS.items():
            given = problem.input(index)
            if given is not None and not given.is_constant:
                return f"computed at run time: {words}"
        return self.suits(problem)

    def suits(self, problem: Problem) -> str:
        raise NotImplementedError

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")


def _value(problem: Problem, index: int) -> np.ndarray:
    operand = problem.input(index)
    if operand is None:
        return np.zeros((), np.int32)
    assert operand.value is not None
    return operand.value


def _weights(problem: Problem) -> tuple[int, ...]:
    """ONNX's shape of the weights, packed or not: (K, C/group, R, S)."""
    w, groups = problem.inputs[3], problem.operator.group
    assert w is not None
    R = 1 if len(problem.x.shape) == 3 else w.shape[-2]
    return problem.y.shape[1], problem.x.shape[1] // groups, R, w.shape[-1]


def _multipliers(problem: Problem, filters: int) -> np.ndarray:
    """float32, as the textbook's kernel works them out; 0 behind the last filter."""
    scales = (_value(problem, i).astype(np.float32) for i in (1, 4, 6))
    x, w, y = (scale.reshape(-1) for scale in scales)
    K = problem.y.shape[1]
    return np.pad(np.broadcast_to(x * w / y, (K,)), (0, filters - K))


def _bias(problem: Problem) -> np.ndarray:
    return np.broadcast_to(_value(problem, 8).astype(np.int64), (problem.y.shape[1],))


class Tiled(_Packed):
    """Tiles of pixels by vectors of filters, for the CPU."""

    name = "tiled"
    devices: tuple[str, ...] = ("host",)
    pixels: Mapping[int, int] = HOST_PIXELS
    threads = 8  # of a block

    def suits(self, problem: Problem) -> str:
        w = problem.inputs[3]
        assert w is not None
        if problem.operator.group != 1:
            return f"it has {problem.operator.group} groups"
        if (_value(problem, 5).astype(np.int64) != (128 if w.dtype == "uint8" else 0)).any():
            return "the weights' zero point isn't their middle"
        return ""

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        K, C, R, S = self._extents(problem)
        vectors = self._vectors(problem)
        filters, quads = round_up(K, 16 * vectors), ceil_div(C, 4)

        def pack(w: np.ndarray) -> np.ndarray:
            signed = _signed(w).reshape(K, C, R, S)
            padded = np.pad(signed, ((0, filters - K), (0, 4 * quads - C), (0, 0), (0, 0)))
            blocks = padded.reshape(-1, 16 * vectors, quads, 4, R, S)  # (block, filter, quad, 4, R, S)
            return blocks.transpose(0, 4, 5, 2, 1, 3).reshape(-1, R, S)

        shape = (filters * 4 * quads, R, S)
        return {3: Packing(name=f"qlinear_{vectors}", shape=shape, function=pack, dtype="int8")}

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        K, C, _, _ = self._extents(problem)
        filters = round_up(K, 16 * self._vectors(problem))
        zero = int(_value(problem, 2).reshape(()))
        zeros = np.full(round_up(C, 4), zero, problem.x.dtype)
        unsigned = zero + (128 if problem.x.dtype == "int8" else 0)
        sums = _signed(_value(problem, 3)).astype(np.int64).reshape(K, -1).sum(axis=1)
        first = np.pad(_bias(problem) - unsigned * sums, (0, filters - K)).astype(np.int32)
        return zeros, first, _multipliers(problem, filters)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, conv = problem.x, problem.y, problem.operator
        K, C, R, S = self._extents(problem)
        arguments = window_arguments(two_axes(conv.windows(x.shape[2:], (R, S)[4 - len(x.shape) :])))
        vectors = self._vectors(problem)
        pixels = x.shape[0] * arguments["P"] * arguments["Q"]
        tile, threads = self.pixels[vectors], self.threads
        zeros, first, multiplier = problem.tables
        read = round_up(C, 4)  # a pixel's padding may be read: its weights are 0
        return launch(
            Kernel(
                file="qlinearconv_tiled.cu",
                entry="qlinearconv_tiled",
                defines=(*_types(problem), ("PIXELS", tile), ("VECTORS", vectors), *_aligned(x)),
            ),
            grid=(ceil_div(ceil_div(pixels, tile), threads), ceil_div(K, 16 * vectors), 1),
            block=(threads, 1, 1),
            x=x,
            w=problem.inputs[3],
            zeros=zeros,
            first=first,
            multiplier=multiplier,
            y_zero=problem.input(7),
            y=y,
            pixels=pixels,
            C=read if read <= x.channels_padded else C,
            y_channels=y.channels_padded,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            **arguments,
        )

    @staticmethod
    def _extents(problem: Problem) -> tuple[int, int, int, int]:
        K, C, R, S = _weights(problem)
        return K, C, R, S

    def _vectors(self, problem: Problem) -> int:
        """Of 16 filters a tile: the most that leave none of the last tile's empty."""
        all_vectors = ceil_div(problem.y.shape[1], 16)
        return max(v for v in self.pixels if all_vectors % v == 0)


class Dp4a(Tiled):
    """The same for a GPU, whose threads hold fewer sums."""

    name = "dp4a"
    devices = ("cuda", "sim")
    pixels = GPU_PIXELS
    threads = 64


class Depthwise(_Packed):
    """One filter a channel: no sum over channels; 16 channels side by side."""

    name = "depthwise"

    def suits(self, problem: Problem) -> str:
        C, K, groups = problem.x.shape[1], problem.y.shape[1], problem.operator.group
        if groups == C == K:
            return ""
        return f"{groups} groups, {C} input and {K} output channels aren't one filter a channel"

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        K, _, R, S = _weights(problem)
        channels, zeros = round_up(K, CHANNEL_PAD), _value(problem, 5).astype(np.int16).reshape(-1, 1, 1)

        def pack(w: np.ndarray) -> np.ndarray:
            """Channels innermost in memory, under a shape that still tells R and S."""
            own = (w.astype(np.int16).reshape(K, R, S) - zeros).transpose(1, 2, 0)
            return np.pad(own, ((0, 0), (0, 0), (0, channels - K))).reshape(channels, R, S)

        of = problem.input(5)
        name = f"qlinear_depthwise_{of.name if of else ''}"
        return {3: Packing(name=name, shape=(channels, R, S), function=pack, dtype="int16")}

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        channels = round_up(problem.y.shape[1], CHANNEL_PAD)
        first = np.pad(_bias(problem), (0, channels - problem.y.shape[1])).astype(np.int32)
        return first, _multipliers(problem, channels)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, y, conv = problem.x, problem.y, problem.operator
        K, _, R, S = _weights(problem)
        arguments = window_arguments(two_axes(conv.windows(x.shape[2:], (R, S)[4 - len(x.shape) :])))
        channels = min(x.channels_padded, y.channels_padded)
        first, multiplier = problem.tables
        return launch(
            Kernel(file="qlinearconv_depthwise.cu", entry="qlinearconv_depthwise", defines=_types(problem)),
            **tiling.vectors(channels=channels, rows=arguments["Q"], planes=x.shape[0] * arguments["P"]),
            x=x,
            x_zero=problem.input(2),
            w=problem.inputs[3],
            first=first,
            multiplier=multiplier,
            y_zero=problem.input(7),
            y=y,
            C=channels,
            x_stride=x.pixel_stride,
            w_stride=round_up(K, CHANNEL_PAD),
            y_stride=y.pixel_stride,
            **arguments,
        )


def _signed(w: np.ndarray) -> np.ndarray:
    """As int8: unsigned weights from their middle on."""
    return w if w.dtype == np.int8 else (w.astype(np.int16) - 128).astype(np.int8)


def _types(problem: Problem) -> tuple[tuple[str, int], ...]:
    return (("ELEMENT", CODES[problem.x.dtype]), ("RESULT", CODES[problem.y.dtype]))


def _aligned(x: Operand) -> tuple[tuple[str, int], ...]:
    is_aligned = x.view().byte_offset % 4 == 0 and x.pixel_stride % 4 == 0
    return (("ALIGNED", 1),) if is_aligned else ()
