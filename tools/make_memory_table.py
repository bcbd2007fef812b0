"""Memory of the nine light networks, planned against touched against what the process grew by:
docs/memory.md.

    python tools/make_memory_table.py

Each network runs in a process of its own, with seeded random weights, on the host device.
"""

from __future__ import annotations

import datetime
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "models"))

MIB = 1 << 20
INTRODUCTION = """# Memory of nine networks

No plan can be smaller than the largest live sum of any layer (its inputs, outputs, workspace, and what later
layers still need). *Touched* is the arena's high-water mark found by a canary, *grown* what the process took
from before planning to after the runs, weights and arena included. *Nothing shared* is the sum of all
activations.
"""
HEAD = (
    "| network | largest live sum | planned peak | ratio | touched | nothing shared | weights | grown |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def builders() -> ModuleType:
    """models/build.py: the folder is no package."""
    return importlib.import_module("build")


def measure(name: str) -> dict[str, float]:
    """One network's figures in bytes, in this process."""
    import numpy as np
    import onnx

    import minicnn

    build = builders()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(build.refill(onnx.load(build.light_models()[name]), seed=1), path)
        model = minicnn.load(path)
        with model.plan(device="host") as engine:
            (known,) = model.inputs.values()
            record = engine.profile(np.zeros(known.extents, np.float32), repeat=3)
    return {
        "live": record.live_peak_bytes,
        "planned": record.planned_peak_bytes,
        "touched": record.touched_peak_bytes,
        "apart": record.activations_bytes,
        "weights": record.weights_bytes,
        "grown": record.allocated_peak_bytes,
    }


def row(name: str, figures: dict[str, float]) -> str:
    mib = {key: f"{value / MIB:,.2f} MiB" for key, value in figures.items()}
    ratio = figures["planned"] / figures["live"]
    cells = [name, mib["live"], mib["planned"], f"{ratio:.3f}", mib["touched"], mib["apart"], mib["weights"]]
    return "| " + " | ".join([*cells, mib["grown"]]) + " |"


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    rows = []
    for name in builders().light_models():
        done = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, check=True, cwd=ROOT
        )
        rows.append(row(name, json.loads(done.stdout.splitlines()[-1])))
        print(rows[-1])
    date = datetime.date.today().isoformat()
    made = f"Made by `python tools/make_memory_table.py` on {date}, host device, batch 1."
    (ROOT / "docs" / "memory.md").write_text("\n".join([INTRODUCTION, HEAD, *rows, "", made, ""]))


if __name__ == "__main__":
    main()
