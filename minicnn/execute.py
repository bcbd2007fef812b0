"""A plan on a device: memory, prepared actions, runs, and the times at the layers' boundaries.

Layers stand between boundary events: L layers, L + 1 events, created before the run and read after one final
sync, so that nothing waits inside a timed run. *Plain* programs carry only the first and the last of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minicnn import limits
from minicnn.device.base import Action, Device, Event
from minicnn.errors import DeviceError, InputError, MinicnnError
from minicnn.onnx_raw import release
from minicnn.plan import Buffer, Layer, Plan
from minicnn.step import HostCall, Launch, Operand, View

CANARY = 0x7FC0DEAD  # a NaN that no arithmetic makes: arena words that still hold it were never written


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run in microseconds.

    layer_us    between a layer's boundaries; NaN in a plain run
    gap_us      from a layer's end to the next one's beginning; NaN without brackets
    device_us   first to last event
    host_us     the engine's own time in no transfer and outside first to last event, as far as its clock can
                see it: where the device's clock is another, the way to the first event isn't
    """

    layer_us: np.ndarray
    gap_us: np.ndarray
    device_us: float
    upload_us: float
    download_us: float
    host_us: float


class Executable:
    """A plan bound to a device. Not thread-safe; `close` gives the memory back."""

    def __init__(self, plan: Plan, device: Device):
        self.plan = plan
        self.device = device
        device.build(step.kernel for layer in plan.layers for step in layer.steps if isinstance(step, Launch))
        needed = plan.weight_bytes + plan.arena_bytes
        if needed > device.info.memory_bytes:
            raise limits.refusal(plan, device.info.memory_bytes)
        self._weights = device.alloc(max(plan.weight_bytes, 1))
        try:
            self._arena = device.alloc(max(plan.arena_bytes, 1))
        except DeviceError:
            device.free(self._weights)
            raise
        self.run_time: dict[str, np.ndarray] = {}  # outputs whose shape the plan didn't know
        self._load()
        self._events = [device.event() for _ in range(len(plan.layers) + 1)]
        first, last = self._events[:1], self._events[-1:]
        inner: list[Event | None] = [None] * max(len(plan.layers) - 1, 0)
        self._plain = self._program(before=[*first, *inner], after=[*inner, *last])
        self._profiled = self._program(before=[*first, *inner], after=self._events[1:])
        self._begins: list[Event] = []  # of the second brackets, once they are asked for
        self._bracketed: list[Action] = []

    def close(self) -> None:
        """Gives the device memory back; the device itself stays open."""
        if self._weights:
            self.device.sync()
            self.device.free(self._weights)
            self.device.free(self._arena)
            self._weights = self._arena = 0

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Uploads, runs without layer boundaries, downloads: {name: array}."""
        return self.timed_run(inputs, profiled=False)[0]

    def timed_run(
        self, inputs: Mapping[str, np.ndarray], *, profiled: bool, gaps: bool = False
    ) -> tuple[dict[str, np.ndarray], Timing]:
        """One run with its times.

        profiled    whether the layers' boundaries are recorded
        gaps        with an event at a layer's beginning and one at its end, so that idle between layers shows
        """
        clock = self.device.clock_ns
        program = self._with_brackets() if gaps else self._profiled if profiled else self._plain
        start = clock()
        for operand in self.plan.inputs:
            self.device.upload(self._address(operand.view()), inputs[operand.name])
        uploaded = clock()
        for action in program:
            action()
        self.device.sync()
        ran = clock()
        outputs = {name: self._download(operand) for name, operand in self.plan.outputs.items()}
        downloaded = clock()
        layer_us, gap_us = self._times_of_layers(profiled, gaps)
        first = self._begins[0] if gaps and self._begins else self._events[0]
        last = self._events[-1]
        has_layers = len(self.plan.layers) > 0
        device_us = self.device.elapsed_us(first, last) if has_layers else 0.0
        outside = self._outside_ns(uploaded, first, last, ran) if has_layers else ran - uploaded
        return outputs, Timing(
            layer_us=layer_us,
            gap_us=gap_us,
            device_us=device_us,
            upload_us=(uploaded - start) / 1e3,
            download_us=(downloaded - ran) / 1e3,
            host_us=(outside + clock() - downloaded) / 1e3,
        )

    def _times_of_layers(self, profiled: bool, gaps: bool) -> tuple[np.ndarray, np.ndarray]:
        layer_us, gap_us = np.full((2, len(self.plan.layers)), np.nan)
        elapsed, ends = self.device.elapsed_us, self._events[1:]
        if gaps:
            layer_us[:] = [elapsed(a, b) for a, b in zip(self._begins, ends, strict=True)]
            gap_us[1:] = [elapsed(a, b) for a, b in zip(ends, self._begins[1:], strict=False)]
        elif profiled:
            layer_us[:] = [elapsed(a, b) for a, b in zip(self._events, ends, strict=False)]
        return layer_us, gap_us

    def _outside_ns(self, uploaded: int, first: Event, last: Event, ran: int) -> int:
        """From upload to first event and from the last one to the caller: 0 where no clock shows it."""
        begin, end = self.device.host_ns(first), self.device.host_ns(last)
        if begin is None or end is None:
            return 0
        return begin - uploaded + ran - end

    def _with_brackets(self) -> list[Action]:
        if not self._begins:
            self._begins = [self.device.event() for _ in self.plan.layers]
            self._bracketed = self._program(before=self._begins, after=self._events[1:])
        return self._bracketed

    def alone(
        self, inputs: Mapping[str, np.ndarray], disturb: Callable[[], None]
    ) -> dict[str, np.ndarray]:
        """A run layer by layer: {name as in a record: us of each layer}.

        alone_warm_us  the layer run twice in a row, the second time
        alone_cold_us  after `disturb` has emptied the caches
        enqueue_us     until the warm one's calls return; NaN where it has run by then

        Of a layer that works in place the input is put back before each time.
        """
        warm_us, cold_us, enqueue_us = np.full((3, len(self.plan.layers)), np.nan)
        clock = self.device.clock_ns
        for operand in self.plan.inputs:
            self.device.upload(self._address(operand.view()), inputs[operand.name])
        for index, layer in enumerate(self.plan.layers):
            first, last = self._events[index : index + 2]
            program = self._around(layer, first, last)
            kept = {buffer.offset: self._bytes_of(buffer) for buffer in self._overwritten(layer)}
            for times, prepare in ((warm_us, None), (warm_us, None), (cold_us, disturb)):
                for offset, content in kept.items():
                    self.device.upload(self._arena + offset, content)
                if prepare is not None:
                    prepare()
                start = clock()
                for action in program:
                    action()
                enqueued = clock()
                self.device.sync()
                times[index] = self.device.elapsed_us(first, last)
                if times is warm_us and self.device.host_ns(first) is None:
                    enqueue_us[index] = (enqueued - start) / 1e3
        return {"alone_warm_us": warm_us, "alone_cold_us": cold_us, "enqueue_us": enqueue_us}

    def each(self, inputs: Mapping[str, np.ndarray]) -> Iterator[Callable[[], None]]:
        """What runs a layer alone and to its end, for each in turn; call it once or more before the next.

        Not here  putting back what a layer overwrites: run again, one that works in place works on its output
        """
        for operand in self.plan.inputs:
            self.device.upload(self._address(operand.view()), inputs[operand.name])
        for layer in self.plan.layers:
            actions = self._layer_actions(layer)

            def run(actions: list[Action] = actions) -> None:
                for action in actions:
                    action()
                self.device.sync()

            yield run

    def _overwritten(self, layer: Layer) -> list[Buffer]:
        """Buffers in the arena that a layer both reads and writes."""
        places, sides = self.plan.places, (layer.inputs, layer.outputs)
        read, written = ({places.get(operand.name) for operand in side} for side in sides)
        buffers = [self.plan.buffers[name] for name in read & written if name is not None]
        return [buffer for buffer in buffers if buffer.kind != "weight"]

    def _bytes_of(self, buffer: Buffer) -> np.ndarray:
        content = np.empty(buffer.nbytes, np.uint8)
        self.device.download(self._arena + buffer.offset, content)
        return content

    def _around(self, layer: Layer, first: Event, last: Event) -> list[Action]:
        return [self.device.record(first), *self._layer_actions(layer), self.device.record(last)]

    def walk(
        self, inputs: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[Layer, dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """A run layer by layer: each with the tensors it read, and those it wrote, as copies."""
        for operand in self.plan.inputs:
            self.device.upload(self._address(operand.view()), inputs[operand.name])
        for layer in self.plan.layers:
            before = {o.name: self._download(o) for o in layer.inputs}
            for action in self._layer_actions(layer):
                action()
            self.device.sync()
            yield layer, before, {o.name: self._download(o) for o in layer.outputs}

    def touched_bytes(self, inputs: Mapping[str, np.ndarray]) -> int:
        """The arena's high-water mark: fills it with a canary, runs, finds the last word that changed."""
        words = max(self.plan.arena_bytes // 4, 1)
        self.device.upload(self._arena, np.full(words, CANARY, np.uint32))
        self.run(inputs)
        after = np.empty(words, np.uint32)
        self.device.download(self._arena, after)
        changed = np.flatnonzero(after != CANARY)
        return int(changed[-1] + 1) * 4 if changed.size else 0

    def _address(self, view: View) -> int:
        is_weight, offset = self.plan.byte_offset(view)
        return (self._weights if is_weight else self._arena) + offset

    def _load(self) -> None:
        """Packs constants and puts those on the device that steps read."""
        packed = {call.outputs[0].name: call for call in self.plan.load_steps}
        for name, operand in self.plan.weights.items():
            assert operand.value is not None
            value = operand.value
            if name in packed:
                (value,) = packed[name].function(value)
                if value.shape != operand.shape:
                    facts = {"tensor": name, "expected": operand.shape, "found": value.shape}
                    raise DeviceError("a packing made another shape", **facts)
            self.device.upload(
                self._address(operand.view()), np.ascontiguousarray(value, dtype=operand.dtype)
            )
            release([operand.value])

    def _program(self, *, before: Sequence[Event | None], after: Sequence[Event | None]) -> list[Action]:
        """The plan's actions with an event before and after each layer where there is one, captured
        between host calls."""
        program: list[Action] = []
        pending: list[Action] = []
        for layer, begin, end in zip(self.plan.layers, before, after, strict=False):
            opened, closed = self.device.profiler_range(f"layer/{layer.name}")
            pending += opened
            pending += [self.device.record(begin)] if begin is not None else []
            for step in layer.steps:
                if isinstance(step, HostCall):
                    program += self._captured(pending)
                    pending = []
                    program.append(self._host_action(layer, step))
                else:
                    pending.append(self.device.prepare(step, self._address))
            pending += [self.device.record(end)] if end is not None else []
            pending += closed
        return program + self._captured(pending)

    def _captured(self, actions: list[Action]) -> list[Action]:
        return [self.device.capture(actions)] if actions else []

    def _layer_actions(self, layer: Layer) -> list[Action]:
        return [
            self._host_action(layer, step)
            if isinstance(step, HostCall)
            else self.device.prepare(step, self._address)
            for step in layer.steps
        ]

    def _host_action(self, layer: Layer, call: HostCall) -> Action:
        def act() -> None:
            self.device.sync()
            arrays = [
                None if o is None else o.value if o.is_constant else self._download(o) for o in call.inputs
            ]
            try:
                results = call.function(*arrays)
            except MinicnnError as error:
                raise error.at(file=self.plan.graph.file, node=layer.name, operator=layer.op) from None
            known = {o.name: o for o in call.outputs}
            for name, value in zip(layer.output_names, results, strict=False):
                if name in known:
                    self._store(known[name], value, layer)
                elif name:
                    self.run_time[name] = value

        return act

    def _store(self, operand: Operand, value: np.ndarray, layer: Layer) -> None:
        if value.shape != operand.shape or str(value.dtype) != operand.dtype:
            raise DeviceError(
                "an operator gave another shape than was inferred for it",
                node=layer.name, operator=layer.op, tensor=operand.name,
                expected=f"{operand.dtype} {operand.shape}", found=f"{value.dtype} {value.shape}",
            )  # fmt: skip
        self.device.upload(self._address(operand.view()), np.ascontiguousarray(value))

    def _download(self, operand: Operand) -> np.ndarray:
        """The tensor in its logical shape, whatever its layout."""
        if operand.value is not None:
            return operand.value.copy()
        if operand.name in self.run_time:
            return self.run_time[operand.name]
        if operand.layout.order == "NCHW" and not operand.layout.is_slice:
            array = np.empty(operand.shape, operand.dtype)
            self.device.download(self._address(operand.view()), array)
            return array
        pixels = (operand.shape[0], *operand.shape[2:])
        span = (
            max((math.prod(pixels) - 1) * operand.pixel_stride + operand.shape[1], 0)
            if math.prod(pixels)
            else 0
        )
        flat = np.empty(span, operand.dtype)
        self.device.download(self._address(operand.view()), flat)
        strides = tuple(s * operand.itemsize for s in operand.strides)
        return np.lib.stride_tricks.as_strided(flat, operand.shape, strides).copy()


def check_inputs(
    plan_inputs: Sequence[Operand], given: Mapping[str, np.ndarray], *, file: str
) -> dict[str, np.ndarray]:
    """The arrays as the device takes them: contiguous, of the plan's dtypes.

    Raises    InputError: a name, shape or dtype that doesn't fit
    """
    names = [o.name for o in plan_inputs]
    if set(names) != set(given):
        raise InputError("the inputs have other names", file=file, expected=names, found=list(given))
    result = {}
    for operand in plan_inputs:
        array = np.asarray(given[operand.name])
        if array.shape != operand.shape:
            raise InputError(
                "an input has the wrong shape",
                file=file, tensor=operand.name, expected=operand.shape, found=array.shape,
            )  # fmt: skip
        if not np.can_cast(array.dtype, operand.dtype, casting="same_kind"):
            raise InputError(
                "an input has the wrong type",
                file=file, tensor=operand.name, expected=operand.dtype, found=array.dtype,
            )  # fmt: skip
        result[operand.name] = np.ascontiguousarray(array, dtype=operand.dtype)
    return result
