"""How good is a choice of variants: the static model's and the cache's, against measuring them all.

Method    seeded shapes that no constant of the static model was fitted to. Each is raced twice: the first
          race stands for the cache (its winner is kept), the second times all candidates anew. Regret: time
          of the chosen one over the fastest of the second race, less 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import planner, tune
from minicnn.choose import NOTHING_MEASURED, choose
from minicnn.graph import Graph, Node, TensorType
from minicnn.study import convolutions, page
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "Choosing variants: static model and cache against measuring them all"
COLUMNS: Columns = {
    **convolutions.SHAPE,
    "group": ("", "groups of the convolution"),
    "static": ("", "what the static model chooses"),
    "cached": ("", "what was fastest in the first race"),
    "fastest": ("", "what was fastest in the second"),
    "candidates": ("", "forms of variants that raced"),
    "fastest_us": ("us", "its median in the second race"),
    "static_regret": ("", "time of the static choice over the fastest, less 1"),
    "cached_regret": ("", "time of the cached choice over the fastest, less 1"),
    "reason": ("", "the static model's words"),
}
COUNTS = {"quick": 4, "default": 40, "full": 120}
SEED = 2016
MOST_GFLOP = 1.0


def points(options: Options) -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    found: list[dict[str, Any]] = []
    most = MOST_GFLOP if options.effort != "quick" else 0.05
    while len(found) < COUNTS[options.effort]:
        size = int(rng.choice((7, 10, 14, 19, 28, 38, 56, 75, 112)))
        kernel = int(rng.choice((1, 1, 3, 3, 3, 5, 7)))
        channels = int(rng.choice((3, 16, 24, 48, 64, 96, 128, 192, 256, 384, 512)))
        is_depthwise = bool(rng.random() < 0.2) and kernel > 1
        filters = channels if is_depthwise else int(rng.choice((16, 24, 32, 64, 96, 128, 256, 512)))
        stride = int(rng.choice((1, 1, 1, 2)))
        point = {
            "N": int(rng.choice((1, 1, 2, 4))), "C": channels, "H": size, "W": size, "K": filters,
            "R": kernel, "S": kernel, "stride_h": stride, "stride_w": stride,
            "pad_h": kernel // 2, "pad_w": kernel // 2, "group": channels if is_depthwise else 1,
        }  # fmt: skip
        if kernel <= size and convolutions.gflop(point) / point["group"] <= most:
            found.append(point)
    return found


def graph_of(point: Mapping[str, Any]) -> Graph:
    """The convolution and a Relu behind it, as networks have it."""
    w = np.random.default_rng(0).uniform(-1, 1, _weights(point)).astype(np.float32)
    attributes = {
        "kernel_shape": [point["R"], point["S"]],
        "strides": [point["stride_h"], point["stride_w"]],
        "pads": [point["pad_h"], point["pad_w"]] * 2,
        "group": point["group"],
    }
    node = Node(name="conv", op="Conv", inputs=("x", "w"), outputs=("y",), attributes=attributes)
    shape = tuple(point[name] for name in "NCHW")
    rows = (point["H"] + 2 * point["pad_h"] - point["R"]) // point["stride_h"] + 1
    columns = (point["W"] + 2 * point["pad_w"] - point["S"]) // point["stride_w"] + 1
    types = {
        "x": TensorType(dtype="float32", shape=shape),
        "w": TensorType(dtype="float32", shape=w.shape),
        "y": TensorType(dtype="float32", shape=(point["N"], point["K"], rows, columns)),
    }
    return Graph(
        name="conv", file="", sha256="", opsets={"": 17}, inputs=("x",), outputs=("y",), nodes=(node,),
        constants={"w": w}, types=types,
    )  # fmt: skip


def _weights(point: Mapping[str, Any]) -> tuple[int, ...]:
    return point["K"], point["C"] // point["group"], point["R"], point["S"]


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    plan = planner.plan(graph_of(point), target=bench.target, measured=NOTHING_MEASURED)
    layer = next(layer for layer in plan.layers if layer.op == "Conv")
    problem = layer.problem
    assert problem is not None
    choice = choose(problem, node="conv", op="Conv", wanted={})
    assert choice.variant is not None
    static = choice.variant.label
    runners = tune.candidates(problem)
    if static not in {runner.label for runner in runners}:
        runners.append(choice.variant)
    if len(runners) < 2:
        return []
    first, second = (tune.race(problem, runners, bench.device) for _ in range(2))
    fastest = min(second.times_us.values())
    cached = first.winner.label
    return [
        {
            "static": static,
            "cached": cached,
            "fastest": min(second.times_us, key=lambda label: second.times_us[label]),
            "candidates": len(runners),
            "fastest_us": fastest,
            "static_regret": second.times_us[static] / fastest - 1,
            "cached_regret": second.times_us[cached] / fastest - 1,
            "reason": choice.reason,
        }
    ]


def figures(table: Table) -> list[page.Figure]:
    with page.axes() as (canvas, ax):
        for index, (name, label) in enumerate(
            (("static_regret", "static model"), ("cached_regret", "cache"))
        ):
            regrets = 100 * np.sort(table[name])
            share = 100 * np.arange(1, len(regrets) + 1) / len(regrets)
            ax.step(regrets, share, where="post", label=label, **page.style_of(index) | {"marker": ""})
        ax.set_xlabel("regret: time over that of the fastest, less 1, %")
        ax.set_ylabel("share of the shapes, %")
        page.legend(ax, loc="lower right")
    caption = f"On how many of {len(table)} shapes a choice costs at most so much."
    return [page.Figure(name="chooser", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    said = []
    for name, label in (("static_regret", "The static model"), ("cached_regret", "The cache")):
        regrets = table[name]
        low, high = _mean_interval(regrets)
        said.append(
            f"{label} costs {100 * regrets.mean():.1f} % on average over {len(table)} held-out shapes "
            f"[95 %: {100 * low:.1f} to {100 * high:.1f}], {100 * np.median(regrets):.1f} % in the middle, "
            f"{100 * regrets.max():.0f} % at worst."
        )
    worst = int(np.argmax(table["static_regret"]))
    shape = {key: table[key][worst] for key in convolutions.SHAPE}
    said.append(
        f"Its worst shape is {convolutions.describe(shape)}, {table['group'][worst]} groups: "
        f"{table['static'][worst]} ({table['reason'][worst]}) where {table['fastest'][worst]} is fastest."
    )
    return said


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Of the mean, by drawing the shapes again (bootstrap, percentiles)."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (2000, len(values))).mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)
