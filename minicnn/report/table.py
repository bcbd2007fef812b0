"""The terminal's table of a run: one line a layer, then totals, memory, and where the record is.

Times are medians over the repetitions that aren't warm-up; shares are of the sum of the layers' medians.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TextIO

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minicnn import facts, stats
from minicnn.facts import Rate
from minicnn.record import LayerFacts, RunRecord

WIDEST = 100
NARROWEST = 60
GAP = 2  # columns of the terminal between two of the table
ELLIPSIS = "\u2026"
UNRESOLVED = "?"  # before a time that the floor of measuring doesn't let stand out
NOTHING = "-"  # not measured, or no such work


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer with its median time and share of the sum."""

    facts: LayerFacts
    time_us: float
    share: float
    rate: Rate
    is_unresolved: bool


@dataclass(frozen=True, kw_only=True)
class Column:
    """Where room is short the highest rank goes first; columns of rank 0 stay, names are cut instead."""

    title: str
    cell: Callable[[Row], str]
    rank: int = 0
    shortest: int = 0  # of a column of names: before it is cut below this, others go or are cut
    justify: Literal["left", "right"] = "right"
    is_optional: bool = False  # left out where it would hold nothing


COLUMNS = (
    Column(title="layer", cell=lambda row: row.facts.name, justify="left", shortest=22),
    Column(title="op", cell=lambda row: row.facts.op, justify="left", shortest=10),
    Column(title="variant", cell=lambda row: variant(row.facts), justify="left", shortest=10),
    Column(title="us", cell=lambda row: UNRESOLVED * row.is_unresolved + time(row.time_us)),
    Column(title="share", cell=lambda row: fraction(row.share)),
    Column(title="MACs", cell=lambda row: count(row.facts.macs), rank=3),
    Column(title="GFLOP/s", cell=lambda row: gflop_per_s(row.facts.flops, row.time_us), rank=1),
    Column(title="of roof", cell=lambda row: _of_roof(row), rank=2, is_optional=True),
    Column(title="live", cell=lambda row: size(row.facts.live_bytes)),
    Column(title="work", cell=lambda row: size(row.facts.workspace_bytes), rank=4),
)


def print_record(record: RunRecord, *, slowest: int | None = None, file: TextIO | None = None) -> None:
    """Prints the table as wide as the terminal, 100 columns at most; in colour only on a terminal."""
    target = file or sys.stdout
    console = Console(file=target)
    is_colored = console.color_system is not None
    printed = text(record, width=console.width, is_colored=is_colored, slowest=slowest)
    encoding = getattr(target, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        printed = printed.replace("\u2500", "-").replace(ELLIPSIS, "~")
        printed = printed.encode(encoding, "replace").decode(encoding)
    target.write(printed)


def text(
    record: RunRecord, *, width: int = WIDEST, is_colored: bool = False, slowest: int | None = None
) -> str:
    """The table and its foot. No line is longer than `width` (60 to 100), but for the record's place.

    slowest    only so many layers, the slowest first; None: all, in the order of execution
    """
    width = min(max(width, NARROWEST), WIDEST)
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=is_colored,
        color_system="standard" if is_colored else None,
        legacy_windows=False,
    )
    rows = _rows(record)
    shown = rows if slowest is None else _slowest(rows, slowest)
    console.print(_table(shown, width))
    console.print()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=len("fallback"))
    grid.add_column()
    left_out = [] if slowest is None else [("shown", _shown(shown, rows))]
    for label, sentence in (*left_out, *_foot(record)):
        grid.add_row(Text(label, style="bold"), Text(printable(sentence)))
    console.print(grid)
    if record.path:
        place = Text.assemble(("record    ", "bold"), printable(record.path))
        console.print(place, soft_wrap=True)  # one line, to be copied
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def _rows(record: RunRecord) -> list[Row]:
    times = [float(t) for t in facts.median_us(record)]
    total = sum(t for t in times if not math.isnan(t))
    unresolved = facts.is_unresolved(record)
    return [
        Row(
            facts=layer,
            time_us=t,
            share=t / total if total else math.nan,
            rate=facts.rate(layer, t, record),
            is_unresolved=bool(mark),
        )
        for layer, t, mark in zip(record.layers, times, unresolved, strict=True)
    ]


def _slowest(rows: list[Row], number: int) -> list[Row]:
    measured = [row for row in rows if not math.isnan(row.time_us)]
    return sorted(measured, key=lambda row: -row.time_us)[:number]


def _shown(shown: list[Row], rows: list[Row]) -> str:
    share = fraction(sum(row.share for row in shown)) if shown else NOTHING
    return f"the slowest {len(shown)} of {_plural(len(rows), 'layer')}, {share} of their time"


def _table(rows: list[Row], width: int) -> Table:
    cells = {column.title: [printable(column.cell(row)) for row in rows] for column in COLUMNS}
    for column in COLUMNS:
        if column.is_optional and all(cell == NOTHING for cell in cells[column.title]):
            del cells[column.title]
    widths = _widths(cells, width)
    shown = [column for column in COLUMNS if column.title in widths]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown:
        table.add_column(column.title, justify=column.justify, width=widths[column.title], no_wrap=True)
    for index, row in enumerate(rows):
        style = "yellow" if row.facts.is_fallback else ""
        if cell_len(cells["layer"][index]) > widths["layer"]:
            # exporters end every name with its operator, which the next column says
            cells["layer"][index] = cells["layer"][index].removesuffix(f"/{row.facts.op}")
        table.add_row(*(Text(shorten(cells[c.title][index], widths[c.title]), style=style) for c in shown))
    return table


def _widths(cells: dict[str, list[str]], width: int) -> dict[str, int]:
    """Widths that fit: columns go by rank as long as names can't keep their shortest, then names are cut."""
    widths = {title: max(cell_len(t) for t in [title, *values]) for title, values in cells.items()}
    present = [column for column in COLUMNS if column.title in cells]
    shortest = {column.title: column.shortest or widths[column.title] for column in present}

    def least() -> int:
        return sum(min(w, shortest[title]) for title, w in widths.items()) + GAP * (len(widths) - 1)

    for column in sorted(present, key=lambda c: -c.rank):
        if column.rank and least() > width:
            del widths[column.title]
    excess = sum(widths.values()) + GAP * (len(widths) - 1) - width
    names = [column.title for column in present if column.shortest]
    for title in reversed(names):  # a layer's own name last
        cut = max(min(excess, widths[title] - shortest[title]), 0)
        widths[title] -= cut
        excess -= cut
    for _ in range(excess):
        widest = max(names, key=lambda title: widths[title])
        widths[widest] = max(widths[widest] - 1, 1)
    return widths


def _foot(record: RunRecord) -> list[tuple[str, str]]:
    """(label, sentence): totals, how they were measured, device, memory, what has to be known."""
    steady = record.is_steady
    repetitions, warmup = int(steady.sum()), record.repetitions - int(steady.sum())
    layers = stats.summary(record.time_us[steady].sum(axis=1))
    plain, wall = stats.summary(record.plain_us[steady]), stats.summary(record.wall_us[steady])
    whole = plain if plain.count else layers
    macs, flops = sum(f.macs for f in record.layers), sum(f.flops for f in record.layers)
    fallbacks = sum(f.is_fallback for f in record.layers)

    lines = [("layers", f"{len(record.layers)}, together {_microseconds(layers)}")]
    lines.append(("run", f"{_microseconds(plain)} on the device"))
    lines.append(("", f"{_microseconds(wall)} from upload to download"))
    lines += _proof(record)
    lines.append(("work", f"{count(macs)} MACs, {gflop_per_s(flops, whole.median)} GFLOP/s"))
    if layers.count:
        apart = f", {warmup} of warm-up apart" if warmup else ""
        interval = ", [95 % interval]" if layers.interval.is_bounded else ""
        lines.append(("times", f"medians of {_plural(repetitions, 'repetition')}{apart}{interval}"))
    if fallbacks:
        ran = f"{fallbacks} of {len(record.layers)} layers ran through onnx's evaluator on the CPU"
        lines.append(("fallback", ran))
    threads = _plural(record.threads, "thread") if record.device_kind == "host" else ""
    machine = (record.device, record.device_architecture, threads, record.precision)
    lines.append(("device", ", ".join(word for word in machine if word)))
    lines += zip(("memory", "", "", ""), _memory(record), strict=False)
    lines += [("note", note) for note in (*record.notes, *facts.warnings(record))]
    return lines


def _proof(record: RunRecord) -> list[tuple[str, str]]:
    """How far the numbers above can be trusted, as far as that was measured."""
    lines = []
    if not math.isnan(record.closure_residual):
        ends = (record.closure_residual_low, record.closure_residual_high)
        parts = [
            f"{name} {time(stats.median(getattr(record, f'{name}_us')[record.is_steady]))}"
            for name in ("upload", "host", "download", "unattributed")
        ]
        lines.append(("closure", f"unattributed {_signed(record.closure_residual)} of that{_bounds(*ends)}"))
        lines.append(("", f"us beside the layers: {', '.join(parts)}"))
    if not math.isnan(record.profiling_overhead):
        ends = (record.profiling_overhead_low, record.profiling_overhead_high)
        rarely = f", one run in {record.profiled_every} profiled" if record.profiled_every > 1 else ""
        added = f"{_signed(record.profiling_overhead)}{_bounds(*ends)}"
        lines.append(("overhead", f"profiling adds {added}{rarely}"))
    if not math.isnan(record.bracket_us):
        floor = f"empty bracket {record.bracket_us:.2f} us, null kernel {record.null_kernel_us:.2f} us"
        number = int(facts.is_unresolved(record).sum())
        marked = f"; {UNRESOLVED} {_plural(number, 'layer')} too short or too varying to tell"
        lines.append(("floor", floor + marked if number else floor))
    if not (math.isnan(record.copy_gb_per_s) or math.isnan(record.fma_gflop_per_s)):
        copied, added = _three_digits(record.copy_gb_per_s), _three_digits(record.fma_gflop_per_s)
        lines.append(("roofs", f"{copied} GB/s copied, {added} GFLOP/s of multiply-adds in registers"))
    if record.energy_source:
        lines.append(("energy", _energy(record)))
    return lines


def _energy(record: RunRecord) -> str:
    measured = [f.energy_uj for f in record.layers if not math.isnan(f.energy_uj)]
    if not measured:
        return f"not measured: {record.energy_source}"
    return f"{sum(measured) / 1e3:,.2f} mJ a run beyond idle, by {record.energy_source}"


def _signed(share: float) -> str:
    return f"{100 * share:z.1f}%"  # z: no minus before a zero


def _bounds(low: float, high: float) -> str:
    return "" if math.isnan(low) or math.isnan(high) else f" [{_signed(low)} to {_signed(high)}]"


def _of_roof(row: Row) -> str:
    """The share of the nearer roof, and whose it is: a for arithmetic, m for memory."""
    return NOTHING if math.isnan(row.rate.share) else f"{row.rate.share:.0%} {row.rate.bound[0]}"


def _microseconds(summary: stats.Summary) -> str:
    if not summary.count:
        return NOTHING
    bounds = summary.interval
    interval = f" [{time(bounds.low)} to {time(bounds.high)}]" if bounds.is_bounded else ""
    return f"{time(summary.median)} us{interval}"


def _memory(record: RunRecord) -> list[str]:
    planned, live = record.planned_peak_bytes, record.live_peak_bytes
    ratio = f" ({planned / live:.2f}x)" if live else ""
    touched, allocated = record.touched_peak_bytes, record.allocated_peak_bytes
    lines = [f"largest live sum {size(live)}, planned peak {size(planned)}{ratio}"]
    if not (math.isnan(touched) and math.isnan(allocated)):
        beyond = size(record.beyond_plan_bytes)
        lines.append(f"touched {size(touched)}, grown by {size(allocated)}, {beyond} beyond plan and weights")
    inputs, outputs = size(record.inputs_bytes), size(record.outputs_bytes)
    lines.append(f"weights {size(record.weights_bytes)}, inputs {inputs}, outputs {outputs}")
    activations, workspaces = size(record.activations_bytes), size(record.workspaces_bytes)
    lines.append(f"if nothing shared: activations {activations}, workspaces {workspaces}")
    return lines


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unresolved(is_at_floor: bool) -> str:
    """Why a layer's time isn't to be relied on."""
    if is_at_floor:
        return "too short to be told from the floor of measuring"
    return "it varies by more than it lasts"


def variant(facts: LayerFacts) -> str:
    return "fallback" if facts.is_fallback else facts.variant


def time(microseconds: float) -> str:
    if math.isnan(microseconds):
        return NOTHING
    return f"{microseconds:,.1f}" if microseconds < 99_999 else f"{microseconds:,.0f}"


def fraction(share: float) -> str:
    return NOTHING if math.isnan(share) else f"{100 * share:.1f}%"


def count(number: int) -> str:
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P"), "")


def size(nbytes: float) -> str:
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"), " ")


def gflop_per_s(flops: int, microseconds: float) -> str:
    if not flops or not microseconds > 0:
        return NOTHING
    return _three_digits(flops / microseconds / 1e3)


def _scaled(number: float, base: int, units: tuple[str, ...], space: str) -> str:
    if number == 0 or math.isnan(number):
        return NOTHING
    power = 0
    while abs(number) >= base and power < len(units) - 1:
        number /= base
        power += 1
    return f"{_three_digits(number) if power else round(number)}{space}{units[power]}"


def _three_digits(number: float) -> str:
    decimals = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:,.{decimals}f}"


def printable(name: str) -> str:
    """Names come from model files: no line breaks, no codes that drive a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name)


def shorten(name: str, width: int) -> str:
    """Both ends of a name that is too wide, since networks count at either."""
    if cell_len(name) <= width:
        return name
    tail = ""
    for character in reversed(name):
        if cell_len(character + tail) > (width - 1) // 2:
            break
        tail = character + tail
    return set_cell_size(name, width - 1 - cell_len(tail)) + ELLIPSIS + tail
