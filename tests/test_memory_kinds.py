"""Every kind of memory between host and device: what is written on one side is read on the other."""

from __future__ import annotations

import numpy as np
import pytest

import harness
from minicnn import kernels
from minicnn.device.memory_kinds import KINDS, share
from minicnn.step import Kernel, View
from minicnn.study import memory
from minicnn.study.run import Bench, Options

on_every_device = pytest.mark.parametrize("device", harness.DEVICES)


@on_every_device
@pytest.mark.parametrize("kind", KINDS["cuda"])
def test_a_kernel_reads_and_writes_it(kind: str, device: str) -> None:
    opened = harness.open_device(device)
    if kind not in KINDS[opened.info.kind]:
        pytest.skip("doesn't apply to this device")
    x = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    source, target = share(opened, kind, x.nbytes), share(opened, kind, x.nbytes)
    try:
        source.array.view(np.float32)[:] = x
        target.array[:] = 0
        (launch,) = kernels.launch(
            Kernel(file="relu.cu", entry="relu"),
            grid=(4, 1, 1), block=(256, 1, 1),
            x=View(tensor="x"), y=View(tensor="y"), rows=1, width=1000, x_stride=1000, y_stride=1000,
        )  # fmt: skip
        opened.build([launch.kernel])
        pointers = {"x": source.pointer, "y": target.pointer}
        action = opened.prepare(launch, lambda view: pointers[view.tensor])
        source.upload()
        action()
        target.download()
        opened.sync()
        np.testing.assert_array_equal(target.array.view(np.float32), np.maximum(x, 0))
    finally:
        source.close()
        target.close()


@on_every_device
def test_the_study_compares_all_kinds(device: str) -> None:
    bench = Bench(options=Options(effort="quick"), device=harness.open_device(device))
    rows = memory.measure({"layer": "Relu"}, bench)
    assert [row["kind"] for row in rows] == list(KINDS[bench.device.info.kind])
    assert all(len(row["time_us"]) == 6 and row["bytes"] == 2 * 4 * 64 * 112 * 112 for row in rows)
