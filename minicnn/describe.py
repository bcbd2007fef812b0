"""What a record says of a run without measuring it: layers, memory, the model, the machine, versions."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicnn import kernels
from minicnn.device.base import Device
from minicnn.execute import Executable
from minicnn.graph import Graph
from minicnn.plan import Layer
from minicnn.record import BufferFacts, LayerFacts
from minicnn.step import Launch, Operand
from minicnn.version import VERSION


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What was run, and how it was asked for. seed: of random inputs."""

    graph: Graph
    precision: str = "fp32"
    command: str = ""
    seed: int | None = None


def layer_facts(layer: Layer, device: Device) -> LayerFacts:
    """What the record says of a layer, from the plan, and of its launches from the device."""
    files = dict.fromkeys(step.kernel.file for step in layer.steps if isinstance(step, Launch))
    return LayerFacts(
        name=layer.name,
        op=layer.op,
        nodes=layer.nodes,
        variant=layer.variant,
        reason=layer.reason,
        kernel=tuple(str(step) for step in layer.steps),
        resources=tuple(
            device.resources(step) if isinstance(step, Launch) else "" for step in layer.steps
        ),
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
        sources=tuple(f"{file} {kernels.source_hash(file)}" for file in files),
    )


def buffers(executables: Sequence[Executable]) -> list[BufferFacts]:
    """The allocation log: every piece of planned memory with its lifetime, in layers of the record."""
    found: list[BufferFacts] = []
    before = 0
    for executable in executables:
        found += [
            BufferFacts(
                name=buffer.name,
                kind=buffer.kind,
                nbytes=buffer.nbytes,
                offset=buffer.offset,
                first=before + buffer.first,
                last=before + buffer.last,
            )
            for buffer in executable.plan.buffers.values()
        ]
        before += len(executable.plan.layers)
    return found


def memory(executables: Sequence[Executable]) -> dict[str, object]:
    """The sums that the record holds, by their names there."""
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


def own_sources(executables: Sequence[Executable]) -> dict[str, object]:
    """The text of kernels that came from outside the package."""
    files = {
        step.kernel.file
        for executable in executables
        for layer in executable.plan.layers
        for step in layer.steps
        if isinstance(step, Launch) and Path(step.kernel.file).is_absolute()
    }
    return {"kernel_sources": {Path(file).name: Path(file).read_text() for file in sorted(files)}}


def attributes(device: Device, facts: RunFacts, inputs: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Model, machine, versions, seeds: by their names in the record."""
    versions = {"minicnn": VERSION, "python": platform.python_version(), "system": platform.platform()}
    versions |= {package: importlib.metadata.version(package) for package in ("numpy", "onnx", "h5py")}
    info = device.info
    return {
        "model_file": facts.graph.file,
        "model_sha256": facts.graph.sha256,
        "command": facts.command,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "precision": facts.precision,
        "input_types": {name: f"{a.dtype} {'x'.join(map(str, a.shape))}" for name, a in inputs.items()},
        "device": info.name,
        "device_kind": info.kind,
        "device_architecture": info.architecture,
        "device_memory_bytes": info.memory_bytes,
        "threads": info.threads,
        "versions": versions | dict(info.versions),
        "clocks": dict(device.clocks()),
        "seeds": {} if facts.seed is None else {"input": facts.seed},
    }


def _described(operand: Operand) -> str:
    return f"{operand.name} {operand.dtype} {'x'.join(map(str, operand.shape))} {operand.layout.order}"
