"""onnx_file: what a model file says arrives, and nothing in it is trusted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from minicnn.errors import MinicnnError, ModelError, UnsupportedError
from minicnn.graph import Graph
from minicnn.onnx_file import load

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(5)


def named(arguments: str | tuple[str, ...], cases: dict) -> pytest.MarkDecorator:
    """Parameters whose names are the reason they are there."""
    return pytest.mark.parametrize(arguments, list(cases.values()), ids=list(cases))


def value(name: str, shape: tuple | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, *shape: int, dtype: str = "float32") -> TensorProto:
    return numpy_helper.from_array(np.asarray(RNG.standard_normal(shape)).astype(dtype), name)


def small(**graph_parts: object) -> onnx.ModelProto:
    """x (n, 3, 8, 8) -> Conv -> Relu -> y, weights as initializers; `graph_parts` replaces parts of it."""
    parts: dict = {
        "nodes": [
            helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "name": "small",
        "inputs": [value("x", ("n", 3, 8, 8))],
        "outputs": [value("y", None)],
        "initializer": [tensor("w", 4, 3, 3, 3), tensor("b", 4)],
    }
    return model(helper.make_graph(**(parts | graph_parts)))


def model(graph: onnx.GraphProto, **parts: object) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, **({"opset_imports": opsets, "ir_version": 8} | parts))


def saved(proto: onnx.ModelProto | bytes, folder: Path) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return file


def refusal(file: Path, *words: str, **limits: int) -> MinicnnError:
    """The one typed error, which names the file and all of `words`."""
    with pytest.raises(ModelError) as caught:
        load(file, **limits)
    for word in (str(file), *words):
        assert word in str(caught.value)
    return caught.value


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


@pytest.mark.parametrize("dtype", sorted(helper.get_all_tensor_dtypes()))
@pytest.mark.parametrize("is_raw", [True, False])
def test_every_element_type_raw_and_typed(tmp_path: Path, dtype: int, is_raw: bool) -> None:
    if dtype == TensorProto.STRING:
        if is_raw:
            pytest.skip("text has no raw form")
        proto = helper.make_tensor("c", dtype, (3,), ["a", "bc", ""])
    elif is_raw:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        proto = numpy_helper.from_array(np.array([[1, 0, 1], [1, 1, 0]]).astype(kind), "c")
    else:
        proto = helper.make_tensor("c", dtype, (2, 3), [1, 0, 1, 1, 1, 0])
    graph = load(saved(small(initializer=[proto, tensor("w", 4, 3, 3, 3), tensor("b", 4)]), tmp_path))
    found, expected = graph.constants["c"], numpy_helper.to_array(proto)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if dtype == TensorProto.STRING:
        assert found.tolist() == ["a", "bc", ""]
    else:
        assert found.tobytes() == expected.tobytes()  # not ==, since one type has no zero and reads it as NaN
    assert np.dtype(graph.types["c"].dtype) == found.dtype


def test_any_byte_of_a_bool_is_true(tmp_path: Path) -> None:
    proto = TensorProto(name="c", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\xff")
    found = load(
        saved(small(initializer=[proto, tensor("w", 4, 3, 3, 3), tensor("b", 4)]), tmp_path)
    ).constants["c"]
    assert found.view(np.uint8).tolist() == [0, 1, 1]


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    extra = [tensor("scalar"), tensor("empty", 0, 3), tensor("w", 4, 3, 3, 3), tensor("b", 4)]
    graph = load(saved(small(initializer=extra), tmp_path))
    assert graph.constants["scalar"].shape == () and graph.constants["empty"].shape == (0, 3)


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


def branch(name: str, nodes: list[onnx.NodeProto], output: str, **parts: object) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output, None)], **parts)


def test_what_subgraphs_capture_becomes_inputs(tmp_path: Path) -> None:
    inner = helper.make_node(
        "If", ["c2"], ["r"],
        then_branch=branch("t2", [helper.make_node("Neg", ["deep"], ["n"])], "n"),
        else_branch=branch("e2", [helper.make_node("Neg", ["local"], ["n"])], "n"),
    )  # fmt: skip
    outer = helper.make_node(
        "If", ["c"], ["y"],
        then_branch=branch("t", [helper.make_node("Neg", ["x"], ["local"]), inner], "r"),
        else_branch=branch("e", [helper.make_node("Add", ["x", "k"], ["s"])], "s", initializer=[tensor("k", 1)]),
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


# --- external data ---


def external(folder: Path, location: str, **facts: object) -> Path:
    """The small model with w's values (4x3x3x3 float32, 432 bytes) in another file."""
    proto = small()
    w = proto.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **facts}.items():
        w.external_data.add(key=key, value=str(text))
    return saved(proto, folder)


def test_external_data_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    expected = RNG.standard_normal((4, 3, 3, 3)).astype("float32")
    data = b"12345678" + expected.tobytes() + b"rest"
    (tmp_path / "sub" / "w.bin").write_bytes(data)
    file = external(tmp_path, "sub/w.bin", offset=8, length=432)
    graph = load(file)
    np.testing.assert_array_equal(graph.constants["w"], expected)
    assert graph.sha256 == hashlib.sha256(file.read_bytes() + data).hexdigest()
    base = graph.constants["w"]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap) or "mmap" in type(base.base).__name__


def test_external_data_at_odd_offsets(tmp_path: Path) -> None:
    expected = RNG.standard_normal((4, 3, 3, 3)).astype("float32")
    (tmp_path / "w.bin").write_bytes(b"123" + expected.tobytes())
    found = load(external(tmp_path, "w.bin", offset=3)).constants["w"]
    np.testing.assert_array_equal(found, expected)
    assert found.flags.aligned


def test_links_within_the_folder_and_beside_the_real_model_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "w").write_bytes(bytes(432))
    external(blobs, "w.bin").rename(blobs / "m")
    (snapshot / "model.onnx").symlink_to(blobs / "m")
    (snapshot / "w.bin").symlink_to(blobs / "w")
    assert not load(snapshot / "model.onnx").constants["w"].any()


@pytest.mark.parametrize(
    "location", ["../w.bin", "sub/../../w.bin", "..", "sub\\..\\..\\w.bin", "", "C:\\w.bin", "w\0.bin"]
)
def test_external_data_may_not_leave_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(432))
    refusal(external(folder, location), "tensor: w", "not beneath the model's folder")


def test_external_data_may_not_be_absolute_or_a_link_outwards(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    secret = tmp_path / "w.bin"
    secret.write_bytes(bytes(432))
    refusal(external(folder, str(secret)), "tensor: w", "not beneath")
    (folder / "link").symlink_to(secret)
    refusal(external(folder, "link"), "tensor: w", "not beneath")
    (folder / "folder").symlink_to(tmp_path)
    refusal(external(folder, "folder/w.bin"), "tensor: w", "not beneath")


@named(
    "facts",
    {
        "past the end": {"offset": 8},
        "far past the end": {"offset": 10**18},
        "length against dims": {"length": 431},
        "negative offset": {"offset": -4},
        "negative length": {"length": -432},
        "no number": {"offset": "0x10"},
        "digits of another script": {"offset": "\u0664"},
    },
)
def test_external_sizes_are_checked(tmp_path: Path, facts: dict) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(432))
    refusal(external(tmp_path, "w.bin", **facts), "tensor: w")


def test_external_files_that_are_none(tmp_path: Path) -> None:
    refusal(external(tmp_path, "missing.bin"), "tensor: w")
    (tmp_path / "folder").mkdir()
    refusal(external(tmp_path, "folder"), "tensor: w")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refusal(external(tmp_path, "circle"), "tensor: w")
    (tmp_path / "empty").write_bytes(b"")
    refusal(external(tmp_path, "empty"), "tensor: w")
    os.mkfifo(tmp_path / "pipe")
    refusal(external(tmp_path, "pipe"), "tensor: w", "regular")


def test_external_data_of_subgraphs_is_brought_in(tmp_path: Path) -> None:
    (tmp_path / "k.bin").write_bytes(np.float32([2, 3]).tobytes())
    k = TensorProto(name="k", data_type=FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    k.external_data.add(key="location", value="k.bin")
    body = branch("t", [helper.make_node("Add", ["x", "k"], ["s"])], "s", initializer=[k])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inputs = [value("x", (2,)), value("c", (), TensorProto.BOOL)]
    graph = load(saved(small(nodes=[node], inputs=inputs), tmp_path))
    inner = graph.nodes[0].attributes["then_branch"].initializer[0]  # type: ignore[attr-defined]
    assert numpy_helper.to_array(inner).tolist() == [2, 3]
    k.external_data[0].value = "../k.bin"
    refusal(saved(small(nodes=[node_with(k)], inputs=inputs), tmp_path), "tensor: k", "node: If_0")


def node_with(k: TensorProto) -> onnx.NodeProto:
    body = branch("t", [helper.make_node("Add", ["x", "k"], ["s"])], "s", initializer=[k])
    return helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)


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
        "a pointer of a version-control system": b"version https://example.org/spec/v1\noid sha256:00\nsize 1\n",
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


def test_the_memory_limit(tmp_path: Path) -> None:
    file = saved(small(), tmp_path)
    refusal(file, "memory limit", memory_limit=300)  # the file alone is larger
    (tmp_path / "w.bin").write_bytes(bytes(432))
    file = external(tmp_path, "w.bin")
    load(file, memory_limit=448)
    refusal(file, "memory limit", memory_limit=447)


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


def broken(**fields: object) -> TensorProto:
    return TensorProto(
        **({"name": "w", "data_type": FLOAT, "dims": [4, 3, 3, 3], "raw_data": bytes(432)} | fields)
    )


@named(
    "bad",
    {
        "too few bytes": broken(raw_data=bytes(431)),
        "too many bytes": broken(raw_data=bytes(436)),
        "no data at all": TensorProto(name="w", data_type=FLOAT, dims=[4]),
        "too few values": TensorProto(name="w", data_type=FLOAT, dims=[4], float_data=[1, 2, 3]),
        "values in another field": TensorProto(name="w", data_type=FLOAT, dims=[4], int32_data=[1, 2, 3, 4]),
        "more than memory": broken(dims=[2**62, 2**62]),
        "a negative extent": broken(dims=[-1, 432]),
        "two negative extents": broken(dims=[-4, -3, 3, 3]),
        "nothing of too much": broken(dims=[0, 2**62, 2**62], raw_data=b""),
        "more axes than numpy has": broken(dims=[1] * 100, raw_data=bytes(4)),
        "no element type": broken(data_type=0),
        "an unknown element type": broken(data_type=12345),
        "raw text": broken(data_type=TensorProto.STRING),
        "text that isn't": TensorProto(
            name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"]
        ),
        "segments": broken(segment=TensorProto.Segment(begin=0, end=1)),
        "half a nibble": TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=bytes(1)),
    },
)
def test_broken_tensors(tmp_path: Path, bad: TensorProto) -> None:
    refusal(saved(small(initializer=[bad, tensor("b", 4)]), tmp_path), "tensor: w")


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
