"""The steps that tools/gpu_check.py runs in processes of their own: each measures one thing and says so.

    python tools/gpu_steps.py --report FD --records DIR [--rehearsal] STEP ...

A step is named PART/WHAT. Its process writes a line of JSON to the descriptor FD as it begins and as it ends,
so that what was measured outlives it. A figure is there only where a GPU was timed: on a simulated one, in a
rehearsal, all times are null.

    machine                         the GPU, its driver, versions, clocks; the operators there are
    ceilings/copy, gemm, launch     what no kernel of ours can be faster than
    kernels/OP                      every case of an operator in every variant against its float64 definition
    networks/NAME/BATCH/PRECISION   a network end to end beside PyTorch, and how far both are from float64
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import minicnn  # noqa: E402
from minicnn import kernels, measure, stats  # noqa: E402
from minicnn.calibrate import Calibration  # noqa: E402
from minicnn.device import nvcc  # noqa: E402
from minicnn.device.base import Action  # noqa: E402
from minicnn.device.cuda import CudaDevice  # noqa: E402
from minicnn.errors import DeviceError, MinicnnError, UnsupportedError  # noqa: E402
from minicnn.registry import table  # noqa: E402
from minicnn.step import Copy, Fill, Gemm, Kernel, View  # noqa: E402
from minicnn.version import VERSION  # noqa: E402

Result = dict[str, Any]
NOTHING = Kernel(file=str(Path(__file__).with_name("gpu_check.cu")), entry="nothing")
FAILURES_SHOWN = 20
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,temperature.gpu,utilization.gpu"
IS_SIMULATED = "Simulated GPU"  # how the stand-in driver's devices are called
PACKAGES = ("numpy", "onnx", "h5py", "pycuda", "torch")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the steps are: those of a rehearsal run on a simulated GPU in seconds."""

    copy_bytes: int = 1 << 30
    gemm: int = 8192
    launches: int = 1000
    repeat: int = 20
    cases: int | None = None  # of an operator; None: all
    image_size: int = 224
    width: float = 1.0
    peer: str = "cuda"


REHEARSAL = Scale(
    copy_bytes=1 << 20, gemm=32, launches=10, repeat=2, cases=2, image_size=36, width=0.125, peer=""
)


class Bench:
    """A device with what its figures are made of."""

    def __init__(self, device: CudaDevice, scale: Scale, records: Path):
        self.device, self.scale, self.records = device, scale, records
        self.is_simulated = device.info.name.startswith(IS_SIMULATED)
        self.random = np.random.default_rng(0)

    def samples_us(self, actions: list[Action], repeat: int | None = None) -> list[float]:
        """Times of the actions between two events, warm."""
        first, last = self.device.event(), self.device.event()
        program = [self.device.record(first), *actions, self.device.record(last)]
        found = []
        for _ in range((repeat or self.scale.repeat) + 2):
            for action in program:
                action()
            self.device.sync()
            found.append(self.device.elapsed_us(first, last))
        return found[2:]

    def summary(self, samples: list[float]) -> Result | None:
        """Median, its interval and the number of samples; nothing where no GPU was timed."""
        if self.is_simulated:
            return None
        told = stats.summary(samples)
        known = told.interval.is_bounded
        return {
            "median": told.median,
            "low": told.interval.low if known else None,
            "high": told.interval.high if known else None,
            "count": told.count,
        }

    def rate(self, amount: float, samples_us: list[float]) -> float | None:
        """`amount` per microsecond, at the median."""
        return None if self.is_simulated else amount / stats.median(samples_us)

    @contextlib.contextmanager
    def buffers(self, **sizes: int) -> Any:
        """Device memory of these sizes in bytes, filled with random floats: yields an address function."""
        pointers = {name: self.device.alloc(nbytes) for name, nbytes in sizes.items()}
        tile = self.random.uniform(-1, 1, 1 << 20).astype(np.float32)
        try:
            for name, nbytes in sizes.items():
                part = min(nbytes, tile.nbytes)
                self.device.upload(pointers[name], tile[: part // 4])
                while part < nbytes:  # doubles what is there
                    step = Copy(
                        source=View(tensor=name),
                        target=View(tensor=name, byte_offset=part),
                        nbytes=min(part, nbytes - part),
                    )
                    self.device.copy(step, lambda v: pointers[v.tensor] + v.byte_offset)()
                    part += step.nbytes
            yield lambda view: pointers[view.tensor] + view.byte_offset
        finally:
            for pointer in pointers.values():
                self.device.free(pointer)


# --- the machine


def machine(bench: Bench) -> Result:
    """What every figure is to be read with."""
    info = bench.device.info
    found: dict[str, str] = {"minicnn": VERSION, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(Exception):
            from importlib.metadata import version

            found[package] = version(package)
    return {
        "device": info.name,
        "architecture": info.architecture,
        "memory_bytes": info.memory_bytes,
        "is_simulated": bench.is_simulated,
        "versions": found | dict(info.versions),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "clocks": clocks(),
        "operators": sorted(op for domain, op in table() if not domain),
    }


def clocks() -> Result:
    """What nvidia-smi reads of the first GPU now; nothing is set."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": f"nvidia-smi: {type(error).__name__}"}
    return dict(zip(CLOCKS.split(","), (value.strip() for value in said.split(",")), strict=False))


# --- ceilings


def copy_ceiling(bench: Bench) -> Result:
    """Bytes read and written by copies within the device's memory, larger than its caches."""
    nbytes = bench.scale.copy_bytes
    step = Copy(source=View(tensor="x"), target=View(tensor="y"), nbytes=nbytes)
    fill = Fill(target=View(tensor="y"), nbytes=nbytes, pattern=0)
    with bench.buffers(x=nbytes, y=nbytes) as address:
        copies = bench.samples_us([bench.device.copy(step, address)])
        fills = bench.samples_us([bench.device.fill(fill, address)])
    return {
        "bytes": nbytes,
        "time_us": bench.summary(copies),
        "copy_gb_per_s": bench.rate(2 * nbytes / 1e3, copies),
        "fill_gb_per_s": bench.rate(nbytes / 1e3, fills),
    }


def gemm_ceiling(bench: Bench) -> Result:
    """Square products by cuBLAS in each precision, on random numbers, four rows held against float64."""
    n = bench.scale.gemm
    a, b = bench.random.uniform(-1, 1, (2, n, n)).astype(np.float32)
    result: Result = {"n": n}
    for precision, dtype in (("fp32", np.float32), ("tf32", np.float32), ("fp16", np.float16)):
        try:
            result[precision] = _gemm(bench, precision, a.astype(dtype), b.astype(dtype))
        except DeviceError as error:
            result[precision] = {"failed": str(error)}
    return result


def _gemm(bench: Bench, precision: str, a: np.ndarray, b: np.ndarray) -> Result:
    n = len(a)
    left, right, out = (View(tensor=name) for name in "abc")
    step = Gemm(
        m=n, n=n, k=n, a=left, b=right, c=out, lda=n, ldb=n, ldc=n, precision=precision
    )
    rows = np.linspace(0, n - 1, 4).astype(int)
    with bench.buffers(a=a.nbytes, b=b.nbytes, c=a.nbytes) as address:
        bench.device.upload(address(left), a)
        bench.device.upload(address(right), b)
        samples = bench.samples_us([bench.device.gemm(step, address)])
        found = np.empty((len(rows), n), a.dtype)
        for row, values in zip(rows, found, strict=True):
            bench.device.download(address(out) + int(row) * n * a.itemsize, values)
    exact = a[rows].astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    return {
        "time_us": bench.summary(samples),
        "tflop_per_s": bench.rate(2 * n**3 / 1e6, samples),
        "relative_error": float(error),
        "clocks": clocks(),
    }


def launch_ceiling(bench: Bench) -> Result:
    """What is paid without any work: two events, a kernel that does nothing, a node of a graph."""
    device, many = bench.device, bench.scale.launches
    (step,) = kernels.launch(NOTHING, grid=(1, 1, 1), block=(32, 1, 1), unused=0)
    launch = device.launch(step, lambda view: 0)
    repeat = 10 * bench.scale.repeat
    few, more = (device.capture([launch] * count) for count in (many, 2 * many))
    by_graph = [
        (two - one) / many
        for one, two in zip(bench.samples_us([few]), bench.samples_us([more]), strict=True)
    ]
    return {
        "event_pair_us": bench.summary(bench.samples_us([], repeat)),
        "null_kernel_us": bench.summary(bench.samples_us([launch], repeat)),
        "launch_in_a_stream_us": bench.summary([t / many for t in bench.samples_us([launch] * many)]),
        "graph_node_us": bench.summary(by_graph),
        "graph_failure": device.capture_failure,
    }


# --- kernels


def operator(bench: Bench, op: str) -> Result:
    """Every case in every variant for this device; failures by name, each with the words to replay it."""
    import harness

    counts, failures, variants = {"passed": 0, "failed": 0}, [], set()
    names = list(harness.cases(op))[: bench.scale.cases]
    for name in names:
        problem = harness.problem(op, name)
        for variant in harness.cases(op)[name].operator.variants():
            if harness.refusal(variant, problem) or (variant.devices and "cuda" not in variant.devices):
                continue
            variants.add(variant.name)
            try:
                harness.check(op, name, variant.name, "cuda")
                counts["passed"] += 1
            except (AssertionError, MinicnnError) as error:
                counts["failed"] += 1
                failures.append({"case": name, "variant": variant.name, "why": str(error)[:1000]})
                if isinstance(error, DeviceError):
                    harness.forget_devices()
    return {
        **counts,
        "cases": len(names),
        "variants": sorted(variants),
        "failures": failures[:FAILURES_SHOWN],
    }


def compile_all(device: CudaDevice) -> None:
    """PTX of all kernel files at once, so that no step waits for a compiler by itself."""

    def compile_one(path: Path) -> None:
        with contextlib.suppress(MinicnnError):  # the step that needs it says so
            nvcc.ptx(path.name, (), device.compute_capability)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sorted(kernels.source_folder().glob("*.cu"))))


# --- networks


def network(bench: Bench, name: str, batch: str, precision: str) -> Result:
    """One network, ours and PyTorch's turn by turn, and both against PyTorch in float64."""
    import onnx

    from models import build

    scale = bench.scale
    model = build.build(name, batch=int(batch), image_size=scale.image_size, width=scale.width)
    x = bench.random.uniform(-1, 1, (int(batch), 3, scale.image_size, scale.image_size)).astype(np.float32)
    label = f"{name}-b{batch}-{precision}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.onnx"
        onnx.save(model, file)
        model_file = minicnn.load(file)
        with model_file.plan(device=bench.device, precision=precision, fallback=False) as engine:
            (y,) = engine.run(x).values()
            if not np.isfinite(y).all():
                raise AssertionError(f"{label}: the output has NaN or infinity")
            peer = _peer(bench, model, x, precision, y)
            samples = _turn_by_turn(engine, x, peer.pop("runs", {}), scale.repeat)
            kept_in = Path(folder) if bench.is_simulated else bench.records
            if bench.is_simulated:  # half a million threads of multiply-adds would take it hours
                measure.calibrate = lambda device: Calibration()
            profiled = _record(engine, x, kept_in / f"{label}.h5", scale.repeat)
            layers = len(engine.layers)
    ours, captured = samples["plain"], samples.get("captured")
    ratio = None
    if captured and not bench.is_simulated:
        value, interval = stats.ratio_interval(ours, captured)
        ratio = {"median": value, "low": interval.low, "high": interval.high}
    return {
        "network": name,
        "batch": int(batch),
        "precision": precision,
        "image_size": scale.image_size,
        "layers": layers,
        "graph_failure": bench.device.capture_failure,
        **{f"{kind}_us": bench.summary(values) for kind, values in samples.items()},
        "captured_over_plain": ratio,
        "peer": peer,
        "record": profiled,
        "clocks": clocks(),
    }


def _record(engine: Any, x: np.ndarray, path: Path, repeat: int) -> str:
    """The record's name, or why there is none, which takes nothing from what was measured before."""
    try:
        engine.profile(x, repeat=repeat, record=path, command=" ".join(sys.argv), seed=0)
    except Exception as error:
        return f"none: {type(error).__name__}: {error}"
    return path.name


def _peer(bench: Bench, model: Any, x: np.ndarray, precision: str, y: np.ndarray) -> Result:
    """How PyTorch's answer and ours differ, and its runs under `runs`; why not, where it can't."""
    try:
        import torch

        from tools.torch_peer import Captured, Peer, set_precision
    except ImportError as error:
        return {"left_out": f"PyTorch: {error}"}
    if not bench.scale.peer or not torch.cuda.is_available():
        return {"left_out": "PyTorch sees no GPU"}
    dtype = torch.float16 if precision == "fp16" else torch.float32
    set_precision(tf32=False)
    exact_peer = Peer(model, device=bench.scale.peer, dtype=torch.float64)
    exact = exact_peer.run(exact_peer.tensor(x)).cpu().numpy()
    del exact_peer
    set_precision(tf32=precision == "tf32")
    peer = Peer(model, device=bench.scale.peer, dtype=dtype, channels_last=precision != "fp32")
    on_device = peer.tensor(x)
    captured = Captured(peer, on_device)
    theirs = captured.replay().double().cpu().numpy()
    largest = np.abs(exact).max()
    host = torch.from_numpy(x).to(dtype).pin_memory()
    return {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "channels_last": precision != "fp32",
        "difference": float(np.abs(y - theirs).max() / largest),
        "our_error": float(np.abs(y - exact).max() / largest),
        "their_error": float(np.abs(theirs - exact).max() / largest),
        "same_classes": bool((y.argmax(-1) == exact.argmax(-1)).all()),
        "runs": {
            "captured": _timed(torch, captured.replay, captured.x, host),
            "eager": _timed(torch, lambda: peer.run(on_device), on_device, host),
        },
    }


def _timed(torch: Any, run: Callable[[], Any], x: Any, host: Any) -> Callable[[], float]:
    """A run in microseconds between two events, the input uploaded before it as it is before ours."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        x.copy_(host, non_blocking=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last) * 1e3)

    return timed


def _turn_by_turn(
    engine: Any, x: np.ndarray, peers: Mapping[str, Callable[[], float]], repeat: int
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {"plain": [], "wall": [], **{kind: [] for kind in peers}}
    for index in range(repeat + 3):
        start = time.perf_counter()
        _, timing = engine.timed_run(x, profiled=False)
        wall = (time.perf_counter() - start) * 1e6
        found = {"plain": timing.device_us, "wall": wall, **{kind: run() for kind, run in peers.items()}}
        if index >= 3:
            for kind, value in found.items():
                samples[kind].append(value)
    return samples


# --- running them

PARTS: dict[str, Callable[..., Result]] = {
    "machine": machine,
    "ceilings/copy": copy_ceiling,
    "ceilings/gemm": gemm_ceiling,
    "ceilings/launch": launch_ceiling,
    "kernels": operator,
    "networks": network,
}


def run(bench: Bench, step: str) -> Result:
    if step in PARTS:
        return PARTS[step](bench)
    part, *arguments = step.split("/")
    return PARTS[part](bench, *arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--report", type=int, required=True, metavar="FD")
    parser.add_argument("--records", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("steps", nargs="+", metavar="STEP")
    options = parser.parse_args()
    with os.fdopen(options.report, "w", buffering=1) as report:
        import harness

        harness.DEVICES = ("cuda",)
        for step in options.steps:
            print(json.dumps({"begin": step}), file=report, flush=True)
            outcome: Result = {"end": step, "started": time.time()}
            try:
                device = harness.open_device("cuda")
                bench = Bench(device, REHEARSAL if options.rehearsal else Scale(), options.records)
                if bench.is_simulated and not options.rehearsal:
                    raise DeviceError("a simulated GPU can only rehearse", remedy="--rehearsal")
                if step.startswith("kernels/") and not bench.is_simulated:
                    compile_all(device)
                outcome |= {"result": run(bench, step)}
            except UnsupportedError as error:
                outcome |= {"left_out": str(error)[:500]}
            except Exception as error:
                outcome |= {"failed": f"{type(error).__name__}: {error}"[:2000]}
            print(json.dumps(outcome), file=report, flush=True)
            if "failed" in outcome:
                return 1  # what is behind begins anew: a context may be of no use after a fault
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
