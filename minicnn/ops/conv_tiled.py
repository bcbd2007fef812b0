"""`tiled`: the CPU's convolution. Sums stay in registers, a tile of pixels by channels each.

Source    cuda/conv_tiled.cu names it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.geometry import CHANNEL_PAD, ceil_div
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Convolution, Extents, extents_of, reads_nchw, weights_of
from minicnn.registry import Orders, Packing, Problem
from minicnn.step import Kernel, Operand, Step
from minicnn.window import window_arguments

# Pixels of a tile by its vectors of 16 channels: as many sums as the registers hold beside the weights.
WIDE_TILES = {1: 14, 2: 12, 3: 9, 4: 7}  # 32 registers of 16 floats
NARROW_TILES = {"x86-64-v3": {1: 6}, "x86-64-v2": {1: 3}, "armv8-a": {1: 6}}
TILES_A_BLOCK = 8
MOST_ZEROS = 2.0  # of the weights of blocks that span groups, times those that aren't 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """`blocks` blocks of `vectors` vectors of output channels, from vector `first` on."""

    first: int
    vectors: int
    blocks: int

    @property
    def channels(self) -> int:
        return self.vectors * CHANNEL_PAD


def cover(vectors: int, widest: int) -> tuple[Part, ...]:
    """Blocks for so many vectors of channels: the widest, and a few of one less where they don't divide evenly.

    4 and 3 add up to every number but 1, 2 and 5, so two parts are enough; a narrow block reads x for less work.
    """
    narrow = widest - 1
    for few in range(widest):
        rest = vectors - few * narrow
        if rest >= 0 and rest % widest == 0:
            wide = rest // widest
            parts = [Part(first=0, vectors=widest, blocks=wide)] if wide else []
            if few:
                parts.append(Part(first=wide * widest, vectors=narrow, blocks=few))
            return tuple(parts)
    if vectors < widest:
        return (Part(first=0, vectors=vectors, blocks=1),)
    wide = vectors // widest
    return (
        Part(first=0, vectors=widest, blocks=wide),
        *(Part(first=wide * widest, vectors=vectors % widest, blocks=1) for _ in range(min(1, vectors % widest))),
    )
