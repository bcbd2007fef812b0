"""Records how a real machine's layer times wander: the noise that tests/synthetic.py replays.

    python tools/record_traces.py            writes tests/traces.npz

A small network of models/, thousands of repetitions on the host device, whatever else the machine is doing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import minicnn
from minicnn.feeds import random_inputs

ROOT = Path(__file__).parent.parent
REPETITIONS = 4000
KEPT_LAYERS = 4  # the slowest ones: the others are near the clock's step


def main() -> None:
    traces = {}
    for threads in (1, 2):
        model = minicnn.load(ROOT / "models" / "mtcnn_onet.onnx", batch=1)
        with model.plan(device="host", threads=threads) as engine:
            record = engine.profile(random_inputs(model), repeat=REPETITIONS)
        times = record.time_us[record.is_steady][:REPETITIONS]
        for layer in np.argsort(-np.median(times, axis=0))[:KEPT_LAYERS]:
            traces[f"{threads}_threads_{layer}"] = times[:, layer].astype(np.float32)
    np.savez_compressed(ROOT / "tests" / "traces.npz", **traces)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
