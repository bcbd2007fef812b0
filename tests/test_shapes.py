"""shapes: types found, shape arithmetic folded away, open dimensions refused by name or left to run time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicnn.errors import InputError, MinicnnError, ShapeError
from minicnn.graph import Graph, TensorType
from minicnn.onnx_file import load
from minicnn.shapes import resolve

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Nodes = list[onnx.NodeProto]


def value(name: str, shape: tuple | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """Names separated by blanks; "-" is an absent input."""
    names = ["" if n == "-" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def constant(name: str, *values: object, dtype: str = "int64") -> onnx.NodeProto:
    return node("Constant", "", name, value=numpy_helper.from_array(np.array(values, dtype)))


def graph_of(
    folder: Path, nodes: Nodes, inputs: dict[str, tuple | None], outputs: str = "y", opset: int = 17
) -> Graph:
    proto = helper.make_graph(
        nodes, "g", [value(n, s) for n, s in inputs.items()], [value(n, None) for n in outputs.split()]
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return load(file)


def refusal(
    kind: type[MinicnnError], graph: Graph, *words: str, shapes: dict | None = None, batch: int | None = None
) -> None:
    with pytest.raises(kind) as caught:
        resolve(graph, shapes or {}, batch)
    for word in (graph.file, *words):
        assert word in str(caught.value)


# --- inputs ---


def test_open_dimensions_are_filled(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [node("Add", "a b", "y")], {"a": ("n", 3), "b": ("n", 1)})
    for found in (
        resolve(graph, {}, 5),
        resolve(graph, {"a": (5, 3)}, None),
        resolve(graph, {"b": (5, 1)}, None),
    ):
        assert {n: found.types[n].extents for n in "aby"} == {"a": (5, 3), "b": (5, 1), "y": (5, 3)}
    unranked = graph_of(tmp_path, [node("Relu", "a", "y")], {"a": None})
    assert resolve(unranked, {"a": (2, 0, 4)}, None).types["y"].extents == (2, 0, 4)


def test_dimensions_left_open_are_refused_with_the_remedy(tmp_path: Path) -> None:
    relu = [node("Relu", "x", "y")]
    refusal(
        ShapeError,
        graph_of(tmp_path, relu, {"x": ("n", 3, 4, 4)}),
        "tensor: x",
        "'n'",
        "--batch N",
        "--shape x=EXTENT,3,4,4",
    )
    graph = graph_of(tmp_path, relu, {"x": ("n", 3, "h", None)})
    refusal(ShapeError, graph, "tensor: x", "dimension 2 'h'", "--shape x=2,3,EXTENT,EXTENT", batch=2)
    refusal(ShapeError, graph_of(tmp_path, relu, {"x": None}), "tensor: x", "--shape x=")


def test_the_user_may_not_contradict_the_file(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [node("Sum", "a b c", "y")], {"a": (1, 3), "b": ("n", 3), "c": ("n", 3)})
    refusal(ShapeError, graph, "tensor: a", "1x3", "2x3", shapes={"a": (2, 3)})
    refusal(ShapeError, graph, "tensor: a", shapes={"a": (1, 3, 1)})
    refusal(ShapeError, graph, "tensor: b", shapes={"b": (-1, 3)})
    refusal(ShapeError, graph, "tensor: c", "'n'", "4, as in b", shapes={"b": (4, 3), "c": (5, 3)})
    refusal(InputError, graph, "tensor: z", "a, b, c", shapes={"z": (1,)})
    fixed = graph_of(tmp_path, [node("Relu", "x", "y")], {"x": (1, 3)})
    refusal(ShapeError, fixed, "batch", "x float32 1x3", batch=2)
    assert resolve(fixed, {}, 1).types["y"].extents == (1, 3)
    for batch in (0, -1):
        refusal(
            ShapeError, graph_of(tmp_path, [node("Relu", "x", "y")], {"x": ("n", 3)}), "batch", batch=batch
        )


def test_shapes_that_do_not_fit_name_the_node(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [node("MatMul", "a b", "y", name="here")], {"a": (2, 3), "b": (4, 5)})
    refusal(ShapeError, graph, "node: here", "operator: MatMul")


def test_absurd_sizes(tmp_path: Path) -> None:
    refusal(ShapeError, graph_of(tmp_path, [node("Relu", "x", "y")], {"x": (2**31, 2**31)}), "tensor: x")
    refusal(ShapeError, graph_of(tmp_path, [node("Relu", "x", "y")], {"x": (0, 2**62)}), "tensor: x")
    nodes = [constant("e", 2**31, 2**31), node("Expand", "x e", "z"), node("Shape", "z", "y")]
    refusal(ShapeError, graph_of(tmp_path, nodes, {"x": (1, 1)}), "tensor: z")


# --- folding ---


def test_shape_arithmetic_goes_away(tmp_path: Path) -> None:
    """What exporters write for x.reshape(n, -1)."""
    nodes = [
        node("Shape", "x", "s"), constant("zero", 0), node("Gather", "s zero", "n", axis=0),
        constant("rest", -1), node("Concat", "n rest", "target", axis=0), node("Reshape", "x target", "y"),
    ]  # fmt: skip
    found = resolve(graph_of(tmp_path, nodes, {"x": ("n", 3, 4)}), {}, 5)
    assert [n.op for n in found.nodes] == ["Reshape"]
    assert found.types["y"].extents == (5, 12)
    assert {n: c.tolist() for n, c in found.constants.items()} == {"target": [5, -1]}
    assert set(found.types) == {"x", "target", "y"}


def test_computed_targets_of_pad_slice_resize_and_expand(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"), node("Size", "x", "count"), constant("one", 1), constant("two", 2),
        constant("four", 4), node("Slice", "s two four", "hw"), node("Mul", "hw two", "hw2"),
        constant("nc", 1, 2), node("Concat", "nc hw2", "sizes", axis=0), node("Resize", "x - - sizes", "big"),
        node("Sub", "hw one", "ends"), constant("starts", 0, 0), constant("axes", 2, 3),
        node("Slice", "big starts ends axes", "cut"), constant("some_pads", 0, 0, 0, 0, 0, 0),
        node("Concat", "some_pads starts", "pads", axis=0), node("Pad", "cut pads", "padded"),
    ]  # fmt: skip
    found = resolve(graph_of(tmp_path, nodes, {"x": (1, 2, 5, 7)}, "padded count"), {}, None)
    assert [n.op for n in found.nodes] == ["Resize", "Slice", "Pad"]
    assert found.types["big"].extents == (1, 2, 10, 14)
    assert found.types["padded"].extents == (1, 2, 4, 6)
    assert found.constants["count"] == 70 and "count" in found.outputs


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(0, 9, [2, 3, 4]), (-2, -1, [3]), (5, 9, []), (-9, 1, [2])]
)
def test_parts_of_shapes(tmp_path: Path, start: int, end: int, expected: list[int]) -> None:
    graph = graph_of(tmp_path, [node("Shape", "x", "y", start=start, end=end)], {"x": (2, 3, 4)})
    found = resolve(graph, {}, None)
    assert found.constants["y"].tolist() == expected and found.constants["y"].dtype == np.int64


def test_weights_that_are_computed(tmp_path: Path) -> None:
    nodes = [
        constant("shape", 4, 6),
        node("ConstantOfShape", "shape", "w", value=numpy_helper.from_array(np.float32([0.5]))),
        node("Transpose", "w", "wt", perm=[1, 0]), node("MatMul", "x wt", "y"),
    ]  # fmt: skip
    found = resolve(graph_of(tmp_path, nodes, {"x": (1, 6)}), {}, None)
    assert [n.op for n in found.nodes] == ["MatMul"]
    np.testing.assert_array_equal(found.constants["wt"], np.full((6, 4), 0.5, "float32"))
    assert not found.constants["wt"].flags.writeable


def test_folding_is_bounded_by_bytes(tmp_path: Path) -> None:
    nodes = [constant("shape", 100, 100), node("ConstantOfShape", "shape", "w"), node("Add", "x w", "y")]
    graph = graph_of(tmp_path, nodes, {"x": (100,)})
    assert [n.op for n in resolve(graph, {}, None, 40_000).nodes] == ["Add"]
    kept = resolve(graph, {}, None, 39_999)
    assert [n.op for n in kept.nodes] == ["ConstantOfShape", "Add"]
    assert kept.types["w"].extents == (100, 100)  # known all the same
    huge = [
        constant("shape", 2**20, 2**20),
        node("ConstantOfShape", "shape", "w"),
        node("ReduceSum", "w", "s"),
        node("Add", "x s", "y"),
    ]
    assert [n.op for n in resolve(graph_of(tmp_path, huge, {"x": (1,)}), {}, None).nodes][
        0
    ] == "ConstantOfShape"
    # One-hot's depth is no extent that inference knows beforehand: it must not be tried out.
    deep = [
        constant("i", 1, 2),
        constant("d", 2**40),
        constant("v", 0, 1),
        node("OneHot", "i d v", "o"),
        node("NonZero", "o", "y"),
    ]
    assert [n.op for n in resolve(graph_of(tmp_path, deep, {"x": (1,)}), {}, None).nodes] == [
        "OneHot",
        "NonZero",
    ]


def test_what_must_not_be_folded(tmp_path: Path) -> None:
    random = [node("RandomNormal", "", "r", shape=[2, 2]), node("Add", "x r", "y")]
    assert [n.op for n in resolve(graph_of(tmp_path, random, {"x": (2, 2)}), {}, None).nodes] == [
        "RandomNormal",
        "Add",
    ]
    body = helper.make_graph(
        [node("Identity", "keep", "go"), node("Identity", "v", "w")],
        "body",
        [value("i", (), INT64), value("keep", (), TensorProto.BOOL), value("v", (1,))],
        [value("go", (), TensorProto.BOOL), value("w", (1,))],
    )
    endless = [
        constant("one", 1.0, dtype="float32"),
        node("Loop", "- - one", "l", body=body),
        node("Add", "x l", "y"),
    ]
    assert [n.op for n in resolve(graph_of(tmp_path, endless, {"x": (1,)}), {}, None).nodes] == [
        "Loop",
        "Add",
    ]


def test_outputs_may_be_constants(tmp_path: Path) -> None:
    found = resolve(graph_of(tmp_path, [node("Shape", "x", "y")], {"x": (2, 3)}), {}, None)
    assert found.nodes == () and found.constants["y"].tolist() == [2, 3] and found.outputs == ("y",)


def test_dead_ends_and_unread_outputs_go(tmp_path: Path) -> None:
    nodes = [node("Dropout", "x", "d mask"), node("Relu", "x", "dead"), node("Relu", "d", "y")]
    found = resolve(graph_of(tmp_path, nodes, {"x": (2, 3)}), {}, None)
    assert [(n.op, n.outputs) for n in found.nodes] == [("Dropout", ("d",)), ("Relu", ("y",))]
    nodes = [node("Split", "x", "y z", axis=1)]  # both must stay: their number says how x is cut
    assert resolve(graph_of(tmp_path, nodes, {"x": (2, 4)}), {}, None).nodes[0].outputs == ("y", "z")


# --- shapes known only at run time ---


def late(folder: Path) -> Graph:
    nodes = [
        node("Relu", "x", "r"), node("NonZero", "r", "where"),
        node("Transpose", "where", "places", perm=[1, 0]),
        node("Shape", "places", "s"), node("ReduceSum", "r", "total", keepdims=0), node("Neg", "places", "y"),
    ]  # fmt: skip
    return graph_of(folder, nodes, {"x": ("n", 4)}, "y s total")


def test_what_depends_on_data_stays_open(tmp_path: Path) -> None:
    found = resolve(late(tmp_path), {}, 2)
    assert found.types["r"].extents == (2, 4) and found.types["total"].extents == ()
    for name in ("where", "places", "y"):
        assert name not in found.types or not found.types[name].is_known
    assert {n.op for n in found.nodes} == {"Relu", "NonZero", "Transpose", "Shape", "ReduceSum", "Neg"}


def test_the_tail_is_resolved_when_its_shapes_are_known(tmp_path: Path) -> None:
    head = resolve(late(tmp_path), {}, 2)
    tail = replace(
        head, nodes=tuple(n for n in head.nodes if n.op in ("Transpose", "Shape", "Neg")),
        inputs=("where",), outputs=("y", "s"),
        types=head.types | {"where": TensorType(dtype="int64", shape=(2, 5))},
    )  # fmt: skip
    found = resolve(tail, {"where": (2, 5)}, None)
    assert found.types["y"] == TensorType(dtype="int64", shape=(5, 2))
    assert found.constants["s"].tolist() == [5, 2]


# --- whole networks ---


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_inception_v2"])
def test_real_architectures(name: str) -> None:
    graph = load(LIGHT / f"{name}.onnx")
    found = resolve(graph, {}, None)
    produced = [o for n in found.nodes for o in n.outputs if o]
    assert all(found.types[o].is_known for o in produced)
    assert not any(n.op in ("ConstantOfShape", "Shape", "Constant") for n in found.nodes)
    again = resolve(found, {}, None)
    assert again.nodes == found.nodes and again.types == found.types
    assert again.constants.keys() == found.constants.keys()
    assert all(again.constants[n] is found.constants[n] for n in found.constants)


def test_damaged_networks(tmp_path: Path) -> None:
    """What loads in spite of flipped bytes is resolved, or refused with the file's name."""
    source = (LIGHT / "light_squeezenet.onnx").read_bytes()
    file = tmp_path / "model.onnx"
    resolved = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        data = np.frombuffer(source, np.uint8).copy()
        data[rng.integers(0, len(data))] ^= rng.integers(1, 256)
        file.write_bytes(data.tobytes())
        try:
            resolve(load(file), {}, None, 1 << 24)
            resolved += 1
        except MinicnnError as error:
            assert str(file) in str(error)
    assert 0 < resolved < 100
