"""Timing the variants of every distinct layer, and keeping the winners for `choose`.

A layer's candidates run in turn, each behind a pass over memory that empties the caches, as inside a
network: timed hot, another order of loops wins. A candidate leaves the race once the interval of its times
lies above the leader's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minicnn import stats
from minicnn.choose import Winner, able_variants, problem_key
from minicnn.device.base import Device
from minicnn.kernels import source_hash
from minicnn.plan import Layer, Plan
from minicnn.registry import Problem, Variant
from minicnn.step import Fill, Launch, Operand, Step, View

CONFIDENCE = 0.95  # of each candidate's interval
FEWEST_ROUNDS = 6  # fewer give no interval of that confidence
MOST_ROUNDS = 21
FLUSH_BYTES = 16 << 20  # beyond a core's own caches


@dataclass(frozen=True, kw_only=True)
class Race:
    """What was found for one problem: label -> its median.

    is_decided  the winner's interval lies below all others; else the fastest of those that stayed won
    """

    key: str
    layers: tuple[str, ...]
    times_us: dict[str, float]
    winner: Winner
    is_decided: bool


def tune(plan: Plan, device: Device) -> Iterator[Race]:
    """One race for each distinct problem of the plan that has more than one candidate."""
    groups: dict[str, list[Layer]] = {}
    for layer in plan.layers:
        if layer.problem is not None and layer.steps:
            groups.setdefault(problem_key(layer.problem), []).append(layer)
    for layers in groups.values():
        problem = layers[0].problem
        assert problem is not None
        runners = candidates(problem)
        if len(runners) > 1:
            yield race(problem, runners, device, layers=tuple(layer.name for layer in layers))


def candidates(problem: Problem) -> list[Variant]:
    """All forms of the variants that keep the operator's error bound, and read and write the layouts that the
    problem's tensors have."""
    found: list[Variant] = []
    for variant in able_variants(problem):
        orders = variant.orders(problem)
        operands = (*_paired(problem.inputs, orders.inputs), *_paired(problem.outputs, orders.outputs))
        if variant.keeps_bound and not variant.is_view and all(
            o is None or o.is_constant or order in ("any", "same", o.layout.order) for o, order in operands
        ):
            found += variant.tunings(problem)
    return found


def _paired(
    operands: tuple[Operand | None, ...], orders: tuple[str, ...]
) -> Iterator[tuple[Operand | None, str]]:
    return ((operand, orders[min(i, len(orders) - 1)]) for i, operand in enumerate(operands))


def race(
    problem: Problem, runners: Sequence[Variant], device: Device, *, layers: tuple[str, ...] = ()
) -> Race:
    """Times variants of a problem that is laid out as in a plan. `layers`: whose problem it is."""
    memory = _Memory(device)
    try:
        scratch = Operand(name="flush", dtype="float32", shape=(FLUSH_BYTES // 4,))
        memory.place(scratch)
        emptying = device.prepare(Fill(target=scratch.view(), nbytes=FLUSH_BYTES), memory.address)
        first, last = device.event(), device.event()
        actions, steps = {}, {}
        for variant in runners:
            steps[variant.label] = memory.steps_of(variant, problem)
            prepared = [device.prepare(step, memory.address) for step in steps[variant.label]]
            actions[variant.label] = device.capture([device.record(first), *prepared, device.record(last)])
            actions[variant.label]()  # builds, and touches its memory
        samples: dict[str, list[float]] = {label: [] for label in actions}
        racing = list(actions)
        for turn in range(MOST_ROUNDS):
            for label in racing:
                emptying()
                actions[label]()
                device.sync()
                samples[label].append(device.elapsed_us(first, last))
            if turn + 1 >= FEWEST_ROUNDS:
                racing = _still_in(samples, racing)
                if len(racing) == 1:
                    break
    finally:
        memory.close()
    times = {label: stats.median(values) for label, values in samples.items()}
    best = min(racing, key=lambda label: times[label])
    files = sorted({step.kernel.file for step in steps[best] if isinstance(step, Launch)})
    winner = Winner(label=best, time_us=times[best], sources={file: source_hash(file) for file in files})
    return Race(
        key=problem_key(problem), layers=layers, times_us=times, winner=winner, is_decided=len(racing) == 1
    )


def _still_in(samples: dict[str, list[float]], racing: list[str]) -> list[str]:
    """Those whose interval doesn't lie wholly above that of the leader."""
    leader = min(racing, key=lambda label: stats.median(samples[label]))
    limit = stats.median_interval(samples[leader], CONFIDENCE).high
    return [label for label in racing if stats.median_interval(samples[label], CONFIDENCE).low <= limit]


class _Memory:
    """A place on the device for each tensor of a race, inputs seeded."""

    def __init__(self, device: Device):
        self.device = device
        self.pointers: dict[str, int] = {}

    def close(self) -> None:
        for pointer in self.pointers.values():
            self.device.free(pointer)
        self.pointers.clear()

    def address(self, view: View) -> int:
        return self.pointers[view.tensor] + view.byte_offset

    def place(self, operand: Operand, array: np.ndarray | None = None) -> None:
        if operand.name in self.pointers:
            return
        whole = operand.view().byte_offset + operand.nbytes
        self.pointers[operand.name] = self.device.alloc(max(whole, 1))
        if array is None:
            rng = np.random.default_rng(0)
            content = rng.standard_normal(-(-whole // 4), dtype=np.float32).view(np.uint8)[:whole]
        else:
            content = np.ascontiguousarray(array, operand.dtype)
        self.device.upload(self.pointers[operand.name], content)

    def steps_of(self, variant: Variant, problem: Problem) -> tuple[Step, ...]:
        """The variant's steps on memory of its own, its constants packed."""
        packings = variant.packings(problem)
        inputs: list[Operand | None] = list(problem.inputs)
        for index, operand in enumerate(inputs):
            if operand is None:
                continue
            value = operand.value
            if index in packings and value is not None:
                packing = packings[index]
                value = packing.function(value)
                name = f"{operand.name}:{packing.name}"
                operand = Operand(name=name, dtype=packing.dtype, shape=packing.shape, value=value)
                inputs[index] = operand
            self.place(operand, value)
        for operand in problem.outputs:
            self.place(operand)
        ready = replace(problem, inputs=tuple(inputs))
        nbytes = variant.workspace_bytes(problem)
        if nbytes:
            workspace = Operand(
                name=f"{variant.label}:workspace", dtype="float32", shape=(-(-nbytes // 4),)
            )
            self.place(workspace)
            ready = replace(ready, workspace=workspace)
        tables = tuple(
            Operand(name=f"{variant.label}:table{i}", dtype=a.dtype.name, shape=a.shape, value=a)
            for i, a in enumerate(variant.tables(problem))
        )
        for table in tables:
            self.place(table, table.value)
        return variant.steps(replace(ready, tables=tables))
