"""A comparison as table and page: a row, and a verdict, for what stands for the same nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rich.text import Text

from minicnn import stats
from minicnn.compare import FASTER, LEVEL, MARGIN, SAME, SLOWER, UNKNOWN, Comparison, Row
from minicnn.record import RunRecord
from minicnn.report import html
from minicnn.report.lists import console_of, table_of
from minicnn.report.table import NOTHING, printable, shorten, time

NAME_WIDTH = 18
REASONS = {
    "few": "too few repetitions",
    "noise": "the times vary too much",
    "at the floor": "too short to measure",
    "in one alone": "in one of the two alone",
}
STYLES = {SLOWER: "red", FASTER: "green", SAME: "", UNKNOWN: "yellow"}


def print_comparison(comparison: Comparison, *, file: TextIO | None = None) -> None:
    console = console_of(file)
    table = table_of(("layer", "left"), ("a us", "right"), ("b us", "right"), ("b / a", "right"),
                     ("interval", "left"), ("verdict", "left"))  # fmt: skip
    for row in (*comparison.rows, comparison.whole):
        table.add_row(*_cells(row))
    console.print(table)
    console.print()
    rows = (*comparison.rows, comparison.whole)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in STYLES}
    console.print("verdicts  " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    console.print(f"          all hold at once in {1 - LEVEL:.0%} of comparisons; same: within {MARGIN:.0%}")
    for note in comparison.notes:
        console.print(Text(f"note      {printable(note)}"), soft_wrap=True)


def _cells(row: Row) -> tuple[str | Text, ...]:
    style = STYLES[row.verdict]
    verdict = f"{row.verdict}, {row.reason}" if row.reason else row.verdict
    many = max(len(row.before), len(row.after))
    counted = "" if many <= 1 else f" {len(row.before)}:{len(row.after)}"
    return (
        Text(shorten(printable(row.name), NAME_WIDTH - len(counted)) + counted, style=style),
        time(row.before_us),
        time(row.after_us),
        NOTHING if math.isnan(row.ratio) else _ratio(row.ratio),
        _interval(row.interval),
        Text(verdict, style=style),
    )


def _interval(interval: stats.Interval) -> str:
    return f"{_ratio(interval.low)} to {_ratio(interval.high)}" if interval.is_bounded else NOTHING


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 9.9995 else f"{ratio:,.1f}"


def html_text(comparison: Comparison, before: RunRecord, after: RunRecord) -> str:
    """Raises    OutputError: bokeh isn't installed"""
    names = [printable(Path(record.path).name) or letter for record, letter in ((before, "a"), (after, "b"))]
    data = {
        "title": f"a: {names[0]}, b: {names[1]}",
        "tiles": _tiles(comparison),
        "words": in_words(comparison),
        "rows": [_row(row) for row in (*comparison.rows, replace(comparison.whole, name="the whole run"))],
        "about": [
            [f"{letter}, {label}", text]
            for letter, record in (("a", before), ("b", after))
            for label, text in html.about(record)
        ],
    }
    return html.assemble("compare", f"{names[0]} and {names[1]}", data)


def in_words(comparison: Comparison) -> list[str]:
    """Did the two differ, in sentences."""
    whole = comparison.whole
    said = [f"The whole run: {_judged(whole)}."]
    for verdict in (SLOWER, FASTER):
        found = [row for row in comparison.rows if row.verdict == verdict]
        if found:
            most = max(found, key=lambda row: abs(row.after_us - row.before_us))
            by = time(abs(most.after_us - most.before_us))
            many = "layer is" if len(found) == 1 else "layers are"
            named = f"by the most time {printable(most.name)}: {_judged(most)}, {by} us"
            said.append(f"{len(found)} {many} {verdict} in b; {named}.")
    others = [row for row in comparison.rows if row.verdict in (SAME, UNKNOWN)]
    counts = {verdict: sum(row.verdict == verdict for row in others) for verdict in (SAME, UNKNOWN)}
    told = (f"{counts[SAME]} of {len(comparison.rows)} rows are the same within {MARGIN:.0%}; of "
            f"{counts[UNKNOWN]} these runs can't tell")  # fmt: skip
    reasons = sorted({row.reason for row in others if row.reason})
    said.append(f"{told} ({', '.join(map(_reason, reasons))})." if reasons else f"{told}.")
    if {"few", "noise"} & set(reasons):
        said.append("More repetitions tell more, and `infer --against` takes two variants in turn.")
    return said + [f"{printable(note)}." for note in comparison.notes]


def _judged(row: Row) -> str:
    interval = f" [{_interval(row.interval)}]" if row.interval.is_bounded else ""
    ratio = "" if math.isnan(row.ratio) else f", b / a {_ratio(row.ratio)}{interval}"
    reason = f" ({_reason(row.reason)})" if row.reason else ""
    return f"{row.verdict}{reason}{ratio}"


def _reason(short: str) -> str:
    return REASONS.get(short, short)


def _tiles(comparison: Comparison) -> list[list[str]]:
    whole = comparison.whole
    tiles = [
        ["the whole run", whole.verdict, "" if math.isnan(whole.ratio) else f"b / a {_ratio(whole.ratio)}"],
        ["a", f"{time(whole.before_us)} us", "median of the plain runs"],
        ["b", f"{time(whole.after_us)} us", "median of the plain runs"],
    ]
    for verdict in (SLOWER, FASTER, SAME, UNKNOWN):
        number = sum(row.verdict == verdict for row in comparison.rows)
        tiles.append([f"layers: {verdict}", str(number), ""])
    return tiles


def _row(row: Row) -> dict[str, Any]:
    bounded = row.interval.is_bounded
    number = html.number
    many = max(len(row.before), len(row.after))
    counted = "" if many <= 1 else f" ({len(row.before)} layers in a, {len(row.after)} in b)"
    return {
        "name": f"{printable(row.name) or '(no name)'}{counted}",
        "before": number(row.before_us),
        "after": number(row.after_us),
        "before_text": time(row.before_us),
        "after_text": time(row.after_us),
        "ratio": number(row.ratio, 5) or None,
        "ratio_text": NOTHING if math.isnan(row.ratio) else _ratio(row.ratio),
        "low": number(row.interval.low, 5) if bounded else None,
        "high": number(row.interval.high, 5) if bounded else None,
        "interval": _interval(row.interval),
        "verdict": row.verdict,
        "reason": _reason(row.reason),
    }
