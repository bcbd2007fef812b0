"""Do the numbers close? The ten networks of models/build.py, measured and held against the caller's clock.

    python tools/bench_closure.py [--device host] [--threads N] [--repeat N] [--write]

For each network: the part of the wall time that nobody claims, what full profiling adds, and what sampling
costs (one run in n profiled). `--write` puts the table into docs/closure.md. Then a delay is put into one
layer after another of a small network on the real clock, and it is counted how often the intervals hold the
truth.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

import minicnn
from minicnn import stats
from minicnn.device.base import Action, Address
from minicnn.device.host import HostDevice
from minicnn.engine import Engine
from minicnn.feeds import random_inputs
from minicnn.record import RunRecord
from minicnn.step import Launch
from models import build

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "closure.md"
NETWORKS = ("alexnet", "vgg16", "vgg19", "googlenet", "resnet18", "resnet50", "squeezenet", "mobilenet_v2",
            "densenet121", "efficientnet_lite0")  # fmt: skip
TITLES = ("network", "layers", "wall us", "unattributed", "in one run", "profiling adds", "sampling", "costs",
          "others' load")  # fmt: skip
DELAY_US = 50.0
OWN_ERROR_US = 0.5  # of the spinning loop, which is Python: how well the delay itself is known


class DelayedDevice(HostDevice):
    """The host, but the launch `slow` spins for `delay_us` first; `spun_us` is how long it really was."""

    slow: Launch | None = None
    delay_us = 0.0
    spun_us = 0.0

    def launch(self, step: Launch, address: Address) -> Action:
        action = super().launch(step, address)
        if step != self.slow:
            return action

        def delayed() -> None:
            start = now = time.perf_counter_ns()
            while now < start + self.delay_us * 1e3:
                now = time.perf_counter_ns()
            self.spun_us = (now - start) / 1e3
            action()

        return delayed


def main() -> None:
    parser = argparse.ArgumentParser(description="Do the numbers close? See the head of this file.")
    parser.add_argument("--device", default="host")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--network", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = [f"| {' | '.join(TITLES)} |", "|" + " --- |" * len(TITLES)]
    where = ""
    for name in options.network:
        row, record = measure(name, options)
        where = f"{record.device}, {record.device_architecture}, {record.threads} threads"
        print(row, flush=True)
        lines.append(row)
    delays = delays_found(options.threads, options.repeat) if options.device == "host" else ""
    print(delays)
    if options.write:
        command = "python tools/bench_closure.py " + shlex.join(sys.argv[1:])
        PAGE.write_text(page(lines, delays, command, where))


def measure(name: str, options: argparse.Namespace) -> tuple[str, RunRecord]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(build.build(name), path)
        model = minicnn.load(path)
        with model.plan(device=options.device, threads=options.threads) as engine:
            inputs = random_inputs(model)
            full = engine.profile(inputs, repeat=options.repeat)
            sampled = engine.profile(inputs, repeat=options.repeat, sampling=True)
    cost = sampled.profiling_overhead / sampled.profiled_every
    cells = (
        name, str(len(full.layers)), f"{stats.median(full.wall_us[full.is_steady]):,.0f}",
        _share(full, "closure_residual"), _in_one_run(full), _share(full, "profiling_overhead"),
        f"1 in {sampled.profiled_every}", f"{cost:.1%}", f"{full.other_load:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |", full


def delays_found(threads: int | None, repeat: int) -> str:
    """How often the interval of a layer's shift holds the delay where it was put, and zero elsewhere."""
    held = {"at the delayed layer": [0, 0], "at the others": [0, 0]}
    device = DelayedDevice(threads=threads)
    model = minicnn.load(ROOT / "models" / "mtcnn_rnet.onnx", batch=1)
    inputs = random_inputs(model)
    with model.plan(device=device) as engine:
        layers = engine.plan.layers
    for index, layer in enumerate(layers):
        if not layer.steps or not isinstance(layer.steps[0], Launch):
            continue
        device.slow = layer.steps[0]
        with model.plan(device=device) as engine:
            shifts = np.array([_shift(engine, device, inputs, index, rep % 2) for rep in range(repeat)])
        for other in range(len(layers)):
            interval = stats.serial_interval(shifts[:, other])
            tally = held["at the delayed layer" if other == index else "at the others"]
            tally[0] += interval.low - OWN_ERROR_US <= 0 <= interval.high + OWN_ERROR_US
            tally[1] += 1
    device.close()
    counts = "; ".join(f"{good} of {all_} {where}" for where, (good, all_) in held.items())
    return (
        f"A delay of {DELAY_US:.0f} us put into one layer after another, on the real clock, each run with\n"
        f"it beside one without: the 95 % interval of the shift, give or take the loop's own {OWN_ERROR_US}\n"
        f"us, holds the truth for {counts}."
    )


def _shift(
    engine: Engine, device: DelayedDevice, inputs: dict[str, np.ndarray], index: int, is_first: int
) -> np.ndarray:
    """Each layer's shift beyond what was put in, of one pair of runs; the delayed one first or second."""
    times = {}
    for delay_us in (DELAY_US, 0.0) if is_first else (0.0, DELAY_US):
        device.delay_us = delay_us
        times[delay_us] = engine.timed_run(inputs, profiled=True)[1].layer_us
        times[delay_us][index] -= device.spun_us
    return times[DELAY_US] - times[0.0]


def _in_one_run(record: RunRecord) -> str:
    """What remains of a plain run when its own first and last event stand for the layers."""
    claimed = record.upload_us + record.download_us + record.host_us + record.plain_us
    shares = ((record.wall_us - claimed) / record.wall_us)[record.is_steady]
    return f"{stats.median(shares):.3%}"


def _share(record: RunRecord, name: str) -> str:
    value, low, high = (getattr(record, name + end) for end in ("", "_low", "_high"))
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def page(lines: list[str], delays: str, command: str, where: str) -> str:
    today = datetime.date.today().isoformat()
    return f"""# Do the numbers close?

`{command}`, {today}, {where}. The machine had other work to do meanwhile, as the last column says: how many
processors others kept busy. Medians with their 95 % intervals.

- unattributed: of the caller's clock around a plain run, what neither transfers, nor the engine's own time,
  nor the layers of the profiled run beside it claim. Two runs in a row differ, and it holds that too.
- in one run: the same with the plain run's own first and last event in the layers' place.
- sampling: so rarely is a run profiled; costs: what full profiling adds there, divided by that.

{chr(10).join(lines)}

{delays}
"""


if __name__ == "__main__":
    main()
