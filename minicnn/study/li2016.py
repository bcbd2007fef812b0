"""Which algorithm of convolution wins where: one parameter varied at a time.

Source    after Li, Zhang, Huang, Wang, Zheng, "Performance Analysis of GPU-based Convolutional Neural
          Networks", ICPP 2016. --full has that study's ranges as they are remembered; it was of training on
          a GPU, this is of inference on the device at hand
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.study import convolutions, page
from minicnn.study.convnet import convolution_errors
from minicnn.study.convolutions import Effort
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "Algorithms of convolution, one parameter at a time"
COLUMNS: Columns = {
    "axis": ("", "the parameter that is varied; base: none"),
    **convolutions.COLUMNS,
    "transfer_us": (
        "us",
        "input to the device and output back, through the device's own upload and download",
    ),
}
AXES = {  # name -> its words, the parameters it sets
    "batch": ("images of the batch", ("N",)),
    "input": ("rows and columns of the input", ("H", "W")),
    "filters": ("filters", ("K",)),
    "kernel": ("rows and columns of a filter", ("R", "S")),
    "stride": ("stride", ("stride_h", "stride_w")),
}
BASES = {  # N, C, H = W, K, R = S; stride 1, no padding
    "quick": (1, 8, 24, 16, 5),
    "default": (4, 16, 56, 64, 5),
    "full": (64, 3, 128, 64, 11),
}
RANGES: dict[str, dict[str, tuple[int, ...]]] = {
    "quick": {"batch": (2,), "input": (48,), "filters": (32,), "kernel": (3,), "stride": (2,)},
    "default": {
        "batch": (1, 2, 8, 16),
        "input": (14, 28, 112),
        "filters": (16, 32, 128, 256),
        "kernel": (1, 3, 7, 9, 11, 13),
        "stride": (2, 3, 4),
    },
    "full": {
        "batch": (32, 96, 128, 256, 512),
        "input": (32, 64, 96, 192, 256),
        "filters": (32, 96, 128, 256, 512),
        "kernel": (2, 3, 5, 7, 9, 13),
        "stride": (2, 3, 4),
    },
}
BUDGETS = {"quick": 0.05, "default": 0.4, "full": 0.4}


def points(options: Options) -> list[dict[str, Any]]:
    N, C, size, K, R = BASES[options.effort]
    base = {"N": N, "C": C, "H": size, "W": size, "K": K, "R": R, "S": R}
    base |= {"stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0}
    found: list[dict[str, Any]] = [{"axis": "base", **base}]
    for axis, values in RANGES[options.effort].items():
        found += [{"axis": axis, **base, **dict.fromkeys(AXES[axis][1], value)} for value in values]
    return found


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    rows = convolutions.measure(point, bench, Effort(budget_s=BUDGETS[bench.options.effort], has_peers=False))
    transfer_us = _transfer_us(point, bench)
    return [{**row, "transfer_us": transfer_us} for row in rows]


def _transfer_us(point: Mapping[str, Any], bench: Bench) -> float:
    problem, x = convolutions.problem_of(point, bench.target)
    y = np.empty(problem.y.shape, np.float32)
    device = bench.device
    pointers = [device.alloc(array.nbytes) for array in (x, y)]
    times = []
    for _ in range(5):
        device.sync()
        begun = time.perf_counter()
        device.upload(pointers[0], x)
        device.download(pointers[1], y)
        device.sync()
        times.append((time.perf_counter() - begun) * 1e6)
    for pointer in pointers:
        device.free(pointer)
    return float(np.median(times[1:]))


def along(table: Table, axis: str) -> Table:
    """The rows of one axis and the base, in the order of its values."""
    own = table.select((table["axis"] == axis) | (table["axis"] == "base"))
    order = np.argsort(own[AXES[axis][1][0]], kind="stable")
    return own.select(order)


def figures(table: Table) -> list[page.Figure]:
    variants = list(dict.fromkeys(table["variant"].tolist()))
    drawn = []
    for name, words, unit in (
        ("time", "Median time of a run and its 95 % interval", "time, ms (log)"),
        ("memory", "Peak memory: input, packed weights, output and workspace", "memory, MiB (log)"),
        ("error", "Largest deviation from float64 over the largest output", "error (log)"),
    ):
        with page.axes(columns=3, rows=2, width=11, height=6.5) as (canvas, all_axes):
            for ax, (axis, (meaning, parameters)) in zip(all_axes, AXES.items(), strict=False):
                line = along(table, axis)
                for index, variant in enumerate(variants):
                    own = line.where(variant=variant)
                    x = own[parameters[0]].tolist()
                    if not len(own):
                        continue
                    if name == "time":
                        page.line(ax, x, own, variant, index)
                    else:
                        values = own["memory_bytes"] / 2**20 if name == "memory" else own["error"]
                        ax.plot(x, values, label=variant, **page.style_of(index))
                ax.set_xscale("log")
                ax.set_xticks(np.unique(line[parameters[0]]), np.unique(line[parameters[0]]).tolist())
                ax.xaxis.set_minor_locator(page.NullLocator())
                ax.set_yscale("log")
                ax.set_xlabel(meaning)
                ax.set_ylabel(unit)
            handles = {
                label: h
                for one in all_axes
                for h, label in zip(*one.get_legend_handles_labels(), strict=True)
            }
            all_axes[5].axis("off")
            all_axes[5].legend(handles.values(), handles.keys(), frameon=False, loc="center")
        base = table.where(axis="base")
        caption = f"{words}; base point {convolutions.describe(_shape(base, 0))}."
        drawn.append(page.Figure(name=f"li2016_{name}", caption=caption, canvas=canvas))
    return drawn


def _shape(table: Table, row: int) -> dict[str, Any]:
    return {name: table[name][row] for name in convolutions.SHAPE}


def words(table: Table) -> list[str]:
    said = []
    for axis, (meaning, parameters) in AXES.items():
        line = along(table, axis)
        winners: list[tuple[int, str, float, bool]] = []
        for (value,), group in line.groups(parameters[0]):
            order = np.argsort(group.median_us)
            first, second = int(order[0]), int(order[min(1, len(order) - 1)])
            ahead = group.median_us[second] / group.median_us[first]
            is_sure = group.interval(first).high < group.interval(second).low or first == second
            winners.append((int(value), str(group["variant"][first]), float(ahead), is_sure))
        parts, last = [], ""
        for value, variant, ahead, is_sure in winners:
            doubt = "" if is_sure else ", their intervals overlap"
            parts.append(
                f"{'still ' if variant == last else ''}{variant} at {value} (next {ahead:.2f}x{doubt})"
            )
            last = variant
        said.append(f"Over {meaning}: {'; '.join(parts)}.")
    base = table.where(axis="base")
    fastest = int(np.argmin(base.median_us))
    hot = [
        f"{v} in {k} ({100 * s:.0f} %)"
        for v, k, s in zip(base["variant"], base["hot_kernel"], base["hot_share"], strict=True)
    ]
    said.append(f"At the base point the time goes: {', '.join(hot)}.")
    share = base["transfer_us"][0] / (base["transfer_us"][0] + base.median_us[fastest])
    said.append(
        f"Moving its input and output takes {base['transfer_us'][0] / 1e3:.2f} ms, {100 * share:.0f} % of "
        f"that and the fastest convolution together; kinds of memory are compared by `study memory`."
    )
    return [*said, convolution_errors(table)]
