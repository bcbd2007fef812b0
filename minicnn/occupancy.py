"""How many blocks of a launch a GPU's multiprocessor (SM) holds at a time, and what keeps it from more.

A warp can wait for memory at no cost as long as another is there to run, so few resident warps are a reason
for a kernel to be slow, and many of them no promise that it is fast.

Source    limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; how registers
          and shared memory are handed out: NVIDIA's calculator as published in cuda_occupancy.h
Not here  clusters; kernels with several named barriers
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.geometry import ceil_div, round_up

WARP = 32
THREADS_PER_BLOCK = 1024
REGISTERS = 65_536  # of an SM, and at most of a block
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256  # a warp takes a multiple of this
PARTITIONS = 4  # of an SM: a warp lives in one, with a quarter of the registers


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an SM holds at a time. A block takes `shared_reserved` bytes besides its own, in whole units."""

    blocks: int
    warps: int
    shared_bytes: int
    shared_reserved: int = 1024
    shared_unit: int = 128

    @property
    def shared_per_block(self) -> int:
        """The most that a kernel can have, static and dynamic together."""
        return self.shared_bytes - self.shared_reserved


_AMPERE = Limits(blocks=16, warps=48, shared_bytes=100 << 10)
_HOPPER = Limits(blocks=32, warps=64, shared_bytes=228 << 10)
_BLACKWELL = Limits(blocks=24, warps=48, shared_bytes=100 << 10)
LIMITS = {
    75: Limits(blocks=16, warps=32, shared_bytes=64 << 10, shared_reserved=0, shared_unit=256),
    80: Limits(blocks=32, warps=64, shared_bytes=164 << 10),
    86: _AMPERE,
    87: Limits(blocks=16, warps=48, shared_bytes=164 << 10),
    89: Limits(blocks=24, warps=48, shared_bytes=100 << 10),
    90: _HOPPER,
    100: _HOPPER,
    103: _HOPPER,
    120: _BLACKWELL,
    121: _BLACKWELL,
}


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Resident blocks and warps of an SM. `limiters`: what an SM would need more of to hold another block."""

    blocks: int
    warps: int
    warps_possible: int
    limiters: tuple[str, ...]  # of "warps", "blocks", "registers", "shared memory"

    @property
    def ratio(self) -> float:
        return self.warps / self.warps_possible

    def __str__(self) -> str:
        return f"{self.ratio:.0%}, {self.blocks} blocks, limited by {' and '.join(self.limiters)}"


def occupancy(compute_capability: int, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of blocks of `threads` threads with `registers` each and `shared_bytes`, static and dynamic together.

    Zero blocks: the launch can't be.
    Raises    KeyError: a compute capability whose limits aren't known here (90: 9.0)
    """
    limits = LIMITS[compute_capability]
    warps = ceil_div(threads, WARP)
    room = {
        "warps": limits.warps // warps if threads <= THREADS_PER_BLOCK else 0,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared_memory(limits, shared_bytes),
    }
    blocks = min(room.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        warps_possible=limits.warps,
        limiters=tuple(name for name, count in room.items() if count == blocks),
    )


def _by_registers(warps: int, registers: int) -> int:
    per_warp = round_up(registers * WARP, REGISTER_UNIT)
    # A block is let in as if all partitions had as many warps of it as the fullest one.
    if registers > REGISTERS_PER_THREAD or per_warp * round_up(warps, PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // per_warp * PARTITIONS // warps


def _by_shared_memory(limits: Limits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_per_block:
        return 0
    taken = round_up(max(shared_bytes + limits.shared_reserved, 1), limits.shared_unit)
    return limits.shared_bytes // taken
