"""Resize and Upsample: every variant against the definition, and that against onnxruntime."""

import numpy as np
import pytest

import harness
from minicnn.errors import ShapeError
from minicnn.graph import TensorType
from minicnn.ops.resize import CASES, Resize, Upsample


@pytest.mark.parametrize(*harness.grid("Resize"))
def test_resize(case, variant, device):
    harness.check("Resize", case, variant, device)


@pytest.mark.parametrize(*harness.grid("Upsample"))
def test_upsample(case, variant, device):
    harness.check("Upsample", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    """onnxruntime computes weights in float32, from coordinates of up to 30 pixels: 2**-20 off, where a
    cubic's slope is 2 at most."""
    operator = CASES[case].operator
    harness.onnx_witness(type(operator).__name__, case, slack=0 if operator.mode == "nearest" else 2**-19)


def test_corners_are_aligned_by_the_length_that_the_scale_says():
    """The standard's own example, which onnxruntime does otherwise: 2 columns of 4 * 0.6 = 2.4."""
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    corners = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    y = Resize(scales=(1.0, 1.0, 0.6, 0.6), **corners).reference(x)
    np.testing.assert_allclose(y, [[[[1.0, 1 + 3 / 1.4]]]], rtol=1e-6)


@pytest.mark.parametrize(
    "operator, shape, words",
    [
        (Resize(scales=(1.0, 2.0)), (1, 2, 3), "3 numbers above 0"),
        (Resize(scales=(1.0, 2.0, 0.0)), (1, 2, 3), "above 0"),
        (Resize(), (1, 2, 3), "one of the two"),
        (Resize(scales=(1.0,), sizes=(1,)), (1,), "one of the two"),
        (Resize(scales=(1.0,), axes=(3,)), (1, 2, 3), "-3 to 2"),
        (Resize(scales=(1.0, 1.0, 0.2)), (1, 2, 3), "nothing is left"),
        (Resize(sizes=(1, 2, 3), coordinate_transformation_mode="tf_crop_and_resize"), (1, 2, 3), "roi"),
        (Upsample(scales=(1.0, 1.0, 0.5)), (1, 2, 3), "1 or more"),
    ],
)
def test_refusals(operator, shape, words):
    with pytest.raises(ShapeError, match=words):
        operator.infer(TensorType(dtype="float32", shape=shape))


@pytest.mark.parametrize(
    "attributes, words",
    [
        ({"mode": "area"}, "area"),
        ({"coordinate_transformation_mode": "corner"}, "half_pixel_symmetric"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize", "scales": (1.0,)}, "by scales"),
        ({"keep_aspect_ratio_policy": "none"}, "not_smaller"),
    ],
)
def test_unknown_words(attributes, words):
    with pytest.raises(ValueError, match=words):
        Resize(**attributes)
