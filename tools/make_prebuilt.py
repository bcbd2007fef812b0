"""The kernels that installing the package compiles: cuda/prebuilt.json.

    python tools/make_prebuilt.py

The macros of all kernels in the plans of the ten networks of the benchmarks, the published ones and those of
models/, on each kind of processor with few and many threads, and on a GPU; and those that calibrate.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

import onnx  # noqa: E402

import minicnn  # noqa: E402
import published  # noqa: E402
from minicnn import calibrate  # noqa: E402
from minicnn.device.prebuilt import Defines, text_of  # noqa: E402
from minicnn.engine import Options  # noqa: E402
from minicnn.kernels import source_folder  # noqa: E402
from minicnn.registry import Target  # noqa: E402
from minicnn.step import Launch  # noqa: E402
from tools import bench  # noqa: E402

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a")
THREADS = (1, 2, 4, 16)
Wanted = dict[str, set[tuple[str, Defines]]]


def targets() -> dict[str, list[Target]]:
    """Key of the list -> the targets whose plans go under it."""
    found = {
        level: [Target(kind="host", architecture=level, threads=threads) for threads in THREADS]
        for level in LEVELS
    }
    found["cuda"] = [Target(kind="cuda", architecture="sm_90")]
    return found


def networks(folder: Path) -> Iterator[minicnn.Model]:
    for path in bench.models(folder, 1, []).values():
        yield minicnn.load(path)
    for path in sorted((ROOT / "models").glob("*.onnx")):
        yield minicnn.load(path, batch=1)
    for name in sorted(published.NETWORKS):
        path = folder / f"{name}.onnx"
        onnx.save(published.build(name, 1, 1), path)
        yield minicnn.load(path)


def macros_of(model: minicnn.Model, target: Target) -> set[tuple[str, Defines]]:
    """What one plan needs beyond kernels without macros; {} where the file leaves shapes open."""
    plan = model.make_plan(target=target, options=Options(tuned=False))
    steps = [step for layer in plan.layers for step in layer.steps if isinstance(step, Launch)]
    return {(step.kernel.file, step.kernel.defines) for step in steps if step.kernel.defines}


def wanted() -> Wanted:
    found: Wanted = {key: set() for key in targets()}
    with tempfile.TemporaryDirectory() as folder:
        for model in networks(Path(folder)):
            for key, variants in targets().items():
                for target in variants:
                    try:
                        found[key] |= macros_of(model, target)
                    except minicnn.errors.ShapeError:
                        continue
    for key in found:
        accumulators = calibrate.ACCUMULATORS.get(key, calibrate.OTHER_ACCUMULATORS)
        found[key].add(("calibrate.cu", (("ACCUMULATORS", accumulators),)))
    return found


def main() -> None:
    listed: dict[str, dict[str, list[str]]] = {}
    for key, modules in wanted().items():
        for file, defines in sorted(modules):
            listed.setdefault(key, {}).setdefault(file, []).append(text_of(defines))
    path = source_folder() / "prebuilt.json"
    path.write_text(json.dumps(listed, indent=1) + "\n")
    print({key: sum(map(len, files.values())) for key, files in listed.items()})


if __name__ == "__main__":
    main()
