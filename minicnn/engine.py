"""The public face: load a model, plan it on a device, run it, profile it.

model = minicnn.load("model.onnx")
engine = model.plan(device="host", threads=2)
outputs = engine.run(x)
record = engine.profile(x, repeat=50, record="run.h5")
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minicnn import limits, onnx_file, shapes
from minicnn.choose import NOTHING_MEASURED, load_measured
from minicnn.device import open_device
from minicnn.device.base import Device
from minicnn.errors import DeviceError, InputError
from minicnn.execute import Executable, Timing, check_inputs
from minicnn.graph import Graph, TensorType
from minicnn.narrowing import narrow
from minicnn.onnx_raw import release
from minicnn.plan import Layer, Plan
from minicnn.planner import plan
from minicnn.quantization import fold, join
from minicnn.registry import Target
from minicnn.rewrite import rewrite
from minicnn.widening import widen

if TYPE_CHECKING:  # HDF5 and what records need take longer to import than a small network to run
    from minicnn import measure
    from minicnn.record import RunRecord

Inputs = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is to be planned.

    fuse        False: one layer per ONNX node
    variants    {"conv": "im2col", "Conv_12": "direct"}: an operator's (where it applies) or a node's
    precision   "fp32"; "tf32", "fp16": what a GPU may round to
    tuned       whether to use what `tune` has measured on this device
    fallback    whether operators without a kernel of ours may run through onnx's evaluator
    memory_limit  bytes of the device that a plan may take; None: what there is
    """

    fuse: bool = True
    variants: Mapping[str, str] = field(default_factory=dict)
    precision: str = "fp32"
    fallback: bool = True
    tuned: bool = True
    memory_limit: int | None = None


class Model:
    """A loaded network, not yet tied to a device. `graph` is what the file says."""

    def __init__(self, graph: Graph, *, input_shapes: Mapping[str, Sequence[int]], batch: int | None):
        self.graph = graph
        self._shapes = {name: tuple(shape) for name, shape in input_shapes.items()}
        self._batch = batch

    @property
    def inputs(self) -> dict[str, TensorType]:
        """name -> type, symbolic dimensions as the file has them."""
        return {name: self.graph.types[name] for name in self.graph.inputs}

    def with_shapes(self, input_shapes: Mapping[str, Sequence[int]]) -> Model:
        """A copy whose inputs have these shapes, where the file leaves them open."""
        return Model(self.graph, input_shapes={**self._shapes, **input_shapes}, batch=self._batch)

    def resolve(self, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
        """The graph with every shape known that can be, constants folded.

        Raises    ShapeError: a dimension is left open, or the shapes contradict the file
        """
        given = self._shapes | {name: tuple(shape) for name, shape in (input_shapes or {}).items()}
        return shapes.resolve(self.graph, given, self._batch)

    def make_plan(
        self,
        *,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        options: Options | None = None,
        target: Target = Target(),
    ) -> Plan:
        """The plan alone, without any device; `target` is the one it is made for."""
        return _plan(self.resolve(input_shapes), options or Options(), target)

    def plan(
        self,
        *,
        device: str | Device = "auto",
        threads: int | None = None,
        fuse: bool = True,
        variants: Mapping[str, str] | None = None,
        precision: str = "fp32",
        fallback: bool = True,
        memory_limit: int | None = None,
    ) -> Engine:
        """Ready to run: planned, kernels built, weights packed and uploaded.

        device   "auto" (a GPU where there is one), "host", "cuda", "cuda:1", or an open Device, which stays
                 the caller's
        threads  of the host device; None: all processors this process may use
        memory_limit  bytes of the device's memory that it may take; None: what there is
        Raises   MinicnnError of the kind that fits: what is missing, unsupported or contradictory
        """
        options = Options(
            fuse=fuse, variants=variants or {}, precision=precision,
            fallback=fallback, memory_limit=memory_limit,
        )  # fmt: skip
        opened = open_device(device, threads=threads) if isinstance(device, str) else device
        try:
            return Engine(self, opened, options, owns_device=isinstance(device, str))
        except BaseException:
            if isinstance(device, str):
                opened.close()
            raise


def load(
    path: str | Path, shapes: Mapping[str, Sequence[int]] | None = None, *, batch: int | None = None
) -> Model:
    """Reads an ONNX file.

    shapes  input name -> shape, where the file leaves dimensions open
    batch   the first dimension of every input
    Raises  ModelError: not a readable, consistent model
    """
    return Model(onnx_file.load(Path(path)), input_shapes=shapes or {}, batch=batch)


def _plan(graph: Graph, options: Options, target: Target) -> Plan:
    return limits.within(_maker(graph, options, target), options.memory_limit, options.variants)


def _maker(graph: Graph, options: Options, target: Target) -> limits.Make:
    wide = widen(graph)
    ready = rewrite(fold(join(wide))) if options.fuse else fold(wide)
    if options.precision == "fp16" or wide is not graph:
        ready = narrow(ready, target)
    return lambda wanted: plan(
        ready,
        wanted=wanted,
        precision=options.precision,
        allow_fallback=options.fallback,
        target=target,
        measured=load_measured(target) if options.tuned else NOTHING_MEASURED,
    )


def target_of(device: Device) -> Target:
    """What plans need to know of a device."""
    info = device.info
    return Target(kind=info.kind, name=info.name, architecture=info.architecture, threads=info.threads)


def host_target(threads: int | None = None) -> Target:
    """This machine's processor as a plan's target, no device opened."""
    from minicnn.device import host

    return Target(
        kind="host",
        name=host.processor_name(),
        architecture=host.cpu_level(),
        threads=threads or host.usable_cores(),
    )


class Engine:
    """A model on a device. Plans once for each set of input shapes and keeps them all.

    Threads may share it for `run`: each waits for its turn. A forked process may not: it makes its own after
    the fork. `close`, or use as a context manager, to free device memory.
    """

    def __init__(self, model: Model, device: Device, options: Options, *, owns_device: bool):
        self.model = model
        self.device = device
        self.options = options
        self._owns_device = owns_device
        self._turn = threading.Lock()
        self._process = os.getpid()
        self._chains: dict[tuple[tuple[int, ...], ...], _Chain] = {}
        self._first = self._chain_for(model.resolve())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()
        if self._owns_device:
            self.device.close()

    @property
    def plan(self) -> Plan:
        """The plan for the shapes the engine was made with; its first segment, where others follow."""
        return self._first.head.plan

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers for those shapes: of all segments that runs have planned so far."""
        return self._first.layers

    def run(self, x: Inputs) -> dict[str, np.ndarray]:
        """Outputs by name, of the logical shapes that ONNX says.

        x         an array where the model has one input, else {name: array}
        Raises    InputError: names, shapes or dtypes that don't fit
                  DeviceError: in a process forked from the one that made the engine
        """
        return self.timed_run(x, profiled=False)[0]

    def timed_run(
        self, x: Inputs, *, profiled: bool, gaps: bool = False
    ) -> tuple[dict[str, np.ndarray], Timing]:
        """`run` with its times; the check of the inputs is the engine's own host time."""
        if os.getpid() != self._process:
            remedy = "load and plan in the process that runs, after the fork"
            raise DeviceError("an engine of another process, this one's parent", remedy=remedy)
        with self._turn:
            start = self.device.clock_ns()
            inputs, chain = self._prepare(x)
            prepared = self.device.clock_ns()
            outputs, timing = chain.timed_run(inputs, profiled=profiled, gaps=gaps)
        return outputs, replace(timing, host_us=timing.host_us + (prepared - start) / 1e3)

    def profile(
        self,
        x: Inputs,
        *,
        repeat: int | None = None,
        seconds: float | None = None,
        sampling: bool = False,
        gaps: bool = False,
        contexts: bool = False,
        energy: bool = False,
        record: str | Path | None = None,
        command: str = "",
        seed: int | None = None,
        progress: bool = False,
    ) -> RunRecord:
        """Plain and profiled runs in turn, until the median is known well enough.

        repeat    so many repetitions behind the warm-up, which is kept and flagged
        seconds   at most so long
        sampling  a profiled run now and then alone, so that the whole costs less than 1 %
        gaps      a third run with a second bracket of events: the device's idle time between layers
        contexts  each layer alone too, with warm and with emptied caches
        energy    each layer's, by running it over and over, where a counter can be read
        record    an HDF5 file, written as the run goes and in place only when it has ended well
        Raises    InputError, OutputError
        """
        if repeat is not None and repeat < 1:
            raise InputError("nothing to measure", expected="at least 1 repetition", found=repeat)
        from minicnn import measure

        procedure = measure.Procedure(
            repeat=repeat,
            seconds=seconds,
            sampling=sampling,
            gaps=gaps,
            contexts=contexts,
            energy=energy,
        )
        path = None if record is None else Path(record)
        return measure.profile(self._subject(x, command, seed), procedure, path=path, progress=progress)

    def profile_against(
        self,
        other: Engine,
        x: Inputs,
        *,
        repeat: int = 50,
        records: tuple[str | Path | None, str | Path | None] = (None, None),
        command: str = "",
        seed: int | None = None,
        progress: bool = False,
    ) -> tuple[RunRecord, RunRecord]:
        """This engine and another, repetition by repetition in turn: for `compare(..., paired=True)`."""
        from minicnn import measure

        first, second = (engine._subject(x, command, seed) for engine in (self, other))
        own, theirs = (None if record is None else Path(record) for record in records)
        return measure.profile_pair(first, second, repeat, paths=(own, theirs), progress=progress)

    def _subject(self, x: Inputs, command: str, seed: int | None) -> measure.Subject:
        from minicnn import measure

        inputs, chain = self._prepare(x)
        return measure.Subject(
            chain=chain,
            run=lambda profiled, gaps: self.timed_run(inputs, profiled=profiled, gaps=gaps)[1],
            inputs=inputs,
            device=self.device,
            facts=measure.RunFacts(
                graph=self.model.graph, precision=self.options.precision, command=command, seed=seed
            ),
        )

    def tensors(self, x: Inputs, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Intermediate tensors as this engine computes them: {name: array}.

        Raises    InputError: a name that no layer of the plan writes (it may have been fused away)
        """
        inputs, chain = self._prepare(x)
        written = [o.name for layer in chain.layers for o in layer.outputs]
        for name in names:
            if name not in written:
                raise InputError(
                    "no layer writes this tensor",
                    tensor=name,
                    accepted=", ".join(written[-20:]),
                    remedy="--fuse none keeps every tensor",
                )
        found: dict[str, np.ndarray] = {}
        for _, _, outputs in chain.head.walk(inputs):
            found |= {name: value for name, value in outputs.items() if name in names}
        return found

    def walk(self, x: Inputs) -> Iterator[tuple[Layer, dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """A run layer by layer: (layer, tensors it read, tensors it wrote), as `minicnn.check` wants it."""
        inputs, chain = self._prepare(x)
        chain.timed_run(inputs, profiled=False)  # so that all segments are there
        for segment in chain.segments:
            feeds = {o.name: inputs[o.name] for o in segment.plan.inputs}
            for layer, before, after in segment.walk(feeds):
                inputs = inputs | after | segment.run_time
                yield layer, before, after

    def executables(self, x: Inputs) -> tuple[dict[str, np.ndarray], list[Executable]]:
        """(the inputs as the device takes them, the segments that run them, those of the last run)"""
        inputs, chain = self._prepare(x)
        return inputs, list(chain.segments)

    def _prepare(self, x: Inputs) -> tuple[dict[str, np.ndarray], _Chain]:
        names = list(self.model.graph.inputs)
        if isinstance(x, Mapping):
            given = {name: np.asarray(value) for name, value in x.items()}
        elif len(names) == 1:
            given = {names[0]: np.asarray(x)}
        else:
            raise InputError(
                "the model has several inputs", file=self.model.graph.file, expected=f"a mapping with {names}"
            )
        chain = self._first
        fits = all(
            n in given and given[n].shape == o.shape
            for n, o in zip(names, chain.head.plan.inputs, strict=True)
        )
        if not fits and set(given) == set(names):
            key = tuple(given[n].shape for n in names)
            chain = self._chains.get(key) or self._chain_for(
                self.model.resolve({n: given[n].shape for n in names})
            )
        return check_inputs(chain.head.plan.inputs, given, file=self.model.graph.file), chain

    def _chain_for(self, graph: Graph) -> _Chain:
        chain = _Chain(graph, self.device, self.options)
        self._chains[tuple(o.shape for o in chain.head.plan.inputs)] = chain
        return chain


class _Chain:
    """The segments of one plan: an executable, and those planned when it has told their shapes."""

    def __init__(self, graph: Graph, device: Device, options: Options):
        self.device = device
        self.options = options
        self.outputs = graph.outputs
        make = _maker(graph, options, target_of(device))
        planned = limits.within(make, options.memory_limit, options.variants)
        release(graph.constants.values())  # read while fusing
        self.head = limits.built(lambda plan: Executable(plan, device), make, planned, options.variants)
        self._tails: dict[tuple[tuple[int, ...], ...], _Chain] = {}
        self._last_tail: _Chain | None = None

    def close(self) -> None:
        self.head.close()
        for tail in self._tails.values():
            tail.close()

    @property
    def segments(self) -> Iterator[Executable]:
        """The executables of the last run, in order."""
        yield self.head
        if self._last_tail is not None:
            yield from self._last_tail.segments

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(layer for segment in self.segments for layer in segment.plan.layers)

    def timed_run(
        self, inputs: Mapping[str, np.ndarray], *, profiled: bool, gaps: bool = False
    ) -> tuple[dict[str, np.ndarray], Timing]:
        found, timing = self.head.timed_run(inputs, profiled=profiled, gaps=gaps)
        rest = self.head.plan.rest
        if rest is None:
            return found, timing
        start = self.device.clock_ns()
        border = {name: found[name] for name in rest.inputs}
        key = tuple(a.shape for a in border.values())
        if key not in self._tails:
            types = {n: TensorType(dtype=str(a.dtype), shape=a.shape) for n, a in border.items()}
            graph = shapes.resolve(
                replace(rest, types={**rest.types, **types}), {n: a.shape for n, a in border.items()}, None
            )
            self._tails[key] = _Chain(graph, self.device, self.options)
        self._last_tail = self._tails[key]
        between = self.device.clock_ns() - start
        outputs, later = self._last_tail.timed_run(border, profiled=profiled, gaps=gaps)
        return outputs, Timing(
            layer_us=np.concatenate([timing.layer_us, later.layer_us]),
            gap_us=np.concatenate([timing.gap_us, later.gap_us]),
            device_us=timing.device_us + later.device_us,
            upload_us=timing.upload_us + later.upload_us,
            download_us=timing.download_us + later.download_us,
            host_us=timing.host_us + later.host_us + between / 1e3,
        )
