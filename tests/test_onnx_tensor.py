"""onnx_tensor: values of every kind arrive, sizes are checked, others are read beneath the folder only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from minicnn.onnx_file import load
from onnx_models import FLOAT, RNG, branch, named, refusal, saved, small, tensor, value


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
    ("facts", "word"),
    {
        "past the end": ({"offset": 8}, "past the end"),
        "far past the end": ({"offset": 10**18}, "past the end"),
        "length against dims": ({"length": 431}, "contradict"),
        "negative offset": ({"offset": -4}, "bad offset"),
        "negative length": ({"length": -432}, "bad length"),
        "no number": ({"offset": "0x10"}, "bad offset"),
        "digits of another script": ({"offset": "\u0664"}, "bad offset"),
    },
)
def test_external_sizes_are_checked(tmp_path: Path, facts: dict, word: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(432))
    refusal(external(tmp_path, "w.bin", **facts), "tensor: w", word)


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


def test_the_memory_limit(tmp_path: Path) -> None:
    file = saved(small(), tmp_path)
    refusal(file, "memory limit", memory_limit=300)  # the file alone is larger
    (tmp_path / "w.bin").write_bytes(bytes(432))
    file = external(tmp_path, "w.bin")
    load(file, memory_limit=448)
    refusal(file, "memory limit", memory_limit=447)
