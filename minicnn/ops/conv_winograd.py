"""`winograd2`, `winograd4`: 3x3 convolutions of stride 1 with 2.25 or 4 times fewer products, for the CPU.

Source    cuda/conv_winograd.cu names it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.geometry import CHANNEL_PAD, ceil_div, round_up
from minicnn.kernels import launch
from minicnn.ops.conv_tiled import BLOCKS_A_THREAD, Part, cover, tiles_of
from minicnn.ops.conv_variants import FEW_CHANNELS, Convolution, Extents, extents_of, weights_of
from minicnn.registry import Packing, Problem, Variant
from minicnn.step import Kernel, Step

POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}  # and infinity
V_BYTES = (1_000_000, 2_500_000)  # of transformed inputs at once: what a core's second cache holds, or more
FEW_PIXELS = 4  # of a tile of sums where the usual ones would leave most of the last tile idle
MOST_U_BYTES = 16 << 20  # F(4x4) quadruples the weights: beyond, reading them costs what the products save
WORTH = 0.8  # of the other's products, below which more or larger transforms pay
FEWEST_CHANNELS = 32  # for F(2x2), which saves less


def filter_transform(outputs: int) -> np.ndarray:
    """G: a filter's three taps -> its products with the points' powers, in float64.

    Shapes    (outputs + 2, 3)
    """
    points = POINTS[outputs]
    rows = []
    for i, point in enumerate(points):
        others = np.prod([point - other for j, other in enumerate(points) if j != i])
        rows.append([point**power / others for power in range(3)])
    if outputs == 2:
        rows[0] = [-value for value in rows[0]]  # as cuda/conv_winograd.cu has that row of B
    return np.array([*rows, [0.0, 0.0, 1.0]])


@dataclass(frozen=True, kw_only=True)
class Winograd(Convolution):
    """Tiles of `outputs` x `outputs`; `v_bytes`: about so many bytes of transformed inputs at once."""

    outputs: int
    v_bytes: int = V_BYTES[0]

    devices: tuple[str, ...] = ("host",)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"winograd{self.outputs}"

    @property
    def label(self) -> str:
        return f"{self.name}, {self.v_bytes // 1000} kB"

    @property
    def products(self) -> int:
        return (self.outputs + 2) ** 2

    def suits(self, problem: Problem) -> str:
        conv, C = problem.operator, problem.x.shape[1]
        if len(problem.x.shape) != 4:
            return "it is 1-D"
        e = extents_of(problem, weights_of(problem).shape[2:])
        if (e.R, e.S) != (3, 3):
            return f"the filter is {e.R}x{e.S}, not 3x3"
        if any(axis.stride != 1 or axis.dilation != 1 for axis in e.windows):
            return "it has strides or dilations"
        if conv.group != 1:
            return f"it has {conv.group} groups"
        return f"{C} channels are fewer than {FEW_CHANNELS}" if C < FEW_CHANNELS else ""

    def declines(self, problem: Problem) -> str:
        e = extents_of(problem, (3, 3))
        if max(axis.pad_before for axis in e.windows) > 1 or max(axis.pad_after for axis in e.windows) > 1:
            return "windows that see little but pads get the errors of their neighbours"
        if self.outputs == 4 and 4 * self.products * e.C * e.K > MOST_U_BYTES:
            return f"its weights would take more than {MOST_U_BYTES >> 20} MiB"
        if self.outputs == 2 and e.C < FEWEST_CHANNELS:
            return f"{e.C} channels are too few"
        own = self.tiles(e) * self.products
        direct, smaller = 9 * e.N * e.P * e.Q, 16 * Winograd(outputs=2).tiles(e)
        if own > WORTH * direct or (self.outputs == 4 and own > WORTH * smaller):
            return "its tiles overhang the image"
        return ""

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        return tuple(Winograd(outputs=self.outputs, v_bytes=nbytes) for nbytes in V_BYTES)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """U = G w G^T of all parts, in float64, then rounded: [part][block][product][C][channels]."""
        K, C = weights_of(problem).shape[:2]
        parts = _parts(problem)
        vectors = ceil_div(K, CHANNEL_PAD)
        shape = (self.products, C, vectors * CHANNEL_PAD)

        G = filter_transform(self.outputs)
        transform = np.kron(G, G)  # (products, 9)

        def pack(w: np.ndarray) -> np.ndarray:
            packed = np.empty(math.prod(shape), np.float32)
            place = 0
            for part in parts:
                width = part.vectors * CHANNEL_PAD
                for first in range(part.first * CHANNEL_PAD, part.end * CHANNEL_PAD, width):
                    filters = w[first : first + width].reshape(-1, C, 9).transpose(2, 1, 0)
                    taps = np.zeros((9, C, width))
                    taps[:, :, : filters.shape[2]] = filters
                    size = self.products * C * width
                    packed[place : place + size] = (transform @ taps.reshape(9, -1)).ravel()
                    place += size
            return packed.reshape(shape)

        widths = "_".join(f"{part.vectors}x{part.blocks}" for part in parts)
        return {1: Packing(name=f"{self.name}_{widths}", shape=shape, function=pack)}

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        e = extents_of(problem, (3, 3))
        steps: tuple[Step, ...] = ()
        for part in _parts(problem):
            steps += self._launch(problem, e, part)
        return steps

    def _launch(self, problem: Problem, e: Extents, part: Part) -> tuple[Step, ...]:
        x, y, residual, threads = problem.x, problem.y, problem.residual, problem.target.threads
        width = part.vectors * CHANNEL_PAD
        v_stride = round_up(e.C, CHANNEL_PAD) + CHANNEL_PAD
        tiles = self.tiles(e)
        groups = ceil_div(tiles, max(1, self.v_bytes // (4 * self.products * v_stride)))
        together = ceil_div(tiles, groups)
        pixels = tiles_of(problem.target)[part.vectors]
        if round_up(together, FEW_PIXELS) < WORTH * round_up(together, pixels) or together <= FEW_PIXELS:
            pixels = min(pixels, FEW_PIXELS)
        together = round_up(together, pixels)
        groups = ceil_div(tiles, together)
        # Several threads share the channels of a few tiles, though each then transforms the inputs anew.
        splits = 1
        while threads > 1 and groups * splits < BLOCKS_A_THREAD // 2 * threads and splits < part.blocks:
            splits += 1
        blocks_together = ceil_div(part.blocks, splits)
        return launch(
            Kernel(
                file="conv_winograd.cu",
                entry="conv_winograd",
                defines=(("OUTPUTS", self.outputs), ("PIXELS", pixels), ("VECTORS", part.vectors)),
            ),
            grid=(groups, ceil_div(part.blocks, blocks_together), 1),
            block=(1, 1, 1),
            shared_bytes=4 * self.products * together * (v_stride + width),
            x=x,
            u=weights_of(problem).view(self.products * e.C * part.first * CHANNEL_PAD),
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            N=e.N,
            C=e.C,
            H=e.H,
            W=e.W,
            K=e.K,
            P=e.P,
            Q=e.Q,
            pad_top=e.vertical.pad_before,
            pad_left=e.horizontal.pad_before,
            k_first=part.first * CHANNEL_PAD,
            blocks=part.blocks,
            blocks_together=blocks_together,
            together=together,
            x_stride=x.pixel_stride,
            x_channels=x.channels_padded,
            y_stride=y.pixel_stride,
            y_channels=y.channels_padded,
            residual_stride=residual.pixel_stride if residual else 0,
            residual_channels=residual.channels_padded if residual else 0,
            **epilogue.arguments(problem.epilogue),
        )

    def spread(self, errors: np.ndarray) -> np.ndarray:
        """An output's error, or NaN, may come from any other of its tile: the worst within reach."""
        worst = errors
        for axis in (-2, -1):
            for distance in range(1, self.outputs):
                late, early = slice(distance, None), slice(-distance)
                for near, far in ((late, early), (early, late)):
                    here = [slice(None)] * errors.ndim
                    there = list(here)
                    here[axis], there[axis] = near, far
                    grown = worst.copy()
                    grown[tuple(here)] = np.maximum(worst[tuple(here)], errors[tuple(there)])
                    worst = grown
            errors = worst
        return worst

    def tiles(self, e: Extents) -> int:
        return e.N * ceil_div(e.P, self.outputs) * ceil_div(e.Q, self.outputs)


def _parts(problem: Problem) -> tuple[Part, ...]:
    return cover(ceil_div(problem.y.shape[1], CHANNEL_PAD), max(tiles_of(problem.target)))
