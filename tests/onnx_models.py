"""Small ONNX models for tests, and the check that loading one is refused in one typed error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicnn.errors import MinicnnError, ModelError
from minicnn.onnx_file import load

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(5)


def named(arguments: str | tuple[str, ...], cases: dict) -> pytest.MarkDecorator:
    """Parameters whose names are the reason they are there."""
    return pytest.mark.parametrize(arguments, list(cases.values()), ids=list(cases))


def value(name: str, shape: tuple | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, *shape: int, dtype: str = "float32") -> TensorProto:
    return numpy_helper.from_array(np.asarray(RNG.standard_normal(shape)).astype(dtype), name)


def small(**graph_parts: object) -> onnx.ModelProto:
    """x (n, 3, 8, 8) -> Conv -> Relu -> y, weights as initializers; `graph_parts` replaces parts of it."""
    parts: dict = {
        "nodes": [
            helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "name": "small",
        "inputs": [value("x", ("n", 3, 8, 8))],
        "outputs": [value("y", None)],
        "initializer": [tensor("w", 4, 3, 3, 3), tensor("b", 4)],
    }
    return model(helper.make_graph(**(parts | graph_parts)))


def model(graph: onnx.GraphProto, **parts: object) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, **({"opset_imports": opsets, "ir_version": 8} | parts))


def saved(proto: onnx.ModelProto | bytes, folder: Path) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return file


def refusal(file: Path, *words: str, **limits: int) -> MinicnnError:
    """The one typed error, which names the file and all of `words`."""
    with pytest.raises(ModelError) as caught:
        load(file, **limits)
    for word in (str(file), *words):
        assert word in str(caught.value)
    return caught.value


def branch(name: str, nodes: list[onnx.NodeProto], output: str, **parts: object) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output, None)], **parts)
