"""Repetitions of a run, timed and recorded: plain and profiled in turn, the warm-up kept and flagged."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from minicnn.device.base import Device, DeviceInfo
from minicnn.execute import Executable, Timing
from minicnn.graph import Graph
from minicnn.plan import Layer
from minicnn.progress import progress_bar
from minicnn.record import LayerFacts, RunRecord
from minicnn.step import Operand
from minicnn.store import Recorder
from minicnn.version import VERSION

WARMUP = 2  # repetitions before the steady state


class Runnable(Protocol):
    """What can be profiled: the segments of one plan on one device."""

    @property
    def segments(self) -> Iterable[Executable]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...

    def timed_run(
        self, inputs: Mapping[str, np.ndarray], *, profiled: bool
    ) -> tuple[dict[str, np.ndarray], Timing]: ...


def profile(
    chain: Runnable,
    inputs: Mapping[str, np.ndarray],
    *,
    device: Device,
    graph: Graph,
    precision: str,
    repeat: int,
    path: Path | None,
    command: str,
    seed: int | None,
    progress: bool,
) -> RunRecord:
    """WARMUP + `repeat` repetitions, each a plain and a profiled run.

    Not here  gaps, closure, overhead: their places in the record stay NaN
    """
    before = process_bytes()
    chain.timed_run(inputs, profiled=True)  # plans the segments whose shapes only a run tells
    executables = list(chain.segments)
    touched = sum(e.touched_bytes(inputs) for e in executables) if len(executables) == 1 else float("nan")
    attributes = _attributes(device.info, graph, inputs, precision=precision, command=command, seed=seed)
    attributes |= _memory(executables) | {"touched_peak_bytes": float(touched)}
    facts = [layer_facts(layer) for layer in chain.layers]
    repetitions = WARMUP + repeat
    with (
        Recorder(path, facts, repetitions, attributes) as recorder,
        progress_bar("profiling", repetitions, shown=progress) as advance,
    ):
        for rep in range(repetitions):
            _, plain = chain.timed_run(inputs, profiled=False)
            _, profiled = chain.timed_run(inputs, profiled=True)
            recorder.add(
                rep,
                time_us=profiled.layer_us,
                plain_us=plain.device_us,
                wall_us=plain.wall_us,
                upload_us=plain.upload_us,
                download_us=plain.download_us,
                is_warmup=rep < WARMUP,
            )
            advance()
        if device.info.kind == "host":
            grown = (
                process_bytes() - before + sum(e.plan.weight_bytes + e.plan.arena_bytes for e in executables)
            )
            recorder.set(allocated_peak_bytes=float(grown))
    return recorder.record


def layer_facts(layer: Layer) -> LayerFacts:
    """What the record says of a layer, from the plan alone."""
    return LayerFacts(
        name=layer.name,
        op=layer.op,
        nodes=layer.nodes,
        variant=layer.variant,
        reason=layer.reason,
        kernel=tuple(str(step) for step in layer.steps),
        macs=layer.cost.macs,
        flops=layer.cost.flops,
        bytes_min=layer.bytes_min,
        bytes_moved=layer.bytes_moved,
        live_bytes=layer.live_bytes,
        workspace_bytes=layer.workspace_bytes,
        fingerprint=hashlib.sha256(repr(layer.steps).encode()).hexdigest()[:16],
        inputs=tuple(_described(o) for o in layer.inputs),
        outputs=tuple(_described(o) for o in layer.outputs),
        is_fallback=layer.is_fallback,
    )


def process_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _described(operand: Operand) -> str:
    return f"{operand.name} {operand.dtype} {'x'.join(map(str, operand.shape))} {operand.layout.order}"


def _memory(executables: list[Executable]) -> dict[str, int]:
    plans = [e.plan for e in executables]
    return {
        "live_peak_bytes": max(p.live_peak_bytes for p in plans),
        "planned_peak_bytes": max(p.arena_bytes for p in plans),
        "weights_bytes": sum(p.weight_bytes for p in plans),
        "inputs_bytes": plans[0].bytes_of("input"),
        "outputs_bytes": plans[-1].bytes_of("output"),
        "activations_bytes": sum(p.bytes_of("activation") for p in plans),
        "workspaces_bytes": sum(p.bytes_of("workspace") for p in plans),
    }


def _attributes(
    info: DeviceInfo,
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    precision: str,
    command: str,
    seed: int | None,
) -> dict[str, object]:
    versions = {"minicnn": VERSION, "python": platform.python_version(), "system": platform.platform()}
    versions |= {package: importlib.metadata.version(package) for package in ("numpy", "onnx", "h5py")}
    return {
        "model_file": graph.file,
        "model_sha256": graph.sha256,
        "command": command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "precision": precision,
        "input_types": {name: f"{a.dtype} {'x'.join(map(str, a.shape))}" for name, a in inputs.items()},
        "device": info.name,
        "device_kind": info.kind,
        "device_architecture": info.architecture,
        "device_memory_bytes": info.memory_bytes,
        "threads": info.threads,
        "versions": versions | dict(info.versions),
        "seeds": {} if seed is None else {"input": seed},
    }
