"""The graphs that fuzzing starts from: small, valid, an operator family or a quirk of exporters each.

    python -m tools.fuzz_corpus            writes tests/corpus/*.onnx
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parent.parent / "tests" / "corpus"
OPSET = 17
Nodes = list[tuple[str, list[str], dict]]
# name: (shape of x, (operator, further inputs, attributes) one behind the other, weights' shapes)
CHAINS: dict[str, tuple[tuple[int, ...], Nodes, dict[str, tuple[int, ...]]]] = {
    "conv": (
        (1, 3, 8, 7),
        [
            ("Conv", ["w", "b"], {"pads": [1, 1, 1, 1], "strides": [2, 1], "kernel_shape": [3, 3]}),
            ("Relu", [], {}),
            ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [1, 1]}),
        ],
        {"w": (4, 3, 3, 3), "b": (4,)},
    ),
    "classifier": (
        (2, 3, 6, 6),
        [
            ("Conv", ["w"], {"kernel_shape": [1, 1]}),
            ("BatchNormalization", ["scale", "shift", "mean", "variance"], {}),
            ("GlobalAveragePool", [], {}),
            ("Flatten", [], {}),
            ("Gemm", ["m", "c"], {"transB": 1}),
            ("Softmax", [], {"axis": 1}),
        ],
        {"w": (8, 3, 1, 1), "scale": (8,), "shift": (8,), "mean": (8,), "variance": (8,),
         "m": (5, 8), "c": (5,)},
    ),
    "depthwise": (
        (1, 4, 9, 9),
        [
            ("Conv", ["w"], {"group": 4, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
            ("Clip", [], {}),
            ("AveragePool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ],
        {"w": (4, 1, 3, 3)},
    ),
    "transposed": (
        (1, 3, 4, 5),
        [("ConvTranspose", ["w"], {"strides": [2, 2], "output_padding": [1, 1]}), ("Sigmoid", [], {})],
        {"w": (3, 2, 3, 3)},
    ),
    "signal": (
        (1, 2, 20),
        [("Conv", ["w"], {"kernel_shape": [5]}), ("Tanh", [], {}), ("MaxPool", [], {"kernel_shape": [3]})],
        {"w": (4, 2, 5)},
    ),
    "views": (
        (2, 3, 4, 4),
        [
            ("Transpose", [], {"perm": [0, 2, 3, 1]}),
            ("Reshape", ["shape"], {}),
            ("Squeeze", ["axes"], {}),
            ("Unsqueeze", ["axes"], {}),
            ("Flatten", [], {"axis": 2}),
        ],
        {},
    ),
    "rearranged": (
        (1, 4, 4, 6),
        [
            ("Slice", ["starts", "ends"], {}),
            ("DepthToSpace", [], {"blocksize": 2}),
            ("Pad", ["pads"], {"mode": "reflect"}),
            ("Gather", ["indices"], {"axis": 2}),
        ],
        {},
    ),
    "resized": ((1, 2, 4, 4), [("Resize", ["", "scales"], {"mode": "linear"}), ("LeakyRelu", [], {})], {}),
    "reduced": (
        (2, 3, 5, 4),
        [
            ("ReduceMean", [], {"axes": [2, 3], "keepdims": 1}),
            ("Mul", ["factor"], {}),
            ("ReduceMax", [], {"axes": [1]}),
            ("ArgMax", [], {"axis": 0}),
        ],
        {"factor": (1, 3, 1, 1)},
    ),
    "normalised": (
        (2, 4, 6),
        [
            ("LayerNormalization", ["gamma", "beta"], {"axis": -1}),
            ("MatMul", ["m"], {}),
            ("Erf", [], {}),
            ("LRN", [], {"size": 3}),
            ("CumSum", ["axis"], {}),
        ],
        {"gamma": (6,), "beta": (6,), "m": (6, 5)},
    ),
}  # fmt: skip
INTEGERS = {
    "shape": [2, 16, 3, 1], "axes": [3], "starts": [0, 0], "ends": [1, 4], "pads": [0, 0, 1, 1, 0, 0, 1, 1],
    "indices": [3, 0, -1], "axis": 1,
}  # fmt: skip


def models() -> Iterator[tuple[str, ModelProto]]:
    """All of them by name, the same at every call."""
    rng = np.random.default_rng(10)
    for name, (shape, chain, weights) in CHAINS.items():
        nodes = []
        for index, (op, further, attributes) in enumerate(chain):
            tensors = [f"t{index}" if index else "x", *further]
            output = "y" if index == len(chain) - 1 else f"t{index + 1}"
            nodes.append(helper.make_node(op, tensors, [output], name=f"{op}_{index}", **attributes))
        constants = {
            key: np.abs(rng.standard_normal(extents)).astype(np.float32) for key, extents in weights.items()
        }
        read = {tensor for node in nodes for tensor in node.input}
        constants |= {key: np.array(INTEGERS[key], np.int64) for key in sorted(read & set(INTEGERS))}
        if "scales" in read:
            constants["scales"] = np.array([1, 1, 2, 1.5], np.float32)
        yield name, _model(name, nodes, shape, constants)
    yield "residual", _residual(rng)
    yield "choice", _choice()
    yield "function", _function()
    yield "counted", _counted()


def _model(
    name: str, nodes: list, shape: tuple[int, ...], constants: dict[str, np.ndarray], **parts: object
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, **({"opset_imports": opsets, "ir_version": 8} | parts))


def _residual(rng: np.random.Generator) -> ModelProto:
    """A Concat, an addition across layers, two readers of one tensor."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("Concat", ["d", "x"], ["e"], axis=1),
        helper.make_node("Split", ["e"], ["y", "rest"], axis=1),
    ]
    return _model("residual", nodes, (1, 4, 5, 5), {"w": rng.standard_normal((4, 4, 3, 3)).astype("f")})


def _choice() -> ModelProto:
    """An If, whose branches read a tensor of the graph around them."""
    one, two = (
        helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])], op, [], [helper.make_empty_tensor_value_info("r")]
        )
        for op in ("Neg", "Abs")
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=two)]
    return _model("choice", nodes, (2, 3), {"c": np.array(True)})


def _function() -> ModelProto:
    """A model-local function, called twice."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("mine", 1)]
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    function = helper.make_function("mine", "Twice", ["a"], ["c"], body, opsets)
    nodes = [
        helper.make_node("Twice", [a], [b], domain="mine", name=a) for a, b in (("x", "m"), ("m", "y"))
    ]
    return _model("function", nodes, (2, 3), {}, opset_imports=opsets, functions=[function])


def _counted() -> ModelProto:
    """Shapes computed from shapes, and one that only a run can tell."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("NonZero", ["flat"], ["where"]),
        helper.make_node("Cast", ["where"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    return _model("counted", nodes, (2, 3, 4), constants)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, model in models():
        (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
