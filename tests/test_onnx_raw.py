"""Weights left in their file: the model without them parses, and with them it is the model it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn
from minicnn.onnx_raw import _LARGE, _mapping, detach, release

SIZES = (_LARGE // 4, 3, 40_000, _LARGE // 4 - 1, 300_000)


def model(functions: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(n, dtype=np.float32) for n in SIZES]
    weights = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]
    floats = helper.make_tensor("typed", TensorProto.FLOAT, [2000], [1.5] * 2000)  # no raw_data at all
    nodes = [helper.make_node("Add", ["x", "w1"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [*weights[:2], floats, *weights[2:]])
    opsets = [helper.make_opsetid("", 17)]
    made = [
        helper.make_function("d", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
        for _ in range(functions)
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=made)


def test_with_the_views_put_back_it_is_the_model_it_was() -> None:
    original = model()
    data = original.SerializeToString()
    rest, raw = detach(memoryview(data))
    assert sorted(raw) == [0, 3, 5] and len(rest) < 40_000  # places 1 and 4 are small, 2 has no raw_data
    parsed = onnx.ModelProto.FromString(bytes(rest))
    for place, view in raw.items():
        assert not parsed.graph.initializer[place].HasField("raw_data")
        parsed.graph.initializer[place].raw_data = bytes(view)
    assert parsed == original


def test_functions_leave_all_as_it_came() -> None:
    data = memoryview(model(functions=1).SerializeToString())
    assert detach(data) == (data, {})


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_left_to_the_parser(seed: int) -> None:
    """Truncated or with wrong bytes: no error here, and every view lies within the data."""
    rng = np.random.default_rng(seed)
    data = bytearray(model().SerializeToString())
    for place in rng.integers(0, 200, 3):
        data[place] = rng.integers(0, 256)
    rest, raw = detach(memoryview(data)[: rng.integers(1, len(data))])
    assert len(rest) + sum(map(len, raw.values())) <= len(data)


def test_a_large_file_is_mapped_and_its_pages_given_back(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    onnx.save(model(), path)
    constants = minicnn.load(path).graph.constants
    for tensor in model().graph.initializer:
        expected = numpy_helper.to_array(tensor)
        assert (_mapping(constants[tensor.name]) is not None) == (expected.size in (SIZES[0], *SIZES[2::2]))
        release(constants.values())
        assert np.array_equal(constants[tensor.name], expected) and not constants[tensor.name].flags.writeable
