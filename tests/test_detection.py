"""NonMaxSuppression and RoiAlign of the fallback against onnxruntime and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from minicnn.detection import non_max_suppression, roi_align

ort = pytest.importorskip("onnxruntime")


def witness(op: str, arrays: list[np.ndarray | None], opset: int, **attributes: Any) -> np.ndarray:
    feeds = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [f"i{i}" if f"i{i}" in feeds else "" for i in range(len(arrays))]
    kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in feeds.items()]
    kind = TensorProto.FLOAT if op == "RoiAlign" else TensorProto.INT64
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], op, inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
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
        exact = witness("NonMaxSuppression", [boxes, scores, *given], 11, center_point_box=center_point_box)
        np.testing.assert_array_equal(found, exact)


def test_no_limit_on_the_number_means_none() -> None:
    boxes, scores = np.zeros((1, 4, 4), np.float32), np.ones((1, 1, 4), np.float32)
    assert non_max_suppression(boxes, scores).shape == (0, 3)


def test_boxes_of_no_area_suppress_nothing() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.4]]], np.float32)
    found = non_max_suppression(boxes, scores, np.array(9), np.array(0.5, np.float32))
    assert found.tolist() == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("is_half_pixel", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 1, 3])
def test_roi_align_agrees_with_onnxruntime(sampling_ratio: int, is_half_pixel: bool) -> None:
    """Regions within the picture, across its edge, beyond it, and smaller than an element."""
    random = np.random.default_rng(2)
    x = random.uniform(-1, 1, (2, 5, 9, 12)).astype(np.float32)
    inside, across = [[0, 0, 20, 17], [3, 2, 9.5, 11], [5, 5, 5.2, 5.1]], [[-9, -5, 7, 8], [15, 10, 40, 33]]
    rois = np.array([*inside, *across, [60, 50, 70, 55]], np.float32)
    pictures = np.array([0, 1, 1, 0, 1, 0])
    options: dict[str, Any] = {"output_height": 3, "output_width": 4, "spatial_scale": 0.5}
    options["sampling_ratio"] = sampling_ratio
    mode = "half_pixel" if is_half_pixel else "output_half_pixel"
    exact = witness("RoiAlign", [x, rois, pictures], 16, coordinate_transformation_mode=mode, **options)
    found = roi_align(x, rois, pictures, is_half_pixel=is_half_pixel, **options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
