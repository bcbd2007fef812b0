"""The terminal's table of a comparison: a line for what stands for the same nodes, the verdict at its end."""

from __future__ import annotations

import math
from typing import TextIO

from rich.text import Text

from minicnn import stats
from minicnn.compare import FASTER, LEVEL, MARGIN, SAME, SLOWER, UNKNOWN, Comparison, Row
from minicnn.report.lists import console_of, table_of
from minicnn.report.table import NOTHING, printable, shorten, time

NAME_WIDTH = 18
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
