"""One convolution by every variant that can do it: time, memory, error; beside onnxruntime and PyTorch.

Error     the first image of the batch against the definition in float64, held against the variant's bound
Time      variants and peers take turns, caches emptied in between, until a variant has used its budget of
          seconds; one that needs more for a single run is run once. Where memory for all at a time is short,
          one after the other
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.calibrate import cache_flush
from minicnn.choose import able_variants, choose
from minicnn.device.base import Device
from minicnn.errors import DeviceError
from minicnn.lab.race import Place
from minicnn.ops.conv import Conv
from minicnn.registry import Problem, Target, Variant
from minicnn.step import Launch, Operand
from minicnn.study import peers
from minicnn.study.run import Bench
from minicnn.study.table import Columns, Row

SHAPE: Columns = {
    "N": ("", "images of the batch"),
    "C": ("", "input channels"),
    "H": ("", "input rows"),
    "W": ("", "input columns"),
    "K": ("", "filters"),
    "R": ("", "filter rows"),
    "S": ("", "filter columns"),
    "stride_h": ("", "rows from window to window"),
    "stride_w": ("", "columns from window to window"),
    "pad_h": ("", "rows of padding above and below"),
    "pad_w": ("", "columns of padding left and right"),
}
COLUMNS: Columns = {
    **SHAPE,
    "variant": ("", "how it was computed; a peer's name where another library did"),
    "is_chosen": ("", "1: what the static model chooses, nothing measured"),
    "time_us": ("us", "of single runs, caches emptied before each"),
    "gflop_per_s": ("GFLOP/s", "2 * N*K*P*Q*C*R*S over the median time"),
    "workspace_bytes": ("bytes", "of the variant, beside input, weights and output"),
    "memory_bytes": ("bytes", "input, packed weights, output and workspace"),
    "hot_kernel": ("", "the kernel that most of the time goes into"),
    "hot_share": ("", "its share of the variant's time"),
    "error": ("", "largest deviation from float64 over the largest output"),
    "error_of_bound": ("", "largest deviation over what the variant's bound allows; above 1 it is broken"),
}
MOST_ROUNDS = 15
MOST_BYTES = 2 << 30  # of all variants at a time
ONE_BYTES = 6 << 30  # of one
LONG = 5  # budgets
PAUSE_S = 0.05  # a peer's threads go on spinning after a run


@dataclass(frozen=True, kw_only=True)
class Effort:
    """budget_s: of a variant. has_peers: whether other libraries take part"""

    budget_s: float = 0.3
    has_peers: bool = True


def problem_of(point: Mapping[str, Any], target: Target) -> tuple[Problem, np.ndarray]:
    """The problem, its weights seeded, and its input."""
    rng = np.random.default_rng(0)
    shape = tuple(point[name] for name in "NCHW")
    kernel = point["R"], point["S"]
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    w = rng.uniform(-1, 1, (point["K"], point["C"], *kernel)).astype(np.float32)
    conv = Conv(
        kernel_shape=kernel,
        strides=(point["stride_h"], point["stride_w"]),
        pads=(point["pad_h"], point["pad_w"]) * 2,
    )
    out = (one.out for one in conv.windows(shape[2:], kernel))
    inputs = (
        Operand(name="x", dtype="float32", shape=shape),
        Operand(name="w", dtype="float32", shape=w.shape, value=w),
    )
    y = Operand(name="y", dtype="float32", shape=(point["N"], point["K"], *out))
    return Problem(operator=conv, inputs=inputs, outputs=(y,), target=target), x


def gflop(point: Mapping[str, Any]) -> float:
    rows = (point["H"] + 2 * point["pad_h"] - point["R"]) // point["stride_h"] + 1
    columns = (point["W"] + 2 * point["pad_w"] - point["S"]) // point["stride_w"] + 1
    terms = point["C"] * point["R"] * point["S"]
    return float(2 * point["N"] * point["K"] * rows * columns * terms / 1e9)


@dataclass
class _Runner:
    """A variant or a peer in its turn. run: microseconds; once_us: of the run that came first, caches cold"""

    label: str
    run: Callable[[], float]
    close: Callable[[], None]
    facts: dict[str, Any]
    is_peer: bool = False
    once_us: float = 0.0


def measure(point: Mapping[str, Any], bench: Bench, effort: Effort) -> list[Row]:
    """A row for each variant that applies, and for each peer that is here."""
    problem, x = problem_of(point, bench.target)
    variants = able_variants(problem)
    chosen = choose(problem, node="", op="Conv", wanted={}).variant
    truth = _Truth(problem, x)
    sizes = {v.name: _bytes(v, problem) for v in variants}
    fitting = [v for v in variants if sum(sizes[v.name]) <= ONE_BYTES]
    are_together = sum(sum(sizes[v.name]) for v in fitting) <= MOST_BYTES
    makers = [lambda v=v: _own(v, problem, x, bench, truth) for v in fitting]
    if effort.has_peers:
        makers += [lambda p=p: _peer(p, problem, x, bench, truth) for p in peers.there(bench)]
    rows: list[Row] = []
    for group in [makers] if are_together else [[maker] for maker in makers]:
        for runner, times in _timed([maker() for maker in group], bench, effort.budget_s):
            rows.append(
                {
                    "variant": runner.label,
                    "is_chosen": int(chosen is not None and runner.label == chosen.name),
                    "time_us": times,
                    "gflop_per_s": gflop(point) / float(np.median(times)) * 1e6,
                    **runner.facts,
                }
            )
    return rows


def _timed(runners: Sequence[_Runner], bench: Bench, budget_s: float) -> list[tuple[_Runner, list[float]]]:
    """The runners and their samples. A first run that takes many budgets is the only one."""
    is_long = [runner.once_us > 1e6 * LONG * budget_s for runner in runners]
    samples = [[runner.once_us] if long else [] for runner, long in zip(runners, is_long, strict=True)]
    spent = [budget_s * long for long in is_long]
    try:
        with cache_flush(bench.device) as flush:
            for _ in range(MOST_ROUNDS):
                after_peer = False
                for index, runner in enumerate(runners):
                    if samples[index] and spent[index] + spent[index] / len(samples[index]) > budget_s:
                        continue
                    if after_peer or runner.is_peer:
                        time.sleep(PAUSE_S)
                    flush()
                    bench.device.sync()
                    begun = time.monotonic()
                    samples[index].append(runner.run())
                    spent[index] += time.monotonic() - begun
                    after_peer = runner.is_peer
    finally:
        for runner in runners:
            runner.close()
    return list(zip(runners, samples, strict=True))


def _bytes(variant: Variant, problem: Problem) -> tuple[int, int]:
    """Of tensors, and of the workspace."""
    laid_out, _ = Place.laid_out(variant, problem)
    operands = [o for o in (*laid_out.inputs, *laid_out.outputs, *laid_out.tables) if o is not None]
    workspace = laid_out.workspace
    return sum(o.nbytes for o in operands), workspace.nbytes if workspace else 0


def _own(variant: Variant, problem: Problem, x: np.ndarray, bench: Bench, truth: _Truth) -> _Runner:
    device = bench.device
    tensors, workspace = _bytes(variant, problem)
    place = Place(variant, problem, device, [x, None])
    first, last = device.event(), device.event()
    program = device.capture([device.record(first), *place.actions, device.record(last)])

    def run() -> float:
        program()
        device.sync()
        return device.elapsed_us(first, last)

    once = run()
    facts: dict[str, Any] = {"workspace_bytes": workspace, "memory_bytes": tensors + workspace}
    facts |= _hot(place, device)
    facts |= truth.errors(place.output(), variant)
    return _Runner(label=variant.name, run=run, close=place.close, facts=facts, once_us=once)


def _hot(place: Place, device: Device) -> dict[str, Any]:
    """Where the time of a run goes: events between all steps, of one more run where there are several."""
    if len(place.steps) == 1:
        (step,) = place.steps
        return {
            "hot_kernel": step.kernel.entry if isinstance(step, Launch) else type(step).__name__,
            "hot_share": 1.0,
        }
    events = [device.event() for _ in range(len(place.steps) + 1)]
    actions = [device.record(events[0])]
    for action, event in zip(place.actions, events[1:], strict=True):
        actions += [action, device.record(event)]
    device.capture(actions)()
    device.sync()
    spent: dict[str, float] = {}
    for step, first, last in zip(place.steps, events, events[1:], strict=False):
        name = step.kernel.entry if isinstance(step, Launch) else type(step).__name__
        spent[name] = spent.get(name, 0.0) + device.elapsed_us(first, last)
    hottest = max(spent, key=lambda name: spent[name])
    return {"hot_kernel": hottest, "hot_share": spent[hottest] / max(sum(spent.values()), 1e-9)}


def _peer(peer: peers.Peer, problem: Problem, x: np.ndarray, bench: Bench, truth: _Truth) -> _Runner:
    w = problem.inputs[1]
    assert w is not None and w.value is not None
    compute = peer.convolution(problem.operator, x, w.value, bench.device.info.threads)
    y = compute()

    def run() -> float:
        begun = time.perf_counter()
        compute()
        return (time.perf_counter() - begun) * 1e6

    facts = truth.errors(y, Variant()) | {"error_of_bound": math.nan}
    return _Runner(label=peer.name, run=run, close=lambda: None, facts=facts, is_peer=True)


class _Truth:
    """The first image by the definition in float64."""

    def __init__(self, problem: Problem, x: np.ndarray):
        w = problem.inputs[1]
        assert w is not None and w.value is not None
        self.operator, self.x, self.w = problem.operator, x[:1], w.value
        self.exact = self.operator.reference(self.x, self.w)
        self.own_bound = self.operator.bound(self.x, self.w)

    def errors(self, y: np.ndarray, variant: Variant) -> dict[str, float]:
        """Raises    DeviceError: the output holds what is no number"""
        found = np.abs(y[:1].astype(np.float64) - self.exact)
        if not np.isfinite(found).all():
            raise DeviceError("an output that is no number", operator=variant.name)
        bound = self.own_bound
        if type(variant).bound is not Variant.bound:
            bound = variant.bound(self.operator, self.x, self.w)
        allowed = variant.spread(np.broadcast_to(bound, found.shape))
        return {
            "error": float(found.max() / np.abs(self.exact).max()),
            "error_of_bound": float((found / allowed).max()),
        }


def describe(point: Mapping[str, Any]) -> str:
    """A problem in a line: "8x64x56x56, 128 of 3x3, stride 2"."""
    shape = "x".join(str(point[name]) for name in "NCHW")
    strides = {point["stride_h"], point["stride_w"]}
    stride = f", stride {'x'.join(map(str, sorted(strides)))}" if strides != {1} else ""
    return f"{shape}, {point['K']} of {point['R']}x{point['S']}{stride}"
