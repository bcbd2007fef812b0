"""The Device contract through the real PyCUDA: memory, order, launches, products, graphs, faults, operators.

    python tools/cuda_contract.py                       on this machine's GPU
    python tools/cuda_contract.py --driver FOLDER       on a stand-in libcuda.so.1 (and libcublas) in a folder
    ... --operators Relu MaxPool Conv                   which operators' cases to run (all: every one)

Each check prints one line; the exit code is 1 when one fails. A check is an ordinary function of a device.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from minicnn import kernels  # noqa: E402
from minicnn.device import nvcc, prebuilt  # noqa: E402
from minicnn.device.cuda import STAGE_BYTES, CudaDevice  # noqa: E402
from minicnn.errors import BuildError, DeviceError  # noqa: E402
from minicnn.graph import TensorType  # noqa: E402
from minicnn.lab.checking import problem_of  # noqa: E402
from minicnn.ops.conv import Conv  # noqa: E402
from minicnn.registry import table  # noqa: E402
from minicnn.step import Copy, Fill, Gemm, Kernel, Launch, Operand, Step, View  # noqa: E402

OPERATORS = ("Relu", "MaxPool", "Conv")
NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED: a stand-in driver that has only what PyCUDA needs
NO_CUBLAS = "libcublas isn't there"  # a stand-in driver may come without one
KERNELS = str(Path(__file__).with_suffix(".cu"))  # a file outside the source folder, as a user's would be

Check = Callable[[CudaDevice], None]
Job = Callable[[], object]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


class Memory:
    """Named buffers on a device, for as long as a check lasts."""

    def __init__(self, device: CudaDevice, **arrays: np.ndarray):
        self.device = device
        self.arrays = arrays
        self.pointers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
        for name, array in arrays.items():
            device.upload(self.pointers[name], array)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        for pointer in self.pointers.values():
            self.device.free(pointer)

    @property
    def address(self) -> Callable[[View], int]:
        return lambda view: self.pointers[view.tensor] + view.byte_offset

    def put(self, name: str, array: np.ndarray) -> None:
        self.device.upload(self.pointers[name], array)

    def get(self, name: str) -> np.ndarray:
        result = np.empty_like(self.arrays[name])
        self.device.download(self.pointers[name], result)
        return result


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def expect(error: type[Exception], words: str, action: Callable[[], object]) -> None:
    try:
        action()
    except error as caught:
        assert words in str(caught), f"expected {words!r} in: {caught}"
    else:
        raise AssertionError(f"no {error.__name__}")


# --- the device by itself


@check
def info(device: CudaDevice) -> None:
    told = device.info
    assert told.kind == "cuda" and told.name and told.memory_bytes > 0
    assert told.architecture == f"sm_{device.compute_capability}"
    assert told.versions["pycuda"] and told.versions["cuda"]


@check
def memory_is_aligned_and_checked(device: CudaDevice) -> None:
    pointers = [device.alloc(size) for size in (0, 1, 255, 257, 1 << 20)]
    assert all(pointer % 256 == 0 for pointer in pointers) and len(set(pointers)) == len(pointers)
    for pointer in pointers:
        device.free(pointer)
    expect(DeviceError, "not that much memory", lambda: device.alloc(1 << 50))


@check
def transfers_of_every_size(device: CudaDevice) -> None:
    rng = np.random.default_rng(1)
    stage = STAGE_BYTES
    for size in (0, 1, 3, stage - 1, stage, stage + 1, 2 * stage, 5 * stage + 7):
        array = rng.integers(0, 256, size, np.uint8)
        with Memory(device, a=array) as memory:
            assert (memory.get("a") == array).all(), f"{size} bytes"
    for array in (np.array(3.5), np.arange(6).reshape(2, 3), np.array([True, False]), np.zeros((0, 3))):
        with Memory(device, a=array) as memory:
            assert (memory.get("a") == array).all(), array.dtype
    pointer = device.alloc(64)
    expect(ValueError, "contiguous", lambda: device.upload(pointer, numbers(4, 4)[:, ::2]))
    device.free(pointer)


@check
def an_uploaded_array_may_change(device: CudaDevice) -> None:
    array = numbers(STAGE_BYTES // 2 + 11)  # over two halves and a bit
    kept = array.copy()
    with Memory(device, a=array) as memory:
        array[:] = 0
        assert (memory.get("a") == kept).all()


@check
def work_keeps_its_order(device: CudaDevice) -> None:
    """Upload, copy, fill, download with no sync between them."""
    x = numbers(100_003)
    with Memory(device, x=x, y=np.zeros_like(x)) as memory:
        copy = Copy(source=View(tensor="x"), target=View(tensor="y"), nbytes=x.nbytes)
        fill = Fill(target=View(tensor="y", byte_offset=400), nbytes=4000, pattern=0x3F800000)
        actions = [device.prepare(step, memory.address) for step in (copy, fill)]
        for seed in (2, 3):
            expected = numbers(x.size, seed=seed)
            memory.put("x", expected)
            for action in actions:
                action()
            expected[100:1100] = 1
            assert (memory.get("y") == expected).all()


@check
def events_in_order(device: CudaDevice) -> None:
    x = numbers(10_000)
    with Memory(device, x=x, y=x) as memory:
        step = Copy(source=View(tensor="x"), target=View(tensor="y"), nbytes=x.nbytes)
        copy = device.copy(step, memory.address)
        events = [device.event() for _ in range(3)]
        for event in events:
            device.record(event)()
            copy()
        device.sync()
        steps = [device.elapsed_us(a, b) for a, b in zip(events, events[1:], strict=False)]
        whole = device.elapsed_us(events[0], events[2])
        assert all(step >= 0 for step in steps) and math.isclose(sum(steps), whole, abs_tol=2), (steps, whole)


@check
def another_thread_may_use_it(device: CudaDevice) -> None:
    x = numbers(1000)

    def work() -> np.ndarray:
        with Memory(device, x=x) as memory:
            return memory.get("x")

    with ThreadPoolExecutor(1) as pool:
        assert (pool.submit(work).result() == x).all()


@check
def two_devices_at_once(device: CudaDevice) -> None:
    x = numbers(1000)
    other = CudaDevice(0)
    with Memory(device, x=x) as ours:
        theirs = Memory(other, x=-x)
        assert (ours.get("x") == x).all() and (theirs.get("x") == -x).all()
        other.close()
        other.close()
        assert (ours.get("x") == x).all()
    expect(DeviceError, "no such GPU", lambda: CudaDevice(99))


@check
def two_gpus_in_turn(device: CudaDevice) -> None:
    """Each computes on its own memory, whichever was used last. Left out where there is one GPU."""
    if device._pycuda.Device.count() < 2:
        return
    other = CudaDevice(1)
    kernel = Kernel(file=KERNELS, entry="twice")
    actions, memories = [], []
    for gpu, seed in ((device, 21), (other, 22)):
        values = numbers(100, seed=seed)
        memory = Memory(gpu, x=values, y=np.zeros_like(values))
        x, y = View(tensor="x"), View(tensor="y")
        (step,) = kernels.launch(kernel, grid=(1, 1, 1), block=(128, 1, 1), x=x, y=y, n=100)
        actions.append(gpu.launch(step, memory.address))
        memories.append(memory)
    for index in (0, 1, 1, 0):
        memories[index].put("x", memories[index].arrays["x"])
        actions[index]()
        assert (memories[index].get("y") == 2 * memories[index].arrays["x"]).all()
    memories[0].__exit__()
    other.close()


# --- launches


@check
def arguments_of_every_kind(device: CudaDevice) -> None:
    for scale in (1, 7):
        kernel = Kernel(file=KERNELS, entry="mixed", defines=(("SCALE", scale),) if scale > 1 else ())
        with Memory(device, x=np.array([0.25], np.float32), y=np.zeros(8)) as memory:
            (step,) = kernels.launch(
                kernel, grid=(1, 1, 1), block=(32, 1, 1), x=View(tensor="x"), y=View(tensor="y"),
                i=-3, q=1 << 40, f=0.5, u=2**31 - 1, d=2.5, nothing=None,
            )  # fmt: skip
            device.launch(step, memory.address)()
            device.sync()
            assert memory.get("y").tolist() == [0.25, -3, 2.0**40, 0.5, 2**31 - 1, 2.5, 1, scale]


@check
def shared_memory_above_48_kb(device: CudaDevice) -> None:
    n = 15_000  # 60 KB
    kernel = Kernel(file=KERNELS, entry="reverse")
    x = numbers(n)
    with Memory(device, x=x) as memory:
        shape = {"grid": (1, 1, 1), "block": (256, 1, 1)}
        (step,) = kernels.launch(kernel, **shape, shared_bytes=4 * n, x=View(tensor="x"), n=n)  # type: ignore[arg-type]
        (small,) = kernels.launch(kernel, **shape, shared_bytes=400, x=View(tensor="x"), n=100)  # type: ignore[arg-type]
        device.launch(step, memory.address)()
        assert (memory.get("x") == x[::-1]).all()
        device.launch(small, memory.address)()
        device.launch(step, memory.address)()
        (huge,) = kernels.launch(kernel, **shape, shared_bytes=1 << 20, x=View(tensor="x"), n=n)  # type: ignore[arg-type]
        expect(DeviceError, "more shared memory", lambda: device.launch(huge, memory.address))
        (wide,) = kernels.launch(kernel, grid=(1, 1, 1), block=(1024, 2, 1), x=View(tensor="x"), n=n)
        expect(DeviceError, "more threads", lambda: device.launch(wide, memory.address))


@check
def grids_beyond_65535(device: CudaDevice) -> None:
    rows = 65_535 + 10
    with Memory(device, y=np.full(rows, -1, np.int32)) as memory:
        kernel = Kernel(file=KERNELS, entry="rows")
        steps = kernels.launch(kernel, grid=(1, 1, rows), block=(1, 1, 1), y=View(tensor="y"), rows=rows)
        assert len(steps) == 2
        for step in steps:
            device.launch(step, memory.address)()
        assert (memory.get("y") == np.arange(rows)).all()


@check
def kernels_that_cannot_be_built(device: CudaDevice) -> None:
    broken = Path(tempfile.gettempdir()) / f"minicnn-broken-{os.getpid()}.cu"
    broken.write_text('#include "kernel.cuh"\nKERNEL(f)(float* x) { x[0] = y; }\n')
    expect(BuildError, '"y" is undefined', lambda: device.build([Kernel(file=str(broken), entry="f")]))
    broken.unlink()
    expect(BuildError, "no such entry", lambda: device.build([Kernel(file=KERNELS, entry="nobody")]))


@check
def kernels_for_older_drivers(device: CudaDevice) -> None:
    """Every kernel file of ours still loads when its PTX version is as low as its target allows."""
    with device._active():
        for path in sorted(kernels.source_folder().glob("*.cu")):
            if device.compute_capability < prebuilt.oldest(path.name):
                continue
            text = nvcc.ptx(path.name, (), device.compute_capability)
            lowered = nvcc.for_driver(text, (11, 0))
            assert lowered != text
            device._pycuda.module_from_buffer(lowered)


# --- products


@check
def products(device: CudaDevice) -> None:
    for step in gemms():
        _product(device, step)
    assert device.info.versions["cublas"]


def gemms() -> Iterable[Gemm]:
    a, b, c = (View(tensor=name) for name in "abc")
    plain = Gemm(m=5, n=7, k=13, a=a, b=b, c=c, lda=15, ldb=8, ldc=9, alpha=0.5, beta=2.0)
    yield plain
    yield replace(plain, transpose_a=True, lda=7)
    yield replace(plain, transpose_b=True, ldb=14)
    yield replace(plain, transpose_a=True, lda=7, transpose_b=True, ldb=14)
    yield replace(plain, m=1, lda=1, alpha=1.0)
    yield replace(plain, m=1, transpose_a=True, lda=1)
    batched = Gemm(m=4, n=3, k=6, a=a, b=b, c=c, lda=6, ldb=3, ldc=5, batch=3)
    batched = replace(batched, stride_a=24, stride_b=20, stride_c=30)
    yield batched
    yield replace(batched, precision="tf32")


def _product(device: CudaDevice, step: Gemm) -> None:
    a, b, c = (numbers(step.batch * 256, seed=seed) for seed in (4, 5, 6))
    with Memory(device, a=a, b=b, c=c) as memory:
        device.gemm(step, memory.address)()
        found = memory.get("c")
    exact = c.astype(np.float64)
    for index in range(step.batch):
        left = _matrix(a, index * step.stride_a, step.m, step.k, step.lda, step.transpose_a)
        right = _matrix(b, index * step.stride_b, step.k, step.n, step.ldb, step.transpose_b)
        target = _matrix(exact, index * step.stride_c, step.m, step.n, step.ldc, False)
        target[...] = step.alpha * (left.astype(np.float64) @ right) + step.beta * target
    tolerance = 1e-2 if step.precision == "tf32" else 1e-5
    assert np.abs(found - exact).max() < tolerance, f"{step}: off by {np.abs(found - exact).max()}"


def _matrix(
    flat: np.ndarray, start: int, rows: int, columns: int, ld: int, is_transposed: bool
) -> np.ndarray:
    """A window into `flat`: op(matrix) of rows x columns, stored with `ld` elements from row to row."""
    strides = (flat.itemsize, ld * flat.itemsize) if is_transposed else (ld * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat[start:], (rows, columns), strides)


@check
def im2col_columns(device: CudaDevice) -> None:
    """The windows that a convolution's own first steps lay out, its product left aside."""
    operator = Conv(strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2))
    x, w = numbers(2, 3, 9, 11), numbers(4, 3, 3, 2)
    inputs = (
        Operand(name="x", dtype="float32", shape=x.shape),
        Operand(name="w", dtype="float32", shape=w.shape, value=w),
    )
    (kind,) = operator.infer(*(TensorType(dtype="float32", shape=v.shape) for v in (x, w)))
    problem = problem_of(operator, inputs, (Operand(name="y", dtype="float32", shape=kind.extents),))
    variant = next(v for v in operator.variants() if v.name == "im2col")
    packed = replace(inputs[1], shape=variant.packings(problem)[1].shape)
    columns = np.full(variant.workspace_bytes(problem) // 4, np.nan, np.float32)
    workspace = Operand(name="columns", dtype="float32", shape=columns.shape)
    steps = variant.steps(replace(problem, inputs=(inputs[0], packed), workspace=workspace))
    with Memory(device, x=x, columns=columns) as memory:
        for step in itertools.takewhile(lambda step: isinstance(step, Launch), steps):
            device.prepare(step, memory.address)()
        found = memory.get("columns")
    P, Q = kind.extents[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)))
    expected = [
        padded[:, c, r : r + 2 * P - 1 : 2, 2 * s : 2 * s + Q].reshape(-1)
        for c, r, s in itertools.product(range(3), range(3), range(2))
    ]
    assert (found.reshape(len(expected), -1) == np.stack(expected)).all()


# --- graphs


@check
def a_graph_replays_what_the_stream_did(device: CudaDevice) -> None:
    n = 5000
    x = numbers(n)
    with Memory(device, x=x, y=np.zeros_like(x), z=np.zeros_like(x)) as memory:
        twice = Kernel(file=KERNELS, entry="twice")
        shape = {"grid": (math.ceil(n / 128), 1, 1), "block": (128, 1, 1)}
        (launch,) = kernels.launch(twice, **shape, x=View(tensor="x"), y=View(tensor="y"), n=n)  # type: ignore[arg-type]
        steps: list[Step] = [
            launch,
            Copy(source=View(tensor="y"), target=View(tensor="z"), nbytes=x.nbytes),
            Fill(target=View(tensor="z"), nbytes=400, pattern=0x40000000),
        ]
        before, *events = [device.event() for _ in range(len(steps) + 2)]
        actions = [device.prepare(step, memory.address) for step in steps]
        bounded = [device.record(events[0])]
        for action, event in zip(actions, events[1:], strict=True):
            bounded += [action, device.record(event)]
        calls: list[int] = []
        replay = device.capture([lambda: calls.append(1), *bounded])
        assert not device.capture_failure, device.capture_failure
        assert len(calls) == 2, "run once, so that all is loaded, and captured once"
        for seed in (7, 8):
            memory.put("x", numbers(n, seed=seed))
            for action in actions:
                action()
            by_stream = memory.get("z")
            memory.put("z", x)
            device.record(before)()
            replay()
            assert (memory.get("z") == by_stream).all() and len(calls) == 2
            device.sync()
            pairs = itertools.pairwise([before, *events])
            assert all(device.elapsed_us(a, b) >= 0 for a, b in pairs), "events of another run"


@check
def a_product_in_a_graph(device: CudaDevice) -> None:
    step = next(iter(gemms()))
    a, b, c = (numbers(256, seed=seed) for seed in (4, 5, 6))
    with Memory(device, a=a, b=b, c=c) as memory:
        product = device.gemm(step, memory.address)
        replay = device.capture([product])
        assert not device.capture_failure, device.capture_failure
        memory.put("c", c)
        product()
        by_stream = memory.get("c")
        memory.put("c", c)
        replay()
        assert (memory.get("c") == by_stream).all()


# --- operators


def operators(device: CudaDevice, names: Iterable[str]) -> Iterable[tuple[str, Job]]:
    """Every case of these operators in every variant, held against the operator's own float64 definition."""
    import harness

    harness.open_device = lambda name: device  # type: ignore[assignment]
    harness.forget_devices = lambda: None  # it stays ours
    harness.DEVICES = ("cuda",)
    for op in names:
        for parameter in harness.grid(op)[1]:
            case, variant, _ = parameter.values
            yield f"{op}: {case}, {variant}", partial(harness.check, op, case, variant, "cuda")


def a_fault_is_reported(device: CudaDevice) -> None:
    """Last of all: the GPU's context is of no use after it."""
    with Memory(device, x=numbers(16)) as memory:
        far = 1 << 40
        kernel = Kernel(file=KERNELS, entry="beyond")
        (step,) = kernels.launch(kernel, grid=(1, 1, 1), block=(1, 1, 1), x=View(tensor="x"), n=far)
        device.launch(step, memory.address)()
        expect(DeviceError, "fault", device.sync)
        memory.pointers.clear()


def close_after_a_fault(device: CudaDevice) -> None:
    """Gives the context back, whatever state it is in, and may be called again."""
    device.close()
    device.close()
    driver = ctypes.CDLL("libcuda.so.1")
    current, flags, active = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_int()
    driver.cuCtxGetCurrent(ctypes.byref(current))
    assert not current.value, "a context is left current"
    asked = driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    assert asked == NOT_SUPPORTED or (asked, active.value) == (0, 0), "the primary context is still retained"


def run_checks(names: list[str]) -> int:
    device = CudaDevice()
    told = device.info
    print(f"{told.name}, {told.architecture}, {dict(told.versions)}", flush=True)
    jobs: list[tuple[str, Job]] = [(name, partial(function, device)) for name, function in CHECKS.items()]
    jobs += operators(device, names)
    jobs += [(last.__name__, partial(last, device)) for last in (a_fault_is_reported, close_after_a_fault)]
    outcomes = Counter(outcome(name, job) for name, job in jobs)
    print(f"{outcomes['ok']} passed, {outcomes['FAIL']} failed, {outcomes['skip']} skipped", flush=True)
    return 1 if outcomes["FAIL"] else 0


def outcome(name: str, job: Job) -> str:
    """Runs a check and prints how it ended: "ok", "FAIL", or "skip" where there is nothing to run it with."""
    how, why = "ok", ""
    try:
        job()
    except Exception as error:
        is_skipped = NO_CUBLAS in str(error)
        how, why = ("skip", f": {NO_CUBLAS}") if is_skipped else ("FAIL", f"\n{traceback.format_exc()}")
    print(f"{how:5} {name}{why}", flush=True)
    return how


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--driver", type=Path, metavar="FOLDER", help="a stand-in libcuda.so.1 is there")
    parser.add_argument("--operators", nargs="*", metavar="NAME", default=OPERATORS, help="or all")
    options = parser.parse_args()
    if options.driver is not None:
        return on_driver(options.driver, options.operators)
    names = [op for _, op in table()] if options.operators == ["all"] else options.operators
    try:
        return run_checks(names)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def on_driver(folder: Path, names: Iterable[str]) -> int:
    """This script once more, in a process whose loader finds `folder` first."""
    path = os.pathsep.join(filter(None, [str(folder.resolve()), os.environ.get("LD_LIBRARY_PATH", "")]))
    environment = os.environ | {"LD_LIBRARY_PATH": path}
    command = [sys.executable, str(Path(__file__).resolve()), "--operators", *names]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    raise SystemExit(main())
