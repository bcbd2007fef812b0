"""A node held against ONNX's schema before any operator sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicnn.errors import ModelError, UnsupportedError
from minicnn.fallback import schema_of
from minicnn.graph import Graph, Node, TensorType

_KINDS: dict[str, Any] = {"INT": int, "FLOAT": (int, float), "STRING": (str, bytes)}


def check_form(node: Node, graph: Graph) -> None:
    """Operators that ONNX doesn't know pass: others say what becomes of them.

    Raises    ModelError: too few or too many inputs or outputs, one left out that must be there, inputs of
              types that must be one, or an attribute that isn't the operator's or of another kind
    """
    try:
        schema: Any = schema_of(node, graph)
    except UnsupportedError:
        return
    inputs = node.inputs[: len(node.inputs) - len(node.captured)]
    try:
        _check_names("inputs", inputs, schema.inputs, schema.min_input, schema.max_input)
        _check_names("outputs", node.outputs, schema.outputs, schema.min_output, schema.max_output)
        _check_types(inputs, schema.inputs, graph.types)
        _check_attributes(node, schema.attributes)
    except ModelError as error:
        raise error.at(file=graph.file, node=node.name, operator=node.op) from None


def _check_names(what: str, names: tuple[str, ...], formal: Any, least: int, most: int) -> None:
    if not least <= len(names) <= most:
        sentence = f"a number of {what} that the operator can't have"
        raise ModelError(sentence, found=len(names), accepted=f"{least} to {most}")
    for position, name in enumerate(names):
        one = formal[min(position, len(formal) - 1)]
        if not name and one.option.name != "Optional":
            raise ModelError(f"one of the {what} is left out that must be there", tensor=one.name)


def _check_types(names: tuple[str, ...], formal: Any, types: Mapping[str, TensorType]) -> None:
    """Inputs that share a type variable share the type, as far as types are known."""
    seen: dict[str, str] = {}
    for position, name in enumerate(names):
        one = formal[min(position, len(formal) - 1)]
        is_one_type = one.is_homogeneous or one.option.name != "Variadic"
        if name not in types or not is_one_type:
            continue
        dtype = types[name].dtype
        if seen.setdefault(one.type_str, dtype) != dtype:
            raise ModelError(
                "inputs of different types", tensor=name, expected=seen[one.type_str], found=dtype
            )


def _check_attributes(node: Node, known: Mapping[str, Any]) -> None:
    for name, value in node.attributes.items():
        if name not in known:
            if not node.domain:
                raise ModelError("an attribute that the operator doesn't have in this opset", found=name)
            continue
        kind = known[name].type.name  # "INT", "INTS", ...
        one = _KINDS.get(kind.removesuffix("S"))
        is_list = isinstance(value, tuple)
        items = value if isinstance(value, tuple) else (value,)
        if one and (is_list != kind.endswith("S") or not all(isinstance(item, one) for item in items)):
            raise ModelError(f"the attribute '{name}' is of another kind", found=value, accepted=kind)
