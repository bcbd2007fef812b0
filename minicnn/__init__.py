"""minicnn: CNN inference in pure CUDA, driven from Python, that measures itself.

    model = minicnn.load("model.onnx")
    engine = model.plan(device="host", threads=2)
    outputs = engine.run(x)
    record = engine.profile(x, repeat=50, record="run.h5")

Importing this package imports neither onnx nor a GPU's driver; the first use of `load` or `open_device` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minicnn.errors import MinicnnError
from minicnn.version import VERSION as __version__

if TYPE_CHECKING:
    from minicnn.device import open_device
    from minicnn.engine import Engine, Model, load
    from minicnn.store import read

_PLACES = {
    "load": "minicnn.engine",
    "Model": "minicnn.engine",
    "Engine": "minicnn.engine",
    "open_device": "minicnn.device",
    "read": "minicnn.store",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'minicnn' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


__all__ = ["Engine", "MinicnnError", "Model", "__version__", "load", "open_device", "read"]
