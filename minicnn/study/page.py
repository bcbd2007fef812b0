"""A study's figures (SVG and PNG), its words, and one page that holds both and needs no network."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullLocator

from minicnn.errors import OutputError
from minicnn.study.table import Table

# Okabe and Ito, "Color Universal Design", 2008: told apart by colour-blind people; markers and dashes besides
__all__ = ["Figure", "NullLocator", "axes", "filling", "legend", "line", "style_of", "write"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")
MARKERS = "osD^vPX*<>hp"
DASHES = ("-", "--", "-.", ":")
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
figure{margin:2rem 0}figure svg{max-width:100%;height:auto}figcaption,dd{color:#555}dt{font-weight:600}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}"""
MOST_ROWS = 400


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str
    caption: str
    canvas: Canvas


@contextmanager
def axes(
    *, columns: int = 1, rows: int = 1, width: float = 8.0, height: float = 4.5
) -> Iterator[tuple[Canvas, Any]]:
    """A canvas and its axes (one, or a flat list), laid out when the block ends."""
    canvas = Canvas(figsize=(width, height), layout="constrained")
    made = canvas.subplots(rows, columns, squeeze=False).ravel()
    for one in made:
        one.grid(True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    yield canvas, made[0] if columns * rows == 1 else list(made)


def style_of(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line with this number."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
        "markersize": 5,
        "linewidth": 1.6,
    }


def filling(index: int) -> dict[str, Any]:
    """Colour and hatching of the bars with this number."""
    hatch = "//" if index % 2 or index >= len(COLOURS) else None
    return {"color": COLOURS[index % len(COLOURS)], "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}


def line(ax: Axes, x: Sequence[float], table: Table, label: str, index: int, scale: float = 1e-3) -> None:
    """Median times of the table's rows against x, their intervals as bars. scale: of microseconds"""
    middle = table.median_us * scale
    low, high = np.empty(len(table)), np.empty(len(table))
    for row in range(len(table)):
        interval = table.interval(row)
        low[row], high[row] = (interval.low, interval.high) if interval.is_bounded else (np.nan, np.nan)
    bars = np.nan_to_num([middle - low * scale, high * scale - middle])
    ax.errorbar(x, middle, yerr=np.maximum(bars, 0), label=label, capsize=2, **style_of(index))


def legend(ax: Axes, **options: Any) -> None:
    ax.legend(frameon=False, fontsize=8, **options)


def write(out: Path, name: str, module: ModuleType, table: Table) -> None:
    """Raises    OutputError"""
    with matplotlib.rc_context({"svg.hashsalt": name, "font.size": 9}):
        figures = module.figures(table)
        pictures = {figure.name: _svg(figure) for figure in figures}
        try:
            for figure in figures:
                _put(out / f"{figure.name}.svg", pictures[figure.name].encode())
                _put(out / f"{figure.name}.png", _drawn(figure, "png"))
            page = _page(module, table, figures, pictures)
            _put(out / f"{name}.html", page.encode())
        except OSError as error:
            raise OutputError("the study's page can't be written", file=out, found=error) from None


def _put(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def _drawn(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.canvas.savefig(buffer, format=kind, dpi=120, metadata=metadata)
    return buffer.getvalue()


def _svg(figure: Figure) -> str:
    text = _drawn(figure, "svg").decode()
    return text[text.index("<svg") :]


def _page(module: ModuleType, table: Table, figures: Sequence[Figure], pictures: dict[str, str]) -> str:
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in module.words(table))
    drawn = "".join(
        f"<figure>{pictures[f.name]}<figcaption>{html.escape(f.caption)}</figcaption></figure>"
        for f in figures
    )
    facts = "".join(
        f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in table.attributes.items() if v
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(module.TITLE)}</title><style>{STYLE}</style><h1>{html.escape(module.TITLE)}</h1>"
        f"{said}{drawn}<h2>Rows</h2>{_rows(module, table)}<h2>How</h2><dl>{facts}</dl></html>\n"
    )


def _rows(module: ModuleType, table: Table) -> str:
    """Times as medians; what is beyond MOST_ROWS stands in the HDF5 file alone."""
    columns = {name: values for name, values in table.columns.items() if values.ndim == 1}
    if "time_us" in table.columns:
        columns["time_us"] = table.median_us
    heads = "".join(
        f"<th>{html.escape(name)}<br><small>{html.escape(module.COLUMNS[name][0])}</small></th>"
        for name in columns
    )
    lines = [
        "".join(f"<td>{html.escape(_cell(values[row]))}</td>" for values in columns.values())
        for row in range(min(len(table), MOST_ROWS))
    ]
    more = (
        f"<p>{len(table) - MOST_ROWS} more rows are in the HDF5 file.</p>" if len(table) > MOST_ROWS else ""
    )
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{one}</tr>' for one in lines)}</table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return "" if np.isnan(value) else f"{value:.4g}"
