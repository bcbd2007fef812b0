"""The five layers of convnet-benchmarks by every variant.

Source    soumith/convnet-benchmarks: batch 128, stride 1, no padding
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.study import convolutions, page
from minicnn.study.convolutions import Effort
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "The layers of convnet-benchmarks"
COLUMNS: Columns = {"layer": ("", "L1 to L5"), **convolutions.COLUMNS}
LAYERS = {  # C, H = W, K, R = S
    "L1": (3, 128, 96, 11),
    "L2": (64, 64, 128, 9),
    "L3": (128, 32, 128, 9),
    "L4": (128, 16, 128, 7),
    "L5": (384, 13, 384, 3),
}
BATCHES = {"quick": 1, "default": 8, "full": 128}


def points(options: Options) -> list[dict[str, Any]]:
    chosen = ("L4", "L5") if options.effort == "quick" else LAYERS
    found = []
    for layer in chosen:
        C, size, K, R = LAYERS[layer]
        shape = {"N": BATCHES[options.effort], "C": C, "H": size, "W": size, "K": K, "R": R, "S": R}
        strides = {"stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0}
        found.append({"layer": layer, **shape, **strides})
    return found


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    return convolutions.measure(point, bench, Effort(has_peers=bench.options.effort != "quick"))


def figures(table: Table) -> list[page.Figure]:
    with page.axes() as (canvas, ax):
        layers = list(dict.fromkeys(table["layer"].tolist()))
        variants = list(dict.fromkeys(table["variant"].tolist()))
        width = 0.8 / len(variants)
        for index, variant in enumerate(variants):
            own = table.where(variant=variant)
            places = [
                layers.index(layer) + (index - (len(variants) - 1) / 2) * width for layer in own["layer"]
            ]
            middle = own.median_us / 1e3
            intervals = [own.interval(row) for row in range(len(own))]
            bars = [
                [
                    max(m - i.low / 1e3, 0) if i.is_bounded else 0
                    for m, i in zip(middle, intervals, strict=True)
                ],
                [
                    max(i.high / 1e3 - m, 0) if i.is_bounded else 0
                    for m, i in zip(middle, intervals, strict=True)
                ],
            ]
            ax.bar(places, middle, width, yerr=bars, label=variant, capsize=1, **page.filling(index))
        ax.set_xticks(range(len(layers)), layers)
        ax.set_yscale("log")
        ax.set_ylabel("time of a run, ms (log)")
        page.legend(ax, ncols=5, loc="lower left", bbox_to_anchor=(0, 1))
    caption = (
        f"Median time of a run at batch {int(table['N'][0])}, with 95 % intervals where six runs were made."
    )
    return [page.Figure(name="convnet", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    said = []
    for (layer,), group in table.groups("layer"):
        own = group.select(~np.isin(group["variant"], ("onnxruntime", "PyTorch")))
        order = np.argsort(own.median_us)
        best = own["variant"][order[0]]
        times = own.median_us[order]
        interval = own.interval(int(order[0]))
        sure = f" [{interval.low / 1e3:.2f} to {interval.high / 1e3:.2f}]" if interval.is_bounded else ""
        rate = own["gflop_per_s"][order[0]]
        sentence = f"{layer}: {best} is fastest, {times[0] / 1e3:.2f} ms{sure}, {rate:.0f} GFLOP/s"
        if len(times) > 1:
            sentence += f"; {own['variant'][order[1]]} takes {times[1] / times[0]:.2f} times as long"
        for peer in ("onnxruntime", "PyTorch"):
            other = group.where(variant=peer)
            if len(other):
                sentence += f", {peer} {other.median_us[0] / times[0]:.2f} times"
        said.append(sentence + ".")
    return [*said, convolution_errors(table)]


def convolution_errors(table: Table) -> str:
    """How the errors stand to their bounds, in a sentence."""
    own = table.select(~np.isnan(table["error_of_bound"]))
    worst = int(np.argmax(own["error_of_bound"]))
    broken = int((own["error_of_bound"] > 1).sum())
    verdict = f"{broken} are beyond their bound" if broken else "all are within their bound"
    return (
        f"Of {len(own)} results {verdict}; the nearest to it is {own['variant'][worst]} with "
        f"{own['error_of_bound'][worst]:.2f} of it ({convolutions.describe(_point(own, worst))})."
    )


def _point(table: Table, row: int) -> dict[str, Any]:
    return {name: table[name][row] for name in convolutions.SHAPE}
