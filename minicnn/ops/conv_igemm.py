"""`igemm`, `igemm_tf32`, `igemm_half`: convolutions as one product on a GPU's tensor cores (implicit GEMM).

`igemm` multiplies floats as two TF32 numbers each and stays within float32's bound. A factor's two parts miss
it by 2^-23 of it at most, the product that is left out is 2^-22 of the largest: 2^-21 in all, less than the
bound of the definition (4 * sqrt(terms) * 2^-24) from 4 terms on. Its sums are rounded as float32's are,
eight terms at a time.
`igemm_tf32` rounds each factor to 11 bits: 2^-10 of each product, only where `--precision tf32` allows it.
`igemm_half` is for float16 tensors: their products are exact, the sums are of floats.

Source    cuda/conv_igemm.cu names it
Not here  fewer than 4 terms, infinite inputs (they give NaN): `igemm`
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn import elements, epilogue
from minicnn.geometry import INT32_MAX, ceil_div, round_up
from minicnn.kernels import GRID_YZ_MAX, launch
from minicnn.ops.conv_variants import Convolution, Extents, extents_of, weights_of
from minicnn.registry import Packing, Problem, Target, Variant
from minicnn.step import Kernel, Step
from minicnn.window import window_arguments

STEP_BYTES = 128  # of a row of either matrix, as cuda/conv_igemm.cu has it
CHUNK_BYTES = 16  # that are copied at once
OLDEST = 80  # compute capability with cp.async and TF32
TF32_ROUNDOFF = 2.0**-11
FEWEST_TERMS = 4  # of a sum that hides what 3xTF32 leaves out
FEWEST_FILTERS = 8  # of a group: a tensor core's product is as wide
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


SMALL = Tile(rows=64, columns=32, warp_rows=32, warp_columns=16, stages=4, resident=4)
_COMMON = (
    Tile(rows=128, columns=64, warp_rows=64, warp_columns=32, stages=3, resident=2),
    Tile(rows=64, columns=64, warp_rows=32, warp_columns=32, stages=4, resident=3),
    SMALL,
)
# Two TF32 numbers a float take registers: their largest tile has twice the warps, each of half the tile.
WIDE = Tile(rows=128, columns=128, warp_rows=64, warp_columns=32, stages=3, resident=1)
TALL = Tile(rows=128, columns=128, warp_rows=64, warp_columns=64, stages=3, resident=2)


@dataclass(frozen=True, kw_only=True)
class Work:
    """How one convolution is cut: a tile for each block, the terms in parts, bytes of x copied at once."""

    tile: Tile
    parts: int
    copy: int
    blocks: tuple[int, int]  # of pixels; of filters, all groups together
    filter_tiles: int  # of a group

    @property
    def partial_bytes(self) -> int:
        return _partial_bytes(self.tile, self.parts, math.prod(self.blocks))


@dataclass(frozen=True, kw_only=True)
class ImplicitGemm(Convolution):
    """`tile`, `parts`: None, 0: what `estimate_us` finds fastest."""

    products: int = 3
    dtype: str = "float32"
    tile: Tile | None = None
    parts: int = 0

    devices: tuple[str, ...] = ("cuda", "sim")

    @property
    def name(self) -> str:  # type: ignore[override]
        return "igemm_half" if self.dtype == "float16" else "igemm" if self.products == 3 else "igemm_tf32"

    @property
    def precisions(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("tf32",) if self.name == "igemm_tf32" else ("fp32",)

    @property
    def dtypes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.dtype,)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (WIDE if self.products == 3 else TALL, *_COMMON)

    @property
    def label(self) -> str:
        if self.tile is None:
            return self.name
        cut = f", {self.parts} parts" if self.parts > 1 else ""
        return f"{self.name}, {self.tile}{cut}"

    def suits(self, problem: Problem) -> str:
        conv, w = problem.operator, weights_of(problem)
        e = extents_of(problem, w.shape[2:])
        found = re.fullmatch(r"sm_(\d+)\w*", problem.target.architecture)
        if found and int(found[1]) < OLDEST:
            return f"{problem.target.architecture} has no TF32 and no asynchronous copies, sm_{OLDEST} does"
        if conv.group == e.C == e.K:
            return "one filter a channel: there is no sum for a tensor core"
        if self.products == 3 and math.prod(w.shape[1:]) < FEWEST_TERMS:
            return f"sums of fewer than {FEWEST_TERMS} products show what 3xTF32 leaves out"
        if self.dtype == "float16":
            bias = epilogue.own_input(problem, 2)
            if bias is not None and not bias.is_constant:
                return "the bias is computed at run time"
        if e.K * self._terms(e, conv.group) > INT32_MAX:
            return "the weights are too many for 32-bit indices"
        if conv.group * ceil_div(e.K // conv.group, SMALL.columns) > GRID_YZ_MAX:
            return "more groups than a grid is high"
        return ""

    def declines(self, problem: Problem) -> str:
        filters = problem.y.shape[1] // problem.operator.group
        if filters < FEWEST_FILTERS and problem.operator.group > 1:
            return f"a group has {filters} filters, fewer than {FEWEST_FILTERS}"
        return ""

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        """Every tile, the terms whole and in as many parts as the model likes best."""
        e = extents_of(problem, weights_of(problem).shape[2:])
        forms = []
        for tile in self.tiles:
            best = min(self._possible_parts(e, problem, tile), key=lambda p: self._us(e, problem, tile, p))
            forms += [replace(self, tile=tile, parts=parts) for parts in sorted({1, best})]
        return tuple(forms)

    def bound(self, operator: Any, *arrays: Any) -> Any:
        own = super().bound(operator, *arrays)
        if self.name != "igemm_tf32":
            return own
        return own + 2 * TF32_ROUNDOFF * (1 + TF32_ROUNDOFF) * operator.magnitude(*arrays[:2])

    # weights

    def _chunked(self, e: Extents, groups: int) -> int:
        """Channels of a tap, whole chunks."""
        return round_up(e.C // groups, CHUNK_BYTES // np.dtype(self.dtype).itemsize)

    def _terms(self, e: Extents, groups: int) -> int:
        """Of a filter, whole steps."""
        return round_up(e.R * e.S * self._chunked(e, groups), STEP_BYTES // np.dtype(self.dtype).itemsize)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """Filters one behind the other, [R][S][channels] and zeros; a shape that still tells R and S."""
        w, groups = weights_of(problem), problem.operator.group
        e = extents_of(problem, w.shape[2:])
        terms, channels, taps = self._terms(e, groups), self._chunked(e, groups), e.R * e.S
        shape = (e.R, e.S, ceil_div(e.K * terms, taps))

        def pack(array: np.ndarray) -> np.ndarray:
            packed = np.zeros(math.prod(shape), self.dtype)
            rows = packed[: e.K * terms].reshape(e.K, terms)
            filters = rows[:, : taps * channels].reshape(e.K, taps, channels)
            filters[:, :, : e.C // groups] = array.reshape(e.K, -1, taps).transpose(0, 2, 1)
            rounded = rounded_to_tf32(packed) if self.name == "igemm_tf32" else packed
            return rounded.reshape(shape)

        packings = {1: Packing(name=self.name, shape=shape, function=pack, dtype=self.dtype)}
        if self.dtype != "float32" and epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(name=self.name, shape=(e.K,), function=lambda b: b)
        return packings

    # how the work is cut

    def _work(self, problem: Problem, e: Extents) -> Work:
        groups, copy = problem.operator.group, self._copy(problem, e)
        tiles = self.tiles if copy == CHUNK_BYTES else (SMALL,)
        tile, parts = self.tile if self.tile in tiles else None, self.parts
        if tile is None:
            choices = [(t, p) for t in tiles for p in self._possible_parts(e, problem, t)]
            tile, parts = min(choices, key=lambda one: self._us(e, problem, *one))
        filter_tiles = ceil_div(e.K // groups, tile.columns)
        return Work(
            tile=tile,
            parts=parts,
            copy=copy,
            blocks=(ceil_div(e.N * e.P * e.Q, tile.rows), filter_tiles * groups),
            filter_tiles=filter_tiles,
        )

    def _copy(self, problem: Problem, e: Extents) -> int:
        """Bytes of x that are copied at once: fewer where pixels or groups begin between multiples of 16."""
        x, groups = problem.x, problem.operator.group
        places = [x.view().byte_offset, x.pixel_stride * x.itemsize]
        places += [e.C // groups * x.itemsize] if groups > 1 else []
        return CHUNK_BYTES if all(place % CHUNK_BYTES == 0 for place in places) else x.itemsize

    def _possible_parts(self, e: Extents, problem: Problem, tile: Tile) -> list[int]:
        groups = problem.operator.group
        steps = self._steps(e, groups)
        blocks = _blocks(e, groups, tile)
        return [
            parts
            for parts in PARTS
            if parts == 1 or (parts <= steps and _partial_bytes(tile, parts, blocks) <= MOST_PARTIAL_BYTES)
        ]

    def _steps(self, e: Extents, groups: int) -> int:
        return self._terms(e, groups) * np.dtype(self.dtype).itemsize // STEP_BYTES

    def _us(self, e: Extents, problem: Problem, tile: Tile, parts: int) -> float:
        groups = problem.operator.group
        return estimate_us(
            problem.target,
            tile=tile,
            blocks=_blocks(e, groups, tile),
            steps=self._steps(e, groups),
            parts=parts,
            products=self.products,
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return self._work(problem, extents_of(problem, weights_of(problem).shape[2:])).partial_bytes

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """A counter for each tile of sums that is cut into parts; a launch leaves them as they were."""
        work = self._work(problem, extents_of(problem, weights_of(problem).shape[2:]))
        return (np.zeros(math.prod(work.blocks), np.uint32),) if work.parts > 1 else ()

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w, y, residual = problem.x, weights_of(problem), problem.y, problem.residual
        e = extents_of(problem, w.shape[:2])
        groups, work = problem.operator.group, self._work(problem, e)
        products = () if self.dtype == "float16" else (("PRODUCTS", self.products),)
        copy = () if work.copy == CHUNK_BYTES else (("COPY", work.copy),)
        return launch(
            Kernel(
                file="conv_igemm.cu",
                entry="conv_igemm",
                defines=(*elements.defines(self.dtype), *work.tile.defines, *products, *copy),
            ),
            grid=(*work.blocks, work.parts),
            block=(work.tile.threads, 1, 1),
            shared_bytes=work.tile.shared_bytes,
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            partial=problem.workspace if work.parts > 1 else None,
            arrived=problem.tables[0] if work.parts > 1 else None,
            N=e.N,
            C=e.C // groups,
            K=e.K // groups,
            terms=self._terms(e, groups),
            tiles=work.filter_tiles,
            x_stride=x.pixel_stride,
            y_stride=y.pixel_stride,
            residual_stride=residual.pixel_stride if residual else 0,
            **window_arguments(e.windows),
            **epilogue.arguments(problem.epilogue),
        )


def rounded_to_tf32(array: np.ndarray) -> np.ndarray:
    """Float32 to 11 bits, to the nearest, half away from zero, as cvt.rna.tf32 does it. NaN and infinity
    stay."""
    bits = (array.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), bits.view(np.float32), array)


def _blocks(e: Extents, groups: int, tile: Tile) -> int:
    return ceil_div(e.N * e.P * e.Q, tile.rows) * ceil_div(e.K // groups, tile.columns) * groups


def _partial_bytes(tile: Tile, parts: int, blocks: int) -> int:
    return 4 * tile.rows * tile.columns * parts * blocks if parts > 1 else 0


# --- a model of what takes long, where nothing was measured

MULTIPROCESSORS = {80: 108, 86: 84, 87: 16, 89: 128, 90: 132, 100: 148, 103: 148, 120: 170, 121: 48}
CLOCK_GHZ = 1.7
PRODUCTS_PER_CYCLE = 1024 * 0.63  # TF32, of an SM by mma.sync
L2_BYTES_PER_CYCLE = 24  # of an SM, all of them reading
LATENCY_CYCLES = 700  # from L2 to shared memory
START_CYCLES = 1500  # of a block: to its first product, and from the last to y


def estimate_us(
    target: Target, *, tile: Tile, blocks: int, steps: int, parts: int, products: int
) -> float:
    """Of `blocks` tiles of `steps` steps each: waves of blocks times the slowest of what a step needs.

    Not measured: it orders tiles, `tune` finds the fastest.
    Source    rates: of H100 in arXiv 2501.12084 (mma.sync reaches 0.63 of the peak); L2: 5.5 TB/s of 132 SMs
    """
    found = re.fullmatch(r"sm_(\d+)\w*", target.architecture)
    processors = MULTIPROCESSORS.get(int(found[1]) if found else 90, 132)
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


IMPLICIT_GEMMS = (
    ImplicitGemm(products=1, dtype="float16"),
    ImplicitGemm(),
    ImplicitGemm(products=1),
)
