"""NonMaxSuppression of the fallback against onnxruntime and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from minicnn.suppression import non_max_suppression

ort = pytest.importorskip("onnxruntime")


def witness(arrays: list[np.ndarray | None], center_point_box: int) -> np.ndarray:
    feeds = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [f"i{i}" if f"i{i}" in feeds else "" for i in range(len(arrays))]
    node = helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=center_point_box)
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in feeds.items()]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [None, 3])
    graph = helper.make_graph([node], "nms", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("center_point_box", [0, 1])
@pytest.mark.parametrize(
    "limits", [(9, 0.5, 0.3), (3, 0.0, 0.0), (100, 0.9, None), (0, 0.5, 0.1), (5, None, 0.2)]
)
def test_agrees_with_onnxruntime(limits: tuple[Any, ...], center_point_box: int) -> None:
    random = np.random.default_rng(4)
    boxes = random.uniform(0, 1, (2, 60, 4)).astype(np.float32)  # corners in any order
    scores = np.round(random.uniform(0, 1, (2, 3, 60)), 1).astype(np.float32)  # many are equal
    for shape in ((), (1,)):
        kinds = (np.int64, np.float32, np.float32)
        given = [
            None if limit is None else np.full(shape, limit, kind)
            for limit, kind in zip(limits, kinds, strict=True)
        ]
        found = non_max_suppression(boxes, scores, *given, is_centred=center_point_box == 1)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, witness([boxes, scores, *given], center_point_box))


def test_no_limit_on_the_number_means_none() -> None:
    boxes, scores = np.zeros((1, 4, 4), np.float32), np.ones((1, 1, 4), np.float32)
    assert non_max_suppression(boxes, scores).shape == (0, 3)


def test_boxes_of_no_area_suppress_nothing() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.4]]], np.float32)
    found = non_max_suppression(boxes, scores, np.array(9), np.array(0.5, np.float32))
    assert found.tolist() == [[0, 0, 1], [0, 0, 0]]
