"""`kernel bench`: a variant of one's own in turn with minicnn's, on the layers of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn import stats
from minicnn.calibrate import Calibration, cache_flush, calibrate
from minicnn.choose import problem_key
from minicnn.device import nvcc, ptxas
from minicnn.device.base import Action, Device
from minicnn.device.sim import SimDevice
from minicnn.lab.arrangements import arrangements, lay_out
from minicnn.lab.files import BroughtIn
from minicnn.occupancy import occupancy
from minicnn.plan import Layer, Plan
from minicnn.registry import Problem, Variant, variants_of
from minicnn.step import Launch, Operand, Step, View

ROUNDS = 15
TARGETS = ("80", "89", "90", "120")  # whose resources are shown
INTERVALS = ("interval", "ratio_interval")
SAME = 0.02  # a ratio's interval within this of 1


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A variant's times on one layer. ratio: of its time to the user's own in the same round."""

    variant: str
    median_us: float
    interval: stats.Interval
    gflop_per_s: float
    gb_per_s: float
    of_roof: float  # of the nearer one: multiply-adds in registers, or memory copied
    ratio: float = 1.0
    ratio_interval: stats.Interval | None = None

    @property
    def verdict(self) -> str:
        """What the user's kernel is, held against this one."""
        interval = self.ratio_interval
        if interval is None or not interval.is_bounded:
            return "can't tell" if interval is not None else ""
        if interval.low > 1:
            return "faster"
        if interval.high < 1:
            return "slower"
        is_same = interval.low > 1 - SAME and interval.high < 1 + SAME
        return "same" if is_same else "can't tell"


@dataclass(frozen=True, kw_only=True)
class Bout:
    """One distinct layer; the first entrant is the user's. counters: of the user's, on the simulated GPU."""

    layers: tuple[str, ...]
    entrants: tuple[Entrant, ...]
    resources: dict[str, str]  # target -> words
    counters: dict[str, int]


def bout_of(words: Mapping[str, Any]) -> Bout:
    """From the plain data that dataclasses.asdict made of it."""
    entrants = []
    for one in words["entrants"]:
        intervals = {name: stats.Interval(**one[name]) for name in INTERVALS if one[name]}
        entrants.append(Entrant(**dict(one) | intervals))
    return Bout(**dict(words) | {"layers": tuple(words["layers"]), "entrants": tuple(entrants)})


def bouts(
    found: BroughtIn, plan: Plan, device: Device, *, counters: bool, begin: Callable[[str], None]
) -> Iterator[Bout]:
    """One for each distinct layer of the operator that the user's variant can do.

    begin: called with a layer and a variant each time before that runs
    """
    groups: dict[str, list[Layer]] = {}
    for layer in plan.layers:
        if layer.problem is not None and layer.op == found.op and layer.steps:
            groups.setdefault(problem_key(layer.problem), []).append(layer)
    roofs = calibrate(device)
    with cache_flush(device) as flush:
        for layers in groups.values():
            problem = _plain(layers[0].problem)
            if found.variant.applies(problem):
                continue
            rivals = [v for v in variants_of(problem.operator) if v is not found.variant and _can(v, problem)]
            yield _bout(found, layers, problem, rivals, device, flush, roofs, counters=counters, begin=begin)


def _plain(problem: Problem | None) -> Problem:
    """As a case has it: plain layouts, which each variant's arrangement then replaces."""
    assert problem is not None
    inputs = tuple(None if o is None else Operand(name=o.name, dtype=o.dtype, shape=o.shape, value=o.value)
                   for o in problem.inputs)  # fmt: skip
    outputs = tuple(Operand(name=o.name, dtype=o.dtype, shape=o.shape) for o in problem.outputs)
    return replace(problem, inputs=inputs, outputs=outputs, workspace=None, tables=())


def _can(variant: Variant, problem: Problem) -> bool:
    kinds = variant.devices
    fits = not kinds or problem.target.kind in kinds
    return fits and problem.precision in variant.precisions and not variant.applies(problem)


def _bout(
    found: BroughtIn, layers: list[Layer], problem: Problem, rivals: list[Variant], device: Device,
    flush: Action, roofs: Calibration, *, counters: bool, begin: Callable[[str], None],
) -> Bout:  # fmt: skip
    entrants = [found.variant, *rivals]
    places = [Place(variant, problem, device) for variant in entrants]
    first, last = device.event(), device.event()
    try:
        programs = [device.capture([device.record(first), *p.actions, device.record(last)]) for p in places]
        times = np.full((len(places), ROUNDS), np.nan)
        names = [f"layer {layers[0].name}, variant {variant.name}" for variant in entrants]
        for name, program in zip(names, programs, strict=True):
            begin(name)
            program()
            device.sync()
        for turn in range(ROUNDS):
            for index, program in enumerate(programs):
                begin(names[index])
                flush()
                program()
                device.sync()
                times[index, turn] = device.elapsed_us(first, last)
    finally:
        for place in places:
            place.close()
    work = layers[0]
    made = []
    for variant, own in zip(entrants, times, strict=True):
        summary = stats.summary(own)
        ratio = stats.summary(own / times[0])
        gflop, gb = (n / summary.median / 1e3 for n in (work.cost.flops, work.bytes_min))
        made.append(
            Entrant(
                variant=variant.name,
                median_us=summary.median,
                interval=summary.interval,
                gflop_per_s=gflop,
                gb_per_s=gb,
                of_roof=max(gflop / roofs.fma_gflop_per_s, gb / roofs.copy_gb_per_s),
                ratio=ratio.median,
                ratio_interval=None if variant is found.variant else ratio.interval,
            )
        )
    ordered = (made[0], *sorted(made[1:], key=lambda e: e.median_us))
    steps = Place.steps_of(found.variant, problem)
    return Bout(
        layers=tuple(layer.name for layer in layers),
        entrants=ordered,
        resources=_resources(steps),
        counters=_counted(found.variant, problem) if counters else {},
    )


class Place:
    """A variant with memory of its own on a device, in the first arrangement it takes.

    arrays    what the inputs that aren't constant hold; None: random numbers
    """

    def __init__(
        self,
        variant: Variant,
        problem: Problem,
        device: Device,
        arrays: Sequence[np.ndarray | None] | None = None,
    ):
        self.device = device
        laid_out, contents = self.laid_out(variant, problem)
        self.inputs, self.outputs = laid_out.inputs, laid_out.outputs
        operands = [*laid_out.inputs, *laid_out.outputs, *laid_out.tables, laid_out.workspace]
        self.pointers = {}
        for operand in operands:
            if operand is None:
                continue
            nbytes = max(operand.view().byte_offset + operand.nbytes, 1)
            self.pointers[operand.name] = device.alloc(nbytes)
            content = contents.get(operand.name)
            if operand in laid_out.inputs and not operand.is_constant and arrays is not None:
                content = np.zeros(nbytes, np.uint8)
                _logical(operand, content)[...] = arrays[laid_out.inputs.index(operand)]
            elif operand in laid_out.inputs and not operand.is_constant:
                content = np.random.default_rng(0).standard_normal(-(-nbytes // 4), dtype=np.float32)
                content = content.view(np.uint8)[:nbytes]
            if content is not None:
                device.upload(self.pointers[operand.name], np.ascontiguousarray(content))
        self.steps = variant.steps(laid_out)
        device.build([step.kernel for step in self.steps if isinstance(step, Launch)])
        self.actions = [device.prepare(step, self.address) for step in self.steps]

    @staticmethod
    def laid_out(variant: Variant, problem: Problem) -> tuple[Problem, dict[str, np.ndarray]]:
        arrangement = next(iter(arrangements(problem, variant)))
        zeros = [None if o is None else np.zeros(o.shape, o.dtype) if o.value is None else o.value
                 for o in problem.inputs]  # fmt: skip
        return lay_out(variant, problem, arrangement, zeros)

    @classmethod
    def steps_of(cls, variant: Variant, problem: Problem) -> tuple[Step, ...]:
        return variant.steps(cls.laid_out(variant, problem)[0])

    def address(self, view: View) -> int:
        return self.pointers[view.tensor] + view.byte_offset

    def output(self, index: int = 0) -> np.ndarray:
        """What an output holds, of its logical shape."""
        operand = self.outputs[index]
        content = np.empty(operand.view().byte_offset + operand.nbytes, np.uint8)
        self.device.download(self.pointers[operand.name], content)
        return _logical(operand, content).copy()

    def close(self) -> None:
        for pointer in self.pointers.values():
            self.device.free(pointer)


def _logical(operand: Operand, content: np.ndarray) -> np.ndarray:
    """The operand's elements in their logical shape, as a window into its memory."""
    typed = content[operand.view().byte_offset :].view(operand.dtype)
    strides = tuple(stride * operand.itemsize for stride in operand.strides)
    return np.lib.stride_tricks.as_strided(typed, operand.shape, strides)


def _resources(steps: tuple[Step, ...]) -> dict[str, str]:
    """What the first kernel takes of each architecture; {} without nvcc."""
    compiler = nvcc.find()
    launches = [step for step in steps if isinstance(step, Launch)]
    if compiler is None or not launches:
        return {}
    step = launches[0]
    found = ptxas.resources(compiler, step.kernel.file, step.kernel.defines, TARGETS)
    result = {}
    for target in TARGETS:
        taken = found[step.kernel.entry, target]
        held = occupancy(
            ptxas.compute_capability(target),
            threads=math.prod(step.block),
            registers=taken.registers,
            shared_bytes=taken.shared_bytes + step.shared_bytes,
        )
        spills = f", {taken.spill_bytes} B spilled" if taken.spill_bytes else ", no spills"
        shared = taken.shared_bytes + step.shared_bytes
        result[f"sm_{target}"] = f"{taken.registers} registers, {shared} B shared{spills}, occupancy {held}"
    return result


def _counted(variant: Variant, problem: Problem) -> dict[str, int]:
    device = SimDevice()
    try:
        place = Place(variant, problem, device)
        before = device.counters()
        for action in place.actions:
            action()
        return {n: c - before[n] for n, c in device.counters().items() if c > before[n]}
    finally:
        device.close()
