"""A record as one page: pictures, a table and a panel a layer. It asks nothing of any network.

The page is `page/page.html` with its style and script, BokehJS as its wheel ships it, and the record as JSON.
What comes from the record reaches the page as text alone; a policy by hashes refuses all other scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import stats
from minicnn.errors import OutputError
from minicnn.record import LayerFacts, RunRecord
from minicnn.report import table
from minicnn.report.digest import Digest, LayerDigest, digest, median_repetition, peak_layer, writers
from minicnn.report.explain import explain

PAGE = Path(__file__).parent / "page"
BOKEH = ("bokeh.min.js", "bokeh-api.min.js")
MOST_BINS = 40  # of the histogram; of few repetitions there are fewer
SAMPLES = 2000  # repetitions drawn, at most


def html_text(record: RunRecord) -> str:
    """Raises    OutputError: bokeh isn't installed"""
    return assemble("page", Path(record.model_file).name or "a run", page_data(record))


def assemble(name: str, title: str, data: dict[str, Any]) -> str:
    """The page of one file: `page/{name}.html` with its script, style, BokehJS and what it draws.

    Raises    OutputError: bokeh isn't installed
    """
    library = bokeh_scripts()
    script = "\n".join((PAGE / f"{part}.js").read_text(encoding="utf-8") for part in ("shared", name))
    scripts = [*library, script]
    pieces = {
        "policy": " ".join(f"'sha256-{_sha256(text)}'" for text in scripts),
        "title": html.escape(f"minicnn: {table.printable(title)}"),
        "style": (PAGE / "page.css").read_text(encoding="utf-8"),
        "record": _inert(json.dumps(data, ensure_ascii=True, allow_nan=False)),
        "library": "".join(f"<script>{text}</script>\n" for text in library),
        "script": script,
    }
    template = (PAGE / f"{name}.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: pieces[match[1]], template)


def bokeh_scripts() -> list[str]:
    """BokehJS out of the installed wheel; bokeh itself isn't imported.

    Raises    OutputError: it isn't there
    """
    found = importlib.util.find_spec("bokeh")
    folders = [] if found is None else found.submodule_search_locations or []
    for folder in folders:
        files = [Path(folder) / "server" / "static" / "js" / name for name in BOKEH]
        if all(file.is_file() for file in files):
            return [file.read_text(encoding="utf-8").replace("</script", r"<\/script") for file in files]
    raise OutputError("the page needs bokeh's drawing library", remedy="pip install 'minicnn-cuda[html]'")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert(text: str) -> str:
    """JSON in which no browser finds an end of script or a comment; JSON.parse reads the same."""
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def page_data(record: RunRecord) -> dict[str, Any]:
    """What the page's script draws. Texts are ready to be shown; None: not measured."""
    found = digest(record)
    return {
        "model": table.printable(Path(record.model_file).name) or "a model",
        "device": table.printable(record.device) or "an unknown device",
        "about": about(record),
        "tiles": _tiles(record, found),
        "words": [
            {"title": part.title, "sentences": [table.printable(said) for said in part.sentences]}
            for part in explain(record, found)
        ],
        "layers": _layers(record, found),
        "peak": peak_layer(record),
        "timeline": _timeline(record),
        "buffers": [
            {"name": table.printable(b.name), "kind": b.kind, "bytes": b.nbytes, "size": table.size(b.nbytes),
             "offset": b.offset, "first": b.first, "last": b.last}
            for b in record.buffers if b.kind != "weight"
        ],
        "roofs": _roofs(record),
        "runs": _runs(record),
    }  # fmt: skip


def _layers(record: RunRecord, found: Digest) -> list[dict[str, Any]]:
    """Each layer, with the layers it reads from: the drawn network's lines."""
    sources = writers(record)
    readers: list[list[int]] = [[] for _ in sources]
    for index, wrote in enumerate(sources):
        for source in {w for w in wrote if w is not None}:
            readers[source].append(index)
    names = [f"layer {i + 1}, {layer.name or '(no name)'}" for i, layer in enumerate(record.layers)]
    drawn = []
    for layer, wrote, read in zip(found.layers, sources, readers, strict=True):
        origins = ["the network's input" if w is None else names[w] for w in wrote]
        reads = [f"{x} (from {o})" for x, o in zip(layer.facts.inputs, origins, strict=True)]
        writes = [*layer.facts.outputs, *(f"read by {names[r]}" for r in read)]
        before = sorted({w for w in wrote if w is not None})
        drawn.append({**_layer(layer, reads, writes), "from": before})
    return drawn


def _layer(layer: LayerDigest, reads: list[str], writes: list[str]) -> dict[str, Any]:
    facts, interval = layer.facts, layer.time.interval
    return {
        "name": table.printable(facts.name) or "(no name)",
        "op": table.printable(facts.op),
        "variant": table.printable(table.variant(facts)),
        "us": number(layer.time.median),
        "low": number(interval.low),
        "high": number(interval.high),
        "time": table.time(layer.time.median),
        "share": number(layer.share, 5),
        "flops": facts.flops,
        "intensity": number(facts.flops / facts.bytes_min, 4) if facts.bytes_min else None,
        "gflops": number(layer.rate.gflop_per_s) if facts.flops else None,
        "roof": number(layer.rate.share, 4),
        "bound": layer.rate.bound,
        "error": number(facts.check_of_bound, 4) if facts.is_checked else None,
        "energy": number(_energy_uj(facts)),
        "live": facts.live_bytes,
        "size": table.size(facts.live_bytes),
        "workspace": facts.workspace_bytes,
        "fallback": facts.is_fallback,
        "unresolved": layer.is_unresolved,
        "facts": _facts(layer, reads, writes),
    }


def _energy_uj(facts: LayerFacts) -> float:
    return facts.energy_by_power_uj if math.isnan(facts.energy_uj) else facts.energy_uj


def _facts(layer: LayerDigest, reads: list[str], writes: list[str]) -> list[list[str]]:
    """All that is known of a layer, as (label, text); at the end what is not."""
    facts, rate = layer.facts, layer.rate
    rows = {
        "operator": facts.op,
        "variant": table.variant(facts),
        "why this variant": facts.reason,
        "ONNX nodes": "\n".join(facts.nodes) or "none: put in by the plan",
        "device time": f"{layer.time} us" if layer.time.count else "",
        "middle 90 %": _us(layer.time.percentile_5, " to ", layer.time.percentile_95),
        "extremes": _us(layer.time.minimum, " to ", layer.time.maximum),
        "share of the layers' time": "" if math.isnan(layer.share) else f"{layer.share:.2%}",
        "resolved": f"no: {table.unresolved(layer.is_at_floor)}" if layer.is_unresolved else "",
        "idle before it": _us(layer.gap_us),
        "host time to hand it over": _us(layer.enqueue_us),
        "by itself, caches warm": _us(layer.alone_warm_us),
        "by itself, caches emptied": _us(layer.alone_cold_us),
        "MACs, FLOPs": f"{facts.macs:,}, {facts.flops:,}",
        "bytes, compulsory": f"{facts.bytes_min:,}",
        "bytes, moved by the variant": f"{facts.bytes_moved:,}",
        "rate": _rate(layer),
        "of the nearer roof": "" if math.isnan(rate.share) else f"{rate.share:.1%}, the roof of {rate.bound}",
        "alive while it runs": f"{table.size(facts.live_bytes)} ({facts.live_bytes:,} B)",
        "workspace": f"{facts.workspace_bytes:,} B",
        "reads": "\n".join(reads),
        "writes": "\n".join(writes),
        "steps": "\n".join(facts.kernel) or "none: its output is there already",
        "of a GPU each takes": "\n".join(text for text in facts.resources if text),
        "energy, by the counter": _energy(facts.energy_uj),
        "energy, by power": _energy(facts.energy_by_power_uj),
        "error against float64": _error(facts),
        "fallback": "ran through onnx's evaluator on the CPU" if facts.is_fallback else "no",
        "sources": "\n".join(facts.sources),
        "fingerprint": facts.fingerprint,
    }
    known = [[label, _lines(text)] for label, text in rows.items() if text]
    missing = [label for label in rows if not rows[label] and label != "resolved"]
    return [*known, ["not in the record", ", ".join(missing)]] if missing else known


def _lines(text: str) -> str:
    return "\n".join(table.printable(line) for line in text.split("\n"))


def _energy(microjoules: float) -> str:
    return "" if math.isnan(microjoules) else f"{microjoules:,.1f} uJ"


def _rate(layer: LayerDigest) -> str:
    rate = layer.rate
    if math.isnan(rate.gflop_per_s):
        return ""
    return f"{rate.gflop_per_s:,.2f} GFLOP/s, {rate.gb_per_s:,.2f} GB/s"


def _error(facts: LayerFacts) -> str:
    if not facts.is_checked:
        return ""
    at = f", at {facts.check_index}" if facts.check_index else ""
    return f"{facts.check_max_abs:.3g}, {facts.check_of_bound:.2f} of what it may be{at}"


def _us(first: float, between: str = "", second: float | None = None) -> str:
    if math.isnan(first):
        return ""
    return f"{first:,.2f} us" if second is None else f"{first:,.2f}{between}{second:,.2f} us"


def about(record: RunRecord) -> list[list[str]]:
    """(label, text): what was run, where, with what."""
    threads = f"{record.threads} threads" if record.device_kind == "host" else ""
    machine = ", ".join(word for word in (record.device, record.device_architecture, threads) if word)
    rows = {
        "model": record.model_file,
        "SHA-256": record.model_sha256,
        "inputs": ", ".join(f"{name}: {kind}" for name, kind in record.input_types.items()),
        "device": machine,
        "precision": record.precision,
        "started": record.started,
        "command": record.command,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "clocks": ", ".join(f"{name} {value:g}" for name, value in record.clocks.items()),
        "seeds": ", ".join(f"{name} {value}" for name, value in record.seeds.items()),
        "energy": record.energy_source,
        "record": record.path,
    }
    return [[label, table.printable(text)] for label, text in rows.items() if text]


def _tiles(record: RunRecord, found: Digest) -> list[list[str]]:
    """(label, figure, what to know of it): the run at a glance."""
    total = found.total
    bounds = total.interval
    sure = f"{table.time(bounds.low)} to {table.time(bounds.high)}, 95 %" if bounds.is_bounded else ""
    tiles = [
        ["one run", _median(total), sure],
        ["from upload to download", _median(found.wall), ""],
        ["layers", str(len(record.layers)), f"{table.count(sum(f.macs for f in record.layers))} MACs"],
    ]
    if found.slowest:
        slowest = found.slowest[0]
        name = table.shorten(table.printable(slowest.facts.name), 40)
        about = f"{name} ({table.printable(slowest.facts.op)}), {table.time(slowest.time.median)} us"
        tiles.append(["slowest layer", f"{slowest.share:.1%}", about])
    peak = peak_layer(record)
    if peak is not None:
        layer = record.layers[peak]
        where = table.shorten(table.printable(layer.name), 40)
        at = f"at {where} ({table.printable(layer.op)}), layer {peak + 1}"
        tiles.append(["memory peak", table.size(layer.live_bytes), at])
    tiles.append(["weights", table.size(record.weights_bytes), "beside that"])
    return tiles


def _median(summary: stats.Summary) -> str:
    return f"{table.time(summary.median)} us" if summary.count else "not measured"


def _timeline(record: RunRecord) -> dict[str, Any] | None:
    """Where each layer begins and ends in a median repetition."""
    repetition = median_repetition(record)
    if repetition is None:
        return None
    ends = np.cumsum(np.maximum(record.time_us[repetition], 0.0))
    return {"repetition": repetition, "ends": [number(end) for end in ends]}


def _roofs(record: RunRecord) -> dict[str, float] | None:
    if math.isnan(record.copy_gb_per_s) or math.isnan(record.fma_gflop_per_s):
        return None
    return {"gbs": record.copy_gb_per_s, "gflops": record.fma_gflop_per_s}


def _runs(record: RunRecord) -> dict[str, Any] | None:
    """Each repetition's total, plain where there is a plain run, and how they are spread."""
    layers = record.time_us.sum(axis=1)
    total = record.plain_us if stats.measured(record.plain_us).size else layers
    shown = np.flatnonzero(~np.isnan(total))[-SAMPLES:]
    if not shown.size:
        return None
    us, warmup = total[shown], record.is_warmup[shown]
    edges = np.histogram_bin_edges(us, bins=min(MOST_BINS, 2 * math.ceil(math.sqrt(us.size))))
    return {
        "repetition": shown.tolist(),
        "us": [number(value) for value in us],
        "warmup": warmup.tolist(),
        "outlier": record.is_outlier[shown].tolist(),
        "edges": [number(edge) for edge in edges],
        "steady_count": np.histogram(us[~warmup], edges)[0].tolist(),
        "warmup_count": np.histogram(us[warmup], edges)[0].tolist(),
    }


def number(value: float, digits: int = 3) -> float | None:
    """Rounded, since a page is for the eye; None where JSON has no such number."""
    return round(float(value), digits) if math.isfinite(value) else None
