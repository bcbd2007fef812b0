"""A repetition as a trace for Perfetto or Chrome: a slice a layer, and counters of the memory alive.

Source    Trace Event Format (JSON object format): slices "X", counters "C", metadata "M"; times in us
"""

from __future__ import annotations

import json
from typing import Any

from minicnn.errors import InputError
from minicnn.record import LayerFacts, RunRecord
from minicnn.report.digest import median_repetition

PROCESS, DEVICE = 1, 1
ARGUMENTS = ("op", "variant", "reason", "nodes", "kernel", "macs", "flops", "bytes_min", "bytes_moved",
             "live_bytes", "workspace_bytes", "inputs", "outputs", "fingerprint")  # fmt: skip


def trace_text(record: RunRecord) -> str:
    """The repetition whose layers together are nearest the median. Layers follow each other: boundaries are
    shared, so time between two layers belongs to the later one.

    Raises    InputError: the record has no layer times
    """
    repetition = median_repetition(record)
    if repetition is None:
        raise InputError("the record has no layer times to draw", file=record.path or None)
    trace = {
        "traceEvents": _events(record, repetition),
        "displayTimeUnit": "ns",
        "otherData": {
            "model": record.model_file,
            "device": record.device,
            "started": record.started,
            "repetition": str(repetition),
            "which": "the profiled run whose layers together are nearest the median",
        },
    }
    return json.dumps(trace, ensure_ascii=False, allow_nan=False)


def _events(record: RunRecord, repetition: int) -> list[dict[str, Any]]:
    events = [
        _named("process_name", f"minicnn {record.model_file}".strip()),
        _named("thread_name", record.device or "device"),
    ]
    now = 0.0
    for layer, duration in zip(record.layers, record.time_us[repetition].tolist(), strict=True):
        events.append(
            {
                "ph": "X",
                "name": layer.name or "(no name)",
                "cat": layer.op,
                "pid": PROCESS,
                "tid": DEVICE,
                "ts": now,
                "dur": max(duration, 0.0),
                "args": _arguments(layer),
            }
        )
        for counter in ("live_bytes", "workspace_bytes"):
            value = {counter: getattr(layer, counter)}
            events.append({"ph": "C", "name": counter, "pid": PROCESS, "ts": now, "args": value})
        now += max(duration, 0.0)
    return events


def _named(what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": DEVICE, "args": {"name": name}}


def _arguments(layer: LayerFacts) -> dict[str, Any]:
    values = {name: getattr(layer, name) for name in ARGUMENTS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
