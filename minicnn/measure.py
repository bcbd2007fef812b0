"""Repetitions of a run, timed and recorded: plain and profiled in turn, until they say enough.

What is attributed to layers is held against the caller's clock. A plain run's wall time is claimed by the
transfers, by the engine (as far as its own clock sees it, outside transfers and layers), and by the layers as
the *profiled* run of the same repetition gives them; the plain run's own two events claim nothing. So what
profiling adds, what the boundaries miss and what nobody measured all stay in `unattributed_us`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minicnn import describe, energy, machine, stats, steady
from minicnn.calibrate import Calibration, cache_flush, calibrate
from minicnn.describe import RunFacts
from minicnn.device.base import Device
from minicnn.execute import Executable, Timing
from minicnn.plan import Layer
from minicnn.progress import progress_bar
from minicnn.record import RunRecord
from minicnn.store import Recorder

LEAD = 2  # repetitions beyond those asked for, since a few at the start are warm-up
SPARE = 100  # at most so many more, where the warm-up is longer
LEAST, MOST = 12, 500  # repetitions, where their number isn't given
NARROW = 0.01  # half the interval over the median: then that is known well enough
SECONDS = 5.0  # at most, where neither repetitions nor seconds are given
PAIRS = 10  # sampling: repetitions with both runs, out of which the overhead is found
SAMPLING_COST = 0.01  # of the time, at most
RAREST = 100  # sampling: at least one run in so many is profiled


class Runnable(Protocol):
    """What can be profiled: the segments of one plan on one device."""

    @property
    def segments(self) -> Iterable[Executable]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...


Run = Callable[[bool, bool], Timing]  # (profiled, gaps): one run


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """How to measure; the fields as `Engine.profile` explains them."""

    repeat: int | None = None
    seconds: float | None = None
    sampling: bool = False
    gaps: bool = False
    contexts: bool = False
    energy: bool = False

    @property
    def capacity(self) -> int:
        """The most repetitions there can be."""
        if self.repeat is None:
            return MOST + (PAIRS if self.sampling else 0)
        return self.repeat + LEAD + min(self.repeat, SPARE) + (PAIRS if self.sampling else 0)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: `run` runs the chain on `inputs`, transfers included."""

    chain: Runnable
    run: Run
    inputs: Mapping[str, np.ndarray]
    device: Device
    facts: RunFacts


def profile(subject: Subject, procedure: Procedure, *, path: Path | None, progress: bool) -> RunRecord:
    """Calibrates, repeats until the procedure is satisfied, and says how far the numbers can be trusted."""
    calibration = calibrate(subject.device)
    total = procedure.repeat and procedure.repeat + LEAD
    with (
        _recording(subject, procedure, calibration, path) as session,
        progress_bar("profiling", total, shown=progress) as advance,
    ):
        session.repeat(advance)
    return session.recorder.record


def profile_pair(
    first: Subject, second: Subject, repeat: int, *, paths: tuple[Path | None, Path | None], progress: bool
) -> tuple[RunRecord, RunRecord]:
    """Both in turn, repetition by repetition, so that what disturbs one disturbs the other: to be compared in
    pairs. Both have the same repetitions and the same warm-up."""
    calibration = calibrate(first.device)
    procedure = Procedure(repeat=repeat)
    with (
        _recording(first, procedure, calibration, paths[0]) as a,
        _recording(second, procedure, calibration, paths[1]) as b,
        progress_bar("profiling", repeat + LEAD, shown=progress) as advance,
    ):
        load = machine.busy()
        done = warmup = 0
        while done < procedure.capacity and not _is_done(done, warmup, repeat):
            for session in (a, b) if done % 2 == 0 else (b, a):
                session.add(done, warmup)
            done += 1
            advance()
            if done >= repeat:
                warmup = max(a.warmup(done), b.warmup(done))
        for session in (a, b):
            session.flag_warmup(done, warmup)
            session.finish(done, warmup, load)
    return a.recorder.record, b.recorder.record


@contextmanager
def _recording(
    subject: Subject, procedure: Procedure, calibration: Calibration, path: Path | None
) -> Iterator[_Session]:
    before = machine.process_bytes()
    subject.run(True, procedure.gaps)  # plans the segments whose shapes only a run tells
    executables = list(subject.chain.segments)
    touched = math.nan
    if len(executables) == 1:
        touched = float(executables[0].touched_bytes(subject.inputs))
    attributes = describe.attributes(subject.device, subject.facts, subject.inputs)
    attributes |= describe.memory(executables) | asdict(calibration) | {"touched_peak_bytes": touched}
    attributes |= describe.own_sources(executables)
    meter = _meter(subject.device) if procedure.energy else ""
    attributes["energy_source"] = meter if isinstance(meter, str) else meter.name
    layers = [describe.layer_facts(layer, subject.device) for layer in subject.chain.layers]
    buffers = describe.buffers(executables)
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(path, layers, procedure.capacity, attributes, buffers))
        session = _Session(subject, procedure, recorder, calibration.bracket_us)
        if procedure.contexts and len(executables) == 1:
            flush = stack.enter_context(cache_flush(subject.device))
            session.alone = lambda: executables[0].alone(subject.inputs, flush)
        yield session
        if not isinstance(meter, str) and len(executables) == 1:
            found = energy.measure(meter, executables[0].each(subject.inputs))
            recorder.set(idle_power_w=found.idle_power_w)
            recorder.set_facts(
                energy_uj=found.by_counter_uj.tolist(), energy_by_power_uj=found.by_power_uj.tolist()
            )
        if subject.device.info.kind == "host":
            grown = machine.process_bytes() - before
            grown += sum(e.plan.weight_bytes + e.plan.arena_bytes for e in executables)
            recorder.set(allocated_peak_bytes=float(grown))


def _meter(device: Device) -> energy.Meter | str:
    return energy.find_rapl() if device.info.kind == "host" else device.energy_meter()


class _Session:
    """The repetitions of one record. `alone`, where set: each layer by itself, warm and cold."""

    def __init__(self, subject: Subject, procedure: Procedure, recorder: Recorder, bracket_us: float):
        self.alone: Callable[[], dict[str, np.ndarray]] | None = None
        self.recorder = recorder
        self._run, self._device, self._procedure = subject.run, subject.device, procedure
        capacity = procedure.capacity
        names = ("plain_us", "profiled_us", "wall_us", "profiled_wall_us", "unattributed_us", "read_us")
        self._kept = {name: np.full(capacity, np.nan) for name in names}
        self._claimed = math.nan  # by transfers and the engine, and the wall time, of the last plain run
        self._wall = math.nan
        self._bracket_us = bracket_us
        self._boundaries = 0
        self._host: list[float] = []  # the engine's own time in plain runs
        self._every = 1
        self._throttled: list[bool] = []

    def repeat(self, advance: Callable[[], None]) -> None:
        clock = self._device.clock_ns
        start, load = clock(), machine.busy()
        done = warmup = 0
        for rep in range(self._procedure.capacity):
            self.add(rep, warmup)
            done = rep + 1
            if self._procedure.sampling and done == PAIRS:
                self._every = self._sampling_interval(done)
            advance()
            passed = (clock() - start) / 1e9
            if self._is_checkpoint(done) or self._is_late(done, passed):
                warmup = self.warmup(done)
                self.flag_warmup(done, warmup)
                if self._is_late(done, passed) or self._is_enough(done, warmup):
                    break
        self.finish(done, warmup, load)

    def add(self, rep: int, warmup: int) -> None:
        before = machine.preemptions()
        values: dict[str, Any] = {"is_warmup": rep < max(warmup, LEAD if rep < LEAD else 0)}
        is_paired = self._every == 1
        is_profiled = is_paired or rep % self._every == 0
        if is_paired and rep % 2:  # who comes second finds warmer caches: in turn
            values |= self._profiled()
            values |= self._plain()
        else:
            values |= {} if is_profiled and not is_paired else self._plain()
            values |= self._profiled() if is_profiled else {}
        if "time_us" in values:
            values["unattributed_us"] = self._wall - self._claimed - float(values["time_us"].sum())
        if self._procedure.gaps:
            values["gap_us"] = self._run(True, True).gap_us
        if self.alone is not None:
            values |= self.alone()
        values["preemptions"] = float(machine.preemptions() - before)
        for name, samples in self._kept.items():
            samples[rep] = values.get(name, math.nan)
        values.pop("read_us", None)
        throttled = self._device.is_throttled()
        if throttled is not None:
            self._throttled.append(throttled)
        self.recorder.add(rep, **values)

    def _plain(self) -> dict[str, Any]:
        timing, wall_us = self._timed(profiled=False)
        self._host.append(timing.host_us)
        self._claimed, self._wall = timing.upload_us + timing.download_us + timing.host_us, wall_us
        return {
            "plain_us": timing.device_us,
            "wall_us": wall_us,
            "upload_us": timing.upload_us,
            "download_us": timing.download_us,
            "host_us": timing.host_us,
        }

    def _profiled(self) -> dict[str, Any]:
        timing, wall_us = self._timed(profiled=True)
        self._boundaries = timing.layer_us.size
        return {"read_us": timing.host_us, "time_us": timing.layer_us, "profiled_us": timing.device_us,
                "profiled_wall_us": wall_us}  # fmt: skip

    def _timed(self, *, profiled: bool) -> tuple[Timing, float]:
        """A run, and the caller's clock around it."""
        clock = self._device.clock_ns
        start = clock()
        timing = self._run(profiled, False)
        return timing, (clock() - start) / 1e3

    def _whole(self, done: int) -> np.ndarray:
        """First to last event of each repetition, plain where there was a plain run."""
        plain, profiled = self._kept["plain_us"][:done], self._kept["profiled_us"][:done]
        return np.where(np.isnan(plain), profiled, plain)

    def _is_checkpoint(self, done: int) -> bool:
        """Looked at rarely, since looking often and stopping at the first good sight would fool us."""
        if self._procedure.repeat is not None:
            return done >= self._procedure.repeat
        return done >= LEAST and (done - LEAST) % max(LEAST // 2, done // 10) == 0

    def _is_late(self, done: int, passed_s: float) -> bool:
        if self._procedure.seconds is not None:
            return passed_s >= self._procedure.seconds
        return self._procedure.repeat is None and done >= LEAST and passed_s >= SECONDS

    def _is_enough(self, done: int, warmup: int) -> bool:
        if self._procedure.repeat is not None:
            return _is_done(done, warmup, self._procedure.repeat)
        summary = stats.summary(self._whole(done)[warmup:])
        half = (summary.interval.high - summary.interval.low) / 2
        return summary.interval.is_bounded and half <= NARROW * summary.median

    def warmup(self, done: int) -> int:
        """How many repetitions so far are warm-up; when sampling, those that found the overhead too."""
        warmup = steady.warmup_length(self._whole(done))
        return max(warmup, min(PAIRS, done - 1)) if self._procedure.sampling else warmup

    def flag_warmup(self, done: int, warmup: int) -> None:
        self.recorder.flag("is_warmup", np.arange(done) < warmup)

    def _sampling_interval(self, done: int) -> int:
        """One profiled run in so many costs less than SAMPLING_COST.

        What a profiled run adds is reckoned from its parts, since its whole drowns in the noise of a few
        runs: the boundaries' events, and on the engine's own clock the time to read them.
        """
        reading = stats.median(self._kept["read_us"][:done]) - stats.median(self._host[:done])
        added = self._bracket_us * max(self._boundaries - 1, 0) + max(reading, 0.0)
        share = added / stats.median(self._kept["wall_us"][:done])
        return min(max(math.ceil(share / SAMPLING_COST), 2), RAREST)

    def finish(self, done: int, warmup: int, load: machine.Busy | None) -> None:
        recorder, later = self.recorder, slice(warmup, done)
        kept = {name: samples[:done] for name, samples in self._kept.items()}
        numbers: dict[str, float] = {"profiled_every": self._every}
        with np.errstate(divide="ignore", invalid="ignore"):
            walls = np.where(np.isnan(kept["wall_us"]), _shifted(kept["wall_us"]), kept["wall_us"])
            shares = kept["unattributed_us"] / walls
        closure = stats.summary(shares[later])
        numbers |= _named("closure_residual", closure.median, closure.interval, 0.0)
        numbers |= _named("profiling_overhead", *_overhead(kept, later), 1.0)
        numbers |= _named("drift", *steady.drift(self._whole(done)[later]), 0.0)
        now = machine.busy()
        if load is not None and now is not None:
            numbers["other_load"] = now.others_since(load)
        if self._throttled:
            numbers["throttled_share"] = float(np.mean(self._throttled))
        is_outlier = np.zeros(done, bool)
        is_outlier[later] = steady.outliers(self._whole(done)[later])
        recorder.flag("is_outlier", is_outlier)
        recorder.set(**numbers)
        if done < self._procedure.capacity:
            recorder.end_early()


def _is_done(done: int, warmup: int, repeat: int) -> bool:
    """Whether so many repetitions count; of few, where no warm-up can be found, LEAD go before them."""
    return done - (warmup if done >= steady.FEW else LEAD) >= repeat


def _overhead(kept: Mapping[str, np.ndarray], which: slice) -> tuple[float, stats.Interval]:
    """(median of profiled over plain wall time of neighbouring runs, its interval)"""
    plain, profiled = kept["wall_us"], kept["profiled_wall_us"]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = profiled / np.where(np.isnan(plain), _shifted(plain), plain)
    summary = stats.summary(ratios[which])
    return summary.median, summary.interval


def _shifted(samples: np.ndarray) -> np.ndarray:
    """Each place holds the one before: a sampled run has its plain neighbour there."""
    return np.concatenate(([np.nan], samples[:-1]))


def _named(name: str, value: float, interval: stats.Interval, base: float) -> dict[str, float]:
    bounds = (interval.low, interval.high) if interval.is_bounded else (math.nan, math.nan)
    return {name: value - base, f"{name}_low": bounds[0] - base, f"{name}_high": bounds[1] - base}
