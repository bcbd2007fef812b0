"""Convolutions as products on a GPU's tensor cores: in which precision, which tiles, cut into how many parts.

Floats are multiplied as two TF32 numbers each (`products` = 3) within float32's bound. A factor's two parts
miss it by 2^-23 of it at most, the product that is left out is 2^-22 of the largest: 2^-21 in all, less than
the definition's bound (4 * sqrt(terms) * 2^-24) from 4 terms on. Sums are rounded as float32's are, of eight
terms at a time. As one TF32 number each, floats lose 2^-10 of each product. Products of halves are exact, and
their sums are floats.

Source    cuda/conv_igemm.cu names it
Not here  infinite inputs as two TF32 numbers: they give NaN
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import elements, epilogue
from minicnn.geometry import INT32_MAX, ceil_div, round_up
from minicnn.kernels import GRID_YZ_MAX, launch
from minicnn.registry import Problem, Target
from minicnn.step import Kernel, Operand, Step, View

STEP_BYTES = 128  # of a row of either matrix, as cuda/conv_igemm.cu has it
CHUNK_BYTES = 16  # that are copied at once
OLDEST = 80  # compute capability with cp.async and TF32
TF32_ROUNDOFF = 2.0**-11
FEWEST_TERMS = 4  # of a sum that hides what two TF32 numbers leave out
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # that the terms may be cut into
MOST_PARTIAL_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Pixels by filters of a block, and of each of its warps; how many steps are in shared memory.

    resident  blocks that an SM of sm_90 holds at a time in every precision (docs/kernels.md)
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.rows + self.columns) * STEP_BYTES

    @property
    def defines(self) -> tuple[tuple[str, int], ...]:
        return (
            ("ROWS", self.rows),
            ("COLUMNS", self.columns),
            ("WARP_ROWS", self.warp_rows),
            ("WARP_COLUMNS", self.warp_columns),
            ("STAGES", self.stages),
        )


SMALL = Tile(rows=64, columns=32, warp_rows=32, warp_columns=16, stages=3, resident=5)
_COMMON = (
    Tile(rows=128, columns=64, warp_rows=64, warp_columns=32, stages=3, resident=2),
    Tile(rows=64, columns=64, warp_rows=32, warp_columns=32, stages=3, resident=3),
    SMALL,
)
# Two TF32 numbers a float take registers: their largest tile has twice the warps, each of half the tile.
_WIDE = Tile(rows=128, columns=128, warp_rows=64, warp_columns=32, stages=3, resident=1)
_TALL = Tile(rows=128, columns=128, warp_rows=64, warp_columns=64, stages=3, resident=2)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What is to be summed: `filters` sums of `taps` * `channels` products at each pixel, in each group."""

    pixels: int
    groups: int
    filters: int
    channels: int
    taps: int
    dtype: str

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def tap(self) -> int:
        """Numbers of a tap in a packed filter: whole chunks."""
        return round_up(self.channels, CHUNK_BYTES // self.itemsize)

    @property
    def terms(self) -> int:
        """Numbers of a packed filter: whole steps."""
        return round_up(self.taps * self.tap, STEP_BYTES // self.itemsize)

    @property
    def steps(self) -> int:
        return self.terms * self.itemsize // STEP_BYTES

    @property
    def weights(self) -> int:
        return self.groups * self.filters * self.terms

    def blocks(self, tile: Tile) -> tuple[int, int]:
        """Tiles of pixels; of filters, all groups together."""
        return ceil_div(self.pixels, tile.rows), ceil_div(self.filters, tile.columns) * self.groups

    def partial_bytes(self, tile: Tile, parts: int) -> int:
        """Of the sums of all parts, before they are added up."""
        return 4 * tile.rows * tile.columns * parts * math.prod(self.blocks(tile)) if parts > 1 else 0

    def possible_parts(self, tile: Tile) -> list[int]:
        fitting = [p for p in PARTS if self.partial_bytes(tile, p) <= MOST_PARTIAL_BYTES and p <= self.steps]
        return fitting or [1]

    def packed(self, filters: np.ndarray) -> np.ndarray:
        """(groups * filters, taps, channels) as the kernel reads it, flat."""
        packed = np.zeros((self.groups * self.filters, self.terms), self.dtype)
        own = packed[:, : self.taps * self.tap].reshape(len(packed), self.taps, self.tap)
        own[:, :, : self.channels] = filters
        return packed.reshape(-1)


@dataclass(frozen=True, kw_only=True)
class Work:
    """How sums are cut: a tile for each block, the terms in parts, bytes of x copied at once."""

    sums: Sums
    tile: Tile
    parts: int
    copy: int

    @property
    def partial_bytes(self) -> int:
        return self.sums.partial_bytes(self.tile, self.parts)

    @property
    def counters(self) -> int:
        """Tiles whose parts must be waited for."""
        return math.prod(self.sums.blocks(self.tile)) if self.parts > 1 else 0


@dataclass(frozen=True, kw_only=True)
class TensorCores:
    """Fields and steps of the variants. `tile`, `parts`: None, 0: what `estimate_us` finds fastest."""

    products: int = 3
    dtype: str = "float32"
    tile: Tile | None = None
    parts: int = 0

    devices: tuple[str, ...] = ("cuda", "sim")

    @property
    def name(self) -> str:
        return "igemm_half" if self.dtype == "float16" else "igemm" if self.products == 3 else "igemm_tf32"

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("tf32",) if self.name == "igemm_tf32" else ("fp32",)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.dtype,)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (_WIDE if self.products == 3 else _TALL, *_COMMON)

    @property
    def label(self) -> str:
        if self.tile is None:
            return self.name
        cut = f", {self.parts} parts" if self.parts > 1 else ""
        return f"{self.name}, {self.tile}{cut}"

    def refuses(self, problem: Problem, sums: Sums) -> str:
        """Why tensor cores, or this kernel, can't; "": they can."""
        architecture = _architecture(problem.target)
        if architecture < OLDEST:
            return f"sm_{architecture} has no TF32 and no asynchronous copies, sm_{OLDEST} has"
        bias = epilogue.own_input(problem, 2)
        if self.dtype == "float16" and bias is not None and not bias.is_constant:
            return "the bias is computed at run time"
        if sums.weights > INT32_MAX:
            return "the weights are too many for 32-bit indices"
        return "more groups than a grid is high" if sums.blocks(SMALL)[1] > GRID_YZ_MAX else ""

    def forms(self, target: Target, sums: Sums) -> list[tuple[Tile, int]]:
        """Every tile, the terms whole and in as many parts as the model likes best."""
        found = []
        for tile in self.tiles:
            best = min(sums.possible_parts(tile), key=lambda p: self._us(target, sums, tile, p))
            found += [(tile, parts) for parts in sorted({1, best})]
        return found

    def work(self, target: Target, sums: Sums, copy: int) -> Work:
        tiles = self.tiles if copy == CHUNK_BYTES else (SMALL,)
        if self.tile in tiles:
            assert self.tile is not None
            return Work(sums=sums, tile=self.tile, parts=max(1, min(self.parts, sums.steps)), copy=copy)
        choices = [(tile, parts) for tile in tiles for parts in sums.possible_parts(tile)]
        tile, parts = min(choices, key=lambda one: self._us(target, sums, *one))
        return Work(sums=sums, tile=tile, parts=parts, copy=copy)

    def _us(self, target: Target, sums: Sums, tile: Tile, parts: int) -> float:
        blocks = math.prod(sums.blocks(tile))
        return estimate_us(
            target, tile=tile, blocks=blocks, steps=sums.steps, parts=parts, products=self.products
        )

    def rounded(self, packed: np.ndarray) -> np.ndarray:
        return rounded_to_tf32(packed) if self.name == "igemm_tf32" else packed

    def launches(
        self,
        problem: Problem,
        work: Work,
        *,
        weights: View,
        y: View,
        residual: View | None,
        window: Mapping[str, int],
        y_pixels: tuple[int, int, int],
    ) -> tuple[Step, ...]:
        """y_pixels  from image to image, from row to row and from column to column"""
        sums, tile, is_cut = work.sums, work.tile, work.parts > 1
        products = () if self.dtype == "float16" else (("PRODUCTS", self.products),)
        copy = () if work.copy == CHUNK_BYTES else (("COPY", work.copy),)
        return launch(
            Kernel(
                file="conv_igemm.cu",
                entry="conv_igemm",
                defines=(*elements.defines(self.dtype), *tile.defines, *products, *copy),
            ),
            grid=(*sums.blocks(tile), work.parts),
            block=(tile.threads, 1, 1),
            shared_bytes=tile.shared_bytes,
            x=problem.x,
            w=weights,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            partial=problem.workspace if is_cut else None,
            arrived=problem.tables[0] if is_cut else None,
            N=problem.x.shape[0],
            C=sums.channels,
            K=sums.filters,
            terms=sums.terms,
            tiles=ceil_div(sums.filters, tile.columns),
            x_stride=problem.x.pixel_stride,
            y_stride=problem.y.pixel_stride,
            residual_stride=problem.residual.pixel_stride if problem.residual else 0,
            y_image=y_pixels[0],
            y_row=y_pixels[1],
            y_column=y_pixels[2],
            **window,
            **epilogue.arguments(problem.epilogue),
        )


def copy_bytes(x: Operand, sums: Sums) -> int:
    """Bytes of x that are copied at once: fewer where pixels or groups begin between multiples of 16."""
    places = [x.view().byte_offset, x.pixel_stride * x.itemsize]
    places += [sums.channels * x.itemsize] if sums.groups > 1 else []
    return CHUNK_BYTES if all(place % CHUNK_BYTES == 0 for place in places) else x.itemsize


def rounded_to_tf32(array: np.ndarray) -> np.ndarray:
    """Float32 to 11 bits, to the nearest, half away from zero, as cvt.rna.tf32 does it.

    NaN and infinity stay.
    """
    bits = (array.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), bits.view(np.float32), array)


def _architecture(target: Target) -> int:
    """90 of "sm_90"; where the target says none, that of the GPU that the model below is of."""
    found = re.fullmatch(r"sm_(\d+)\w*", target.architecture)
    return int(found[1]) if found else 90


# --- a model of what takes long, where nothing was measured

MULTIPROCESSORS = {80: 108, 86: 84, 87: 16, 89: 128, 90: 132, 100: 148, 103: 148, 120: 170, 121: 48}
CLOCK_GHZ = 1.7
PRODUCTS_PER_CYCLE = 1024 * 0.63  # TF32, of an SM by mma.sync
L2_BYTES_PER_CYCLE = 24  # of an SM, all of them reading
LATENCY_CYCLES = 700  # from L2 to shared memory
START_CYCLES = 1500  # of a block: to its first product, and from the last to y


def estimate_us(target: Target, *, tile: Tile, blocks: int, steps: int, parts: int, products: int) -> float:
    """Of `blocks` tiles of `steps` steps each: waves of blocks times the slowest of what a step needs.

    Not measured: it orders tiles, `tune` finds the fastest.
    Source    rates: of H100 in arXiv 2501.12084 (mma.sync reaches 0.63 of the peak); L2: 5.5 TB/s of 132 SMs
    """
    processors = MULTIPROCESSORS.get(_architecture(target), 132)
    step_terms = STEP_BYTES // 4  # of halves twice as many, at twice the rate
    own_steps = ceil_div(steps, parts)
    a_processor = ceil_div(blocks * parts, processors)
    together = min(a_processor, tile.resident)
    tensor = tile.rows * tile.columns * step_terms * products / PRODUCTS_PER_CYCLE
    memory = (tile.rows + tile.columns) * STEP_BYTES / L2_BYTES_PER_CYCLE
    waiting = LATENCY_CYCLES / (tile.stages - 1) / together
    cycles = a_processor * own_steps * max(tensor, memory, waiting)
    cycles += START_CYCLES * ceil_div(a_processor, tile.resident)
    if parts > 1:
        again = 2 * 4 * tile.rows * tile.columns * parts * blocks / processors
        cycles += LATENCY_CYCLES + again / L2_BYTES_PER_CYCLE
    return cycles / CLOCK_GHZ / 1000
