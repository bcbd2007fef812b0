"""A record for other programs: CSV, a line a layer, and JSON, all of it. Files are whole or not there."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.cache import write_atomically
from minicnn.errors import OutputError
from minicnn.record import RunRecord
from minicnn.report.digest import Digest, LayerDigest, digest
from minicnn.schema import ATTRIBUTES, FACTS, FORMAT, SAMPLES, SCHEMA_VERSION
from minicnn.stats import Summary

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a name that begins so
BUFFER = ("name", "kind", "nbytes", "offset", "first", "last")


def write(path: str | os.PathLike[str], content: str, *records: RunRecord) -> Path:
    """Puts a report where it was asked for, in one step and as readable as any other new file.

    Raises    OutputError: no such folder, no right to write, or no plain file or a record stands there
    """
    place = Path(os.path.realpath(path))
    try:
        _refuse_to_replace(place, records)
    except OSError as error:  # a name that is too long, a folder that can't be entered
        raise OutputError("the report can't be written", file=path, found=error.strerror or error) from None
    write_atomically(place, lambda temporary: _fill(temporary, content))
    return place


def _refuse_to_replace(place: Path, records: tuple[RunRecord, ...]) -> None:
    if not place.parent.is_dir():
        folder = f"the folder {place.parent}"
        raise OutputError("the report's folder isn't there", file=place, expected=folder)
    if place.exists() and not place.is_file():
        raise OutputError("the report's place isn't a plain file", file=place, remedy="another name")
    paths = [record.path for record in records if record.path and Path(record.path).exists()]
    if place.exists() and any(place.samefile(path) for path in paths):
        raise OutputError("the report would replace the record itself", file=place, remedy="another name")


def _fill(temporary: Path, content: str) -> None:
    temporary.write_text(content, encoding="utf-8", errors="backslashreplace", newline="")
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)


def csv_text(record: RunRecord) -> str:
    """A line a layer, in the order of execution, under a line of titles (RFC 4180).

    Empty cells weren't measured. Lists are joined by "; ". A text that a spreadsheet would take for a formula
    has an apostrophe before it; `json_text` leaves every text as it is.
    """
    found = digest(record)
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    rows = [_flat(layer) for layer in found.layers]
    titles = list(rows[0]) if rows else ["index", "layer"]
    writer.writerow(titles)
    writer.writerows([_cell(row[title]) for title in titles] for row in rows)
    return buffer.getvalue()


def _flat(layer: LayerDigest) -> dict[str, Any]:
    row: dict[str, Any] = {"index": layer.index, "layer": layer.facts.name}
    row |= {f"time_us_{name}": value for name, value in _summary(layer.time).items()}
    row |= _derived(layer)
    return row | {name: getattr(layer.facts, name) for name in FACTS}


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return "" if math.isnan(value) else value
    if isinstance(value, tuple):
        value = "; ".join(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else value


def json_text(record: RunRecord) -> str:
    """All that a record holds, by the names of its schema, and each layer's summary; null: not measured."""
    return json.dumps(_plain(contents(record, digest(record))), ensure_ascii=True, allow_nan=False)


def contents(record: RunRecord, found: Digest) -> dict[str, Any]:
    """`format`, `attributes`, `layers`, `buffers`, `samples`, `notes`; a NaN is still one."""
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "attributes": {name: getattr(record, name) for name in ATTRIBUTES},
        "total_us": _summary(found.total),
        "wall_us": _summary(found.wall),
        "layers": [
            {"layer": layer.facts.name}
            | {"time_us": _summary(layer.time)}
            | _derived(layer)
            | {name: getattr(layer.facts, name) for name in FACTS}
            for layer in found.layers
        ],
        "buffers": [{name: getattr(b, name) for name in BUFFER} for b in record.buffers],
        "samples": {name: getattr(record, name) for name in SAMPLES},
        "notes": record.notes,
    }


def _derived(layer: LayerDigest) -> dict[str, Any]:
    return {
        "share": layer.share,
        "is_unresolved": layer.is_unresolved,
        "gflop_per_s": layer.rate.gflop_per_s,
        "gb_per_s": layer.rate.gb_per_s,
        "share_of_roof": layer.rate.share,
        "bound": layer.rate.bound,
        "gap_us": layer.gap_us,
        "enqueue_us": layer.enqueue_us,
        "alone_warm_us": layer.alone_warm_us,
        "alone_cold_us": layer.alone_cold_us,
    }


def _summary(summary: Summary) -> dict[str, float]:
    """`low`, `high`: the 95 % interval of the median, NaN where too few samples give one."""
    interval = summary.interval
    low, high = (interval.low, interval.high) if interval.is_bounded else (math.nan, math.nan)
    return {
        "median": summary.median,
        "low": low,
        "high": high,
        "percentile_5": summary.percentile_5,
        "percentile_95": summary.percentile_95,
        "minimum": summary.minimum,
        "maximum": summary.maximum,
        "count": summary.count,
    }


def _plain(value: Any) -> Any:
    """What JSON knows: no arrays, no tuples, null for what isn't a finite number."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
