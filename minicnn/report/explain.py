"""A record in plain sentences: what is slow and why, who holds the memory, what would help, how sure.

Every sentence follows from what the record holds; what it doesn't hold is said to be not measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from rich.text import Text

from minicnn import facts, stats
from minicnn.activations import ACTIVATIONS
from minicnn.compare import FASTER, compare
from minicnn.record import BufferFacts, RunRecord
from minicnn.report.digest import Digest, LayerDigest, alive, digest, peak_layer, tensor_name
from minicnn.report.lists import console_of
from minicnn.report.table import count, printable, shorten, size, time
from minicnn.report.table import unresolved as unresolved_because

SLOWEST = 3  # layers that are spoken of one by one
NEAR = 0.5  # of a roof: so near that the roof is what holds the layer
NAMED = 4  # layers of one kind named before "and n more"
ALIVE = 8  # buffers, so
NAME_WIDTH = 60
INTENSE, SPARSE = 20.0, 4.0  # operations a byte; without roofs the words for it
VARIED = 0.1  # sum of medians against median of sums
WORTH = 0.01  # of the layers' time: below that a layer isn't mentioned as a place to gain
MUCH = 2.0  # bytes moved over compulsory ones: worth a sentence
FUSING = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators that can take an activation after them
AFTER_CONV = ("Add", "BatchNormalization")  # may be taken along by Conv alone
BY_RULE = re.compile(r"last of \d+ rungs that apply")  # choose.py: nobody timed the others
MOSTLY = 0.5
PLAIN_RUNG = "direct"  # the definition's own loops, under every operator that has faster ways


@dataclass(frozen=True, kw_only=True)
class Part:
    """Sentences on one question."""

    title: str
    sentences: tuple[str, ...]


def explain(
    record: RunRecord, found: Digest | None = None, *, beside: RunRecord | None = None
) -> tuple[Part, ...]:
    """beside    the same model run another way: what was faster there would help here

    Raises    InputError: beside has no layer in common with the record
    """
    found = found or digest(record)
    parts = {
        "time": _time(record, found),
        "bound": [_bound(record, layer) for layer in found.slowest[:SLOWEST]] or ["Not measured."],
        "memory": _memory(record),
        "errors": _errors(record),
        "what would help": [*_known(record, beside), *_help(record, found)]
        or ["Nothing that this record shows."],
        "how sure": _sure(record, found),
        "not measured": _missing(record),
    }
    return tuple(Part(title=title, sentences=tuple(said)) for title, said in parts.items() if said)


def print_explanation(
    record: RunRecord, *, beside: RunRecord | None = None, file: TextIO | None = None
) -> None:
    console = console_of(file)
    for number, part in enumerate(explain(record, beside=beside)):
        if number:
            console.print()
        console.print(Text(part.title, style="bold"))
        for sentence in part.sentences:
            console.print(Text(printable(sentence)))


def _time(record: RunRecord, found: Digest) -> list[str]:
    slowest = found.slowest
    if not slowest:
        return ["No layer was timed."]
    said = []
    if found.total.count:
        said.append(f"The {len(record.layers)} layers take {_about(found.total)} in one run.")
    if abs(found.sum_us / found.total.median - 1) > VARIED:
        said.append(
            f"The layers' medians add up to {time(found.sum_us)} us: how long a layer takes varies much from "
            "one repetition to the next."
        )
    half, running = 0, 0.0
    while running < found.sum_us / 2:
        running += slowest[half].time.median
        half += 1
    said.append(f"Half of the layers' time is spent in {half} of {len(slowest)} that were timed.")
    for rank, layer in enumerate(slowest[:SLOWEST]):
        place = ("Slowest", "Then", "Then")[rank]
        unresolved = f"; {unresolved_because(layer.is_at_floor)}" if layer.is_unresolved else ""
        taken = f"{layer.share:.1%} of the layers' time, {_about(layer.time)}{unresolved}"
        said.append(f"{place}: {_named(layer)}, {taken}.")
    if len(slowest) > 1 and _overlap(slowest[0].time, slowest[1].time):
        said.append("Which of the first two is slower isn't sure: their intervals overlap.")
    by_op: dict[str, float] = {}
    for layer in slowest:
        by_op[layer.facts.op] = by_op.get(layer.facts.op, 0.0) + layer.share
    ops = sorted(by_op, key=lambda op: -by_op[op])[:SLOWEST]
    said.append("By operator: " + ", ".join(f"{op} {by_op[op]:.1%}" for op in ops) + ".")
    return said


def _bound(record: RunRecord, layer: LayerDigest) -> str:
    """What holds one layer back, from the roofs; without them from what it computes for each byte."""
    name, rate, intensity = _name(layer), layer.rate, _intensity(layer)
    if layer.facts.is_fallback:
        return f"{name} ran through onnx's evaluator on the CPU: neither roof is what holds it."
    if not layer.facts.bytes_min:
        return f"{name} has no compulsory traffic: the record doesn't tell what bounds it."
    if not rate.bound:
        work = f"{name} computes {_operations(intensity)} for each byte that has to move, {_word(intensity)}"
        return f"{work}; the roofs weren't measured, so which of the two bounds it isn't known."
    rates = f"{rate.gflop_per_s:,.1f} GFLOP/s and {rate.gb_per_s:,.1f} GB/s"
    reached = f"{rates}, {rate.share:.0%} of the nearer roof"
    if rate.share > 1 and rate.bound == "memory":
        return f"{name} reaches {reached}: beyond what memory gives, so its data came out of caches."
    if rate.share > 1:
        why = "its variant takes fewer operations than the definition, or the roof was measured too low"
        return f"{name} reaches {reached}: beyond what arithmetic gives, so {why}."
    if rate.share >= NEAR:
        return f"{name} is bound by {rate.bound}: it reaches {reached} ({_operations(intensity)} a byte)."
    return (
        f"{name} is nearer to the roof of {rate.bound}, but far from it: it reaches {reached} "
        f"({_operations(intensity)} a byte). Its kernel holds it, or what disturbed the run; not that roof."
    )


def _memory(record: RunRecord) -> list[str]:
    peak = peak_layer(record)
    if peak is None:
        return ["The record doesn't say what is alive."]
    layer = record.layers[peak]
    said = [
        f"The peak, {size(layer.live_bytes)}, is at {_quoted(layer.name)} ({layer.op}), "
        f"layer {peak + 1} of {len(record.layers)}."
    ]
    living = alive(record, peak)
    if living:
        said.append(f"Alive there: {_list([_buffer(record, b) for b in living], most=ALIVE)}.")
    if layer.workspace_bytes:
        share = layer.workspace_bytes / layer.live_bytes
        said.append(f"{share:.0%} of it is the workspace of its variant {layer.variant}.")
    if record.planned_peak_bytes:
        over = record.planned_peak_bytes - record.live_peak_bytes
        tight = f"{size(over)} more than that" if over > 0 else "no more than that"
        weights = size(record.weights_bytes)
        planned = size(record.planned_peak_bytes)
        said.append(f"The plan takes {planned}, {tight}; weights, beside it, {weights}.")
    return said


def _errors(record: RunRecord) -> list[str]:
    checked = [f for f in record.layers if f.is_checked]
    if not checked:
        return []
    wrong = [f for f in checked if not f.check_of_bound <= 1]
    said = [f"{len(checked)} of {len(record.layers)} layers were held against their definition in float64."]
    if wrong:
        names = _list([f"{_quoted(f.name)} ({f.check_of_bound:.2g} times its bound)" for f in wrong])
        return [*said, f"{len(wrong)} of them are beyond what rounding explains: {names}."]
    worst = max(checked, key=lambda f: f.check_of_bound)
    nearest = f"nearest to it is {_quoted(worst.name)}, {worst.check_of_bound:.2f} of it"
    return [*said, f"All are within their bound; {nearest}."]


def _known(record: RunRecord, beside: RunRecord | None) -> list[str]:
    """Layers that another record shows to be faster by another variant."""
    if beside is None:
        return []
    variants = {layer.name: layer.variant for layer in beside.layers}
    faster = []
    for row in compare(record, beside).rows:
        names = _list([variants[name] for name in row.after if variants[name]])
        if row.verdict == FASTER and not row.is_identical:
            faster.append((row.ratio, f"{_quoted(row.name)} by {names} takes {row.ratio:.2g} of its time"))
    where = _quoted(Path(beside.path).name) if beside.path else "the other record"
    if not faster:
        return [f"No layer is known to be faster as it was run in {where}."]
    told = _list([sentence for _, sentence in sorted(faster)])
    return [f"A variant known to be faster: {told}, in {where}."]


def _help(record: RunRecord, found: Digest) -> list[str]:
    said = []
    fallbacks = [layer for layer in found.layers if layer.facts.is_fallback]
    if fallbacks:
        said.append(f"A kernel for {_ops(fallbacks)}: {_ran(fallbacks, 'through the evaluator on the CPU')}.")
    plain = [layer for layer in found.layers if layer.facts.variant == PLAIN_RUNG and layer.share >= WORTH]
    if plain:
        reasons = _list(sorted({layer.facts.reason for layer in plain if layer.facts.reason}), "; ")
        why = f" (why: {reasons})" if reasons else ""
        said.append(f"A faster variant: {_ran(plain, 'by the plain rung')}{why}; `tune` times the others.")
    unfused = _unfused(found)
    if unfused:
        ran = _ran(unfused, "as operators of their own right after a layer that may take them along")
        said.append(f"Fusion: {ran}.")
    by_rule = [
        layer for layer in found.layers if layer.share >= WORTH and BY_RULE.match(layer.facts.reason)
    ]
    if by_rule:
        ran = _ran(by_rule, "by the variant that a rule prefers to others that apply")
        said.append(f"Timing the others: {ran}. Which is the fastest here `tune` finds out.")
    weighty = [
        layer
        for layer in found.layers
        if layer.share >= WORTH and _waits_for_memory(layer) and _weights_share(layer) > MOSTLY
    ]
    if weighty:
        ran = _ran(weighty, "waiting for memory, for weights more than for anything else")
        said.append(f"A larger batch: {ran}. A batch reads them once for all its members.")
    converted = [layer for layer in found.layers if layer.facts.op == "Convert"]
    if converted:
        said.append(f"One layout throughout: {_ran(converted, 'only to convert layouts')}.")
    rereading = [layer for layer in found.slowest if layer.share >= WORTH and _rereads(layer) >= MUCH]
    if rereading:
        most = max(rereading, key=_rereads)
        ran = _ran(rereading, "moving at least twice the compulsory bytes")
        said.append(f"Less traffic: {ran}; most {_name(most)}, {_rereads(most):.1f} times.")
    below = [layer for layer in found.slowest if layer.rate.share < 1 and not layer.facts.is_fallback]
    if below:
        layer = max(below, key=_above_roof_us)
        saved = _above_roof_us(layer)
        said.append(
            f"At its roof {_name(layer)} would take {time(layer.time.median - saved)} us: "
            f"{saved / found.sum_us:.1%} of the layers' time, the most that any one layer could give."
        )
    return said


def _waits_for_memory(layer: LayerDigest) -> bool:
    return layer.rate.bound == "memory" or (not layer.rate.bound and _intensity(layer) <= SPARSE)


def _weights_share(layer: LayerDigest) -> float:
    """Of the compulsory bytes what isn't the layer's own inputs and outputs: its constants."""
    sizes = [_nbytes(tensor) for tensor in (*layer.facts.inputs, *layer.facts.outputs)]
    if not layer.facts.bytes_min or layer.facts.op not in FUSING or None in sizes:
        return 0.0
    return 1 - sum(n for n in sizes if n is not None) / layer.facts.bytes_min


def _nbytes(described: str) -> int | None:
    """Of "name dtype shape order"; None where that isn't what it says."""
    parts = described.rsplit(" ", 3)
    try:
        return np.dtype(parts[1]).itemsize * math.prod(int(n) for n in parts[2].split("x") if n != "scalar")
    except (IndexError, TypeError, ValueError):
        return None


def _rereads(layer: LayerDigest) -> float:
    return layer.facts.bytes_moved / layer.facts.bytes_min if layer.facts.bytes_min else math.nan


def _above_roof_us(layer: LayerDigest) -> float:
    return (1 - layer.rate.share) * layer.time.median


def _unfused(found: Digest) -> list[LayerDigest]:
    """What reads a tensor that a layer wrote for it alone, and could have been fused into that layer."""
    writer = {tensor_name(o): layer.facts.op for layer in found.layers for o in layer.facts.outputs}
    readers = Counter(tensor_name(i) for layer in found.layers for i in layer.facts.inputs)
    unfused = []
    for layer in found.layers:
        op = layer.facts.op
        takers = FUSING if op in ACTIVATIONS else ("Conv",) if op in AFTER_CONV else ()
        tensors = [tensor_name(x) for x in layer.facts.inputs]
        if any(writer.get(x) in takers and readers[x] == 1 for x in tensors):
            unfused.append(layer)
    return unfused


def _sure(record: RunRecord, found: Digest) -> list[str]:
    steady = int(record.is_steady.sum())
    warmup = record.repetitions - steady
    said = []
    if found.slowest:
        said.append(f"Times are medians of {steady} repetitions; {warmup} of warm-up are left out.")
    interval = found.total.interval
    if interval.is_bounded and found.total.median > 0:
        half = (interval.high - interval.low) / 2 / found.total.median
        said.append(f"The whole is known to within {half:.1%} either way, with 95 % confidence.")
    elif found.total.count:
        said.append("Too few repetitions for an interval: run it again with more.")
    if not math.isnan(record.closure_residual):
        ends = _range(record.closure_residual_low, record.closure_residual_high)
        share = f"{record.closure_residual:z.1%}{ends}"
        said.append(f"Of the caller's clock {share} is claimed by no layer and no transfer.")
    if not math.isnan(record.profiling_overhead):
        ends = _range(record.profiling_overhead_low, record.profiling_overhead_high)
        said.append(f"Measuring layers changes a run by {record.profiling_overhead:+.1%}{ends}.")
    unresolved = [layer for layer in found.layers if layer.is_unresolved]
    if unresolved:
        for at_floor in (True, False):
            named = [_name(layer) for layer in unresolved if layer.is_at_floor == at_floor]
            if named:
                many = "layer isn't" if len(named) == 1 else "layers aren't"
                why = unresolved_because(at_floor)
                said.append(f"{len(named)} {many} resolved ({why}): {_list(named)}.")
    return said + [_sentence(text) for text in (*facts.warnings(record), *record.notes)]


def _missing(record: RunRecord) -> list[str]:
    """What wasn't measured, and what measures it."""
    said = [] if _seen(record, "time_us").size else ["Layer times."]
    if math.isnan(record.bracket_us):
        said.append("The floor of measuring: so no layer is marked as too short.")
    if math.isnan(record.copy_gb_per_s) or math.isnan(record.fma_gflop_per_s):
        said.append("The machine's roofs: so what bounds a layer is not known.")
    if not _seen(record, "gap_us").size:
        said.append("Idle time between layers (`infer --gaps`, where the device has it).")
    if not _seen(record, "alone_warm_us").size:
        said.append("Layers by themselves, caches warm and emptied (`infer --contexts`).")
    if all(math.isnan(f.energy_uj) and math.isnan(f.energy_by_power_uj) for f in record.layers):
        why = record.energy_source or "`infer --energy`, where readable"
        said.append(f"Energy ({why}).")
    if not any(f.is_checked for f in record.layers):
        said.append("Errors of the layers' results: this record holds no check.")
    if math.isnan(record.allocated_peak_bytes):
        said.append("What the process or driver grew by.")
    return said


def _seen(record: RunRecord, name: str) -> np.ndarray:
    return stats.measured(getattr(record, name))


def _about(summary: stats.Summary) -> str:
    interval = summary.interval
    sure = f" ({time(interval.low)} to {time(interval.high)})" if interval.is_bounded else ""
    return f"{time(summary.median)} us{sure}"


def _overlap(first: stats.Summary, second: stats.Summary) -> bool:
    return first.interval.low <= second.interval.high


def _range(low: float, high: float) -> str:
    return "" if math.isnan(low) or math.isnan(high) else f" ({low:z.1%} to {high:z.1%})"


def _intensity(layer: LayerDigest) -> float:
    return layer.facts.flops / layer.facts.bytes_min if layer.facts.bytes_min else math.nan


def _operations(intensity: float) -> str:
    if not intensity:
        return "no operations"
    return f"{intensity:,.0f} operations" if intensity >= 10 else f"{intensity:.1f} operations"


def _word(intensity: float) -> str:
    if intensity >= INTENSE:
        return "many: work for the arithmetic"
    return "few: work for the memory" if intensity <= SPARSE else "neither many nor few"


def _ran(layers: Sequence[LayerDigest], how: str) -> str:
    shares = [layer.share for layer in layers if not math.isnan(layer.share)]
    taken = f", {sum(shares):.1%} of the layers' time" if shares else ", their time not measured"
    many = "layer runs" if len(layers) == 1 else "layers run"
    return f"{len(layers)} {many} {how}{taken}: {_list([_name(layer) for layer in layers])}"


def _ops(layers: Sequence[LayerDigest]) -> str:
    return _list(sorted({layer.facts.op for layer in layers}))


def _list(names: Sequence[str], separator: str = ", ", most: int = NAMED) -> str:
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _named(layer: LayerDigest) -> str:
    how = "fallback" if layer.facts.is_fallback else layer.facts.variant
    work = f", {count(layer.facts.macs)} MACs" if layer.facts.macs else ""
    return f"{_name(layer)} ({', '.join(word for word in (layer.facts.op, how) if word)}{work})"


def _name(layer: LayerDigest) -> str:
    return _quoted(layer.facts.name)


def _quoted(name: str) -> str:
    return shorten(printable(name), NAME_WIDTH) or "(no name)"


def _buffer(record: RunRecord, buffer: BufferFacts) -> str:
    """What it is: an activation's own name is often the exporter's number, so whose it is, too."""
    whose = ""
    if buffer.kind in ("activation", "output") and buffer.first < len(record.layers):
        whose = f" of {_quoted(record.layers[buffer.first].name)}"
    return f"{_quoted(buffer.name)} ({buffer.kind}{whose}, {size(buffer.nbytes)})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
