"""What exporters write and importers stumble over: each kind that people report has a test.

Source    kinds of issues filed against importers of ONNX files (TensorRT, TVM, tract, burn, OpenCV, onnx-tf)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn
from minicnn.errors import ModelError
from onnx_models import named, saved, tensor, value

X = np.random.default_rng(0).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str], *,
    initializer: list[TensorProto] | None = None, opset: int = 17, **more: object,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, [value(name, None) for name in outputs], initializer or [])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)  # type: ignore[arg-type]


def ran(proto: onnx.ModelProto, folder: Path, *inputs: np.ndarray, **more: object) -> dict[str, np.ndarray]:
    """Our answers, held against onnxruntime's unless `witness` is False."""
    path = saved(proto, folder)
    with minicnn.load(path).plan(device="host", threads=1) as engine:
        given = {operand.name: x for operand, x in zip(engine.plan.inputs, inputs, strict=True)}
        found = engine.run(given)
    if more.get("witness", True):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for name, expected in zip(found, session.run(list(found), given), strict=True):
            assert found[name].dtype == expected.dtype and found[name].shape == expected.shape
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    return found


def conv(x: str, y: str, w: str = "w") -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], pads=[1, 1, 1, 1])


IMAGE = value("x", (1, 3, 8, 8))
W = tensor("w", 4, 3, 3, 3)


def test_initializers_that_are_inputs_too(tmp_path: Path) -> None:
    """Until IR version 4 all had to be; they stay constants."""
    found = ran(
        model([conv("x", "y")], [IMAGE, value("w", (4, 3, 3, 3))], ["y"], initializer=[W]), tmp_path, X
    )
    assert found["y"].shape == (1, 4, 8, 8)


def test_optional_inputs_left_empty(tmp_path: Path) -> None:
    node = helper.make_node("Clip", ["x", "", "most"], ["y"])
    most = numpy_helper.from_array(np.float32(0.25), "most")
    assert ran(model([node], [IMAGE], ["y"], initializer=[most]), tmp_path, X)["y"].max() == np.float32(0.25)


def test_trailing_empty_inputs(tmp_path: Path) -> None:
    ran(
        model([helper.make_node("Conv", ["x", "w", ""], ["y"])], [IMAGE], ["y"], initializer=[W]), tmp_path, X
    )


@named(
    "names",
    {
        "all nodes alike": ("n", "n"),
        "none at all": ("", ""),
        "slashes": ("/model/layer.0/Conv", "/model/layer.0/Relu"),
        "unicode, blanks, quotes": ("卷积 'a'", 'слой "b"\n'),
        "a tensor's": ("y", "x"),
        "paths": ("../../etc/passwd", "C:\\x"),
    },
)
def test_names_of_nodes(names: tuple[str, str], tmp_path: Path) -> None:
    nodes = [conv("x", "a/b:0"), helper.make_node("Relu", ["a/b:0"], ["y"])]
    for node, name in zip(nodes, names, strict=True):
        node.name = name
    proto = model(nodes, [IMAGE], ["y"], initializer=[W])
    ran(proto, tmp_path, X, witness=names[0] != names[1] or not names[0])
    with minicnn.load(tmp_path / "model.onnx").plan(device="host", fuse=False) as engine:
        record = engine.profile(X, repeat=3, record=tmp_path / "run.h5")
    assert len({layer.name for layer in record.layers}) == len(record.layers)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    with pytest.raises(ModelError, match="y"):
        minicnn.load(saved(model(nodes, [IMAGE], ["y"]), tmp_path)).make_plan()


def test_a_large_constant_in_a_node(tmp_path: Path) -> None:
    w = np.random.default_rng(1).uniform(-1, 1, (512, 3, 16, 16)).astype(np.float32)  # 1.5 MiB
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[8, 8, 8, 8])
    ran(model([constant, node], [IMAGE], ["y"]), tmp_path, X)


@named(
    "attribute, expected",
    {
        "a number": ({"value_float": 2.5}, 2.5),
        "numbers": ({"value_floats": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}, [1, 2, 3, 4, 5, 6, 7, 8]),
    },
)
def test_constants_without_a_tensor(attribute: dict, expected: object, tmp_path: Path) -> None:
    nodes = [helper.make_node("Constant", [], ["c"], **attribute), helper.make_node("Add", ["x", "c"], ["y"])]
    found = ran(model(nodes, [IMAGE], ["y"]), tmp_path, X)
    np.testing.assert_allclose(found["y"], X + np.float32(expected))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (1, 3, 0, 8)])
def test_extents_of_zero(shape: tuple[int, ...], tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", shape)], ["y"])
    assert ran(proto, tmp_path, np.zeros(shape, np.float32))["y"].shape == shape


def test_scalars_all_the_way(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    c = numpy_helper.from_array(np.float32(1.5), "c")
    proto = model(nodes, [value("x", ())], ["y"], initializer=[c])
    assert ran(proto, tmp_path, np.array(-0.5, np.float32))["y"] == np.float32(1.0)


def test_an_unused_domain_is_imported(tmp_path: Path) -> None:
    proto = model([conv("x", "y")], [IMAGE], ["y"], initializer=[W])
    proto.opset_import.extend([helper.make_opsetid("com.example", 3), helper.make_opsetid("ai.onnx.ml", 2)])
    ran(proto, tmp_path, X, witness=False)


def test_the_default_domain_by_its_other_name(tmp_path: Path) -> None:
    proto = model([conv("x", "y")], [IMAGE], ["y"], initializer=[W])
    proto.opset_import[0].domain = "ai.onnx"
    ran(proto, tmp_path, X)


def test_no_opset_at_all_is_refused(tmp_path: Path) -> None:
    proto = model([conv("x", "y")], [IMAGE], ["y"], initializer=[W])
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="opset"):
        minicnn.load(saved(proto, tmp_path)).make_plan()


def test_functions_of_the_model(tmp_path: Path) -> None:
    """One inside another, with an attribute handed on."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    slope = helper.make_node("LeakyRelu", ["a"], ["b"])
    slope.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="s", type=onnx.AttributeProto.FLOAT)
    )
    inner = helper.make_function("mine", "Inner", ["a"], ["b"], [slope], opsets, attributes=["s"])
    call = helper.make_node("Inner", ["a"], ["t"], domain="mine", s=0.25)
    outer = helper.make_function(
        "mine", "Outer", ["a"], ["b"], [call, helper.make_node("Neg", ["t"], ["b"])], opsets
    )
    proto = model(
        [helper.make_node("Outer", ["x"], ["y"], domain="mine")], [IMAGE], ["y"], functions=[outer, inner]
    )
    proto.opset_import.append(opsets[1])
    found = ran(proto, tmp_path, X)
    np.testing.assert_allclose(found["y"], -np.where(X < 0, X * np.float32(0.25), X), rtol=1e-6)


@pytest.mark.parametrize("field", ["raw_data", "float_data"])
def test_weights_in_either_field(field: str, tmp_path: Path) -> None:
    """raw_data is little-endian whatever the machine is."""
    w = numpy_helper.to_array(W)
    kept = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=w.shape)
    if field == "raw_data":
        kept.raw_data = w.astype("<f4").tobytes()
    else:
        kept.float_data.extend(w.ravel().tolist())
    ran(model([conv("x", "y")], [IMAGE], ["y"], initializer=[kept]), tmp_path, X)


def test_half_precision_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT), conv("a", "y")]
    proto = model(nodes, [value("x", (1, 3, 8, 8), TensorProto.FLOAT16)], ["y"], initializer=[W])
    ran(proto, tmp_path, X.astype(np.float16))


def test_nodes_in_any_order(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), conv("x", "a")]
    assert ran(model(nodes, [IMAGE], ["y"], initializer=[W]), tmp_path, X, witness=False)["y"].min() == 0


def test_an_output_that_is_an_input_and_one_named_twice(tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [IMAGE], ["y", "x"])
    found = ran(proto, tmp_path, X, witness=False)
    np.testing.assert_array_equal(found["x"], X)


def test_an_output_that_is_a_constant(tmp_path: Path) -> None:
    proto = model([conv("x", "y")], [IMAGE], ["y", "w"], initializer=[W])
    np.testing.assert_array_equal(ran(proto, tmp_path, X, witness=False)["w"], numpy_helper.to_array(W))


def test_initializers_nobody_reads(tmp_path: Path) -> None:
    ran(model([conv("x", "y")], [IMAGE], ["y"], initializer=[W, tensor("unused", 3, 5)]), tmp_path, X)


def test_sparse_initializers(tmp_path: Path) -> None:
    """Read, or refused by name: never taken for absent."""
    values = numpy_helper.from_array(np.float32([1.0, -2.0]), "w")
    indices = numpy_helper.from_array(np.int64([0, 40]), "w_indices")
    proto = model([conv("x", "y")], [IMAGE], ["y"])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3, 3, 3]))
    try:
        found = ran(proto, tmp_path, X, witness=False)["y"]
    except ModelError as error:
        assert "sparse" in str(error) and "w" in str(error)
        return
    w = np.zeros(108, np.float32)
    w[[0, 40]] = 1.0, -2.0
    dense = model(
        [conv("x", "y")], [IMAGE], ["y"], initializer=[numpy_helper.from_array(w.reshape(4, 3, 3, 3), "w")]
    )
    np.testing.assert_allclose(found, ran(dense, tmp_path, X)["y"], atol=1e-6)


def test_wrong_value_info_in_between(tmp_path: Path) -> None:
    """What an exporter wrote of a tensor in the middle is held against what it is, not believed."""
    proto = model([conv("x", "a"), helper.make_node("Relu", ["a"], ["y"])], [IMAGE], ["y"], initializer=[W])
    proto.graph.value_info.append(value("a", (7, 7)))
    try:
        assert ran(proto, tmp_path, X, witness=False)["y"].shape == (1, 4, 8, 8)
    except ModelError as error:
        assert "a" in str(error)


def test_external_data_by_offset_and_length(tmp_path: Path) -> None:
    w = numpy_helper.to_array(W)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "all.bin").write_bytes(b"\xff" * 64 + w.tobytes() + b"\xff" * 64)
    kept = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=w.shape, data_location=TensorProto.EXTERNAL
    )
    for key, entry in (("location", "weights/all.bin"), ("offset", "64"), ("length", str(w.nbytes))):
        kept.external_data.add(key=key, value=entry)
    ran(model([conv("x", "y")], [IMAGE], ["y"], initializer=[kept]), tmp_path, X)


@pytest.mark.parametrize(
    "location", ["../outside.bin", "/etc/passwd", "weights/../../outside.bin", "link.bin"]
)
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "weights").mkdir(parents=True)
    (tmp_path / "outside.bin").write_bytes(numpy_helper.to_array(W).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    kept = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=(4, 3, 3, 3), data_location=TensorProto.EXTERNAL
    )
    kept.external_data.add(key="location", value=location)
    with pytest.raises(ModelError):
        minicnn.load(saved(model([conv("x", "y")], [IMAGE], ["y"], initializer=[kept]), folder)).make_plan()


def test_shape_inference_of_onnx_is_not_what_decides(tmp_path: Path) -> None:
    """A Resize whose sizes are computed: onnx's inference leaves the shape open, folding them closes it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "two"], ["head"]),
        helper.make_node("Concat", ["head", "size"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    constants = {"zero": [0], "two": [2], "size": [5, 11]}
    initializer = [numpy_helper.from_array(np.int64(v), name) for name, v in constants.items()]
    assert ran(model(nodes, [IMAGE], ["y"], initializer=initializer), tmp_path, X)["y"].shape == (1, 3, 5, 11)

