"""Where the time of a network goes, by type of layer.

Source    the share that the literature names for convolution, 86 to 94 %, is of training (DEAP-CNNs cites
          Li et al. 2016 for it); this is of inference
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.study import networks, page
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "Time by type of layer"
COLUMNS: Columns = {
    "network": ("", "with seeded weights"),
    "batch": ("", "images"),
    "op": ("", "type of layer; what is fused into it counts with it"),
    "layers": ("", "of this type"),
    "macs": ("", "multiply-adds of them all"),
    "time_us": ("us", "of all layers of the type, a sample for each repetition"),
    "share": ("", "median of their time over that of all layers"),
}
BATCHES = {"quick": (1,), "default": (1, 8), "full": (1, 8, 32)}


def points(options: Options) -> list[dict[str, Any]]:
    return [
        {"network": name, "batch": batch}
        for name in networks.chosen(options.effort)
        for batch in BATCHES[options.effort]
    ]


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    record = networks.profiled(networks.model(point["network"], point["batch"], bench.options.effort), bench)
    times = record.time_us[record.is_steady]
    total = times.sum(axis=1)
    ops = np.array([layer.op for layer in record.layers])
    return [
        {
            "op": op,
            "layers": int((ops == op).sum()),
            "macs": int(sum(layer.macs for layer in record.layers if layer.op == op)),
            "time_us": times[:, ops == op].sum(axis=1).tolist(),
            "share": float(np.median(times[:, ops == op].sum(axis=1) / total)),
        }
        for op in dict.fromkeys(ops.tolist())
    ]


def figures(table: Table) -> list[page.Figure]:
    mean = {op: float(group["share"].sum()) for (op,), group in table.groups("op")}
    shown = sorted(mean, key=lambda op: -mean[op])[:8]
    runs = table.groups("network", "batch")
    with page.axes(height=1.5 + 0.28 * len(runs)) as (canvas, ax):
        left = np.zeros(len(runs))
        for index, op in enumerate([*shown, "other"]):
            widths = np.array(
                [
                    sum(
                        s
                        for o, s in zip(g["op"], g["share"], strict=True)
                        if o == op or (op == "other" and o not in shown)
                    )
                    for _, g in runs
                ]
            )
            places = range(len(runs))
            ax.barh(places, 100 * widths, left=100 * left, label=op, **page.filling(index))
            left += widths
        ax.set_yticks(range(len(runs)), [f"{name}, batch {batch}" for (name, batch), _ in runs])
        ax.invert_yaxis()
        ax.set_xlabel("share of the time of all layers, %")
        page.legend(ax, ncols=5, loc="lower left", bbox_to_anchor=(0, 1))
    caption = (
        "Median share of each type of layer; activations and additions that are fused count with their layer."
    )
    return [page.Figure(name="breakdown", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    convolution = {
        key: float(g.where(op="Conv")["share"].sum()) for key, g in table.groups("network", "batch")
    }
    least, most = (
        min(convolution, key=lambda k: convolution[k]),
        max(convolution, key=lambda k: convolution[k]),
    )
    said = [
        f"Convolutions take {100 * convolution[least]:.0f} % ({least[0]}, batch {least[1]}) to "
        f"{100 * convolution[most]:.0f} % ({most[0]}, batch {most[1]}) of the layers' time, "
        f"{100 * float(np.median(list(convolution.values()))):.0f} % in the middle.",
        "The literature's 86 to 94 % is of training, forward and backward: another quantity.",
    ]
    rest = table.select((table["op"] != "Conv") & (table["share"] > 0.1))
    if len(rest):
        parts = [
            f"{op} in {name} at batch {batch} ({100 * share:.0f} %)"
            for op, name, batch, share in zip(
                rest["op"], rest["network"], rest["batch"], rest["share"], strict=True
            )
        ]
        said.append(f"Besides, above 10 %: {', '.join(parts)}.")
    return said
