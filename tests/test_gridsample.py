"""GridSample: every variant against the definition, and that against onnxruntime."""

import numpy as np
import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.gridsample import CASES, GridSample


@pytest.mark.parametrize(*harness.grid("GridSample"))
def test_gridsample(case, variant, device):
    harness.check("GridSample", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("GridSample", case)


@pytest.mark.parametrize("align_corners", [0, 1])
def test_the_grid_of_an_images_own_pixels_gives_the_image(align_corners):
    x = np.random.default_rng(3).uniform(-1, 1, (1, 2, 5, 7)).astype(np.float32)
    ends = [1.0 if align_corners else 1 - 1 / extent for extent in (7, 5)]
    w, h = (np.linspace(-end, end, extent) for end, extent in zip(ends, (7, 5), strict=True))
    grid = np.stack(np.meshgrid(w, h), axis=-1)[None].astype(np.float32)
    for mode in ("nearest", "linear", "cubic"):
        y = GridSample(mode=mode, align_corners=align_corners).reference(x, grid)
        np.testing.assert_allclose(y, x, atol=2e-6)


@pytest.mark.parametrize(
    "shapes, words",
    [
        ([(1, 2, 3, 4), (2, 3, 3, 2)], "doesn't fit"),
        ([(1, 2, 3, 4), (1, 3, 3, 3)], "doesn't fit"),
        ([(1, 2, 3), (1, 3, 3, 2)], "not an image"),
    ],
)
def test_refusals(shapes, words):
    with pytest.raises(ShapeError, match=words):
        GridSample().infer(*(TensorType(dtype="float32", shape=shape) for shape in shapes))


def test_volumes_and_unknown_words_are_refused():
    types = [TensorType(dtype="float32", shape=s) for s in ((1, 2, 3, 4, 5), (1, 3, 3, 3, 3))]
    with pytest.raises(UnsupportedError, match="volume"):
        GridSample().infer(*types)
    with pytest.raises(ValueError, match="reflection"):
        GridSample(padding_mode="wrap")
