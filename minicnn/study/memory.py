"""What it costs to bring a layer's tensors to the device and back: by kind of memory, layer by layer.

Method    input and output in the host's memory: the time from one to the other, by the caller's clock, and
          the device's time for the layer alone. Kinds take turns
Not here  several streams: a layer's kernel waits for its copies; whole batches overlap in `infer --image`
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.choose import choose
from minicnn.device.memory_kinds import KINDS, share
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.lab.race import Place
from minicnn.ops.broadcast import Add
from minicnn.ops.conv import Conv
from minicnn.ops.gemm import Gemm
from minicnn.ops.maxpool import MaxPool
from minicnn.ops.relu import Relu
from minicnn.registry import Problem
from minicnn.step import Operand
from minicnn.study import page
from minicnn.study.run import Bench, Options
from minicnn.study.table import Columns, Row, Table

TITLE = "Kinds of memory between host and device"
COLUMNS: Columns = {
    "layer": ("", "what is computed"),
    "kind": ("", "explicit, pinned, mapped or managed: minicnn/device/memory_kinds.py"),
    "variant": ("", "how it is computed"),
    "bytes": ("bytes", "input and output"),
    "time_us": ("us", "from the input in the host's memory to the output there"),
    "layer_us": ("us", "of these, the layer itself on the device (median)"),
}
LAYERS: dict[str, tuple[Any, tuple[Shape, ...]]] = {  # operator, its inputs; all but the first are constants
    "Conv 3x3, 64 to 64": (Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), ((1, 64, 56, 56), (64, 64, 3, 3))),
    "Conv 1x1, 256 to 64": (Conv(kernel_shape=(1, 1)), ((1, 256, 56, 56), (64, 256, 1, 1))),
    "Conv depthwise 3x3": (
        Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1), group=96),
        ((1, 96, 56, 56), (96, 1, 3, 3)),
    ),
    "MaxPool 3x3": (MaxPool(kernel_shape=(3, 3), strides=(2, 2)), ((1, 64, 112, 112),)),
    "Relu": (Relu(), ((1, 64, 112, 112),)),
    "Add": (Add(), ((1, 256, 56, 56), (1, 256, 56, 56))),
    "Gemm 4096 to 1000": (Gemm(transB=1), ((1, 4096), (1000, 4096))),
}
QUICK = ("Conv 1x1, 256 to 64", "Relu")
ROUNDS = {"quick": 6, "default": 25, "full": 100}


def points(options: Options) -> list[dict[str, Any]]:
    return [{"layer": name} for name in (QUICK if options.effort == "quick" else LAYERS)]


def measure(point: Mapping[str, Any], bench: Bench) -> list[Row]:
    operator, shapes = LAYERS[point["layer"]]
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    inputs = tuple(
        Operand(name=f"in{i}", dtype="float32", shape=a.shape, value=a if i else None)
        for i, a in enumerate(arrays)
    )
    (y,) = operator.infer(*(TensorType(dtype="float32", shape=a.shape) for a in arrays))
    output = Operand(name="y", dtype="float32", shape=y.extents)
    problem = Problem(operator=operator, inputs=inputs, outputs=(output,), target=bench.target)
    variant = choose(problem, node="", op=type(operator).__name__, wanted={}).variant
    assert variant is not None
    lanes = [
        _Lane(kind, Place(variant, problem, bench.device, arrays), bench)
        for kind in KINDS[bench.device.info.kind]
    ]
    try:
        for lane in lanes:
            lane.run()
        for lane in lanes:
            lane.require_same(lanes[0])
        samples = {lane.kind: [] for lane in lanes}  # type: dict[str, list[tuple[float, float]]]
        for _ in range(ROUNDS[bench.options.effort]):
            for lane in lanes:
                samples[lane.kind].append(lane.run())
        moved = lanes[0].source.array.nbytes + lanes[0].target.array.nbytes
    finally:
        for lane in lanes:
            lane.close()
    return [
        {
            "kind": kind,
            "variant": variant.name,
            "bytes": moved,
            "time_us": [whole for whole, _ in times],
            "layer_us": float(np.median([layer for _, layer in times])),
        }
        for kind, times in samples.items()
    ]


class _Lane:
    """One kind of memory: the layer between an input and an output of that kind."""

    def __init__(self, kind: str, place: Place, bench: Bench):
        self.kind, self.place, self.device = kind, place, bench.device
        first, last = place.inputs[0], place.outputs[0]
        assert first is not None
        self.source, self.target = (
            share(self.device, kind, operand.view().byte_offset + operand.nbytes) for operand in (first, last)
        )
        content = np.empty_like(self.source.array)
        self.device.download(place.pointers[first.name], content)
        self.source.array[:] = content
        moved = {first.name: self.source.pointer, last.name: self.target.pointer}
        pointers = place.pointers | moved
        steps = [
            self.device.prepare(s, lambda view: pointers[view.tensor] + view.byte_offset) for s in place.steps
        ]
        self.first, self.last = self.device.event(), self.device.event()
        self.program = self.device.capture(
            [self.device.record(self.first), *steps, self.device.record(self.last)]
        )

    def run(self) -> tuple[float, float]:
        """Microseconds: from host to host, and of the layer."""
        self.device.sync()
        begun = time.perf_counter()
        self.source.upload()
        self.program()
        self.target.download()
        self.device.sync()
        whole = (time.perf_counter() - begun) * 1e6
        return whole, self.device.elapsed_us(self.first, self.last)

    def require_same(self, other: _Lane) -> None:
        assert np.array_equal(self.target.array, other.target.array), f"{self.kind} gives another output"

    def close(self) -> None:
        self.source.close()
        self.target.close()
        self.place.close()


def figures(table: Table) -> list[page.Figure]:
    layers = list(dict.fromkeys(table["layer"].tolist()))
    kinds = list(dict.fromkeys(table["kind"].tolist()))
    with page.axes(height=1.5 + 0.5 * len(layers)) as (canvas, ax):
        width = 0.8 / len(kinds)
        for index, kind in enumerate(kinds):
            own = table.where(kind=kind)
            places = [layers.index(layer) + (index - (len(kinds) - 1) / 2) * width for layer in own["layer"]]
            ax.barh(places, own.median_us, width, label=kind, **page.filling(index))
            ax.plot(
                own["layer_us"], places, "k|", markersize=10, label="the layer itself" if not index else None
            )
        ax.set_yticks(range(len(layers)), layers)
        ax.invert_yaxis()
        ax.set_xlabel("from host to host, us (median)")
        page.legend(ax, ncols=5, loc="lower left", bbox_to_anchor=(0, 1))
    caption = "The rest of a bar is moving its tensors: what the black mark leaves."
    return [page.Figure(name="memory", caption=caption, canvas=canvas)]


def words(table: Table) -> list[str]:
    said = []
    for (layer,), group in table.groups("layer"):
        order = np.argsort(group.median_us)
        best, base = int(order[0]), int(np.flatnonzero(group["kind"] == "explicit")[0])
        ratio = group.median_us[base] / group.median_us[best]
        is_sure = best == base or group.interval(best).high < group.interval(base).low
        share = 1 - group["layer_us"][base] / group.median_us[base]
        whole = f"{group.median_us[base]:,.0f} us with explicit copies"
        sentence = f"{layer}: {100 * share:.0f} % of {whole} is moving tensors"
        if best != base:
            doubt = "" if is_sure else " (their intervals overlap)"
            sentence += f"; {group['kind'][best]} memory is {ratio:.2f} times as fast{doubt}"
        said.append(sentence + ".")
    if set(table["kind"]) <= set(KINDS["host"]):
        said.append("On the host the device's memory is the caller's: pinned and managed memory don't apply.")
    return said
