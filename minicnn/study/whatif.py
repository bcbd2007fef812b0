"""How long networks would take on machines that aren't here, by their roofs; how far off that is on this one.

Source    minicnn/predict.py names each machine's; the device's own roofs are measured (calibrate)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.engine import Options as PlanOptions
from minicnn.predict import MACHINES, Machine, machine_of, predict
from minicnn.study import networks, page
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "What if: predicted on other machines, held against this one"
COLUMNS: Columns = {
    "network": ("", "with seeded weights, batch 1"),
    "machine": ("", "here: the device that measured"),
    "layer": ("", "by the plan for that machine"),
    "op": ("", "type of layer"),
    "variant": ("", "how it is computed there"),
    "bound": ("", "what the predicted time is made of; empty: the machine can't do it"),
    "predicted_us": ("us", "by the machine's roofs"),
    "time_us": ("us", "measured, here alone"),
}
HERE = "here"


def points(options: Options) -> list[dict[str, Any]]:
    machines = [machine_of(name) for name in options.targets or tuple(MACHINES)]
    return [
        {"network": network, "machine": machine}
        for network in networks.chosen(options.effort)
        for machine in (HERE, *(m.name for m in machines))
    ]


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    network = networks.model(point["network"], 1, bench.options.effort)
    if point["machine"] != HERE:
        wanted = {m.name: m for m in map(machine_of, bench.options.targets or tuple(MACHINES))}
        machine = wanted[point["machine"]]
        plan = network.make_plan(options=PlanOptions(tuned=False), target=machine.target)
        return [_row(p) for p in predict(plan, machine)]
    record = networks.profiled(network, bench)
    plan = network.make_plan(target=bench.target)
    steady = record.is_steady
    return [
        _row(p) | {"time_us": record.time_us[steady, place].tolist()}
        for place, p in enumerate(predict(plan, machine_here(bench)))
    ]


def machine_here(bench: Bench) -> Machine:
    found = bench.calibration
    return Machine(
        name=HERE,
        kind=bench.device.info.kind,
        source="measured",
        fp32_tflop_per_s=found.fma_gflop_per_s / 1e3,
        gb_per_s=found.copy_gb_per_s,
        launch_us=found.null_kernel_us,
    )


def _row(p: Any) -> dict[str, Any]:
    layer = p.layer
    return {
        "layer": layer.name,
        "op": layer.op,
        "variant": layer.variant,
        "bound": p.bound,
        "predicted_us": p.time_us,
        "time_us": [],
    }


def totals(table: Table) -> dict[str, dict[str, float]]:
    """machine -> network -> predicted, and of `measured` what was measured here; us."""
    found: dict[str, dict[str, float]] = {"measured": {}}
    for (network, machine), group in table.groups("network", "machine"):
        found.setdefault(machine, {})[network] = float(np.nansum(group["predicted_us"]))
        if machine == HERE:
            found["measured"][network] = float(np.nansum(group.median_us))
    return found


def figures(table: Table) -> list[page.Figure]:
    found = totals(table)
    names = list(found["measured"])
    with page.axes(height=5) as (canvas, ax):
        for index, (machine, times) in enumerate(found.items()):
            ms = [times[name] / 1e3 for name in names]
            ax.plot(ms, range(len(names)), label=machine, **page.style_of(index) | {"linestyle": ""})
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xscale("log")
        ax.set_xlabel("time of the network, ms (log)")
        page.legend(ax, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    caption = "Batch 1: measured here, predicted here and elsewhere; deap: convolutions and products alone."
    drawn = [page.Figure(name="whatif", caption=caption, canvas=canvas)]
    own = table.where(machine=HERE)
    kept = own.select((own.median_us > 0) & (own["predicted_us"] > 0))
    with page.axes() as (canvas, ax):
        for index, (op, group) in enumerate((op, g) for (op,), g in kept.groups("op")):
            style = page.style_of(index) | {"linestyle": "", "markersize": 3}
            ax.plot(group.median_us, group["predicted_us"], label=op, **style)
        ends = [kept.median_us.min(), kept.median_us.max()]
        ax.plot(ends, ends, color="#999999", linewidth=1)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("measured time of a layer, us (log)")
        ax.set_ylabel("predicted from this device's roofs, us (log)")
        page.legend(ax)
    caption = (
        "The predictor on the device at hand: every layer of every network; on the line it would be right."
    )
    return [*drawn, page.Figure(name="whatif_error", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    found = totals(table)
    ratios = [found[HERE][name] / time for name, time in found["measured"].items() if time]
    own = table.where(machine=HERE)
    kept = own.select((own.median_us > 0) & (own["predicted_us"] > 0))
    by_layer = kept["predicted_us"] / kept.median_us
    low, high = np.percentile(by_layer, (10, 90))
    said = [
        f"On this device the roofs predict {100 * float(np.median(ratios)):.0f} % of a network's measured "
        f"time in the middle ({100 * min(ratios):.0f} to {100 * max(ratios):.0f} %), and "
        f"{100 * float(np.median(by_layer)):.0f} % of a layer's (8 of 10 layers: {100 * low:.0f} to "
        f"{100 * high:.0f} %). Predictions elsewhere are no better than that."
    ]
    for machine, times in found.items():
        if machine in ("measured", HERE):
            continue
        parts = [f"{name} {time / 1e3:.3g} ms" for name, time in times.items() if not math.isnan(time)]
        said.append(f"{machine}, predicted: {', '.join(parts)}.")
    return said
