"""`tiled`: the CPU's convolution. Its sums stay in registers, a tile of pixels by channels each.

Source    cuda/conv_tiled.cu names it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.geometry import CHANNEL_PAD, Window, ceil_div
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Convolution, Extents, extents_of, reads_nchw, weights_of
from minicnn.registry import Orders, Packing, Problem, Target
from minicnn.step import Kernel, Operand, Step, View
from minicnn.window import window_arguments

# Vectors of 16 channels that a tile is wide -> its pixels: as many sums as registers hold beside the weights.
WIDE_TILES = {1: 14, 2: 12, 3: 9, 4: 7}  # of 32 registers of 16 floats
NARROW_TILES = {"x86-64-v3": {1: 6}, "x86-64-v2": {1: 3}, "armv8-a": {1: 6}}
TILES_A_BLOCK = 8
BLOCKS_A_THREAD = 8  # at least, so that all CPU threads end at about the same time
ROWS_A_BLOCK = 8  # of the padded copy
FEWEST_FILTERS = 8  # of a group: a vector would be emptier than half


@dataclass(frozen=True, kw_only=True)
class Part:
    """`blocks` blocks of `vectors` vectors of a group's output channels, from vector `first` on."""

    first: int
    vectors: int
    blocks: int

    @property
    def end(self) -> int:
        return self.first + self.vectors * self.blocks


def cover(vectors: int, widest: int) -> tuple[Part, ...]:
    """So many vectors in the fewest blocks, evenly: their widths differ by one at most."""
    if not vectors:
        return ()
    blocks = ceil_div(vectors, widest)
    width, wider = divmod(vectors, blocks)
    parts = [Part(first=0, vectors=width + 1, blocks=wider)] if wider else []
    return (*parts, Part(first=wider * (width + 1), vectors=width, blocks=blocks - wider))


def tiles_of(target: Target) -> Mapping[int, int]:
    """Width in vectors -> pixels of the tiles that suit a processor."""
    return NARROW_TILES.get(target.architecture, WIDE_TILES)


@dataclass(frozen=True, kw_only=True)
class Tiled(Convolution):
    """`channels_inner`: which of the grid's axes changes faster; None: by the sizes of x and the weights."""

    name = "tiled"
    devices = ("host",)
    channels_inner: bool | None = None

    def suits(self, problem: Problem) -> str:
        filters = problem.y.shape[1] // problem.operator.group
        if problem.operator.group > 1 and filters < FEWEST_FILTERS:
            return f"a group has {filters} filters, fewer than {FEWEST_FILTERS}"
        return ""

    def tunings(self, problem: Problem) -> tuple[Tiled, ...]:
        return (Tiled(channels_inner=True), Tiled(channels_inner=False))

    @property
    def label(self) -> str:
        inner = {None: "", True: ", channels first", False: ", pixels first"}
        return self.name + inner[self.channels_inner]

    def orders(self, problem: Problem) -> Orders:
        orders = super().orders(problem)
        return (
            Orders(inputs=("NCHW", *orders.inputs[1:]), outputs=orders.outputs)
            if reads_nchw(problem)
            else orders
        )

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """All parts' weights [group][block][R][S][C][channels], then zeros for what lies outside x."""
        w = weights_of(problem)
        groups = problem.operator.group
        K, C, *kernel = w.shape
        R, S = (1, *kernel)[-2:]
        taps = R * S
        parts = _parts(problem)
        total = sum(_part_floats(part, groups, taps * C) for part in parts) + taps * C
        shape = (R, S, total // taps)

        def pack(array: np.ndarray) -> np.ndarray:
            filters = array.reshape(groups, K // groups, C, taps)
            packed = np.zeros(total, np.float32)
            place = 0
            for part in parts:
                width = part.vectors * CHANNEL_PAD
                for g in range(groups):
                    for first in range(part.first * CHANNEL_PAD, part.end * CHANNEL_PAD, width):
                        own = filters[g, first : first + width].transpose(2, 1, 0)  # (taps, C, channels)
                        block = packed[place : place + taps * C * width].reshape(taps, C, width)
                        block[:, :, : own.shape[2]] = own
                        place += block.size
            return packed.reshape(shape)

        widths = "_".join(f"{part.vectors}x{part.blocks}" for part in parts)
        return {1: Packing(name=f"tiled_{widths}", shape=shape, function=pack)}

    def workspace_bytes(self, problem: Problem) -> int:
        if not reads_nchw(problem):
            return 0
        e = extents_of(problem, weights_of(problem).shape[2:])
        H, W = _padded(e)
        return 4 * e.N * H * W * e.C

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        e = extents_of(problem, weights_of(problem).shape[:2])
        group = problem.operator.group
        window = window_arguments(e.windows)
        C, x, x_stride = e.C // group, problem.x, problem.x.pixel_stride
        steps: tuple[Step, ...] = ()
        if reads_nchw(problem):
            assert problem.workspace is not None
            H, W = _padded(e)
            steps = _pad(problem, e, H, W)
            x, x_stride = problem.workspace, e.C
            window |= {"H": H, "W": W, "pad_top": 0, "pad_left": 0}
            if group == 1 and e.horizontal.dilation == 1:
                # A row of the filter lies in one run: fewer, longer loops.
                C, window["S"] = C * e.S, 1
        elif e.R * e.S == 1 and all(axis.stride == 1 and axis.extent == axis.out for axis in e.windows):
            window |= {"H": 1, "P": 1, "W": e.N * e.P * e.Q, "Q": e.N * e.P * e.Q}  # a single row
        place = 0
        for part in _parts(problem):
            steps += self._launch(problem, e, part, weights_of(problem).view(place), x, x_stride, C, window)
            place += _part_floats(part, group, e.C // group * e.R * e.S)
        return steps

    def _launch(
        self,
        problem: Problem,
        e: Extents,
        part: Part,
        weights: View,
        x: Operand,
        x_stride: int,
        C: int,
        window: Mapping[str, int],
    ) -> tuple[Step, ...]:
        y, residual, target, group = problem.y, problem.residual, problem.target, problem.operator.group
        pixels = tiles_of(target)[part.vectors]
        tiles = ceil_div(e.N * e.P * e.Q, pixels)
        wanted_blocks = BLOCKS_A_THREAD * target.threads
        together = max(1, min(TILES_A_BLOCK, tiles * part.blocks * group // wanted_blocks))
        grid = (ceil_div(tiles, together), part.blocks)
        packed = weights_of(problem)
        inner = self._channels_inner(e, group)
        return launch(
            Kernel(
                file="conv_tiled.cu",
                entry="conv_tiled",
                defines=(("PIXELS", pixels), ("VECTORS", part.vectors)),
            ),
            grid=(*(grid[::-1] if inner else grid), group),
            block=(together, 1, 1),
            x=x,
            w=weights,
            zeros=packed.view(packed.elements - C * window["S"]),
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            pixels=e.N * e.P * e.Q,
            groups=group,
            C=C,
            K=e.K,
            k_first=part.first * CHANNEL_PAD,
            blocks=part.blocks,
            x_stride=x_stride,
            y_stride=y.pixel_stride,
            y_channels=y.channels_padded,
            residual_stride=residual.pixel_stride if residual else 0,
            residual_channels=residual.channels_padded if residual else 0,
            channels_inner=int(inner),
            **window,
            **epilogue.arguments(problem.epilogue),
        )

    def _channels_inner(self, e: Extents, group: int) -> bool:
        """Whether to fetch x once and the weights again and again, or the other way round."""
        if self.channels_inner is not None:
            return self.channels_inner
        return e.K * e.C // group * e.R * e.S < e.N * e.C * e.H * e.W


def _parts(problem: Problem) -> tuple[Part, ...]:
    vectors = ceil_div(problem.y.shape[1] // problem.operator.group, CHANNEL_PAD)
    return cover(vectors, max(tiles_of(problem.target)))


def _part_floats(part: Part, groups: int, filter_floats: int) -> int:
    return groups * part.blocks * part.vectors * CHANNEL_PAD * filter_floats


def _padded(e: Extents) -> tuple[int, int]:
    """Height and width of all that windows see, pads included."""
    return _seen(e.vertical), _seen(e.horizontal)


def _seen(axis: Window) -> int:
    return (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def _pad(problem: Problem, e: Extents, H: int, W: int) -> tuple[Step, ...]:
    return launch(
        Kernel(file="conv_tiled.cu", entry="conv_tiled_pad", defines=(("CHANNELS", e.C),)),
        grid=(ceil_div(e.N * H, ROWS_A_BLOCK), 1, 1),
        block=(ROWS_A_BLOCK, 1, 1),
        x=problem.x,
        y=problem.workspace,
        N=e.N,
        H=e.H,
        W=e.W,
        H_padded=H,
        W_padded=W,
        pad_top=e.vertical.pad_before,
        pad_left=e.horizontal.pad_before,
    )
