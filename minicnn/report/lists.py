"""The terminal's other answers: a plan, a check of every layer, the doctor's findings."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minicnn.record import LayerFacts
from minicnn.report.table import NOTHING, WIDEST, count, printable, shorten, size

if TYPE_CHECKING:
    from minicnn.doctor import Row
    from minicnn.lab.race import Bout
    from minicnn.plan import Layer, Plan
    from minicnn.predict import Machine, Prediction
    from minicnn.tune import Race

NAME_WIDTH = 26
STATE_STYLES = {"ok": "green", "missing": "yellow", "unusable": "red"}


def print_race(race: Race, *, file: TextIO | None = None) -> None:
    """A layer's winner and how far the others were behind."""
    best = race.winner.time_us
    others = sorted((t, label) for label, t in race.times_us.items() if label != race.winner.label)
    behind = ", ".join(f"{label} {time_us / best:.2f}" for time_us, label in others)
    sure = "" if race.is_decided else " (within its spread)"
    name = shorten(printable(race.layers[0]), NAME_WIDTH)
    more = f" and {len(race.layers) - 1} more" if len(race.layers) > 1 else ""
    console_of(file).print(
        Text(f"{name}{more}: {race.winner.label}, {best:,.0f} us{sure}; times it: {behind}"), soft_wrap=True
    )


def print_bout(bout: Bout, *, file: TextIO | None = None) -> None:
    """A user's kernel on one layer, minicnn's own beneath it."""
    console = console_of(file)
    more = f" and {len(bout.layers) - 1} more" if len(bout.layers) > 1 else ""
    console.print(Text(shorten(printable(bout.layers[0]), NAME_WIDTH) + more, style="bold"))
    table = table_of(
        ("variant", "left"), ("us", "right"), ("95 %", "left"), ("GFLOP/s", "right"), ("GB/s", "right"),
        ("roof", "right"), ("ratio", "right"), ("yours is", "left"),
    )  # fmt: skip
    for entrant in bout.entrants:
        interval = entrant.interval
        span = f"{_brief(interval.low)} to {_brief(interval.high)}" if interval.is_bounded else ""
        table.add_row(
            entrant.variant, _brief(entrant.median_us), span, f"{entrant.gflop_per_s:.3g}",
            f"{entrant.gb_per_s:.3g}", f"{entrant.of_roof:.1%}",
            f"{entrant.ratio:.2f}" if entrant.verdict else "", entrant.verdict,
        )  # fmt: skip
    console.print(table)
    for target, words in bout.resources.items():
        console.print(Text(f"  {target}: {words}"), soft_wrap=True)
    if bout.counters:
        counted = ", ".join(f"{name} {count:,}" for name, count in bout.counters.items())
        console.print(Text(f"  counted on the simulated GPU: {counted}"), soft_wrap=True)
    console.print()


def _brief(time_us: float) -> str:
    return f"{time_us:,.0f}" if time_us >= 1000 else f"{time_us:.1f}"


def print_plan(plan: Plan, *, file: TextIO | None = None) -> None:
    """A line a layer with what it takes; beneath it why this variant, and its steps."""
    console = console_of(file)
    table = table_of(
        ("layer", "left"),
        ("op", "left"),
        ("variant", "left"),
        ("MACs", "right"),
        ("live", "right"),
        ("work", "right"),
    )
    for layer in plan.layers:
        table.add_row(
            Text(shorten(printable(layer.name), NAME_WIDTH), style="bold"),
            layer.op,
            Text(layer.variant, style="yellow" if layer.is_fallback else ""),
            count(layer.cost.macs),
            size(layer.live_bytes),
            size(layer.workspace_bytes),
        )
    console.print(table)
    console.print()
    for layer in plan.layers:
        console.print(
            Text(printable(f"{layer.name}: {layer.variant}, {layer.reason}"), style="bold"), soft_wrap=True
        )
        for step in _steps(layer):
            console.print(Text(printable(f"    {step}")), soft_wrap=True)
    console.print()
    macs = sum(layer.cost.macs for layer in plan.layers)
    console.print(f"layers    {len(plan.layers)} of {len(plan.graph.nodes)} nodes, {count(macs)} MACs")
    console.print(
        f"memory    largest live sum {size(plan.live_peak_bytes)}, planned peak {size(plan.arena_bytes)}"
    )
    console.print(
        f"          weights {size(plan.weight_bytes)}, activations "
        f"{size(plan.bytes_of('activation'))} if nothing shared"
    )
    if plan.rest is not None:
        console.print(f"later     {len(plan.rest.nodes)} nodes are planned when a run has told their shapes")


def print_predictions(
    predictions: Sequence[Prediction], machine: Machine, *, file: TextIO | None = None
) -> None:
    """A line a layer: what it would take on a machine that isn't here, and what bounds it."""
    console = console_of(file)
    total = sum(p.time_us for p in predictions if p.bound)
    table = table_of(("layer", "left"), ("op", "left"), ("variant", "left"), ("MACs", "right"),
                     ("moved", "right"), ("us", "right"), ("share", "right"),
                     ("bound by", "left"))  # fmt: skip
    for p in predictions:
        table.add_row(
            Text(shorten(printable(p.layer.name), NAME_WIDTH), style="bold"), p.layer.op, p.layer.variant,
            count(p.layer.cost.macs), size(p.layer.bytes_moved),
            _brief(p.time_us) if p.bound else NOTHING,
            f"{p.time_us / total:.1%}" if p.bound and total else NOTHING, p.bound or "not on this machine",
        )  # fmt: skip
    console.print(table)
    console.print()
    console.print(f"predicted {total:,.0f} us on {machine.name}: by its roofs, nothing was measured")
    console.print(Text(f"source    {machine.source}"), soft_wrap=True)


def _steps(layer: Layer) -> Iterable[str]:
    """The steps as text; of a long run of alike ones, how many."""
    texts = [str(step) for step in layer.steps]
    if len(texts) > 8:
        return [*texts[:6], f"... {len(texts) - 6} more"]
    return texts or ["nothing to do: its output is there already"]


def print_check(layers: Sequence[LayerFacts], *, file: TextIO | None = None) -> None:
    """Each layer's largest error, and how much of what it may be that is."""
    console = console_of(file)
    table = table_of(("layer", "left"), ("op", "left"), ("variant", "left"), ("max error", "right"),
                     ("relative", "right"), ("ulp", "right"), ("of bound", "right"),
                     ("at", "left"))  # fmt: skip
    for layer in layers:
        cells = [NOTHING] * 5
        if layer.is_checked:
            at = layer.check_index if layer.check_max_abs else NOTHING
            cells = [f"{layer.check_max_abs:.1e}", f"{layer.check_max_relative:.1e}",
                     f"{layer.check_max_ulp:.3g}", f"{layer.check_of_bound:.2f}", at]  # fmt: skip
        style = "red" if layer.is_wrong else ""
        table.add_row(
            Text(shorten(printable(layer.name), NAME_WIDTH), style=style), layer.op, layer.variant, *cells
        )
    console.print(table)
    checked, wrong = sum(la.is_checked for la in layers), sum(la.is_wrong for la in layers)
    console.print(f"\n{checked} layers held against float64, {wrong} beyond their bound")
    console.print("a checking run has no times")


def print_rows(rows: Sequence[Row], *, file: TextIO | None = None) -> None:
    """The doctor's findings by section, each remedy beneath what it mends."""
    console = console_of(file)
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            console.print(Text(section, style="bold"))
        state = Text(f"{row.state:9s}", style=STATE_STYLES[row.state])
        console.print(
            Text("  ")
            .append(state)
            .append(printable(f"{row.name}: {row.detail}" if row.detail else row.name)),
            soft_wrap=True,
        )
        if row.remedy:
            console.print(Text(printable(f"             {row.remedy}")), soft_wrap=True)


def console_of(file: TextIO | None) -> Console:
    """The terminal, or `file`, at most WIDEST columns wide."""
    console = Console(file=file or sys.stdout, highlight=False)
    console.width = min(console.width, WIDEST)
    return console


def table_of(*columns: tuple[str, str]) -> Table:
    """An empty table of (title, "left" or "right") columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title, justify in columns:
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True)
    return table
