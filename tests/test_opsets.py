"""Operators whose meaning or spelling changed over the opsets, each of their versions against onnxruntime.

What was an attribute became an input (axes, bounds, pads, scales), defaults moved, modes were added: each
family below says its cases in the words of the opset it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import minicnn
from test_backend import explains_itself

ort = pytest.importorskip("onnxruntime")

OLDEST = 7
NEWEST = onnx.defs.onnx_opset_version()
TOLERANCE = 1e-5  # relative and absolute: inputs are within [-1, 1], sums short
REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
FALLS_BACK: dict[tuple[str, str], str] = {}  # (operator, case): why, though the operator has kernels
Ints = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node: data x of this shape in [-1, 1] ([0.1, 1] if positive), constants behind it, attributes."""

    x: Ints
    constants: tuple[np.ndarray | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    positive: bool = False


def case(x: Ints, *constants: np.ndarray | None, **attributes: Any) -> Case:
    return Case(x=x, constants=constants, attributes=attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def clip(opset: int) -> dict[str, Case]:
    x = (2, 5, 7)
    if opset < 11:
        return {
            "both": case(x, min=-0.25, max=0.5),
            "from below": case(x, min=0.1),
            "from above": case(x, max=0.2),
            "neither": case(x),
        }
    return {
        "both": case(x, scalar(-0.25), scalar(0.5)),
        "from below": case(x, scalar(0.1)),
        "from above": case(x, None, scalar(0.2)),
        "neither": case(x),
    }


def pad(opset: int) -> dict[str, Case]:
    x, pads = (2, 3, 5, 7), (0, 0, 1, 2, 0, 0, 3, 1)

    def padded(pads: Ints, mode: str, value: float | None = None, axes: Ints | None = None) -> Case:
        if opset < 11:
            given = {} if value is None else {"value": value}
            return case(x, mode=mode, pads=pads, **given)
        amount = None if value is None else scalar(value)
        if axes is not None:
            return case(x, ints(*pads), amount, ints(*axes), mode=mode)
        return case(x, ints(*pads), *([] if amount is None else [amount]), mode=mode)

    cases = {
        "constant": padded(pads, "constant", 0.5),
        "constant, no value": padded(pads, "constant"),
        "reflect": padded(pads, "reflect"),
        "edge": padded(pads, "edge"),
        "all axes": padded((1, 2, 0, 1, 1, 0, 2, 0), "constant"),
        "cropping": padded((0, 0, -1, 2, 0, 0, -2, -3), "constant"),
    }
    if opset >= 18:
        cases["two axes, backwards"] = padded((1, 2, 0, 3), "edge", axes=(-1, 2))
    if opset >= 19:
        cases["wrap"] = padded(pads, "wrap")
    return cases


def slices(opset: int) -> dict[str, Case]:
    x, end = (2, 6, 7, 9), 2**31 - 1

    def sliced(starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Case:
        if opset < 10:
            given = {"starts": starts, "ends": ends}
            return case(x, **given, **({} if axes is None else {"axes": axes}))
        constants = [ints(*starts), ints(*ends), None if axes is None else ints(*axes)]
        return case(x, *constants, *([] if steps is None else [ints(*steps)]))

    cases = {
        "one axis": sliced((1,), (5,), (1,)),
        "counted from the end": sliced((-4, -8), (-1, -2), (2, 3)),
        "past the end": sliced((2, 3), (end, 1000), (2, 3)),
        "the first axes": sliced((0, 2), (2, 6)),
    }
    if opset >= 10:
        cases["steps"] = sliced((0, 1), (7, 9), (2, 3), (3, 2))
        cases["backwards"] = sliced((-1, 6), (-end, 1), (3, 2), (-1, -2))
    if opset >= 11:
        cases["axes from the end"] = sliced((1, 2), (3, 5), (-1, -3))
    return cases


def squeeze(opset: int) -> dict[str, Case]:
    def squeezed(*axes: int) -> Case:
        return case((1, 5, 1, 3, 1), ints(*axes)) if opset >= 13 else case((1, 5, 1, 3, 1), axes=axes)

    cases = {"two axes": squeezed(0, 2), "all of extent 1": case((1, 5, 1, 3, 1))}
    return cases | ({"from the end": squeezed(-1)} if opset >= 11 else {})


def unsqueeze(opset: int) -> dict[str, Case]:
    def unsqueezed(*axes: int) -> Case:
        return case((3, 4), ints(*axes)) if opset >= 13 else case((3, 4), axes=axes)

    cases = {"two axes": unsqueezed(0, 3)}
    return cases | ({"from the end": unsqueezed(-1, 1)} if opset >= 11 else {})


def reduction(op: str) -> Callable[[int], dict[str, Case]]:
    def cases(opset: int) -> dict[str, Case]:
        has_input = opset >= (13 if op == "ReduceSum" else 18)
        positive = op == "ReduceLogSum"

        def reduced(axes: Ints | None, **attributes: int) -> Case:
            if axes is None or not has_input:
                given = {} if axes is None else {"axes": axes}
                return Case(x=(2, 5, 3, 4), attributes=attributes | given, positive=positive)
            return Case(x=(2, 5, 3, 4), constants=(ints(*axes),), attributes=attributes, positive=positive)

        found = {
            "spatial": reduced((2, 3)),
            "channels, dropped": reduced((1,), keepdims=0),
            "all": reduced(None),
            "all, dropped": reduced(None, keepdims=0),
            "apart": reduced((0, 2), keepdims=0),
        }
        if opset >= 11:
            found["from the end"] = reduced((-1, -3))
        if has_input:
            found["none, and that is meant"] = reduced(None, noop_with_empty_axes=1)
        return found

    return cases


def upsample(opset: int) -> dict[str, Case]:
    def scaled(mode: str, *scales: float) -> Case:
        if opset >= 9:
            return case((1, 3, 4, 5), floats(*scales), mode=mode)
        return case((1, 3, 4, 5), mode=mode, scales=list(map(float, scales)))

    return {
        "nearest": scaled("nearest", 1, 1, 2, 3),
        "linear": scaled("linear", 1, 1, 2, 2),
        "by no whole number": scaled("nearest", 1, 1, 1.5, 2.4),
    }


def dropout(opset: int) -> dict[str, Case]:
    cases = {"no ratio": case((2, 3, 4))}
    if opset < 12:
        return cases | {"ratio": case((2, 3, 4), ratio=0.3)}
    off = np.array(False)
    return cases | {"ratio": case((2, 3, 4), scalar(0.3)), "training off": case((2, 3, 4), scalar(0.3), off)}


def batch_normalization(opset: int) -> dict[str, Case]:
    random = np.random.default_rng(3)
    numbers = [random.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4)]
    cases = {
        "pictures": case((2, 4, 5, 3), *numbers, epsilon=1e-3),
        "rows": case((3, 4), *numbers),
        "volumes": case((1, 4, 2, 3, 4), *numbers, momentum=0.5),
    }
    return cases | ({"spatial said": case((2, 4, 5, 3), *numbers, spatial=1)} if opset < 9 else {})


def resize(opset: int) -> dict[str, Case]:
    x = (1, 2, 5, 7)
    scales, sizes = floats(1, 1, 1.5, 2), ints(1, 2, 8, 3)
    if opset < 11:
        modes = ("nearest", "linear")
        up = {mode: case(x, scales, mode=mode) for mode in modes}
        return up | {f"{mode}, smaller": case(x, floats(1, 1, 0.6, 0.5), mode=mode) for mode in modes}
    absent = floats() if opset < 13 else None
    cases = {
        f"{mode}, {coordinates}": case(
            x, absent, absent, sizes, mode=mode, coordinate_transformation_mode=coordinates
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    }
    for rounding in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor"):
        cases[f"nearest, {rounding}"] = case(x, absent, scales, mode="nearest", nearest_mode=rounding)
    cases["cubic, sharper, nothing outside"] = case(
        x, absent, scales, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1
    )
    cases["a part of the picture"] = case(
        x, floats(0, 0, 0.2, -0.2, 1, 1, 0.9, 1.1), absent, ints(1, 2, 6, 8), mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.25,
    )  # fmt: skip
    if opset >= 18:
        cases["two axes"] = case(x, None, floats(2, 0.5), mode="linear", axes=(2, 3))
        cases["antialiased"] = case(x, None, floats(1, 1, 0.4, 0.6), mode="linear", antialias=1)
        cases["antialiased cubic"] = case(x, None, floats(1, 1, 0.4, 0.6), mode="cubic", antialias=1)
        cases["not larger"] = case(
            x, None, None, ints(8, 9), mode="linear", axes=(2, 3), keep_aspect_ratio_policy="not_larger"
        )
    if opset >= 19:
        cases["symmetric"] = case(
            x, None, scales, mode="linear", coordinate_transformation_mode="half_pixel_symmetric"
        )
    return cases


def softmax(opset: int) -> dict[str, Case]:
    cases = {"default axis": case((2, 3, 4, 5)), "axis 1": case((2, 3, 4, 5), axis=1), "rows": case((4, 9))}
    return cases | ({"from the end": case((2, 3, 4, 5), axis=-2)} if opset >= 11 else {})


def split(opset: int) -> dict[str, Case]:
    def parts(*sizes: int, axis: int = 1) -> Case:
        is_input = opset >= 13
        return Case(
            x=(2, 6, 3),
            constants=(ints(*sizes),) if is_input else (),
            attributes={"axis": axis} | ({} if is_input else {"split": sizes}),
            outputs=len(sizes),
        )

    number = {"num_outputs": 3} if opset >= 18 else {}
    cases = {
        "named sizes": parts(1, 3, 2),
        "last axis": parts(2, 1, axis=2),
        "equal": Case(x=(2, 6, 3), attributes={"axis": 1, **number}, outputs=3),
        "first axis": Case(x=(6, 3), attributes=number, outputs=3),
    }
    return cases | ({"uneven": Case(x=(2, 7), attributes={"axis": 1, **number}, outputs=3)} if number else {})


FAMILIES: dict[str, Callable[[int], dict[str, Case]]] = {
    "BatchNormalization": batch_normalization,
    "Clip": clip,
    "Dropout": dropout,
    "Hardmax": softmax,
    "LogSoftmax": softmax,
    "Pad": pad,
    "Resize": resize,
    "Slice": slices,
    "Softmax": softmax,
    "Split": split,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
    **{f"Reduce{kind}": reduction(f"Reduce{kind}") for kind in REDUCTIONS.split()},
}


def versions() -> Iterator[tuple[str, int]]:
    """Each operator with the first opset of each of its meanings, the oldest being that of OLDEST."""
    for op in FAMILIES:
        last = 0
        for opset in range(OLDEST, NEWEST + 1):
            if not onnx.defs.has(op) or not (opset >= 10 or op != "Resize"):
                continue
            schema = onnx.defs.get_schema(op, opset)
            if schema.since_version != last and not schema.deprecated:
                last = schema.since_version
                yield op, opset


def model(op: str, opset: int, one: Case) -> onnx.ModelProto:
    constants = {f"c{i}": value for i, value in enumerate(one.constants) if value is not None}
    names = ["x", *(f"c{i}" if f"c{i}" in constants else "" for i in range(len(one.constants)))]
    outputs = [f"y{i}" for i in range(one.outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **one.attributes)],
        op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, one.x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("op, opset", list(versions()))
def test_agrees_with_onnxruntime(op: str, opset: int, tmp_path: Path) -> None:
    random = np.random.default_rng(opset)
    file = tmp_path / "model.onnx"
    for name, one in FAMILIES[op](opset).items():
        x = random.uniform(0.1 if one.positive else -1, 1, one.x).astype(np.float32)
        proto = model(op, opset, one).SerializeToString()
        exact = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        file.write_bytes(proto)
        with minicnn.load(file).plan(device="host", threads=1) as engine:
            found = engine.run(x)
            blamed = [(layer.op, layer.reason) for layer in engine.layers if layer.is_fallback]
        for y, expected in zip(found.values(), exact, strict=True):
            assert y.shape == expected.shape, name
            np.testing.assert_allclose(y, expected, TOLERANCE, TOLERANCE, err_msg=name)
        is_explained = all(explains_itself(*layer) for layer in blamed)
        assert is_explained or (op, name) in FALLS_BACK, f"{name}: {blamed}"
