"""Walks and copies that many operators share; what only large tensors reach, by making the limits small."""

import math

import numpy as np
import pytest

import harness
from minicnn import kernels
from minicnn.geometry import NHWC, PLAIN, Layout, row_major
from minicnn.step import Operand
from minicnn.strided import AXES, copy_steps, rows, walked_shape, walks

SPLIT = [
    ("Relu", "more elements than a block has threads", "elementwise"),
    ("Clip", "both limits inside the data", "elementwise"),
    ("Add", "add, six axes that don't merge", "broadcast"),
    ("PRelu", "prelu, a slope a channel", "elementwise"),
    ("Transpose", "six axes, none merges", "copy"),
    ("Transpose", "tiles with a tail", "copy"),
    ("Transpose", "an image's channels to the end", "copy"),
    ("Transpose", "bytes", "copy"),
    ("Pad", "rank 5, two axes", "fill_and_copy"),
    ("Softmax", "rank 6: more groups' axes than a grid has", "thread"),
    ("Softmax", "along many channels", "warp"),
    ("ReduceMean", "mean, rank 6", "direct"),
]


@pytest.mark.parametrize("op, case, variant", SPLIT)
def test_grids_beyond_cudas_limit_are_split(op, case, variant, monkeypatch):
    monkeypatch.setattr(kernels, "GRID_YZ_MAX", 1)
    harness.check(op, case, variant, "host")


@pytest.mark.parametrize("extents", [(), (1,), (7,), (2, 1, 3), (2, 3, 4, 5), (3, 2, 2, 3, 2, 4, 2)])
def test_walks_visit_every_element_once(extents):
    rng = np.random.default_rng(len(extents))
    places = rng.permutation(len(extents))
    x_strides = row_major(extents)
    shuffled = row_major(tuple(extents[p] for p in places))
    y_strides = tuple(shuffled[list(places).index(axis)] for axis in range(len(extents)))
    found = []
    for walk in walks(extents, x_strides, y_strides):
        steps = np.indices(walk.extents).reshape(AXES, -1)
        x, y = (start + np.array(s) @ steps for start, s in zip(walk.starts, walk.strides, strict=True))
        found += zip(x, y, strict=True)
    steps = np.indices(extents).reshape(len(extents), math.prod(extents))
    x, y = (np.array(s, int) @ steps for s in (x_strides, y_strides))
    assert sorted(found) == sorted(zip(x, y, strict=True))


def test_nothing_to_walk():
    assert walks((2, 0, 3), (0, 3, 1)) == ()
    empty = Operand(name="x", dtype="float32", shape=(2, 0, 3))
    assert copy_steps(empty, empty) == ()


SLICE = Layout(order="NHWC", channel_pad=16, channel_stride=64, offset=16)


@pytest.mark.parametrize(
    "layouts, width, count",
    [
        ((PLAIN, PLAIN), 2 * 5 * 12, 1),
        ((NHWC, NHWC), 2 * 16 * 12, 1),
        ((NHWC, SLICE), 16, 2 * 12),
        ((Layout(channel_stride=9), PLAIN), 5 * 12, 2),
    ],
)
def test_rows_are_as_long_as_both_operands_allow(layouts, width, count):
    x, y = (Operand(name="x", dtype="float32", shape=(2, 5, 3, 4), layout=layout) for layout in layouts)
    found = rows(x, y)
    assert (found.width, found.count) == (width, count)
    assert found.width * found.count >= math.prod(x.shape)


@pytest.mark.parametrize(
    "shape, layout, channels",
    [
        ((2, 5, 3, 4), NHWC, 16),
        ((2, 5, 3, 4), Layout(order="NHWC"), 5),
        ((2, 5, 3, 4), PLAIN, 5),
        ((5, 1, 1), PLAIN, 5),
        ((5, 3, 4), NHWC, 5),  # its padding lies along y's rows
        ((2, 1, 3, 4), NHWC, 16),
        ((3, 4), PLAIN, 16),
    ],
)
def test_channel_padding_is_walked_only_where_an_operand_has_it(shape, layout, channels):
    y = Operand(name="y", dtype="float32", shape=(2, 5, 3, 4), layout=NHWC)
    b = Operand(name="b", dtype="float32", shape=shape, layout=layout)
    assert walked_shape(y, b) == (2, channels, 3, 4)


def test_a_conversion_moves_tiles_and_a_copy_moves_rows():
    x = Operand(name="x", dtype="float32", shape=(2, 20, 6, 7))
    assert [s.kernel.entry for s in copy_steps(x, x.with_layout(NHWC))] == ["copy_tile"]
    assert [s.kernel.entry for s in copy_steps(x.with_layout(NHWC), x)] == ["copy_tile"]
    assert [s.kernel.entry for s in copy_steps(x, x)] == ["copy_words"]
