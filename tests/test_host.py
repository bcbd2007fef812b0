"""The host device: kernels, planted faults, sanitizers, command lists, products, builds, the cache.

Run as a program it runs kernels of this file in a checked build, for the sanitizers must be there before
Python starts: `python tests/test_host.py address beyond_shared`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from minicnn import cache, kernels
from minicnn.device import host_build
from minicnn.device.host import HostDevice
from minicnn.device.host_blas import Blas
from minicnn.device.host_build import Check
from minicnn.errors import BuildError, DeviceError
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, View

KERNELS = Path(__file__).parent / "host_kernels"
ORDERS = (
    Check(order="forward"),
    Check(order="reverse"),
    Check(order="random", seed=1),
    Check(order="random", seed=2),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch: its arrays by parameter name, and what the outputs must then be (None: not known)."""

    file: str = "good.cu"
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray]  # contents before
    expected: dict[str, np.ndarray] | None = None
    scalars: dict[str, int | float] = field(default_factory=dict)
    shared_bytes: int = 0
    tolerance: float = 0.0


def randoms(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _shuffles() -> Case:
    x = randoms(64) * 4
    warps, lane = x.reshape(2, 32), np.arange(32)
    ballot = ((warps > 0) * 2 ** np.arange(32)).sum(axis=1) // 2**16
    tree = warps.copy()
    for distance in (16, 8, 4, 2, 1):
        tree[:, :distance] += tree[:, distance : 2 * distance]
    votes = (warps > 2).any(axis=1) * 2 + (warps > -9).all(axis=1)
    rows = [
        warps[:, lane * 0 + 5],
        warps[:, lane ^ 3],
        warps[:, np.where(lane + 4 < 32, lane + 4, lane)],
        warps[:, np.where(lane >= 2, lane - 2, lane)],
        warps[:, np.where(lane % 16 + 4 < 16, lane + 4, lane)],
        warps[:, lane // 8 * 8 + 3],
        *(
            np.repeat(np.reshape(v, (2, 1)), 32, axis=1)
            for v in (ballot, tree[:, 0], warps.max(axis=1), votes)
        ),
    ]
    expected = np.stack(rows).reshape(10, 64).astype(np.float32)
    return Case(
        grid=(1, 1, 1),
        block=(64, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(10, 64)},
        expected={"y": expected},
    )


def _uneven_lanes() -> Case:
    x = randoms(96)
    v = x.reshape(3, 32).copy()
    v[:, :16] += x.reshape(3, 32)[:, np.arange(16) ^ 1]
    v += v[:, np.arange(32) ^ 16]
    return Case(
        grid=(1, 1, 1),
        block=(96, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(96)},
        expected={"y": v.reshape(96)},
    )


def _histogram() -> Case:
    x = np.random.default_rng(3).integers(0, 1000, 5001, dtype=np.int32)
    counts = np.bincount(x % 8, minlength=8).astype(np.int32)
    return Case(
        grid=(20, 1, 1),
        block=(256, 1, 1),
        inputs={"x": x},
        outputs={"counts": np.zeros(8, np.int32), "largest": np.zeros(1, np.int32)},
        expected={"counts": counts, "largest": x.max(keepdims=True)},
        scalars={"n": 5001},
    )


def _vectors(width: int) -> Case:
    x = randoms(960)
    x[5] = np.nan
    wide = x.astype(np.float64)
    expected = np.stack(
        [
            np.where(2 * wide + 1 < 0, 0, 2 * wide + 1),
            np.maximum(wide, 0),
            np.minimum(wide, 0) / (wide * wide + 1) - (wide * wide + wide),
        ]
    )
    return Case(
        grid=(-(-960 // width // 32), 1, 1),
        block=(32, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(3, 960)},
        expected={"y": expected},
        scalars={"n": 960},
        tolerance=4e-7,
    )


def _matmul() -> Case:
    a, b = randoms(48, 48), randoms(48, 48)[::-1].copy()
    expected = a.astype(np.float64) @ b
    arrays = {"A": a, "B": b}
    return Case(
        grid=(3, 3, 1),
        block=(16, 16, 1),
        inputs=arrays,
        outputs={"C": zeros(48, 48)},
        expected={"C": expected},
        scalars={"n": 48},
        tolerance=4e-6,
    )


def _scale() -> Case:
    x, expected = randoms(1000), np.full(3005, 7, np.float32)
    expected[5:3005:3] = np.float32(0.1) * x + np.float32(0.25)
    scalars = {"n": 1000, "step": 3, "offset": 5, "a": 0.1, "b": 0.25}
    y = np.full(3005, 7, np.float32)
    return Case(
        grid=(4, 1, 1),
        block=(256, 1, 1),
        inputs={"x": x},
        outputs={"y": y},
        expected={"y": expected},
        scalars=scalars,
        tolerance=1e-7,
    )


def _where() -> Case:
    z, y, x = np.ogrid[:6, :7, :37]
    expected = (z * 10000 + y * 100 + x).astype(np.int32)
    outputs = {"y": np.zeros((6, 7, 37), np.int32)}
    return Case(
        grid=(5, 3, 3),
        block=(8, 3, 2),
        outputs=outputs,
        expected={"y": expected},
        scalars={"ny": 7, "nx": 37},
    )


def _by_blocks(x: np.ndarray, threads: int) -> np.ndarray:
    return x.reshape(-1, threads)[:, ::-1].reshape(-1)


X = randoms(4096)
GOOD: dict[str, Callable[[], Case]] = {
    "scale": _scale,
    "where": _where,
    "reverse": lambda: Case(
        grid=(4, 1, 1), block=(1024, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": _by_blocks(X, 1024)},
    ),
    "reverse_dynamic": lambda: Case(
        grid=(64, 1, 1), block=(64, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": _by_blocks(X, 64)}, scalars={"times": 3}, shared_bytes=256,
    ),
    "matmul": _matmul,
    "shuffles": _shuffles,
    "uneven_lanes": _uneven_lanes,
    "warp_tree": lambda: Case(
        grid=(1, 1, 1), block=(32, 1, 1), inputs={"x": X[:32]}, outputs={"y": zeros(1)},
        expected={"y": X[:32].sum(dtype=np.float64, keepdims=True)}, tolerance=1e-6,
    ),
    "histogram": _histogram,
    "vectors_4": lambda: _vectors(4),
    "vectors_8": lambda: _vectors(8),
    "vectors_16": lambda: _vectors(16),
    "vectors_32": lambda: _vectors(32),
    "mirror": lambda: Case(
        file="scoped.cu", grid=(16, 1, 1), block=(256, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": 2 * _by_blocks(X, 256)},
    ),
}  # fmt: skip


def _fault(
    threads: int | tuple[int, int, int], outputs: dict[str, np.ndarray], blocks: int = 1, **rest
) -> Case:
    block = threads if isinstance(threads, tuple) else (threads, 1, 1)
    grid = rest.pop("grid", (blocks, 1, 1))
    return Case(file="faults.cu", grid=grid, block=block, outputs=outputs, **rest)


_SQUARES = {"A": X.reshape(64, 64), "B": X.reshape(64, 64)}
FAULTS: dict[str, Case] = {
    "beyond_global": _fault(256, {"y": zeros(1000)}, 4, inputs={"x": X[:1000]}, scalars={"n": 2}),
    "beyond_shared": _fault(32, {"y": zeros(32)}),
    "beyond_dynamic": _fault(32, {"y": zeros(32)}, scalars={"n": 32}, shared_bytes=128),
    "beyond_row": _fault(255, {"y": zeros(255)}),
    "misaligned": _fault(32, {"y": zeros(32)}, inputs={"x": X}),
    "misaligned_vector": _fault(32, {"y": zeros(32)}, inputs={"x": X}),
    "missing_barrier": _fault(256, {"y": zeros(256)}, inputs={"x": X}),
    "missing_second_barrier": _fault(
        (16, 16, 1), {"C": zeros(64, 64)}, grid=(4, 4, 1), inputs=_SQUARES, scalars={"n": 64}
    ),
    "missing_warp_barrier": _fault(64, {"y": zeros(1)}, inputs={"x": X}),
    "divergent": _fault(64, {"y": zeros(64)}),
    "two_barriers": _fault(64, {"y": zeros(64)}),
    "deadlock": _fault(32, {"y": zeros(32)}),
    "race": _fault(64, {"y": zeros(1)}, 4, inputs={"x": X}, scalars={"n": 256}),
    "race_of_blocks": _fault(32, {"y": zeros(1)}, 4),
    "unwritten": _fault(64, {"y": zeros(64)}),
    "unwritten_dynamic": _fault(32, {"y": zeros(32)}, shared_bytes=128),
}


def run(device: HostDevice, entry: str, case: Case) -> dict[str, np.ndarray]:
    """Launches the case, every array in device memory of its own, to the byte; returns the outputs."""
    arrays = case.inputs | case.outputs
    pointers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        device.upload(pointers[name], array)
    views = {name: View(tensor=name) for name in arrays}
    kernel = Kernel(file=str(KERNELS / case.file), entry=entry)
    launches = kernels.launch(
        kernel, grid=case.grid, block=case.block, shared_bytes=case.shared_bytes, **views, **case.scalars
    )
    for launch in launches:
        device.launch(launch, lambda view: pointers[view.tensor] + view.byte_offset)()
    outputs = {name: np.empty_like(array) for name, array in case.outputs.items()}
    for name, array in outputs.items():
        device.download(pointers[name], array)
    for pointer in pointers.values():
        device.free(pointer)
    return outputs


def assert_right(case: Case, outputs: dict[str, np.ndarray]) -> None:
    assert case.expected is not None
    for name, expected in case.expected.items():
        np.testing.assert_allclose(
            outputs[name], expected, rtol=0, atol=case.tolerance, equal_nan=True, err_msg=name
        )


@pytest.fixture(scope="module", params=[1, 2])
def device(request):
    device = HostDevice(threads=request.param)
    yield device
    device.close()


# --- kernels --------------------------------------------------------------------------------------


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
    assert len(set(outcomes(entry))) > 1


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
    environment = os.environ | host_build.sanitizer_environment(Check(sanitize=sanitize))
    return subprocess.run(
        [sys.executable, __file__, sanitize, *names],
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


# --- commands -------------------------------------------------------------------------------------


class Memory:
    """Named arrays on a device, seen as numpy arrays."""

    def __init__(self, device: HostDevice, **arrays: np.ndarray):
        self.pointers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
        self.arrays = {
            name: device.view(self.pointers[name], a.shape, a.dtype.name) for name, a in arrays.items()
        }
        for name, array in arrays.items():
            device.upload(self.pointers[name], np.ascontiguousarray(array))

    def address(self, view: View) -> int:
        return self.pointers[view.tensor] + view.byte_offset

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def test_captured_actions_run_in_order(device):
    n = 100_000
    memory = Memory(device, x=np.arange(n, dtype=np.float32), y=zeros(n), z=zeros(n))
    x, y, z = (View(tensor=name) for name in "xyz")
    scale = Kernel(file=str(KERNELS / "good.cu"), entry="scale")
    events = [device.event() for _ in range(4)]
    (double,) = kernels.launch(
        scale, grid=(391, 1, 1), block=(256, 1, 1), x=x, y=y, n=n, step=1, offset=0, a=2.0, b=0.0
    )
    (add_one,) = kernels.launch(
        scale, grid=(391, 1, 1), block=(256, 1, 1), x=z, y=x, n=n, step=1, offset=0, a=1.0, b=1.0
    )
    steps = [
        device.record(events[0]),
        device.prepare(double, memory.address),
        device.record(events[1]),
        device.prepare(Copy(source=y, target=z, nbytes=4 * n), memory.address),
        device.prepare(add_one, memory.address),
        device.record(events[2]),
        device.prepare(
            Fill(target=View(tensor="y", byte_offset=4), nbytes=8, pattern=0x40400000), memory.address
        ),
        device.record(events[3]),
    ]
    graph = device.capture(steps)
    graph()
    graph()
    device.sync()
    first = np.arange(n) * 2 + 1
    assert np.array_equal(memory["x"], first * 2 + 1)
    assert np.array_equal(memory["y"][:5], [first[0] * 2, 3, 3, first[3] * 2, first[4] * 2])
    times = [device.elapsed_us(events[0], event) for event in events]
    assert times == sorted(times) and times[-1] > 0


def test_large_copies_and_fills_reach_every_byte(device):
    n = (3 << 20) + 17
    memory = Memory(device, x=np.arange(n, dtype=np.int32), y=np.zeros(n, np.int32))
    device.copy(Copy(source=View(tensor="x"), target=View(tensor="y"), nbytes=4 * n), memory.address)()
    assert np.array_equal(memory["y"], memory["x"])
    device.fill(Fill(target=View(tensor="y"), nbytes=4 * n, pattern=0xFFFFFFFF), memory.address)()
    assert (memory["y"] == -1).all()


@pytest.mark.parametrize("extents", [(8, 8), (7, 5), (1, 9)])
def test_fft_there_and_back(device, extents):
    rows, columns = extents
    x = randoms(3, rows, columns)
    memory = Memory(
        device, x=x, s=np.zeros((3, rows, columns // 2 + 1), np.complex64), y=zeros(3, rows, columns)
    )
    there = Fft(source=View(tensor="x"), target=View(tensor="s"), extents=extents, batch=3)
    back = Fft(source=View(tensor="s"), target=View(tensor="y"), extents=extents, batch=3, inverse=True)
    device.capture([device.prepare(there, memory.address), device.prepare(back, memory.address)])()
    np.testing.assert_allclose(memory["s"], np.fft.rfft2(x.astype(np.float64)), atol=1e-5)
    np.testing.assert_allclose(memory["y"], x * rows * columns, atol=1e-4)


def test_memory_is_aligned_and_bounded(device):
    for nbytes in (1, 100, 5 << 20):
        pointer = device.alloc(nbytes)
        assert pointer % 256 == 0
        device.free(pointer)
    with pytest.raises(DeviceError, match="not enough memory"):
        device.alloc(1 << 50)


def test_non_contiguous_arrays_are_refused(device):
    pointer = device.alloc(64)
    with pytest.raises(DeviceError, match="contiguous"):
        device.upload(pointer, np.zeros((4, 8), np.float32)[:, ::2])
    device.free(pointer)


def test_view_with_strides(device):
    memory = Memory(device, x=np.arange(60, dtype=np.float32))
    view = device.view(memory.pointers["x"], (2, 3, 4), "float32", strides=(30, 1, 7))
    assert np.array_equal(
        view, [[[30 * a + b + 7 * c for c in range(4)] for b in range(3)] for a in range(2)]
    )


def test_closing_twice_and_using_after():
    device = HostDevice(threads=2)
    action = device.record(device.event())
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        action()


def test_a_forked_process_has_threads_again():
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import test_host as t\n"
        "device = t.HostDevice(threads=2); case = t.GOOD['histogram']()\n"
        "t.assert_right(case, t.run(device, 'histogram', case))\n"
        "child = os.fork()\n"
        "t.assert_right(case, t.run(device, 'histogram', case))\n"
        "if child == 0: os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], timeout=60).returncode == 0
    )


# --- products -------------------------------------------------------------------------------------

# (batch, m, n, k); odd, one row, one column, wide, tall, deep, empty depth
PRODUCTS = [
    (1, 1, 1, 1), (1, 7, 13, 5), (1, 1, 1000, 257), (3, 1, 65, 31), (1, 300, 1, 129), (1, 17, 900, 33),
    (1, 500, 19, 64), (5, 33, 29, 31), (2, 130, 140, 150), (1, 64, 64, 2000), (64, 4, 4, 3), (1, 3, 4, 0),
]  # fmt: skip


def assert_product(
    device: HostDevice, extents: tuple[int, int, int, int], transpose_a: bool, transpose_b: bool, beta: float
) -> None:
    batch, m, n, k = extents
    random = np.random.default_rng(5)

    def stored(rows: int, columns: int, extra: int) -> np.ndarray:
        """Matrices whose rows lie `extra` elements further apart, batches 3 elements; NaN between."""
        whole = np.full((batch, rows * (columns + extra) + 3), np.nan, np.float32)
        inner = whole[:, : rows * (columns + extra)].reshape(batch, rows, columns + extra)
        inner[:, :, :columns] = random.uniform(-1, 1, (batch, rows, columns))
        return whole

    def matrices(whole: np.ndarray, rows: int, columns: int, extra: int) -> np.ndarray:
        return whole[:, : rows * (columns + extra)].reshape(batch, rows, columns + extra)[:, :, :columns]

    shape_a, shape_b = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    a, b, c = stored(*shape_a, 2), stored(*shape_b, 1), stored(m, n, 5)
    if beta == 0:
        c[...] = np.nan
    memory = Memory(device, a=a, b=b, c=c)
    step = Gemm(
        m=m, n=n, k=k, a=View(tensor="a"), b=View(tensor="b"), c=View(tensor="c"),
        lda=shape_a[1] + 2, ldb=shape_b[1] + 1, ldc=n + 5, transpose_a=transpose_a, transpose_b=transpose_b,
        alpha=0.5, beta=beta, batch=batch, stride_a=a.shape[1], stride_b=b.shape[1], stride_c=c.shape[1],
    )  # fmt: skip
    device.gemm(step, memory.address)()
    left, right = matrices(a, *shape_a, 2).astype(np.float64), matrices(b, *shape_b, 1).astype(np.float64)
    left = left.transpose(0, 2, 1) if transpose_a else left
    right = right.transpose(0, 2, 1) if transpose_b else right
    before = matrices(c, m, n, 5).astype(np.float64) if beta else np.zeros((batch, m, n))
    exact = 0.5 * (left @ right) + beta * before
    bound = 4 * np.sqrt(k + 1) * 2**-24 * (abs(left) @ abs(right) + abs(beta * before))
    assert (abs(matrices(memory["c"], m, n, 5) - exact) <= bound).all()
    between = memory["c"][:, : m * (n + 5)].reshape(batch, m, n + 5)[:, :, n:]
    assert np.array_equal(
        between.view(np.int32), c[:, : m * (n + 5)].reshape(batch, m, n + 5)[:, :, n:].view(np.int32)
    )


@pytest.mark.parametrize("extents", PRODUCTS, ids=str)
def test_products(device, extents):
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            for beta in (0.0, 1.0, -0.75):
                assert_product(device, extents, transpose_a, transpose_b, beta)


def test_products_without_a_blas(monkeypatch):
    monkeypatch.setattr("minicnn.device.host.find_blas", Blas)
    device = HostDevice(threads=2)
    assert "built-in" in device.info.versions["blas"]
    for extents in PRODUCTS:
        for transpose_a, transpose_b, beta in (
            (False, False, 0.0),
            (True, False, -0.75),
            (False, True, 1.0),
            (True, True, 0.0),
        ):
            assert_product(device, extents, transpose_a, transpose_b, beta)
    device.close()


def test_blas_is_found_and_its_threads_given_back():
    device = HostDevice(threads=1)
    blas = device._blas
    assert blas.sgemm
    assert blas.set_threads(1) == 1
    device.close()


# --- builds ---------------------------------------------------------------------------------------

# Loads a kernel in a fresh process with a compiler that leaves a line whenever it is called.
BUILD_ONE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_host as t
device = t.HostDevice(threads=1)
case = t.GOOD["reverse"]()
t.assert_right(case, t.run(device, "reverse", case))
"""


@pytest.fixture
def logging_compiler(tmp_path, monkeypatch):
    """$CXX as a script that notes its calls in a file, an empty cache, and nothing prebuilt."""
    real = host_build.find_compiler().command[0]
    script, log = tmp_path / "c++", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho call >> {log}\nexec {real} "$@" -O0\n')  # -O0: sooner done
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    return log


def start_build() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUILD_ONE, str(Path(__file__).parent)])


def calls(log: Path) -> int:
    return len(log.read_text().split())


def test_second_process_compiles_nothing_and_corrupt_entries_are_rebuilt(logging_compiler):
    assert start_build().wait(120) == 0
    first = calls(logging_compiler)
    assert first >= 1
    assert start_build().wait(120) == 0
    assert calls(logging_compiler) == first
    (entry,) = (cache.folder("host")).glob("good-*.so")
    content = entry.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:100] + b"x" + content[101:]):
        before = calls(logging_compiler)
        entry.write_bytes(damaged)
        assert start_build().wait(120) == 0
        assert calls(logging_compiler) == before + 1
        assert entry.read_bytes()[-40:] == content[-40:]


def test_two_processes_build_once(logging_compiler):
    processes = [start_build(), start_build()]
    assert [process.wait(120) for process in processes] == [0, 0]
    once = calls(logging_compiler)
    shutil.rmtree(cache.folder("host"))
    assert start_build().wait(120) == 0
    assert calls(logging_compiler) == 2 * once


def test_missing_compiler_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library = host_build.kernel_library(str(KERNELS / "good.cu"), (), host_build.cpu_level())
    with pytest.raises(BuildError) as caught:
        host_build.build([library])
    assert (
        "C++ compiler" in str(caught.value)
        and "apt install g++" in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_compile_error_names_file_and_line():
    library = host_build.kernel_library(str(KERNELS / "broken.cu"), (), host_build.cpu_level())
    with pytest.raises(BuildError, match=r"broken\.cu:5.*undeclared"):
        host_build.build([library])


def test_macros_make_libraries_of_their_own():
    level = host_build.cpu_level()
    file = str(KERNELS / "good.cu")
    keys = {
        host_build.kernel_library(file, defines, level).key
        for defines in ((), (("TILE", 8),), (("TILE", 16),))
    }
    assert len(keys) == 3


def test_prebuilt_libraries_need_no_compiler(tmp_path, monkeypatch):
    sources = tmp_path / "cuda"
    sources.mkdir()
    for path in kernels.source_folder().iterdir():
        if path.suffix != ".cu" and path.is_file():
            shutil.copy(path, sources)
    shutil.copy(KERNELS / "good.cu", sources)
    monkeypatch.setattr("minicnn.kernels.source_folder", lambda: sources)
    monkeypatch.setattr(host_build, "source_folder", lambda: sources)
    monkeypatch.setattr(host_build, "prebuilt_folder", lambda: tmp_path / "prebuilt")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    level = host_build.cpu_level()
    written = host_build.prebuild(tmp_path / "prebuilt", [level])
    assert [path.name.split("-")[0] for path in written] == ["runtime", "good"]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    wanted = [host_build.runtime_library(level), host_build.kernel_library("good.cu", (), level)]
    assert sorted(host_build.build(wanted).values()) == sorted(written)
    (sources / "good.cu").write_text((KERNELS / "good.cu").read_text() + "\n")
    with pytest.raises(BuildError):
        host_build.build([host_build.kernel_library("good.cu", (), level)])


@pytest.mark.parametrize("level", host_build.levels())
def test_every_level_compiles(level):
    host_build.build(
        [host_build.runtime_library(level), host_build.kernel_library(str(KERNELS / "good.cu"), (), level)]
    )


# --- the cache folder -----------------------------------------------------------------------------


def test_cache_folder_is_private(tmp_path, monkeypatch):
    monkeypatch.delenv("MINICNN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = cache.folder("host")
    assert folder == tmp_path / "xdg" / "minicnn" / "host"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine"


def test_cache_falls_back_where_home_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "file" / "below"))
    folder = cache.folder("host")
    assert folder.is_dir() and not folder.is_relative_to(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_write_atomically_keeps_what_was_there_when_it_fails(tmp_path):
    path = tmp_path / "file"
    cache.write_atomically(path, b"good")

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise ValueError

    with pytest.raises(ValueError):
        cache.write_atomically(path, fail)
    assert path.read_bytes() == b"good"
    assert list(tmp_path.iterdir()) == [path]


if __name__ == "__main__":
    checked = HostDevice(check=Check(sanitize=sys.argv[1]))
    for name in sys.argv[2:]:
        case = GOOD[name]() if name in GOOD else FAULTS[name]
        outputs = run(checked, name, case)
        if name in GOOD:
            assert_right(case, outputs)
        print(name, flush=True)
