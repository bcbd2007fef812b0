"""A plan on a device: memory, prepared actions, runs, and the times at the layers' boundaries.

Layers stand between boundary events: L layers, L + 1 events, created before the run and read after one final
sync, so that nothing waits inside a timed run. *Plain* programs carry only the first and the last of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minicnn.device.base import Action, Device
from minicnn.errors import DeviceError, InputError, MinicnnError
from minicnn.plan import Layer, Plan
from minicnn.step import HostCall, Launch, Operand, View

CANARY = 0x7FC0DEAD  # a NaN that no arithmetic makes: arena words that still hold it were never written


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run in microseconds: per layer (NaN in a plain run), first to last event, caller's clock."""

    layer_us: np.ndarray
    device_us: float
    upload_us: float
    download_us: float
    wall_us: float


class Executable:
    """A plan bound to a device. Not thread-safe; `close` gives the memory back."""

    def __init__(self, plan: Plan, device: Device):
        self.plan = plan
        self.device = device
        device.build(step.kernel for layer in plan.layers for step in layer.steps if isinstance(step, Launch))
        needed = plan.weight_bytes + plan.arena_bytes
        if needed > device.info.memory_bytes:
            raise DeviceError(
                "the network doesn't fit the device's memory",
                file=plan.graph.file,
                expected=f"at most {device.info.memory_bytes} B",
                found=f"{needed} B",
                remedy="a smaller --batch or --shape",
            )
        self._weights = device.alloc(max(plan.weight_bytes, 1))
        self._arena = device.alloc(max(plan.arena_bytes, 1))
        self._run_time: dict[str, np.ndarray] = {}  # outputs whose shape the plan didn't know
        self._load()
        self._events = [device.event() for _ in range(len(plan.layers) + 1)]
        self._plain = self._program(every_layer=False)
        self._profiled = self._program(every_layer=True)

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
        self, inputs: Mapping[str, np.ndarray], *, profiled: bool
    ) -> tuple[dict[str, np.ndarray], Timing]:
        """One run with its times; `profiled` says whether the layers' boundaries are recorded."""
        start = time.perf_counter_ns()
        for operand in self.plan.inputs:
            self.device.upload(self._address(operand.view()), inputs[operand.name])
        uploaded = time.perf_counter_ns()
        for action in self._profiled if profiled else self._plain:
            action()
        self.device.sync()
        ran = time.perf_counter_ns()
        outputs = {name: self._download(operand) for name, operand in self.plan.outputs.items()}
        end = time.perf_counter_ns()
        events = self._events
        layer_us = np.full(len(self.plan.layers), np.nan)
        if profiled:
            layer_us[:] = [self.device.elapsed_us(a, b) for a, b in zip(events, events[1:], strict=False)]
        return outputs, Timing(
            layer_us=layer_us,
            device_us=self.device.elapsed_us(events[0], events[-1]) if len(events) > 1 else 0.0,
            upload_us=(uploaded - start) / 1e3,
            download_us=(end - ran) / 1e3,
            wall_us=(end - start) / 1e3,
        )

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
                    raise DeviceError(
                        "a packing made another shape", tensor=name, expected=operand.shape, found=value.shape
                    )
            self.device.upload(
                self._address(operand.view()), np.ascontiguousarray(value, dtype=operand.dtype)
            )

    def _program(self, *, every_layer: bool) -> list[Action]:
        """The plan's actions with boundaries, captured between host calls."""
        program: list[Action] = []
        pending: list[Action] = [self.device.record(self._events[0])]
        for index, layer in enumerate(self.plan.layers):
            for step in layer.steps:
                if isinstance(step, HostCall):
                    program += self._captured(pending)
                    pending = []
                    program.append(self._host_action(layer, step))
                else:
                    pending.append(self.device.prepare(step, self._address))
            if every_layer or index == len(self.plan.layers) - 1:
                pending.append(self.device.record(self._events[index + 1]))
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
                    self._run_time[name] = value

        return act

    def _store(self, operand: Operand, value: np.ndarray, layer: Layer) -> None:
        if value.shape != operand.shape or str(value.dtype) != operand.dtype:
            raise DeviceError(
                "an operator gave another shape than was inferred for it",
                node=layer.name,
                operator=layer.op,
                tensor=operand.name,
                expected=f"{operand.dtype} {operand.shape}",
                found=f"{value.dtype} {value.shape}",
            )
        self.device.upload(self._address(operand.view()), np.ascontiguousarray(value))

    def _download(self, operand: Operand) -> np.ndarray:
        """The tensor in its logical shape, whatever its layout."""
        if operand.value is not None:
            return operand.value.copy()
        if operand.name in self._run_time:
            return self._run_time[operand.name]
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
                file=file,
                tensor=operand.name,
                expected=operand.shape,
                found=array.shape,
            )
        if not np.can_cast(array.dtype, operand.dtype, casting="same_kind"):
            raise InputError(
                "an input has the wrong type",
                file=file,
                tensor=operand.name,
                expected=operand.dtype,
                found=array.dtype,
            )
        result[operand.name] = np.ascontiguousarray(array, dtype=operand.dtype)
    return result
