"""Conv: variants against the definition, the definition against onnxruntime, refusals."""

from dataclasses import replace

import pytest

import harness
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.ops.conv import CASES, Conv
from minicnn.ops.conv_tiled import Tiled, cover
from minicnn.ops.conv_winograd import Winograd
from minicnn.registry import Target

# About slabs and rows of weights; a simulated GPU has tensor instructions to interpret for seconds.
NOT_FOR_TENSOR_CORES = ("several slabs", "17 taps a side", "3x3, more than one slab of tiles")
NAMES, EVERY = harness.grid("Conv")


@pytest.mark.parametrize(
    NAMES,
    [
        one
        for one in EVERY
        if not (one.values[1].startswith("igemm") and one.values[0] in NOT_FOR_TENSOR_CORES)
    ],
)
def test_conv(case, variant, device):
    harness.check("Conv", case, variant, device)


@pytest.mark.parametrize("case", CASES)
def test_definition_agrees_with_onnxruntime(case):
    harness.onnx_witness("Conv", case)


def _types(*shapes):
    return [TensorType(dtype="float32", shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    "conv, shapes, words",
    [
        (Conv(), [(1, 3, 4, 9), (8, 3, 5, 3)], ["along H", "at least 5", "found: 4"]),
        (Conv(dilations=(1, 4)), [(1, 3, 9, 7), (8, 3, 3, 3)], ["along W", "at least 9"]),
        (Conv(group=2), [(1, 3, 9, 9), (8, 3, 3, 3)], ["groups", "(8, 3, 3, 3)"]),
        (Conv(kernel_shape=(5, 5)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["kernel_shape", "(5, 5)", "(3, 3)"]),
        (Conv(pads=(1, 1)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["pads", "4 numbers"]),
        (Conv(strides=(0, 1)), [(1, 3, 9, 9), (8, 3, 3, 3)], ["strides", "above 0"]),
        (Conv(), [(1, 3, 9, 9), (8, 3, 3, 3), (7,)], ["bias", "(8,)", "(7,)"]),
        (Conv(), [(1, 3, 9), (8, 3, 3, 3)], ["axes", "(1, 3, 9)"]),
        (Conv(auto_pad="SAME"), [(1, 3, 9, 9), (8, 3, 3, 3)], ["auto_pad", "SAME_UPPER"]),
    ],
)
def test_impossible_windows_are_refused_by_name(conv, shapes, words):
    with pytest.raises(ShapeError) as refused:
        conv.infer(*_types(*shapes))
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_4d_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="4-D"):
        Conv().infer(*_types((1, 3, 9, 9, 9, 9), (8, 3, 3, 3, 3, 3)))


@pytest.mark.parametrize(
    "case, variant, reason",
    [
        ("strides differ", "gemm1x1", "3x3"),
        ("1x1 with a stride", "gemm1x1", "strides or pads"),
        ("groups", "depthwise", "3 groups"),
        ("depthwise with a multiplier", "depthwise", "34 output channels"),
        ("weights and bias at run time", "im2col", "run time"),
    ],
)
def test_variants_say_why_not(case, variant, reason):
    problem = harness.problem("Conv", case)
    (chosen,) = (v for v in problem.operator.variants() if v.name == variant)
    assert reason in chosen.applies(problem)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("3x3")])
@pytest.mark.parametrize("variant", ["winograd2", "winograd4", "winograd2_gemm", "winograd4_gemm"])
def test_winograd_keeps_the_bound_of_the_definition_too(case, variant, monkeypatch):
    """Not only that of the worst output of a tile: what lets `choose` take it unasked."""
    monkeypatch.setattr(Winograd, "spread", lambda self, errors: errors)
    monkeypatch.setattr("minicnn.lab.checking._with_nan", lambda case, arrays: None)
    harness.check("Conv", case, variant)


@pytest.mark.parametrize("variant", ["tiled", "winograd2", "winograd4"])
@pytest.mark.parametrize("case", ["3x3, uneven pads", "3x3, blocks of unequal width"])
def test_threads_share_the_blocks_of_channels(case, variant):
    harness.check("Conv", case, variant, threads=8)


def test_winograd_declines_where_windows_see_little_but_pads():
    problem = harness.problem("Conv", "pads wider than the input")
    assert "pads" in Winograd(outputs=4).declines(problem)


@pytest.mark.parametrize("vectors", range(1, 40))
@pytest.mark.parametrize("widest", [1, 4])
def test_blocks_cover_all_channels_once(vectors, widest):
    parts = cover(vectors, widest)
    assert [part.first for part in parts] == [0, *(part.end for part in parts)][: len(parts)]
    assert parts[-1].end == vectors
    assert sum(part.blocks for part in parts) == -(-vectors // widest)
    assert max(part.vectors for part in parts) <= widest


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("architecture", ["x86-64-v3", "x86-64-v2", "armv8-a"])
def test_narrow_processors_get_tiles_that_fit(outputs, architecture):
    problem = harness.problem("Conv", "3x3, tails in tiles and channels")
    problem = replace(problem, target=Target(architecture=architecture))
    for variant in (Tiled(), Winograd(outputs=outputs)):
        packings = variant.packings(problem)
        packed = replace(problem.inputs[1], shape=packings[1].shape)
        ready = replace(problem, inputs=(problem.inputs[0], packed, *problem.inputs[2:]))
        tiles = [dict(step.kernel.defines) for step in variant.steps(ready)]
        assert all(tile["VECTORS"] == 1 and tile["PIXELS"] <= 6 for tile in tiles)


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("case", ["few channels, all axes different", "groups, strides and dilations"])
def test_slabs_of_a_row_or_two(case, device, monkeypatch):
    monkeypatch.setattr("minicnn.ops.conv_variants.SLAB_BYTES", 2000)
    harness.check("Conv", case, "im2col", device)


def test_slabs_bound_the_workspace():
    problem = harness.problem("Conv", "several slabs")
    (im2col,) = (v for v in problem.operator.variants() if v.name == "im2col")
    whole = 4 * 3 * 34 * 41 * 48 * 5 * 5
    assert whole / 6 < im2col.workspace_bytes(problem) <= 4 << 20 < whole
