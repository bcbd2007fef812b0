"""The ten classic networks that studies measure, built with seeded weights, and one run of them measured."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minicnn import engine
from minicnn.engine import Model
from minicnn.errors import InputError
from minicnn.record import RunRecord
from minicnn.study.run import Bench

TEN = (
    "alexnet", "vgg16", "vgg19", "googlenet", "resnet18", "resnet50", "squeezenet", "mobilenet_v2",
    "densenet121", "efficientnet_lite0",
)  # fmt: skip
SMALL = ("squeezenet", "mobilenet_v2", "resnet18")
QUICK = {"image_size": 64, "width": 0.25}  # of the small ones
REPEAT = {"quick": 6, "default": 15, "full": 50}


def chosen(effort: str) -> tuple[str, ...]:
    return SMALL if effort == "quick" else TEN


@cache
def _builder() -> ModuleType:
    """models/build.py, beside the package in a checkout, in it where it is installed."""
    package = Path(__file__).parents[1]
    for path in (package / "models" / "build.py", package.parent / "models" / "build.py"):
        if path.is_file():
            spec = importlib.util.spec_from_file_location("minicnn_models_build", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    raise InputError("models/build.py isn't there", expected=str(package.parent / "models"))


def model(name: str, batch: int, effort: str) -> Model:
    sizes: dict[str, Any] = QUICK if effort == "quick" else {}
    made = _builder().build(name, 1, batch, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(made.SerializeToString())
        return engine.load(path)


def profiled(network: Model, bench: Bench, *, energy: bool = False) -> RunRecord:
    """A run of seeded random input, repeated as the effort says."""
    with network.plan(device=bench.device) as ready:
        (x,) = ready.plan.inputs
        image = np.random.default_rng(0).uniform(-1, 1, x.shape).astype(x.dtype)
        return ready.profile(image, repeat=REPEAT[bench.options.effort], energy=energy)
