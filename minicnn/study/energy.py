"""Whether a network's energy and time follow from counts: models fixed beforehand, tried on others.

Method    three linear models without a constant: MACs; FLOPs and bytes; FLOPs, bytes and launches.
          Coefficients by least squares of the relative error, from all networks but one, which is then
          predicted. The error is the mean of the absolute relative errors of those predictions
Source    SyNERGY (Rodrigues, Riley, Lujan, 2017): 7.08 % without MobileNet and 17.33 % with it, from MACs,
          of the energy of a Jetson TX1's processor
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn import stats
from minicnn.study import networks, page
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "Energy and time out of counts"
COLUMNS: Columns = {
    "network": ("", "with seeded weights, batch 1"),
    "macs": ("", "multiply-adds"),
    "flops": ("", "floating-point operations"),
    "bytes": ("bytes", "moved: inputs, weights, outputs and workspaces of all layers"),
    "launches": ("", "kernels and products"),
    "time_us": ("us", "first event to last"),
    "energy_uj": ("uJ", "of all layers, idle taken off; NaN where no counter can be read"),
}
MODELS = {
    "MACs": ("macs",),
    "FLOPs, bytes": ("flops", "bytes"),
    "FLOPs, bytes, launches": ("flops", "bytes", "launches"),
}
FEWEST = 4  # networks: one is left out, three fit three coefficients


def points(options: Options) -> list[dict[str, Any]]:
    names = networks.chosen(options.effort)
    return [{"network": name} for name in dict.fromkeys((*names, "googlenet"))]  # four at least


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    has_meter = not isinstance(bench.device.energy_meter(), str)
    network = networks.model(point["network"], 1, bench.options.effort)
    record = networks.profiled(network, bench, energy=has_meter)
    layers = record.layers
    return [
        {
            "macs": sum(layer.macs for layer in layers),
            "flops": sum(layer.flops for layer in layers),
            "bytes": sum(layer.bytes_moved for layer in layers),
            "launches": sum(len(layer.kernel) for layer in layers),
            "time_us": record.plain_us[record.is_steady].tolist(),
            "energy_uj": float(np.sum([layer.energy_uj for layer in layers])) if has_meter else np.nan,
        }
    ]


def predictions(table: Table, y: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Each network's, from the others."""
    counts = np.stack([table[name].astype(float) for name in names], axis=1)
    found = np.empty(len(y))
    for left_out in range(len(y)):
        kept = np.arange(len(y)) != left_out
        scaled = counts[kept] / y[kept, np.newaxis]
        size = np.abs(scaled).max(axis=0)
        coefficients = np.linalg.lstsq(scaled / size, np.ones(kept.sum()), rcond=None)[0] / size
        found[left_out] = counts[left_out] @ coefficients
    return found


def errors(table: Table, quantity: str) -> dict[str, float]:
    """model -> mean absolute relative error; {} where the quantity wasn't measured for enough networks."""
    y = table.median_us if quantity == "time" else table["energy_uj"]
    if len(y) < FEWEST or not np.isfinite(y).all():
        return {}
    return {
        model: float(np.abs(predictions(table, y, names) / y - 1).mean()) for model, names in MODELS.items()
    }


def _without_mobilenet(table: Table) -> Table:
    return table.select(np.array([not name.startswith("mobilenet") for name in table["network"]], bool))


def figures(table: Table) -> list[page.Figure]:
    drawn = []
    for quantity, unit, y in (
        ("time", "ms", table.median_us / 1e3),
        ("energy", "mJ", table["energy_uj"] / 1e3),
    ):
        if not errors(table, quantity):
            continue
        with page.axes(columns=3, width=11, height=4) as (canvas, all_axes):
            for ax, (model, names) in zip(all_axes, MODELS.items(), strict=True):
                found = predictions(table, y, names)
                ends = [0.7 * min(y.min(), found[found > 0].min()), 1.4 * max(y.max(), found.max())]
                ax.plot(ends, ends, color="#999999", linewidth=1)
                for index, name in enumerate(table["network"]):
                    ax.plot(y[index], found[index], label=name, **page.style_of(index) | {"linestyle": ""})
                ax.set_xscale("log")
                ax.set_yscale("log")
                ax.set_title(model, fontsize=9)
                ax.set_xlabel(f"measured {quantity}, {unit} (log)")
            all_axes[0].set_ylabel(f"predicted without the network, {unit} (log)")
            canvas.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        caption = f"Each network's {quantity}, predicted from the other networks' counts."
        drawn.append(page.Figure(name=f"energy_{quantity}", caption=caption, canvas=canvas))
    return drawn


def words(table: Table) -> list[str]:
    said = []
    for quantity in ("energy", "time"):
        found, without = errors(table, quantity), errors(_without_mobilenet(table), quantity)
        if not found:
            said.append(f"{quantity.capitalize()}: no counter can be read here; nothing stands in its place.")
            continue
        parts = [
            f"{model} {100 * error:.1f} %"
            + (f" ({100 * without[model]:.1f} % without MobileNet)" if without else "")
            for model, error in found.items()
        ]
        said.append(
            f"{quantity.capitalize()} of a network left out is missed by, on average: {'; '.join(parts)}."
        )
    spread = [stats.median_interval(samples[~np.isnan(samples)]) for samples in table["time_us"]]
    widths = [(i.high - i.low) / m for i, m in zip(spread, table.median_us, strict=True) if i.is_bounded]
    if widths:
        said.append(f"The medians of time are known within {100 * max(widths):.1f} % (widest 95 % interval).")
    return [
        *said,
        "SyNERGY's 7.08 % (17.33 % with MobileNet) from MACs is of the energy of a Jetson TX1's processor.",
    ]
