"""Every planted fault is caught and named in every order of the warps; the counters equal hand-made ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from minicnn.device import nvcc
from simgpu import build
from simgpu.arrays import zeros
from simgpu.simulator import Simulator, SimulatorFault

pytestmark = pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)

# ---------------------------------------------------------------- faults


FAULTS: dict[str, tuple[str, int, Callable[[], Sequence[object]], str]] = {
    # kernel: kind, threads, arguments, what the sentence says
    "global_out_of_bounds": (
        "out_of_bounds",
        32,
        lambda: [zeros(40), np.int32(9)],
        "bytes past an allocation",
    ),
    "shared_out_of_bounds": ("out_of_bounds", 32, lambda: [zeros(), np.int32(2)], "the block has 128 bytes"),
    "local_out_of_bounds": ("out_of_bounds", 32, lambda: [zeros(), np.int32(3)], "local access"),
    "misaligned": ("misaligned", 32, lambda: [zeros(), zeros()], "16 bytes at an address that is 4 past"),
    "uninitialised_shared": ("uninitialised", 32, lambda: [zeros()], "byte 124 of shared memory"),
    "uninitialised_local": (
        "uninitialised",
        32,
        lambda: [np.arange(32, dtype=np.int32) % 16, zeros()],
        "local memory",
    ),
    "divergent_barrier": ("barrier", 32, lambda: [zeros()], "divergent barrier"),
    "early_return_before_barrier": ("barrier", 96, lambda: [zeros()], "has left the kernel"),
    "two_barriers_for_one": ("barrier", 32, lambda: [zeros()], "different barrier instructions"),
    "partial_shuffle": ("collective", 32, lambda: [zeros()], "only part of its member mask"),
    "partial_syncwarp": ("collective", 32, lambda: [zeros()], "only part of its member mask"),
    "missing_barrier": ("race", 256, lambda: [zeros()], "no barrier between"),
    "missing_second_barrier": ("race", 128, lambda: [zeros(), zeros(), np.int32(2)], "no barrier between"),
    "missing_syncwarp": ("race", 32, lambda: [zeros()], "no barrier between"),
    "barrier_of_half": ("race", 128, lambda: [zeros()], "no barrier between"),
    "plain_beside_atomic": ("race", 64, lambda: [zeros(64, np.int32)], "no barrier between"),
    "last_thread_reads_the_sum": ("race", 64, lambda: [zeros(64, np.int32)], "no barrier between"),
    "reset_beside_atomics": ("race", 64, lambda: [zeros(64, np.int32)], "no barrier between"),
    "reset_after_atomics": ("race", 64, lambda: [zeros(64, np.int32)], "no barrier between"),
    "missing_async_wait": ("async_copy", 64, lambda: [zeros(), zeros()], "has not been waited for"),
    "wait_leaves_one_too_many": ("async_copy", 64, lambda: [zeros(), zeros()], "has not been waited for"),
    "missing_barrier_after_wait": ("race", 64, lambda: [zeros(), zeros()], "no barrier between"),
    "unsupported": ("unsupported", 32, lambda: [zeros(64, np.int32)], "mbarrier.init"),
    "traps": ("trap", 32, lambda: [zeros(64, np.int32) - 1], "trap"),
    "asserts": ("trap", 32, lambda: [zeros(64, np.int32) - 1], "assertion failed"),
    "prints": ("unsupported", 32, lambda: [zeros(64, np.int32)], "printf"),
}


@pytest.mark.parametrize("late_async", [0, 1], ids=["async at once", "async late"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_found_in_every_order(kernel: str, seed: int, late_async: int) -> None:
    kind, threads, arguments, words = FAULTS[kernel]
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults", seed=seed, late_async=late_async).run(kernel, *arguments(), block=threads)
    assert fault.value.kind == kind, fault.value
    assert words in str(fault.value)
    assert f"kernel {kernel}" in str(fault.value) and "PTX line" in str(fault.value)


def test_fault_names_block_thread_and_source_line() -> None:
    x = zeros(100)
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults").run("global_out_of_bounds", x, np.int32(98), grid=3, block=(8, 4))
    source = (build.KERNELS / "faults.cu").read_text().splitlines()
    line = next(k for k, text in enumerate(source, 1) if "void global_out_of_bounds" in text)
    assert "block (0,0,0), thread (2,0,0)" in str(fault.value)
    assert "st.global.f32" in str(fault.value) or "st.global.u32" in str(fault.value)
    assert f"faults.cu:{line}" in str(fault.value)


def test_endless_loop_meets_the_budget() -> None:
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults", budget=10_000).run("endless", zeros(2, np.int32))
    assert fault.value.kind == "endless" and "10000 warp instructions" in str(fault.value)


def test_checks_can_be_switched_off() -> None:
    y = zeros(256)
    Simulator("faults", check_races=0).run(
        "missing_barrier", y, block=256
    )  # a warp reads what a later one will write
    assert (y == -1).any()
    Simulator("faults", check_uninitialised=0).run("uninitialised_shared", y)
    assert np.isnan(y[31]) and (y[:31] == 1).all()


def test_late_copies_are_late() -> None:
    x, y = zeros() + 1, zeros()
    off = {"check_races": 0, "check_uninitialised": 0}
    Simulator("faults", late_async=1, **off).run("missing_async_wait", x, y, block=64)
    assert np.isnan(y[:64]).all()
    Simulator("faults", late_async=0, **off).run("missing_async_wait", x, y, block=64)
    assert (y[:64] == 1).all()


def test_launch_is_checked() -> None:
    sim = Simulator("tensor")
    cases = {
        "1 to 256": dict(block=512),
        "parameter bytes": dict(block=256, extra=[np.int32(0)]),
        "grid is empty": dict(block=256, grid=0),
        "bytes of shared memory": dict(block=256, shared=230_000),
    }
    for words, launch in cases.items():
        extra = launch.pop("extra", [])
        arguments = [zeros(), zeros(), zeros(), np.int32(8), np.int32(8), np.int32(8), *extra]
        with pytest.raises(SimulatorFault, match=words) as fault:
            sim.run("sgemm_async", *arguments, **launch)
        assert fault.value.kind == "launch"
    with pytest.raises(SimulatorFault, match="no kernel named 'nothing'"):
        sim.run("nothing")


def test_text_that_is_no_ptx() -> None:
    with pytest.raises(SimulatorFault) as fault:
        Simulator(text=".version 8.0\n.visible .entry broken()\n{ mov.u32 %r1, 5;\n")
    assert fault.value.kind == "parse" and "PTX line" in str(fault.value)
    with pytest.raises(SimulatorFault, match="'%r1' is not declared"):
        Simulator(text=".version 8.0\n.visible .entry broken()\n{ mov.u32 %r1, 5; ret; }\n").run("broken")


def test_kernel_info() -> None:
    sim = Simulator("tensor")
    info = sim.info("sgemm_async")
    assert (info.parameter_bytes, info.parameter_count, info.max_threads) == (36, 6, 256)
    assert info.static_shared_bytes == 2 * 2 * 64 * 16 * 4
    assert "ldmatrix_all" in sim.kernels()


# ---------------------------------------------------------------- counters


@pytest.mark.parametrize(
    "kernel, load_sectors, store_conflicts",
    [
        ("coalesced", 4, 0),  # 32 lanes x 4 bytes / 32 bytes
        ("stride_2", 8, 0),
        ("stride_32", 32, 0),  # every lane a sector of its own
        ("conflict_free", 4, 0),
        ("conflict_2_way", 4, 1),  # lanes k and k + 16 share a bank: one more cycle
        ("conflict_32_way", 4, 31),
    ],
)
def test_counters_by_hand(kernel: str, load_sectors: int, store_conflicts: int) -> None:
    sim = Simulator("counted")
    sim.run(kernel, zeros(1024), zeros(32))
    c = sim.counters()
    assert (c["global_load_requests"], c["global_load_bytes"]) == (1, 128)
    assert (c["global_store_requests"], c["global_store_bytes"], c["global_store_sectors"]) == (1, 128, 4)
    assert c["global_load_sectors"] == load_sectors
    shared = 1 if "conflict" in kernel else 0
    assert (c["shared_load_requests"], c["shared_store_requests"]) == (shared, shared)
    assert (c["shared_load_conflicts"], c["shared_store_conflicts"]) == (store_conflicts, store_conflicts)


def test_wide_shared_access_has_no_conflicts() -> None:
    sim = Simulator("counted")
    sim.run("wide_shared", zeros(128), zeros(128))
    c = sim.counters()
    assert (c["shared_load_bytes"], c["shared_load_conflicts"], c["shared_store_conflicts"]) == (512, 0, 0)
    assert c["global_load_sectors"] == 16


def test_divergence_and_instruction_classes() -> None:
    sim = Simulator("counted")
    sim.run("half_of_each_warp", zeros(128, np.int32), zeros(64, np.int32), block=64)
    c = sim.counters()
    assert c["divergent_branches"] == 2  # one in each warp
    assert c["global_load_requests"] == 4 and c["global_load_bytes"] == 256  # both sides of both warps
    assert c["lane_memory"] >= 128 and c["lane_integer"] > 0 and c["lane_fp32"] == c["lane_tensor"] == 0
    sim.reset()
    assert not any(sim.counters().values())


def test_tensor_instructions_are_counted() -> None:
    sim = Simulator("tensor")
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    sim.run("mma_f16_k16", a, b, c)
    assert (sim.counters()["warp_tensor"], sim.counters()["lane_tensor"]) == (1, 32)
