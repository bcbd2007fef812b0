"""fallback: operators through ONNX's own inference and evaluator, refusals and errors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicnn import fallback
from minicnn.errors import MinicnnError, ModelError, ShapeError, UnsupportedError
from minicnn.graph import Graph, Node, TensorType
from minicnn.onnx_file import load

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(7)


def value(name: str, shape: tuple | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph_of(
    types: Mapping[str, TensorType],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    opsets: Mapping[str, int] | None = None,
) -> Graph:
    """What surrounds a node: all that the fallback looks at."""
    held = dict(constants or {})
    held_types = {n: TensorType(dtype=a.dtype.name, shape=a.shape) for n, a in held.items()}
    return Graph(
        name="g", file="g.onnx", sha256="", opsets=opsets or {"": opset}, inputs=(), outputs=(), nodes=(),
        constants=held, types=held_types | dict(types),
    )  # fmt: skip


def node_of(op: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: object) -> Node:
    return Node(name="the node", op=op, inputs=inputs, outputs=outputs, attributes=attributes)


def floats(*shape: int | str | None) -> TensorType:
    return TensorType(dtype="float32", shape=shape)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("float32")


def refusal(kind: type[MinicnnError], call: object, *words: str) -> None:
    with pytest.raises(kind) as caught:
        call()  # type: ignore[operator]
    for word in ("the node", *words):
        assert word in str(caught.value)


# --- to_proto ---


def loaded(
    nodes: list[onnx.NodeProto], folder: Path, inputs: list[onnx.ValueInfoProto], **parts: object
) -> Graph:
    outputs = [value(name, None) for node in nodes for name in node.output if name]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, **({"opset_imports": opsets, "ir_version": 8} | parts))
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return load(file)


def branch(op: str, *inputs: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, inputs, ["r"])], "branch", [], [value("r", None)])


def test_nodes_come_back_as_they_were(tmp_path: Path) -> None:
    body = branch("Add", "x", "z")
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["a"], name="c", kernel_shape=[3, 3], auto_pad="SAME_UPPER", group=1
        ),
        helper.make_node("LeakyRelu", ["a"], ["b"], name="l", alpha=0.25),
        helper.make_node("Resize", ["b", "", "w"], ["d"], name="r", mode="linear"),
        helper.make_node(
            "ConstantOfShape", ["s"], ["e"], name="v", value=numpy_helper.from_array(np.int8([3]))
        ),
        helper.make_node("If", ["t"], ["f"], name="i", then_branch=body, else_branch=body),
        helper.make_node("Dropout", ["x"], ["g", ""], name="d"),
        helper.make_node(
            "Custom", ["x"], ["h"], name="o", domain="mine", names=["p", "q"], scales=[0.5, 2.0], n=-3
        ),
    ]
    inputs = [value(n, (1, 1, 4, 4)) for n in "xwsz"] + [value("t", (), TensorProto.BOOL)]
    graph = loaded(nodes, tmp_path, inputs)
    assert [fallback.to_proto(node, graph) for node in graph.nodes] == nodes


def test_an_empty_list_gets_its_type_from_the_schema() -> None:
    proto = fallback.to_proto(node_of("Unsqueeze", "x", axes=()), graph_of({}, opset=11))
    assert proto.attribute[0].type == onnx.AttributeProto.INTS
    refusal(UnsupportedError, lambda: fallback.to_proto(node_of("Relu", "x", axes=()), graph_of({})), "axes")


# --- infer ---


def test_known_shapes() -> None:
    node = node_of("TopK", "x", "k", outputs=("values", "indices"))
    graph = graph_of({"x": floats(2, 7)}, {"k": np.int64([3])})
    assert fallback.infer(node, graph) == (floats(2, 3), TensorType(dtype="int64", shape=(2, 3)))


def test_open_extents_come_out_open() -> None:
    graph = graph_of({"x": floats(None, "c", 4)})
    assert fallback.infer(node_of("Neg", "x"), graph) == (floats(None, "c", 4),)
    assert fallback.infer(node_of("NonZero", "x"), graph) == (TensorType(dtype="int64", shape=(3, None)),)


def test_constants_decide_shapes() -> None:
    graph = graph_of({"x": floats(2, 6)}, {"target": np.int64([3, -1]), "scales": np.float32([1, 2])})
    assert fallback.infer(node_of("Reshape", "x", "target"), graph) == (floats(3, 4),)
    assert fallback.infer(node_of("Resize", "x", "", "scales"), graph) == (floats(2, 12),)
    unknown = graph_of({"x": floats(2, 6), "target": TensorType(dtype="int64", shape=(2,))})
    assert fallback.infer(node_of("Reshape", "x", "target"), unknown) == (floats(None, None),)


def test_unknown_types_stay_unknown() -> None:
    assert fallback.infer(node_of("Neg", "x"), graph_of({})) == (None,)
    unranked = TensorType(dtype="float32", shape=None)
    assert fallback.infer(node_of("Neg", "x"), graph_of({"x": unranked})) == (unranked,)
    assert fallback.infer(node_of("Dropout", "x", outputs=("y", "")), graph_of({"x": floats(2)})) == (
        floats(2),
        None,
    )


def test_inputs_that_do_not_fit() -> None:
    graph = graph_of({"a": floats(2, 3), "b": floats(4, 5), "i": TensorType(dtype="int64", shape=(2, 3))})
    refusal(ShapeError, lambda: fallback.infer(node_of("MatMul", "a", "b"), graph), "MatMul")
    refusal(ShapeError, lambda: fallback.infer(node_of("Add", "a", "i"), graph), "Add")


def test_operators_onnx_does_not_know() -> None:
    graph = graph_of({"x": floats(2)}, opsets={"": 17, "mine": 1})
    refusal(UnsupportedError, lambda: fallback.infer(node_of("Nonsense", "x"), graph), "Nonsense", "17")
    custom = Node(name="the node", op="Relu", domain="mine", inputs=("x",), outputs=("y",))
    refusal(UnsupportedError, lambda: fallback.infer(custom, graph), "mine")
    refusal(UnsupportedError, lambda: fallback.infer(node_of("SplitToSequence", "x"), graph), "sequence")


def test_absurd_opsets_of_other_domains_do_no_harm() -> None:
    graph = graph_of({"x": floats(2)}, opsets={"": 17, "mine": 2**62, "ai.onnx.ml": 10**9})
    assert fallback.infer(node_of("Neg", "x"), graph) == (floats(2),)
    fallback.function(node_of("Neg", "x"), graph)


# --- function and evaluate ---


def test_one_array_an_output() -> None:
    x = random(3, 5)
    node = node_of("TopK", "x", "k", outputs=("values", "indices"))
    graph = graph_of({"x": floats(3, 5)}, {"k": np.int64([2])})
    values, indices = fallback.function(node, graph)(x, np.int64([2]))
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, :2])
    np.testing.assert_array_equal(indices, np.argsort(-x, axis=1)[:, :2])


def test_absent_inputs_and_outputs() -> None:
    x = random(4)
    call = fallback.function(node_of("Clip", "x", "", "high"), graph_of({"x": floats(4), "high": floats()}))
    np.testing.assert_array_equal(call(x, None, np.float32(0.25))[0], np.minimum(x, np.float32(0.25)))
    graph = graph_of({"x": floats(4)})
    y, mask = fallback.function(node_of("Dropout", "x", outputs=("y", "")), graph)(x)
    np.testing.assert_array_equal(y, x)
    assert mask is None


def test_the_opset_is_the_models() -> None:
    x = random(2, 3, 4)
    graph = graph_of({"x": floats(2, 3, 4)}, opset=12)
    flat = np.exp(x.reshape(2, 12)) / np.exp(x.reshape(2, 12)).sum(1, keepdims=True)
    found = fallback.evaluate(node_of("Softmax", "x"), graph, [x])[0]
    np.testing.assert_allclose(
        found, flat.reshape(x.shape), rtol=1e-6
    )  # until opset 12 the axes behind 1 are one
    found = fallback.evaluate(node_of("Softmax", "x"), graph_of({"x": floats(2, 3, 4)}, opset=13), [x])[0]
    np.testing.assert_allclose(found, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_dtypes_are_what_the_operator_says(dtype: str) -> None:
    """The evaluator computes some operators in another precision and leaves it so."""
    x = TensorType(dtype=dtype, shape=(1, 6, 4, 4))
    for op, attributes in {
        "LRN": {"size": 3},
        "Erf": {},
        "Softplus": {},
        "HardSigmoid": {},
        "Shrink": {},
    }.items():
        found = fallback.function(node_of(op, "x", **attributes), graph_of({"x": x}))(
            random(1, 6, 4, 4).astype(dtype)
        )[0]
        assert isinstance(found, np.ndarray) and found.dtype == dtype, op
    assert (
        fallback.evaluate(node_of("ReduceSum", "x", keepdims=0), graph_of({"x": x}), [np.ones(3, dtype)])[
            0
        ].shape
        == ()
    )


def test_captured_tensors_are_inputs_even_after_renaming(tmp_path: Path) -> None:
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Add", "a", "b"), else_branch=branch("Sub", "a", "b")
    )
    inputs = [value("c", (), TensorProto.BOOL), value("a", (3,)), value("b", (3,))]
    graph = loaded([node], tmp_path, inputs)
    found = graph.nodes[0]
    renamed = Node(
        name="the node", op="If", inputs=("c", "a2", "b2"), outputs=("y",), attributes=found.attributes,
        captured=found.captured,
    )  # fmt: skip
    types = {"c": TensorType(dtype="bool", shape=()), "a2": floats(3), "b2": floats(3)}
    around = graph_of(types)
    assert fallback.infer(renamed, around) == (floats(3),)
    a, b = random(3), random(3)
    call = fallback.function(renamed, around)
    np.testing.assert_array_equal(call(np.array(True), a, b)[0], a + b)
    np.testing.assert_array_equal(call(np.array(False), a, b)[0], a - b)


def test_loops_capture_too(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["go"]), helper.make_node("Mul", ["v", "factor"], ["w"])],
        "body",
        [value("i", (), TensorProto.INT64), value("keep", (), TensorProto.BOOL), value("v", (2,))],
        [value("go", (), TensorProto.BOOL), value("w", (2,))],
    )
    node = helper.make_node("Loop", ["n", "", "start"], ["y"], name="the node", body=body)
    inputs = [value("n", (), TensorProto.INT64), value("start", (2,)), value("factor", (2,))]
    graph = loaded([node], tmp_path, inputs)
    assert graph.nodes[0].inputs == ("n", "", "start", "factor")
    call = fallback.function(graph.nodes[0], graph)
    found = call(np.int64(3), None, np.float32([1, 2]), np.float32([2, 3]))
    np.testing.assert_array_equal(found[0], [8, 54])


def test_functions_of_another_opset_keep_their_meaning(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    nodes = [helper.make_node("Softmax", ["a"], ["c"])]
    function = helper.make_function("mine", "Soft", ["a"], ["c"], nodes, [helper.make_opsetid("", 12)])
    call = helper.make_node("Soft", ["x"], ["y"], domain="mine")
    graph = loaded([call], tmp_path, [value("x", (2, 3, 4))], opset_imports=opsets, functions=[function])
    values: dict[str, np.ndarray] = {"x": random(2, 3, 4)}
    for node in graph.nodes:
        types = {n: TensorType(dtype=a.dtype.name, shape=a.shape) for n, a in values.items()}
        around = replace(graph, types=graph.types | types)
        found = fallback.evaluate(node, around, [values[n] for n in node.inputs])
        values |= dict(zip(node.outputs, found, strict=True))
    np.testing.assert_allclose(values["y"].sum(axis=(1, 2)), [1, 1], rtol=1e-6)


def test_loops_without_a_condition_run_in_subgraphs_too(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["go"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [value("i", (), TensorProto.INT64), value("keep", (), TensorProto.BOOL), value("v", (2,))],
        [value("go", (), TensorProto.BOOL), value("w", (2,))],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["r"], body=body)
    outer = helper.make_graph([loop], "then", [], [value("r", (2,))])
    node = helper.make_node("If", ["c"], ["y"], then_branch=outer, else_branch=branch("Neg", "x"))
    inputs = [value("c", (), TensorProto.BOOL), value("n", (), TensorProto.INT64), value("x", (2,))]
    graph = loaded([node], tmp_path, inputs)
    arrays = {"c": np.array(True), "n": np.int64(3), "x": np.float32([1, 2])}
    call = fallback.function(graph.nodes[0], graph)
    assert call(*(arrays[name] for name in graph.nodes[0].inputs))[0].tolist() == [8, 16]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_loops_gather_along_a_new_axis(shape: tuple[int, ...], opset: int, tmp_path: Path) -> None:
    """What each iteration gives is a row of the result, whatever its rank; two results, one not asked for."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["keep"], ["go"]),
            helper.make_node("Add", ["v", "step"], ["w"]),
            helper.make_node("Neg", ["w"], ["first"]),
            helper.make_node("Mul", ["w", "w"], ["second"]),
        ],
        "body",
        [value("i", (), TensorProto.INT64), value("keep", (), TensorProto.BOOL), value("v", shape)],
        [value("go", (), TensorProto.BOOL), *(value(n, shape) for n in ("w", "first", "second"))],
    )
    node = helper.make_node("Loop", ["n", "", "start"], ["last", "", "squares"], name="the node", body=body)
    inputs = [value("n", (), TensorProto.INT64), value("start", shape), value("step", shape)]
    graph = loaded([node], tmp_path, inputs, opset_imports=[helper.make_opsetid("", opset)])
    start, step = random(*shape), random(*shape)
    last, _, squares = fallback.function(graph.nodes[0], graph)(np.int64(4), None, start, step)
    rows = np.stack([start + (i + 1) * step for i in range(4)])
    np.testing.assert_allclose(last, rows[-1], rtol=1e-6)
    np.testing.assert_allclose(squares, rows**2, rtol=1e-5)
    assert squares.shape == (4, *shape)


def test_batch_normalization_is_inference_in_every_opset() -> None:
    """The evaluator trains where older opsets have no `training_mode`."""
    x, scale, b, mean = (random(*shape) for shape in ((2, 3, 4, 5), (3,), (3,), (3,)))
    variance = np.float32([0.5, 1, 2])
    arrays = [a.astype(np.float64) for a in (x, scale, b, mean, variance)]
    types = {n: TensorType(dtype="float64", shape=a.shape) for n, a in zip("xsbmv", arrays, strict=True)}
    spread = np.sqrt(variance + 1e-5).reshape(3, 1, 1)
    exact = (x - mean.reshape(3, 1, 1)) / spread * scale.reshape(3, 1, 1) + b.reshape(3, 1, 1)
    for opset in (7, 9, 14, 15):
        node = node_of("BatchNormalization", *"xsbmv")
        (y,) = fallback.evaluate(node, graph_of(types, opset=opset), arrays)
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-6)


def test_scan_over_batches_is_refused() -> None:
    node = node_of("Scan", "", "x", body=branch("Neg", "a"), num_scan_inputs=1)
    refusal(UnsupportedError, lambda: fallback.function(node, graph_of({}, opset=8)), "batch")


def test_subgraphs_that_pass_sequences_are_refused() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    nodes = [helper.make_node("Identity", ["s"], ["t"])]
    body = helper.make_graph(nodes, "body", [sequence], [value("t", None)])
    node, around = node_of("Loop", "n", "", "x", body=body), graph_of({"n": floats(), "x": floats(1)})
    refusal(UnsupportedError, lambda: fallback.infer(node, around), "tensors")


@pytest.mark.parametrize("op", ["Softmax", "PRelu", "Resize", "Add"])
def test_subgraphs_of_older_meaning_are_refused(op: str) -> None:
    node = node_of("If", "c", then_branch=branch(op, "a"), else_branch=branch("Neg", "a"))
    refusal(UnsupportedError, lambda: fallback.function(node, graph_of({}, opset=6)), "meant something else")


def test_older_meanings_are_kept() -> None:
    x, slope = random(2, 3, 4, 4), np.float32([0, 0.5, 2])
    types = {"x": floats(2, 3, 4, 4), "slope": floats(3), "scales": floats(4)}
    found = fallback.evaluate(node_of("PRelu", "x", "slope"), graph_of(types, opset=6), [x, slope])[0]
    np.testing.assert_array_equal(found, np.where(x < 0, x * slope.reshape(3, 1, 1), x))
    scales = np.float32([1, 1, 2, 2])
    around = graph_of(types, {"scales": scales}, opset=10)
    found = fallback.evaluate(node_of("Resize", "x", "scales", mode="nearest"), around, [x, scales])[0]
    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(2, axis=3))
    around = graph_of(types, {"scales": scales}, opset=9)
    found = fallback.evaluate(node_of("Upsample", "x", "scales", mode="nearest"), around, [x, scales])[0]
    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(2, axis=3))


# --- refusals and errors ---


def test_every_convolution_and_pooling_is_refused() -> None:
    ops = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    windowed = {op for op in ops if "conv" in op.lower() or "pool" in op.lower()}
    assert windowed - {"CausalConvWithState"} <= fallback.REFUSED | {"MaxUnpool"}
    assert fallback.REFUSED <= ops
    for op in fallback.REFUSED:
        assert fallback.is_refused(node_of(op, "x"))
        refusal(UnsupportedError, lambda op=op: fallback.function(node_of(op, "x"), graph_of({})), op)
    assert not fallback.is_refused(node_of("Softmax", "x"))


def test_convolution_within_a_subgraph_is_refused() -> None:
    inner = helper.make_graph(
        [helper.make_node("If", ["c"], ["r"], then_branch=branch("Conv", "a", "b"))], "t", [], []
    )
    node = node_of("If", "c", then_branch=branch("Neg", "a"), else_branch=inner)
    assert fallback.is_refused(node)
    assert not fallback.is_refused(node_of("If", "c", then_branch=branch("Neg", "a")))


def test_what_the_evaluator_cannot_do() -> None:
    custom = Node(name="the node", op="Nonsense", domain="mine", inputs=("x",), outputs=("y",))
    refusal(
        UnsupportedError,
        lambda: fallback.function(custom, graph_of({}, opsets={"": 17, "mine": 1})),
        "Nonsense",
    )
    call = fallback.function(
        node_of("MatMul", "a", "b"), graph_of({"a": floats(None, None), "b": floats(None, None)})
    )
    refusal(ModelError, lambda: call(random(2, 3), random(4, 5)), "MatMul", "evaluator failed")


def test_constants_are_not_written_to() -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    x.flags.writeable = False
    node = node_of("ScatterElements", "x", "i", "u", axis=1)
    graph = graph_of({"x": floats(2, 3), "i": TensorType(dtype="int64", shape=(2, 1)), "u": floats(2, 1)})
    found = fallback.evaluate(node, graph, [x, np.int64([[0], [2]]), np.float32([[9], [9]])])[0]
    assert found.tolist() == [[9, 1, 2], [3, 4, 9]] and x[0, 0] == 0
