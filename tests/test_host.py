"""The host device's kernels give numpy's results, and checked builds find planted faults."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import host_cases
from host_cases import FAULTS, GOOD, KERNELS, PATHS, Case, X, assert_right, run, zeros
from minicnn.device import host_build
from minicnn.device.host import HostDevice
from minicnn.device.host_build import Check
from minicnn.errors import DeviceError

ORDERS = (
    Check(order="forward"),
    Check(order="reverse"),
    Check(order="random", seed=1),
    Check(order="random", seed=2),
)


@pytest.fixture(scope="module", params=[1, 2])
def device(request):
    device = HostDevice(threads=request.param)
    yield device
    device.close()


@pytest.mark.parametrize("entry", GOOD)
def test_kernels_give_numpys_results(device, entry):
    case = GOOD[entry]()
    for _ in range(3):  # fibers and exchange areas are used again
        assert_right(case, run(device, entry, case))


@pytest.mark.parametrize("entry", GOOD)
def test_good_kernels_pass_every_order(entry):
    case = GOOD[entry]()
    for check in ORDERS:
        device = HostDevice(check=check)
        assert_right(case, run(device, entry, case))
        device.close()


def test_kernels_run_without_the_assembler(monkeypatch):
    """The stack switch of other processors, ucontext, gives the same."""

    def runtime_library(level, check):
        library = host_build.runtime_library(level, check)
        return replace(library, flags=(*library.flags, "-DMINICNN_UCONTEXT"), key=library.key[::-1])

    monkeypatch.setattr("minicnn.device.host.runtime_library", runtime_library)
    device = HostDevice(threads=2)
    for entry in ("reverse", "matmul", "shuffles", "histogram"):
        case = GOOD[entry]()
        assert_right(case, run(device, entry, case))
    device.close()


def outcomes(entry: str) -> list[bytes]:
    """The bits that each order leaves, or its error."""
    result = []
    for check in ORDERS:
        device = HostDevice(check=check)
        try:
            result.append(b"".join(array.tobytes() for array in run(device, entry, FAULTS[entry]).values()))
        except DeviceError as error:
            result.append(str(error).encode())
        device.close()
    return result


RACES = ("missing_barrier", "missing_second_barrier", "missing_warp_barrier", "race_of_blocks")


@pytest.mark.parametrize("entry", [*RACES, "race"])
def test_order_finds_missing_barriers(entry):
    forward, reverse, *random = outcomes(entry)
    assert forward != reverse
    assert any(forward != outcome for outcome in random)


@pytest.mark.parametrize("entry", ["divergent", "two_barriers"])
def test_divergent_barriers_are_refused(entry):
    for outcome in outcomes(entry):
        assert b"divergent __syncthreads" in outcome and b"line" in outcome and entry.encode() in outcome


@pytest.mark.parametrize("entry", ["unwritten", "unwritten_dynamic"])
def test_unwritten_shared_memory_is_nan(entry):
    for outcome in outcomes(entry):
        assert np.isnan(np.frombuffer(outcome, np.float32)).any()


def test_deadlock_is_an_error_and_the_device_goes_on(device):
    with pytest.raises(
        DeviceError, match="deadlock: 16 threads wait at __syncthreads, 16 at a warp's barrier"
    ):
        run(device, "deadlock", FAULTS["deadlock"])
    case = GOOD["shuffles"]()
    assert_right(case, run(device, "shuffles", case))


def test_block_of_too_many_threads_is_an_error(device):
    case = Case(grid=(1, 1, 1), block=(64, 32, 1), inputs={"x": X}, outputs={"y": zeros(4096)})
    with pytest.raises(DeviceError, match="2048 threads"):
        run(device, "reverse", case)


# --- sanitizers -----------------------------------------------------------------------------------


def run_sanitized(sanitize: str, *names: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | PATHS | host_build.sanitizer_environment(Check(sanitize=sanitize))
    return subprocess.run(
        [sys.executable, host_cases.__file__, sanitize, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def line_in_faults(entry: str) -> range:
    """The lines of a kernel in faults.cu."""
    lines = (KERNELS / "faults.cu").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"KERNEL({entry})"))
    last = next(i for i in range(first, len(lines)) if lines[i] == "}")
    return range(first + 1, last + 2)


def assert_found(result: subprocess.CompletedProcess[str], entry: str, what: str) -> None:
    assert what in result.stderr, result.stderr[-3000:]
    assert any(f"faults.cu:{line}" in result.stderr for line in line_in_faults(entry)), result.stderr[-3000:]
    assert result.returncode != 0


@pytest.mark.parametrize("entry", ["beyond_global", "beyond_shared", "beyond_dynamic"])
def test_address_sanitizer_finds(entry):
    assert_found(run_sanitized("address", entry), entry, "AddressSanitizer")


@pytest.mark.parametrize(
    "entry, what", [("beyond_row", "out of bounds"), ("misaligned", "misaligned address")]
)
def test_undefined_behaviour_sanitizer_finds(entry, what):
    assert_found(run_sanitized("address,undefined", entry), entry, what)


def test_undefined_behaviour_sanitizer_finds_misaligned_vectors():
    result = run_sanitized("address,undefined", "misaligned_vector")
    assert "kernel.cuh" in result.stderr and "misaligned address" in result.stderr and result.returncode != 0


@pytest.mark.parametrize("entry", [*RACES[:3], "race"])
def test_thread_sanitizer_finds(entry):
    assert_found(run_sanitized("thread", entry), entry, "ThreadSanitizer: data race")


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_sanitizers_are_silent_on_good_kernels(sanitize):
    names = [name for name in GOOD if sanitize != "thread" or name != "mirror"]  # not in thread-local form
    result = run_sanitized(sanitize, *names)
    assert result.returncode == 0 and result.stderr == "", result.stderr[-3000:]
    assert result.stdout.split() == names
