"""Whole networks on the CPU: minicnn against onnxruntime, the same model, input and number of threads.

    python tools/bench.py [--threads 1,2] [--networks resnet50,vgg19] [--batch N] [--rounds N] [--tune]
                          [--evaluator] [--write docs/benchmarks.md]

PyTorch takes part where it is installed (tools/torch_peer.py: nine of the ten networks).

Method    The engines take turns. Before its turn an engine waits 50 ms (the other's threads go on
          spinning after a run) and runs once untimed; then the median of what it does in 150 ms counts,
          3 runs at least. A round's ratio is minicnn's time over onnxruntime's; the table gives the median
          of the rounds' ratios and its interval (95 %, of order statistics: it needs six rounds), and the
          share of the processors that other processes took meanwhile: beyond a few percent, only the
          ratios mean something. Outputs are compared first. onnx's evaluator, where asked for, runs once.
          Memory and cold start are each measured in a process of its own: the peak above what the process
          held after its imports, all operators' among them, and the time from before the engine's imports
          (numpy is there) to the first answer. A first start, not counted, compiles kernels and Python's
          files, as installing the package does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from minicnn import cache, stats  # noqa: E402
from tools.make_readme import fill  # noqa: E402

PAUSE_S = 0.05
TURN_S = 0.15
FEWEST_RUNS = 3
MOST_ERROR = 1e-4  # of the outputs: the error's norm over the centred output's
TICKS = os.sysconf("SC_CLK_TCK")
Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One network with one number of threads. `busy`: the share of the processors that others took.

    NaN, or (): PyTorch isn't here or doesn't know the network; the evaluator wasn't asked for
    """

    network: str
    threads: int
    ours_ms: float
    theirs_ms: float
    ratios: tuple[float, ...]
    busy: float
    error: float
    torch_ms: float = math.nan
    torch_ratios: tuple[float, ...] = ()
    evaluator_ms: float = math.nan

    @property
    def ratio(self) -> float:
        return stats.median(self.ratios)

    @property
    def torch_ratio(self) -> float:
        return stats.median(self.torch_ratios) if self.torch_ratios else math.nan


def models(folder: Path, batch: int, wanted: list[str]) -> dict[str, Path]:
    """The light networks of the onnx package with seeded weights, and EfficientNet-Lite0: name -> file."""
    import onnx

    spec = importlib.util.spec_from_file_location("build", ROOT / "models" / "build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    sys.modules["build"] = build
    spec.loader.exec_module(build)
    found = {}
    for name, path in sorted(build.light_models().items()):
        if not wanted or name in wanted:
            found[name] = folder / f"{name}.onnx"
            onnx.save(build.refill(onnx.load(path), seed=1, batch=batch), found[name])
    if batch == 1 and (not wanted or "efficientnet_lite0" in wanted):
        found["efficientnet_lite0"] = ROOT / "models" / "efficientnet_lite0.onnx"
    return found


def open_session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def open_theirs(path: Path, threads: int) -> tuple[Run, Any]:
    session = open_session(path, threads)
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0], session.get_inputs()[0].shape


def open_ours(path: Path, threads: int) -> tuple[Run, Any]:
    import minicnn

    model = minicnn.load(path)
    engine = model.plan(device="host", threads=threads)
    return lambda x: next(iter(engine.run(x).values())), engine.plan.inputs[0].shape


def open_torch(path: Path, threads: int) -> Run | None:
    """None where PyTorch isn't installed, or lacks an operator of the network."""
    if importlib.util.find_spec("torch") is None:
        return None
    import onnx
    import torch

    from tools.torch_peer import Peer

    torch.set_num_threads(threads)
    try:
        peer = Peer(onnx.load(path), device="cpu", dtype=torch.float32)
    except NotImplementedError:
        return None
    return lambda x: peer.run(peer.tensor(x)).numpy()


def evaluator_seconds(path: Path, x: np.ndarray) -> float:
    """One run of the onnx package's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    start = time.perf_counter()
    evaluator.run(None, {evaluator.input_names[0]: x})
    return time.perf_counter() - start


def busy_seconds() -> float:
    """Processor time that the machine has spent on work since it started."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / TICKS


def turn(run: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a run, and the share of one turn that other processes kept a processor busy."""
    time.sleep(PAUSE_S)
    run()
    times: list[float] = []
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
    while len(times) < FEWEST_RUNS or time.perf_counter() - start < TURN_S:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    elapsed = time.perf_counter() - start
    others = busy_seconds() - busy - (time.process_time() - own)
    return statistics.median(times), max(0.0, others / elapsed / (os.cpu_count() or 1))


def compare(name: str, path: Path, threads: int, rounds: int, *, evaluator: bool) -> Result:
    ours, shape = open_ours(path, threads)
    engines = {"ours": ours, "theirs": open_theirs(path, threads)[0]}
    peer = open_torch(path, threads)
    if peer is not None:
        engines["torch"] = peer
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    exact = engines["theirs"](x)
    errors = {n: float(np.linalg.norm(run(x) - exact) / np.linalg.norm(exact - exact.mean()))
              for n, run in engines.items()}  # fmt: skip
    for engine, error in errors.items():
        if not error < MOST_ERROR:
            raise SystemExit(f"{name}: outputs of {engine} differ by {error:.1e}")
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    loads = []
    for _ in range(rounds):
        for engine, run in engines.items():
            seconds, load = turn(lambda run=run: run(x))  # type: ignore[misc]
            times[engine].append(seconds)
            loads.append(load)

    def ratios(engine: str) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(times["ours"], times.get(engine, ()), strict=False))

    return Result(
        network=name,
        threads=threads,
        ours_ms=1e3 * stats.median(times["ours"]),
        theirs_ms=1e3 * stats.median(times["theirs"]),
        ratios=ratios("theirs"),
        busy=stats.median(loads),
        error=errors["ours"],
        torch_ms=1e3 * stats.median(times["torch"]) if peer else math.nan,
        torch_ratios=ratios("torch"),
        evaluator_ms=1e3 * evaluator_seconds(path, x) if evaluator else math.nan,
    )


def resident_peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def child(engine: str, path: Path, threads: int) -> None:
    """In a process of its own: prints bytes above the imports, and seconds to the first answer.

    engine    "ours", "theirs"; "all of ours": with operators imported that the network doesn't need, too
    """
    start = time.perf_counter()
    if engine == "theirs":
        import onnxruntime  # noqa: F401
    else:
        import minicnn.device.host
        import minicnn.engine  # noqa: F401
    if engine == "all of ours":
        from minicnn import registry

        registry.table()
    before = resident_peak()
    run, shape = (open_theirs if engine == "theirs" else open_ours)(path, threads)
    run(np.zeros(shape, np.float32))
    print(resident_peak() - before, time.perf_counter() - start)


def in_child(engine: str, path: Path, threads: int) -> tuple[float, float]:
    """(bytes, seconds): of the first process for the one, of the next for the other."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache.folder("bytecode"))

    def start(what: str) -> list[float]:
        words = ["--child", what, "--networks", str(path), "--threads", str(threads)]
        command = [sys.executable, __file__, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return [float(word) for word in done.stdout.split()]

    start(engine)
    nbytes, _ = start("all of ours" if engine == "ours" else engine)
    _, seconds = start(engine)
    return nbytes, seconds


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def time_table(results: list[Result]) -> list[str]:
    has_torch = any(r.torch_ratios for r in results)
    has_evaluator = any(not math.isnan(r.evaluator_ms) for r in results)
    head = ["network", "threads", "minicnn, ms", "onnxruntime, ms", "ratio", "95 % interval"]
    head += ["PyTorch, ms", "ratio"] if has_torch else []
    head += ["onnx's evaluator, ms"] if has_evaluator else []
    lines = [row([*head, "others' load"]), row(["---"] * (len(head) + 1))]
    for r in results:
        interval = stats.median_interval(r.ratios)
        span = f"{interval.low:.2f} to {interval.high:.2f}" if interval.is_bounded else "too few rounds"
        cells = [r.network, str(r.threads), f"{r.ours_ms:.2f}", f"{r.theirs_ms:.2f}", f"{r.ratio:.2f}", span]
        cells += [number(r.torch_ms), number(r.torch_ratio)] if has_torch else []
        cells += [number(r.evaluator_ms)] if has_evaluator else []
        lines.append(row([*cells, f"{r.busy:.0%}"]))
    for threads in sorted({r.threads for r in results}):
        own = [r for r in results if r.threads == threads]
        cells = ["geometric mean", str(threads), "", "", f"{geometric_mean([r.ratio for r in own]):.2f}", ""]
        known = [r.torch_ratio for r in own if r.torch_ratios]
        cells += ["", f"{geometric_mean(known):.2f}" if known else ""] if has_torch else []
        lines.append(row([*cells, *([""] if has_evaluator else []), ""]))
    return lines


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.2f}"


def memory_table(found: dict[str, Path], threads: int) -> list[str]:
    lines = [
        "| network | minicnn, MB | onnxruntime, MB | ratio "
        "| first answer: minicnn, s | onnxruntime, s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    memory, start = [], []
    for name, path in found.items():
        (a, a_s), (b, b_s) = in_child("ours", path, threads), in_child("theirs", path, threads)
        memory.append(a / b)
        start.append(a_s / b_s)
        lines.append(
            f"| {name} | {a / 1e6:.0f} | {b / 1e6:.0f} | {a / b:.2f} "
            f"| {a_s:.2f} | {b_s:.2f} | {a_s / b_s:.2f} |"
        )
    means = geometric_mean(memory), geometric_mean(start)
    lines.append(f"| geometric mean | | | {means[0]:.2f} | | | {means[1]:.2f} |")
    return lines


def tune_all(found: dict[str, Path], threads: int) -> None:
    from minicnn.cli import main as command

    for path in found.values():
        if command(["tune", str(path), "--device", "host", "--threads", str(threads)]):
            raise SystemExit(f"tuning {path} failed")


def device_line(threads: list[int]) -> str:
    import onnxruntime

    from minicnn.device import open_device

    with_device = open_device("host", threads=max(threads))
    info = with_device.info
    with_device.close()
    processors = f"{info.name}, {info.architecture}, {os.cpu_count()} processors"
    versions = {"onnxruntime": onnxruntime.__version__}
    if importlib.util.find_spec("torch") is not None:
        versions["PyTorch"] = importlib.metadata.version("torch")
    return f"{processors}; {', '.join(f'{name} {version}' for name, version in versions.items())}"


def main() -> None:
    parser = argparse.ArgumentParser(description="minicnn against onnxruntime on the CPU", allow_abbrev=False)
    parser.add_argument("--threads", default="1,2", help="(%(default)s)")
    parser.add_argument("--networks", default="", help="names, with commas between (default: all ten)")
    parser.add_argument("--batch", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(%(default)s)")
    parser.add_argument("--tune", action="store_true", help="tune each network first")
    parser.add_argument("--evaluator", action="store_true", help="onnx's evaluator too: minutes a network")
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    parser.add_argument("--write", metavar="FILE", help="put the tables into its part `bench`")
    parser.add_argument("--child", choices=("ours", "all of ours", "theirs"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = [int(word) for word in options.threads.split(",")]
    if options.child:
        child(options.child, Path(options.networks), threads[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        found = models(Path(folder), options.batch, [n for n in options.networks.split(",") if n])
        results = []
        for count in threads:
            if options.tune:
                tune_all(found, count)
            for name, path in found.items():
                is_slow_one_asked = options.evaluator and count == threads[0]
                results.append(compare(name, path, count, options.rounds, evaluator=is_slow_one_asked))
                print(results[-1].network, count, f"{results[-1].ratio:.3f}", file=sys.stderr, flush=True)
        lines = time_table(results)
        if not options.no_memory:
            lines += ["", *memory_table(found, threads[0])]
    command = "python tools/bench.py " + " ".join(sys.argv[1:])
    stamp = datetime.date.today().isoformat()
    text = "\n".join([f"`{command.strip()}`, {stamp}, {device_line(threads)}", "", *lines])
    print(text)
    if options.write:
        path = Path(options.write)
        path.write_text(fill(path.read_text(), "bench", text))


if __name__ == "__main__":
    main()
