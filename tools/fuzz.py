"""Mutated models through load, plan and run, in worker processes of bounded time and memory: docs/trust.md.

    python tools/fuzz.py --seconds 3600             goes on where the last run stopped; its counts are added
    python tools/fuzz.py --first 7 --count 1        one seed again
    python tools/fuzz.py --page                     docs/trust.md's table anew

Every seed is one model (tools/fuzz_mutate.py), and every end but a right answer or a MinicnnError is a
finding. A share of what ran is run again layer by layer against the float64 definitions, and as a whole by
onnxruntime.

Not here  coverage guiding: mutations know ONNX's structure instead
"""

from __future__ import annotations

import argparse
import datetime
import json
import mmap
import multiprocessing
import os
import platform
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402

from minicnn import check, engine  # noqa: E402
from minicnn.device import open_device  # noqa: E402
from minicnn.device.base import Device  # noqa: E402
from minicnn.errors import MinicnnError  # noqa: E402
from tools.fuzz_corpus import FOLDER  # noqa: E402
from tools.fuzz_mutate import mutated  # noqa: E402

RUNS = Path(__file__).with_name("fuzz_runs.json")
PAGE = ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
HANG_SECONDS = 30.0  # an input of milliseconds; the rest is for compilers and a busy machine
ADDRESS_SPACE = 6 << 30
RUN_BYTES = 32 << 20  # of a plan that is run: the others end at "planned", so that a second does many
RUN_MACS = 20_000_000
BATCH = 500
CHECKED_ONE_IN = 8
HUGE = 1e6
VAST = 1e30
ROUNDED = set("ArgMax ArgMin TopK NonZero Greater Less Equal GreaterOrEqual LessOrEqual Cast".split())
RTOL = 1e-3  # of the largest value, against onnxruntime: mutated networks have no error bound of their own


@dataclass
class Tally:
    """Counts of one run, or of several added up."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.findings += other.findings


class Wrong(Exception):
    """A run whose answer isn't the model's."""


# --- one input


def try_one(seed: int, corpus: Sequence[bytes], folder: Path, device: Device) -> Tally:
    """Load, plan, run; what came of it."""
    tally = Tally(counts=Counter(inputs=1))
    data = mutated(seed, corpus)
    file = folder / "model.onnx"
    file.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", category=RuntimeWarning)
            _through(seed, file, device, tally.counts)
    except MinicnnError as error:
        tally.counts[type(error).__name__] += 1
        try:
            str(error)
        except Exception:
            tally.findings.append(finding(seed, traceback.format_exc()))
    except BaseException:
        tally.findings.append(finding(seed, traceback.format_exc()))
    return tally


def _through(seed: int, file: Path, device: Device, counts: Counter[str]) -> None:
    model = engine.load(file)
    counts["loaded"] += 1
    shapes = {
        name: tuple(d if isinstance(d, int) else 2 for d in known.shape or ())
        for name, known in model.inputs.items()
    }
    model = model.with_shapes(shapes)
    plan = model.make_plan(target=engine.target_of(device))
    counts["planned"] += 1
    macs = sum(layer.cost.macs for layer in plan.layers)
    if plan.arena_bytes + plan.weight_bytes > RUN_BYTES or macs > RUN_MACS:
        counts["planned, too large to run here"] += 1
        return
    rng = np.random.default_rng(seed)
    inputs = {o.name: (2 * rng.random(o.shape) - 1).astype(o.dtype) for o in plan.inputs}
    with model.plan(device=device) as ready:
        outputs = ready.run(inputs)
        counts["ran"] += 1
        # What an infinite weight is worth on zero padding depends on the variant: NaN, or nothing. And sums
        # that pass float32 have no error bound against float64, which they don't pass.
        weights = [c for c in model.graph.constants.values() if c.dtype.kind == "f"]
        if seed % CHECKED_ONE_IN:
            return
        if not all((np.abs(c) < HUGE).all() for c in weights):
            counts["not checked, for huge or NaN weights"] += 1
            return
        past = {layer.name for layer, before, _ in ready.walk(inputs) if _is_past_float32(before)}
        for layer in check.check(ready, inputs):
            if layer.is_wrong and layer.name not in past:
                raise Wrong(f"layer {layer.name} ({layer.op}, {layer.variant}) is beyond its error bound")
        counts["checked layer by layer"] += 1
    counts["agreed with onnxruntime"] += _agrees(file, inputs, outputs)


def _is_past_float32(before: dict[str, np.ndarray]) -> bool:
    """Whether sums of such inputs may leave the range of float32, as they do not in float64."""
    floats = (x.astype(np.float64) for x in before.values() if x.dtype.kind == "f")
    return any(not (np.abs(x) < VAST).all() for x in floats)


def _agrees(file: Path, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> bool:
    """False where onnxruntime refuses the model, or not all outputs can be compared; else right, or Wrong."""
    import onnxruntime

    model_ops = {node.op for node in engine.load(file).graph.nodes}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        expected = dict(zip(outputs, session.run(list(outputs), inputs), strict=True))
    except Exception:  # its own types; it refuses what ONNX's checker does, and has gaps of its own
        return False
    is_whole = True
    for name, value in expected.items():
        found = outputs[name]
        if found.shape != value.shape or found.dtype != value.dtype:
            raise Wrong(f"{name} is {found.dtype} {found.shape}, onnxruntime has {value.dtype} {value.shape}")
        if value.dtype.kind in "biu":
            if not np.array_equal(found, value):
                if model_ops & ROUNDED:
                    is_whole = False  # a rounding more or less decides; each layer was checked
                    continue
                raise Wrong(f"{name} has other whole numbers than onnxruntime's")
            continue
        if value.dtype.kind != "f" or not np.isfinite([found, value]).all():
            is_whole = False  # NaN that a maximum lets through here, and not there; each layer was checked
            continue
        if not np.allclose(found, value, rtol=RTOL, atol=RTOL * float(np.abs(value).max(initial=0))):
            raise Wrong(f"{name} differs from onnxruntime's by {np.abs(found - value).max()}")
    return is_whole


def finding(seed: int, what: str) -> dict[str, Any]:
    lines = what.strip().splitlines()
    return {
        "seed": seed,
        "what": lines[-1][:300],
        "trace": lines[-9:],
        "replay": f"python tools/fuzz.py --first {seed} --count 1",
    }


# --- workers


def _work(seeds: range, corpus: Sequence[bytes], sends: Connection, now: mmap.mmap) -> None:
    """A batch in a process of its own; `now` says which seed is being tried, since when."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries say there what they also raise
    device = open_device("host", threads=1)
    total = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            now[:16] = struct.pack("qd", seed, time.monotonic())
            total.add(try_one(seed, corpus, Path(folder), device))
            sends.send(total)
            total = Tally()
    device.close()


@dataclass
class Worker:
    process: BaseProcess
    receives: Connection
    now: mmap.mmap
    seeds: range
    done: int = 0

    @classmethod
    def started(cls, seeds: range, corpus: Sequence[bytes]) -> Worker:
        context = multiprocessing.get_context("fork")
        receives, sends = context.Pipe(duplex=False)
        now = mmap.mmap(-1, 16)
        now[:16] = struct.pack("qd", seeds.start, time.monotonic())
        process = context.Process(target=_work, args=(seeds, corpus, sends, now), daemon=True)
        process.start()
        sends.close()
        return cls(process, receives, now, seeds)

    def collect(self, tally: Tally) -> range | None:
        """Adds what has arrived; the seeds that are left once the worker has ended, else None."""
        try:
            while self.receives.poll(0):
                tally.add(self.receives.recv())
                self.done += 1
        except EOFError:
            self.process.join()
            return self._ended(tally, f"the process died with exit code {self.process.exitcode}")
        seed, since = struct.unpack("qd", self.now[:16])
        if time.monotonic() - since > HANG_SECONDS:
            self.process.kill()
            self.process.join()
            return self._ended(tally, f"still running after {HANG_SECONDS:.0f} seconds")
        return None

    def _ended(self, tally: Tally, how: str) -> range:
        self.receives.close()
        left = self.seeds[self.done :]
        if left:
            tally.counts["inputs"] += 1
            tally.findings.append(finding(left.start, how))
            left = left[1:]
        return left


def fuzz(first: int, count: int | None, seconds: float | None, jobs: int) -> tuple[Tally, int]:
    """(what was found, the first seed that hasn't been tried)"""
    corpus = [file.read_bytes() for file in sorted(FOLDER.glob("*.onnx"))]
    tally, following = Tally(), first
    stop = time.monotonic() + (seconds if seconds is not None else float("inf"))
    end = first + count if count is not None else None
    left: list[range] = []
    workers: list[Worker] = []
    while True:
        while len(workers) < jobs and (left or time.monotonic() < stop and following != end):
            if not left:
                size = BATCH if end is None else min(BATCH, end - following)
                left.append(range(following, following + size))
                following += size
            workers.append(Worker.started(left.pop(), corpus))
        if not workers:
            return tally, following
        wait([worker.receives for worker in workers], timeout=1)
        for worker in list(workers):
            rest = worker.collect(tally)
            if rest is not None:
                workers.remove(worker)
                left += [rest] if rest else []


# --- what is kept


def read() -> dict[str, Any]:
    """Runs so far: the first seed not tried, counts, seconds, open findings."""
    if RUNS.exists():
        kept: dict[str, Any] = json.loads(RUNS.read_text())
        return kept
    return {"next_seed": 0, "seconds": 0.0, "counts": {}, "findings": []}


def keep(tally: Tally, following: int, seconds: float) -> None:
    kept = read()
    kept["next_seed"] = following
    kept["seconds"] = round(kept["seconds"] + seconds, 1)
    kept["counts"] = dict(sorted((Counter(kept["counts"]) + tally.counts).items()))
    kept["findings"] = (kept["findings"] + tally.findings)[-50:]
    kept["counts"]["findings"] = kept["counts"].get("findings", 0) + len(tally.findings)
    temporary = RUNS.with_suffix(".partial")
    temporary.write_text(json.dumps(kept, indent=1) + "\n")
    temporary.replace(RUNS)


def table() -> str:
    kept = read()
    counts = kept["counts"]
    inputs = max(counts.get("inputs", 0), 1)
    stages = ["inputs", "loaded", "planned", "planned, too large to run here", "ran"]
    stages += ["checked layer by layer", "agreed with onnxruntime", "not checked, for huge or NaN weights"]
    stages += sorted(name for name in counts if name.endswith("Error")) + ["findings"]
    rows = [f"| {name} | {counts.get(name, 0):,} | {counts.get(name, 0) / inputs:.1%} |" for name in stages]
    rate = inputs / max(kept["seconds"], 1e-9)
    today = datetime.date.today().isoformat()
    return "\n".join(
        [
            "| | inputs | share |",
            "| --- | ---: | ---: |",
            *rows,
            "",
            f"Seeds 0 to {kept['next_seed'] - 1:,}, {kept['seconds'] / 60:.0f} minutes, "
            f"{rate:.0f} inputs a second, "
            f"{platform.machine()}, Python {platform.python_version()}, {today}: `python tools/fuzz.py`. "
            "A finding is counted when it is met, and listed in tools/fuzz_runs.json.",
        ]
    )


def write_page() -> None:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, help="stop then")
    parser.add_argument("--first", type=int, help="this seed first; nothing is kept then")
    parser.add_argument("--count", type=int, help="so many inputs")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--page", action="store_true", help="the table of docs/trust.md alone")
    options = parser.parse_args()
    if options.page:
        write_page()
        return 0
    if options.seconds is None and options.count is None:
        options.seconds = 60.0
    start = time.monotonic()
    first = read()["next_seed"] if options.first is None else options.first
    tally, following = fuzz(first, options.count, options.seconds, options.jobs)
    for found in tally.findings:
        print(json.dumps(found, indent=1))
    print(dict(sorted(tally.counts.items())), f"{len(tally.findings)} findings")
    if options.first is None:
        keep(tally, following, time.monotonic() - start)
        write_page()
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
