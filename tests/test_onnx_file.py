"""onnx_file: what a model file says arrives, and nothing in it is trusted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from minicnn.errors import ModelError, UnsupportedError
from minicnn.graph import Graph
from minicnn.onnx_file import load
from onnx_models import FLOAT, branch, model, named, refusal, saved, small, tensor, value

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


# --- what arrives ---


def test_a_small_network(tmp_path: Path) -> None:
    proto = small()
    helper.set_model_props(proto, {"labels": "cat,dog"})
    file = saved(proto, tmp_path)
    graph = load(file)
    assert [(n.name, n.op, n.inputs, n.outputs) for n in graph.nodes] == [
        ("Conv_0", "Conv", ("x", "w", "b"), ("a",)),
        ("Relu_1", "Relu", ("a",), ("y",)),
    ]
    assert graph.nodes[0].attributes == {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
    assert graph.nodes[0].sources == ("Conv_0",)
    assert (graph.inputs, graph.outputs, graph.opset) == (("x",), ("y",), 17)
    assert graph.types["x"].shape == ("n", 3, 8, 8)
    assert graph.types["w"].extents == (4, 3, 3, 3)
    assert graph.metadata == {"labels": "cat,dog"}
    assert graph.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    np.testing.assert_array_equal(graph.constants["w"], numpy_helper.to_array(proto.graph.initializer[0]))
    assert not graph.constants["w"].flags.writeable


def test_weights_that_are_also_inputs_are_not_inputs(tmp_path: Path) -> None:
    proto = small(inputs=[value("x", (1, 3, 8, 8)), value("w", (4, 3, 3, 3)), value("b", (4,))])
    assert load(saved(proto, tmp_path)).inputs == ("x",)


@named(
    ("attribute", "given", "expected"),
    {
        "value": ("value", numpy_helper.from_array(np.float16([[1, 2]])), np.float16([[1, 2]])),
        "one float": ("value_float", 1.5, np.float32(1.5)),
        "floats": ("value_floats", [1.5, 2.0], np.float32([1.5, 2])),
        "one integer": ("value_int", 7, np.int64(7)),
        "integers": ("value_ints", [7, -1], np.int64([7, -1])),
    },
)
def test_constant_nodes(tmp_path: Path, attribute: str, given: object, expected: np.ndarray) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **{attribute: given}),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    found = load(saved(small(nodes=nodes), tmp_path)).constants["c"]
    assert found.dtype == np.asarray(expected).dtype and found.shape == np.shape(expected)
    np.testing.assert_array_equal(found, expected)


def test_open_dimensions(tmp_path: Path) -> None:
    proto = small(
        inputs=[value("x", ("n", None, "?", -1)), value("z", None), value("s", ()), value("o", (0, 2))]
    )
    types = load(saved(proto, tmp_path)).types
    assert types["x"].shape == ("n", None, None, None)
    assert types["z"].shape is None
    assert types["s"].shape == () and types["o"].shape == (0, 2)


def test_names_are_unique_and_made_up_where_missing(tmp_path: Path) -> None:
    names = ["same", "", "same", "Relu_1", "same_1", ""]
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    graph = load(saved(small(nodes=nodes, inputs=[value("t0", (1,))], outputs=[value("t6", None)]), tmp_path))
    found = [node.name for node in graph.nodes]
    assert len(set(found)) == len(found)
    assert [found[0], found[3], found[4]] == ["same", "Relu_1", "same_1"]
    assert found[5] == "Relu_5"


def test_nodes_are_sorted(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=str(i)) for i in (2, 0, 1)]
    graph = load(saved(small(nodes=nodes, inputs=[value("t0", (1,))], outputs=[value("t3", None)]), tmp_path))
    assert [node.name for node in graph.nodes] == ["0", "1", "2"]


def test_absent_inputs_and_outputs_stay_empty(tmp_path: Path) -> None:
    nodes = [helper.make_node("Resize", ["x", "", "s"], ["y"]), helper.make_node("Dropout", ["x"], ["d", ""])]
    graph = load(saved(small(nodes=nodes, initializer=[tensor("s", 4)]), tmp_path))
    assert graph.nodes[0].inputs == ("x", "", "s") and graph.nodes[1].outputs == ("d", "")


def test_what_subgraphs_capture_becomes_inputs(tmp_path: Path) -> None:
    inner = helper.make_node(
        "If", ["c2"], ["r"],
        then_branch=branch("t2", [helper.make_node("Neg", ["deep"], ["n"])], "n"),
        else_branch=branch("e2", [helper.make_node("Neg", ["local"], ["n"])], "n"),
    )  # fmt: skip
    outer = helper.make_node(
        "If", ["c"], ["y"],
        then_branch=branch("t", [helper.make_node("Neg", ["x"], ["local"]), inner], "r"),
        else_branch=branch("e", [helper.make_node("Neg", ["k"], ["s"])], "s", initializer=[tensor("k", 1)]),
    )  # fmt: skip
    inputs = [
        value("x", (1,)),
        value("deep", (1,)),
        value("c", (), TensorProto.BOOL),
        value("c2", (), TensorProto.BOOL),
    ]
    node = load(saved(small(nodes=[outer], inputs=inputs), tmp_path)).nodes[0]
    assert node.inputs == ("c", "x", "c2", "deep") and node.captured == ("x", "c2", "deep")


def test_model_local_functions_are_written_out(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["c"],
        [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])],
        opsets,
    )
    nodes = [
        helper.make_node("Twice", ["x"], ["m"], domain="mine"),
        helper.make_node("Twice", ["m"], ["y"], domain="mine"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", (2,))], [value("y", None)])
    found = load(saved(model(graph, opset_imports=opsets, functions=[twice]), tmp_path))
    assert [node.op for node in found.nodes] == ["Relu", "Neg", "Relu", "Neg"]


# --- files that aren't models ---


def test_no_file(tmp_path: Path) -> None:
    refusal(tmp_path / "missing.onnx", "no such file")
    refusal(tmp_path, "not a file")
    refusal(saved(b"", tmp_path), "empty")
    refusal(tmp_path / ("x" * 300))
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe", "not a file")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refusal(tmp_path / "circle")


@named(
    "data",
    {
        "text": b"# a read-me, not a model\n" * 20,
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
        "zeros": bytes(1000),
        "noise": np.random.default_rng(3).bytes(5000),
        "another protobuf": TensorProto(
            name="w", data_type=1, dims=[2], raw_data=bytes(8)
        ).SerializeToString(),
        "a pointer to a large file": b"version https://example.org/spec/v1\noid sha256:00\nsize 1\n",
    },
)
def test_not_onnx(tmp_path: Path, data: bytes) -> None:
    refusal(saved(data, tmp_path))


def test_newer_than_the_installed_onnx(tmp_path: Path) -> None:
    proto = small()
    proto.ir_version = onnx.IR_VERSION + 1
    assert isinstance(refusal(saved(proto, tmp_path), "IR version", onnx.__version__), UnsupportedError)
    proto = small()
    proto.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    assert isinstance(refusal(saved(proto, tmp_path), "opset", onnx.__version__), UnsupportedError)


def test_opsets(tmp_path: Path) -> None:
    proto = small()
    proto.opset_import.add(domain="unused", version=10**9)
    proto.opset_import.add(domain="ai.onnx", version=17)  # the default domain's other name
    assert load(saved(proto, tmp_path)).opset == 17
    proto.opset_import.add(domain="", version=16)
    refusal(saved(proto, tmp_path), "two opsets")
    proto = small()
    del proto.opset_import[:]
    refusal(saved(proto, tmp_path), "no opset")
    proto.ir_version = 2  # before opsets
    assert load(saved(proto, tmp_path)).opset == 1


# --- graphs that contradict themselves ---


def relus(*edges: tuple[str, str]) -> list[onnx.NodeProto]:
    return [helper.make_node("Relu", [a], [b], name=f"{a}-{b}") for a, b in edges]


@named(
    ("parts", "words"),
    {
        "an input nobody computes": (
            {"nodes": relus(("x", "y"), ("ghost", "z"))},
            ["node: ghost-z", "tensor: ghost"],
        ),
        "an output nobody computes": ({"outputs": [value("ghost", None)]}, ["tensor: ghost"]),
        "no outputs": ({"outputs": []}, ["no outputs"]),
        "an output listed twice": ({"outputs": [value("y", None), value("y", None)]}, ["output twice"]),
        "two nodes, one output": ({"nodes": relus(("x", "y"), ("x", "y"))}, ["tensor: y", "x-y"]),
        "a node writes an input": ({"nodes": relus(("x", "y"), ("y", "x"))}, ["tensor: x", "a graph input"]),
        "a node writes a weight": ({"nodes": relus(("x", "y"), ("x", "w"))}, ["tensor: w", "an initializer"]),
        "one input twice": ({"inputs": [value("x", (1,)), value("x", (1,))]}, ["tensor: x"]),
        "one weight twice": ({"initializer": [tensor("w", 1), tensor("w", 1)]}, ["tensor: w"]),
        "a circle": (
            {"nodes": relus(("p", "q"), ("q", "r"), ("r", "p"), ("x", "y"))},
            ["q-r -> r-p -> p-q -> q-r"],
        ),
        "a node in a circle with itself": ({"nodes": relus(("p", "p"), ("x", "y"))}, ["p-p -> p-p"]),
        "no operator": ({"nodes": [helper.make_node("", ["x"], ["y"], name="it")]}, ["node: it"]),
        "a nameless weight": ({"initializer": [tensor("", 1)]}, ["without a name"]),
        "a constant without value": (
            {"nodes": [helper.make_node("Constant", [], ["y"], name="it")]},
            ["node: it"],
        ),
        "a constant of two values": (
            {"nodes": [helper.make_node("Constant", [], ["y"], name="it", value_int=1, value_float=1.0)]},
            ["node: it"],
        ),
        "a constant of the wrong kind": (
            {"nodes": [helper.make_node("Constant", [], ["y"], name="it", value_floats="text")]},
            ["node: it", "value_floats"],
        ),
        "an integer no float holds": (
            {"nodes": [helper.make_node("Constant", [], ["y"], name="it", value_int=[1, 2])]},
            ["node: it", "value_int"],
        ),
        "a negative input extent": ({"inputs": [value("x", (-2, 3))]}, ["tensor: x", "-2"]),
        "an input without a type": ({"inputs": [onnx.ValueInfoProto(name="x")]}, ["tensor: x"]),
        "an input of a sequence": (
            {"inputs": [helper.make_tensor_sequence_value_info("x", FLOAT, None)]},
            ["tensor: x", "sequence"],
        ),
        "an input of an unknown type": ({"inputs": [value("x", (1,), 999)]}, ["tensor: x", "999"]),
        "sparse weights": (
            {
                "sparse_initializer": [
                    helper.make_sparse_tensor(tensor("sp", 1), numpy_helper.from_array(np.int64([0])), [5])
                ]
            },
            ["tensor: sp", "sparse"],
        ),
    },
)
def test_contradictions(tmp_path: Path, parts: dict, words: list[str]) -> None:
    refusal(saved(small(**parts), tmp_path), *words)


def attributed(attribute: AttributeProto) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"], name="it")
    node.attribute.append(attribute)
    return small(nodes=[node])


def test_attributes(tmp_path: Path) -> None:
    sparse = helper.make_sparse_tensor(tensor("sp", 1), numpy_helper.from_array(np.int64([0])), [5])
    cases = {
        "no kind": AttributeProto(name="key"),
        "an unknown kind": AttributeProto(
            name="key", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse
        ),
        "a reference": AttributeProto(name="key", type=AttributeProto.INT, ref_attr_name="other"),
        "a bad tensor": helper.make_attribute("key", TensorProto(data_type=FLOAT, dims=[7])),
    }
    for attribute in cases.values():
        refusal(saved(attributed(attribute), tmp_path), "node: it", "key")
    proto = attributed(helper.make_attribute("key", 1))
    proto.graph.node[0].attribute.append(helper.make_attribute("key", 2))
    refusal(saved(proto, tmp_path), "node: it", "key")


def test_names_that_are_not_text(tmp_path: Path) -> None:
    data = small(nodes=relus(("x", "y")), name="NNNN").SerializeToString()
    for text in (b"NNNN", b"Relu", b"x-y"):
        refusal(saved(data.replace(text, b"\xff" * len(text)), tmp_path), "isn't text")


def nested(depth: int) -> onnx.NodeProto:
    node = helper.make_node("Identity", ["c"], ["r"])
    for _ in range(depth):
        body = branch("b", [node], "r")
        node = helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body)
    return node


def test_nesting_is_bounded(tmp_path: Path) -> None:
    inputs, outputs = [value("c", (), TensorProto.BOOL)], [value("r", None)]
    assert load(saved(small(nodes=[nested(8)], inputs=inputs, outputs=outputs), tmp_path)).nodes[
        0
    ].captured == ("c",)
    # One chain only: both branches full, a file of depth 17 is already 2^17 nodes.
    node = helper.make_node("Identity", ["c"], ["r"])
    for _ in range(17):
        leaf = branch("e", [helper.make_node("Identity", ["c"], ["r"])], "r")
        node = helper.make_node("If", ["c"], ["r"], then_branch=branch("t", [node], "r"), else_branch=leaf)
    refusal(saved(small(nodes=[node], inputs=inputs, outputs=outputs), tmp_path), "nested too deeply")


def function_model(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    """Functions f(a) -> c that call one another, one after the other; the graph calls "main"."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    functions = []
    for name, calls in bodies.items():
        tensors = ["a", *(f"t{i}" for i in range(len(calls) - 1)), "c"]
        nodes = [
            helper.make_node(op, [a], [b], domain="mine" if op in bodies else "")
            for op, a, b in zip(calls, tensors[:-1], tensors[1:], strict=True)
        ]
        functions.append(helper.make_function("mine", name, ["a"], ["c"], nodes, opsets))
    node = helper.make_node("main", ["x"], ["y"], domain="mine")
    graph = helper.make_graph([node], "g", [value("x", (2,))], [value("y", None)])
    return model(graph, opset_imports=opsets, functions=functions)


def test_functions_are_bounded(tmp_path: Path) -> None:
    refusal(saved(function_model({"main": ["other"], "other": ["main"]}), tmp_path), "calling themselves")
    refusal(saved(function_model({"main": ["Relu"], "loop": ["loop"]}), tmp_path), "calling themselves")
    doubling = {f"f{i}": [f"f{i + 1}"] * 8 for i in range(9)} | {"f9": ["Relu"], "main": ["f0"]}
    refusal(saved(function_model(doubling), tmp_path), "too many nodes")


# --- damage ---


def check_damaged(data: bytes, folder: Path) -> bool:
    """Loads, or is refused with the file's name. Whether it loaded."""
    file = saved(data, folder)
    try:
        graph = load(file)
    except ModelError as error:
        assert str(file) in str(error)
        return False
    assert isinstance(graph, Graph) and str(graph)
    return True


def sources() -> list[bytes]:
    """A real architecture, and one with weights and a subgraph."""
    body = branch("b", [helper.make_node("Add", ["y", "k"], ["s"])], "s", initializer=[tensor("k", 4, 1, 1)])
    nodes = [*small().graph.node, helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)]
    inputs = [value("x", ("n", 3, 8, 8)), value("c", (), TensorProto.BOOL)]
    second = small(nodes=nodes, inputs=inputs, outputs=[value("z", None)])
    return [(LIGHT / "light_squeezenet.onnx").read_bytes(), second.SerializeToString()]


@pytest.mark.parametrize("source", sources(), ids=["light_squeezenet", "small"])
def test_truncation(tmp_path: Path, source: bytes) -> None:
    lengths = np.linspace(1, len(source) - 1, 200).astype(int)
    loaded = sum(check_damaged(source[:length], tmp_path) for length in lengths)
    assert loaded == 0
    assert check_damaged(source, tmp_path)


@pytest.mark.parametrize("source", sources(), ids=["light_squeezenet", "small"])
def test_flipped_bytes(tmp_path: Path, source: bytes) -> None:
    outcomes = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        data = np.frombuffer(source, np.uint8).copy()
        places = rng.integers(0, len(data), size=rng.integers(1, 4))
        data[places] ^= rng.integers(1, 256, size=len(places)).astype(np.uint8)
        outcomes.add(check_damaged(data.tobytes(), tmp_path))
    assert outcomes == {True, False}
