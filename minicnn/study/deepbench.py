"""The convolutions of DeepBench's inference server set by every variant.

Source    baidu-research/DeepBench; deepbench.csv names the set. Not its method, which truncates times and
          doesn't look at results
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.study import convolutions, page
from minicnn.study.convnet import convolution_errors
from minicnn.study.convolutions import Effort
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table, geometric_mean

TITLE = "DeepBench's convolutions for inference"
COLUMNS: Columns = {"problem": ("", "number in deepbench.csv"), **convolutions.COLUMNS}
PROBLEMS = Path(__file__).with_name("deepbench.csv")
QUICK = 4  # the smallest
SMALL_GFLOP = 2.0  # of the default: larger ones are left to --full
BUDGETS = {"quick": 0.02, "default": 0.1, "full": 0.3}
PEERS = ("onnxruntime", "PyTorch")


def points(options: Options) -> list[dict[str, Any]]:
    with PROBLEMS.open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        found = [{"problem": i, **{k: int(v) for k, v in line.items()}} for i, line in enumerate(lines)]
    if options.effort == "quick":
        found = sorted(found, key=convolutions.gflop)[:QUICK]
    elif options.effort == "default":
        found = [point for point in found if convolutions.gflop(point) <= SMALL_GFLOP]
    return found


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    effort = bench.options.effort
    return convolutions.measure(point, bench, Effort(budget_s=BUDGETS[effort], has_peers=effort != "quick"))


def _slowdowns(table: Table) -> dict[str, list[float]]:
    """variant -> its time over the fastest of ours, for each problem it can do."""
    found: dict[str, list[float]] = {}
    for _, group in table.groups("problem"):
        own = group.select(~np.isin(group["variant"], PEERS))
        best = own.median_us.min()
        for variant, middle in zip(group["variant"], group.median_us, strict=True):
            found.setdefault(variant, []).append(float(middle / best))
    return found


def figures(table: Table) -> list[page.Figure]:
    with page.axes(height=5) as (canvas, ax):
        for index, (variant, ratios) in enumerate(sorted(_slowdowns(table).items())):
            share = np.arange(1, len(ratios) + 1) / len(table.groups("problem"))
            style = page.style_of(index) | {"marker": ""}
            ax.step(sorted(ratios), 100 * share, where="post", label=f"{variant} ({len(ratios)})", **style)
        ax.set_xscale("log")
        ax.set_xlim(left=0.3)
        ax.set_xlabel("time over that of the fastest of minicnn's variants (log)")
        ax.set_ylabel("share of all problems, %")
        page.legend(ax, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    caption = (
        "On how many of the problems a variant is within a factor of the fastest; "
        "in brackets how many it can do."
    )
    return [page.Figure(name="deepbench", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    wins: dict[str, int] = {}
    for _, group in table.groups("problem"):
        own = group.select(~np.isin(group["variant"], PEERS))
        winner = str(own["variant"][int(np.argmin(own.median_us))])
        wins[winner] = wins.get(winner, 0) + 1
    ordered = sorted(wins.items(), key=lambda one: -one[1])
    problems = len(table.groups("problem"))
    said = [f"Fastest of {problems} problems: " + ", ".join(f"{v} on {n}" for v, n in ordered) + "."]
    slowdowns = _slowdowns(table)
    for peer in PEERS:
        if peer in slowdowns:
            mean = geometric_mean(slowdowns[peer])
            faster = sum(ratio < 1 for ratio in slowdowns[peer])
            said.append(
                f"{peer} takes {mean:.2f} times as long as the fastest variant in the geometric mean "
                f"and is faster on {faster} problems."
            )
    return [*said, convolution_errors(table)]
