"""Other libraries that a study holds minicnn against, where they are installed: onnxruntime, PyTorch.

On the CPU alone: against a GPU's libraries tools/bench.py and tools/gpu_check.py measure.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from minicnn.study.run import Bench


class Peer(Protocol):
    name: str

    def convolution(
        self, conv: Any, x: np.ndarray, w: np.ndarray, threads: int
    ) -> Callable[[], np.ndarray]: ...


class OnnxRuntime:
    name = "onnxruntime"

    def convolution(self, conv: Any, x: np.ndarray, w: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        node = helper.make_node("Conv", ["x", "w"], ["y"], strides=conv.strides, pads=conv.pads)
        graph = helper.make_graph(
            [node],
            "conv",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(w, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda: session.run(None, {"x": x})[0]


class PyTorch:
    name = "PyTorch"

    def convolution(self, conv: Any, x: np.ndarray, w: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
        import torch

        torch.set_num_threads(threads)
        given, weights = torch.from_numpy(x), torch.from_numpy(w)
        padding = conv.pads[: len(conv.pads) // 2]

        def compute() -> np.ndarray:
            with torch.inference_mode():
                y = torch.nn.functional.conv2d(given, weights, stride=conv.strides, padding=padding)
            return np.asarray(y.numpy())

        return compute


def there(bench: Bench) -> list[Peer]:
    """Those that are installed, on a host device."""
    if bench.device.info.kind != "host":
        return []
    known: dict[str, Peer] = {"onnxruntime": OnnxRuntime(), "torch": PyTorch()}
    return [peer for module, peer in known.items() if importlib.util.find_spec(module)]
