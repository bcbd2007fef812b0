"""Operators without a kernel of ours: ONNX's own shape inference, and its reference evaluator on the CPU.

Source    onnx.shape_inference, onnx.reference
Not here  convolution and pooling: the evaluator's pooling is often wrong, and both belong on the device
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from minicnn.detection import non_max_suppression, roi_align
from minicnn.errors import ModelError, ShapeError, UnsupportedError
from minicnn.graph import Dim, Graph, Node, TensorType

REFUSED = frozenset(
    "Conv ConvInteger ConvTranspose DeformConv QLinearConv MaxPool AveragePool LpPool GlobalMaxPool "
    "GlobalAveragePool GlobalLpPool MaxRoiPool MaxUnpool".split()
)
# The evaluator knows one meaning of these, that of the opset given here: older nodes are converted first.
_MEANING_SINCE = {
    "Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "PRelu": 7, "Resize": 11, "Upsample": 11, "RoiAlign": 16,
    "Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "Pow": 7, "And": 7, "Or": 7, "Xor": 7, "Equal": 7, "Greater": 7,
    "Less": 7, "Scatter": 11, "Concat": 4, "GRU": 7, "LSTM": 7, "RNN": 7, "Scan": 9,
    "BatchNormalization": 14,
}  # fmt: skip
# The evaluator has no older ones of these, but what they mean hasn't changed.
_KNOWN_SINCE = {"DequantizeLinear": 19}
SMALL = 1024  # elements of a constant that shape inference is given: target shapes, axes, scales, not weights

Arrays = tuple[Any, ...]  # numpy arrays; None for an output the node doesn't have


def is_refused(node: Node) -> bool:
    """Whether the node, or a node of its subgraphs, is one that never falls back."""
    return (node.domain == "" and node.op in REFUSED) or _holds(_graphs_of(node), REFUSED)


def to_proto(node: Node, graph: Graph) -> onnx.NodeProto:
    """The node as ONNX writes it, captured inputs left to its subgraphs again."""
    inputs = node.inputs[: len(node.inputs) - len(node.captured)]
    proto = helper.make_node(node.op, inputs, node.outputs, name=node.name, domain=node.domain or None)
    for key, value in node.attributes.items():
        kind = None
        if isinstance(value, tuple) and not value:  # of integers? Of floats? Only the schema knows
            known: Any = schema_of(node, graph).attributes.get(key)
            if known is None:
                raise UnsupportedError(f"no attribute '{key}'", node=node.name, operator=node.op)
            kind = known.type.value
        proto.attribute.append(helper.make_attribute(key, _for_proto(value), attr_type=kind))
    return proto


def infer(node: Node, graph: Graph) -> tuple[TensorType | None, ...]:
    """Types of the node's outputs from the types (and small constants) of its inputs, as far as they follow.

    An extent that depends on data comes out as None, a type of which nothing is known as None altogether.

    Raises    ShapeError: shapes or types that don't fit together
              UnsupportedError: an operator ONNX doesn't know, or one that makes sequences
    """
    if any(name and name not in graph.types for name in node.inputs):
        return (None,) * len(node.outputs)
    for value in (v for inner in _graphs_of(node) for v in (*inner.input, *inner.output)):
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            facts = {"node": node.name, "operator": node.op, "found": kind}
            raise UnsupportedError("a subgraph that takes or gives something other than tensors", **facts)
    schema: Any = schema_of(node, graph)
    model = _model(node, graph, with_constants=True)
    # Within subgraphs onnx's propagation of data trips over itself: "data already exists".
    propagates = not _graphs_of(node)
    # An operator defined by others may fail over its definition, not over its inputs.
    is_strict = not (schema.has_function or schema.has_context_dependent_function)
    try:
        inferred = shape_inference.infer_shapes(
            model, check_type=is_strict, strict_mode=is_strict, data_prop=propagates
        )
    except Exception as error:  # C++ exceptions arrive as several types
        raise ShapeError(f"inputs that don't fit: {error}", node=node.name, operator=node.op) from None
    known = {dim for name in node.inputs if name in graph.types for dim in graph.types[name].shape or ()}
    found = {value.name: _type(value, known, node) for value in inferred.graph.output}
    return tuple(found.get(name) for name in node.outputs)


def is_optional(node: Node, graph: Graph, output: int) -> bool:
    """Whether the operator may leave this output away."""
    try:
        formal = schema_of(node, graph).outputs
    except UnsupportedError:
        return False
    return output < len(formal) and formal[output].option == onnx.defs.OpSchema.FormalParameterOption.Optional


def function(node: Node, graph: Graph) -> Callable[..., Arrays]:
    """The node as a Python function: arrays of its inputs (None: absent) in, one array for each output back.

    Raises    UnsupportedError: refused, or unknown to the evaluator; later, from the function, ModelError
    """
    if is_refused(node):
        raise UnsupportedError("an operator that never falls back", node=node.name, operator=node.op)
    if node.op == "Scan" and graph.opset < 9:  # onnx can't convert it either
        raise UnsupportedError("Scan with a batch axis, as in opset 8", node=node.name, operator=node.op)
    own = _own(node, graph)
    if own is not None:
        return own
    older = {op for op, since in _MEANING_SINCE.items() if graph.opset < since}
    if _holds(_graphs_of(node), older):
        facts = {"node": node.name, "operator": node.op, "found": f"opset {graph.opset}"}
        raise UnsupportedError("a subgraph with operators that meant something else in its opset", **facts)
    from onnx.reference import ReferenceEvaluator  # takes a tenth of a second, and most models never need it

    try:
        evaluator = ReferenceEvaluator(_for_evaluator(node, graph))
    except Exception as error:  # the evaluator's operators raise what they like
        raise UnsupportedError(
            f"onnx's evaluator can't do this operator: {_brief(error)}", node=node.name, operator=node.op
        ) from None
    types = _output_types(node, graph)

    def call(*arrays: np.ndarray | None) -> Arrays:
        feeds = {inner: array for (_, inner), array in zip(_bindings(node), arrays, strict=True) if inner}
        try:
            with np.errstate(all="ignore"):
                results = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
            return tuple(_array(results[name], types.get(name)) if name else None for name in node.outputs)
        except Exception as error:
            raise ModelError(
                f"onnx's evaluator failed: {_brief(error)}", node=node.name, operator=node.op
            ) from None

    return call


def _own(node: Node, graph: Graph) -> Callable[..., Arrays] | None:
    """What numpy does better than the evaluator."""
    given: dict[str, Any] = dict(node.attributes)
    if node.op == "NonMaxSuppression" and not node.domain:
        is_centred = given.get("center_point_box", 0) == 1
        return lambda *arrays: (non_max_suppression(*arrays, is_centred=is_centred),)
    if node.op == "RoiAlign" and not node.domain and given.pop("mode", "avg") == "avg":
        usual = "half_pixel" if graph.opset >= 16 else "output_half_pixel"
        is_half_pixel = given.pop("coordinate_transformation_mode", usual) == "half_pixel"
        return lambda *arrays: (roi_align(*arrays, is_half_pixel=is_half_pixel, **given),)
    return None


def evaluate(node: Node, graph: Graph, arrays: Iterable[np.ndarray | None]) -> Arrays:
    """The node's outputs for these inputs, now: what folds constants."""
    return function(node, graph)(*arrays)


def _bindings(node: Node) -> list[tuple[str, str]]:
    """For each input the tensor and the name the evaluator sees it by; they differ in captured ones only."""
    split = len(node.inputs) - len(node.captured)
    inner = (*node.inputs[:split], *node.captured)
    return list(zip(node.inputs, inner, strict=True))


def _model(node: Node, graph: Graph, *, with_constants: bool) -> onnx.ModelProto:
    """A model of this node alone. Opsets of domains it can't mention stay out: they need not make sense."""
    opsets = {d: v for d, v in graph.opsets.items() if _graphs_of(node) or d in ("", node.domain)}
    opsets.setdefault("", onnx.defs.onnx_opset_version())
    values, constants = {}, {}
    for name, inner in _bindings(node):
        constant = graph.constants.get(name)
        if with_constants and constant is not None and constant.size <= SMALL:
            constants[inner] = numpy_helper.from_array(constant, inner)
        elif inner:
            values[inner] = _value_info(inner, graph.types.get(name))
    one = helper.make_graph(
        [to_proto(node, graph)],
        "fallback",
        list(values.values()),
        [helper.make_empty_tensor_value_info(name) for name in node.outputs if name],
        list(constants.values()),
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(one, opset_imports=imports)


def _for_evaluator(node: Node, graph: Graph) -> onnx.ModelProto:
    model = _model(node, graph, with_constants=False)
    is_onnx = node.domain == ""
    if is_onnx and graph.opset < _MEANING_SINCE.get(node.op, 0):
        return version_converter.convert_version(model, _MEANING_SINCE[node.op])
    if is_onnx and graph.opset < _KNOWN_SINCE.get(node.op, 0):
        next(entry for entry in model.opset_import if not entry.domain).version = _KNOWN_SINCE[node.op]
    _mend_loops(model.graph, graph.opset)
    return model


def _mend_loops(graph: onnx.GraphProto, opset: int) -> None:
    """Writes Loops so that the evaluator does with them what ONNX says.

    It takes an absent condition for False, where ONNX says True; and it joins what the iterations give along
    the first of at least two axes, where ONNX wants a new one. So the body puts two axes in front, and behind
    the Loop the second one goes again.
    """
    always = numpy_helper.from_array(np.array(True), f"{graph.name}: always")
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, attribute.g):
                _mend_loops(inner, opset)
        nodes.append(node)
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            continue
        if len(node.input) > 1 and not node.input[1]:
            node.input[1] = always.name
            if always not in graph.initializer:
                graph.initializer.append(always)
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        carried = len(node.input) - 2
        for index in range(carried, len(node.output)):
            given, output = body.output[index + 1], node.output[index]
            if not output:
                continue
            row, node.output[index] = f"{given.name}: row {index}", f"{output}: rows"
            body.node.append(_reaxis("Unsqueeze", given.name, row, (0, 1), body, opset))
            given.CopyFrom(helper.make_empty_tensor_value_info(row))
            nodes.append(_reaxis("Squeeze", node.output[index], output, (1,), graph, opset))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _reaxis(
    op: str, x: str, y: str, axes: tuple[int, ...], graph: onnx.GraphProto, opset: int
) -> onnx.NodeProto:
    """Squeeze or Unsqueeze; `axes` became an input in opset 13."""
    if opset < 13:
        return helper.make_node(op, [x], [y], axes=axes)
    graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), f"{y}: axes"))
    return helper.make_node(op, [x, f"{y}: axes"], [y])


def _value_info(name: str, known: TensorType | None) -> onnx.ValueInfoProto:
    if known is None:
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(known.dtype))
    return helper.make_tensor_value_info(name, kind, known.shape)


def _type(value: onnx.ValueInfoProto, known: set[Dim], node: Node) -> TensorType | None:
    kind = value.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        facts = {"node": node.name, "operator": node.op, "found": kind}
        raise UnsupportedError("an operator whose output isn't a tensor", **facts)
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        return None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    if not tensor.HasField("shape"):
        return TensorType(dtype=dtype, shape=None)
    shape: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            shape.append(int(dim.dim_value))
        else:  # shape inference makes up names for what it doesn't know
            shape.append(dim.dim_param if dim.dim_param in known else None)
    return TensorType(dtype=dtype, shape=tuple(shape))


def _output_types(node: Node, graph: Graph) -> dict[str, TensorType]:
    """What the outputs must be, where that is known: the evaluator computes some in float64."""
    types: tuple[TensorType | None, ...] = tuple(graph.types.get(name) for name in node.outputs)
    if any(name and known is None for name, known in zip(node.outputs, types, strict=True)):
        try:
            types = infer(node, graph)
        except ModelError:
            return {}
    return {name: known for name, known in zip(node.outputs, types, strict=True) if known is not None}


def _array(value: Any, known: TensorType | None) -> np.ndarray:
    if not isinstance(value, (np.ndarray, np.generic, int, float)):
        raise TypeError(f"an output that isn't an array but {type(value).__name__}")
    array = np.asarray(value)
    if known is not None and known.shape is not None and len(known.shape) != array.ndim:
        # Seen with Loops that gather scalars: (n, 1) in the place of (n).
        raise ValueError(f"an output of shape {array.shape} that should be {known}")
    if array.dtype.kind in "US":  # numpy's text of fixed width; ONNX's has none
        return array.astype("object")
    return array if known is None else array.astype(known.dtype, copy=False)


def schema_of(node: Node, graph: Graph) -> onnx.defs.OpSchema:
    version = graph.opsets.get(node.domain, 1)
    try:
        return onnx.defs.get_schema(node.op, version, node.domain)
    except Exception:
        domain = node.domain or "ai.onnx"
        raise UnsupportedError(
            f"no such operator in opset {version} of '{domain}'", node=node.name, operator=node.op
        ) from None


def _for_proto(value: object) -> object:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return [_for_proto(item) for item in value] if isinstance(value, tuple) else value


def _graphs_of(node: Node) -> list[Any]:
    values = (value if isinstance(value, tuple) else (value,) for value in node.attributes.values())
    return [item for items in values for item in items if isinstance(item, onnx.GraphProto)]


def _holds(graphs: Iterable[onnx.GraphProto], ops: Set[str]) -> bool:
    """Whether these graphs, or graphs within them, hold one of ONNX's operators `ops`."""
    for graph in graphs:
        for node in graph.node:
            if node.op_type in ops and node.domain in ("", "ai.onnx"):
                return True
            if _holds((g for a in node.attribute for g in (*a.graphs, a.g)), ops):
                return True
    return False


def _brief(error: Exception) -> str:
    """Its kind and first line, cut short: evaluator errors print whole tensors."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
