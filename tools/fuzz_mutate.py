"""One mutated model for each seed, always the same one: structure first, bytes now and then."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

OPERATORS = (
    "Relu Sigmoid Tanh Neg Abs Exp Log Sqrt Softmax Add Mul Sub Div Max MatMul Gemm Conv ConvTranspose "
    "MaxPool AveragePool GlobalAveragePool GlobalMaxPool Flatten Reshape Transpose Squeeze Unsqueeze "
    "Concat Slice Pad Resize Gather Cast Clip ReduceSum ReduceMean ArgMax Identity Dropout "
    "InstanceNormalization LRN Where Expand Tile Shape Size Split CumSum Trilu TopK NonZero HardSwish "
    "Elu PRelu Mod Equal Range Loop Constant DepthToSpace "
).split()
NUMBERS = (
    -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 255, -2, -3, 1024, 65536, 2**31 - 1, 2**31, 2**62, -(2**63),
)  # fmt: skip
SMALL = NUMBERS[1:10]
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-38, 1e30, float("inf"), float("-inf"), float("nan"))
TYPES = (*range(1, 17), 0, 99)


def mutated(seed: int, corpus: Sequence[bytes]) -> bytes:
    """The model file of this seed."""
    rng = random.Random(seed)
    data = rng.choice(corpus)
    if rng.random() < 0.04:
        return _bytes_changed(data, rng, corpus)
    model = ModelProto.FromString(data)
    missing = rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 2, 4))
    changed = model.SerializeToString(deterministic=True)
    while missing:
        change = rng.choices([m for m, _ in MUTATIONS], [w for _, w in MUTATIONS])[0]
        try:
            change(model, rng)
        except Exception:  # of onnx, numpy or protobuf, each with kinds of its own
            continue  # they refuse to hold it, or there is nothing of that kind to change
        before, changed = changed, model.SerializeToString(deterministic=True)
        missing -= changed != before
    return changed


def _bytes_changed(data: bytes, rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind == 1:
        other = rng.choice(corpus)
        return bytes(changed[: rng.randrange(len(changed))]) + other[rng.randrange(len(other)) :]
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed))
        changed[place] = rng.randrange(256) if kind == 2 else changed[place] ^ (1 << rng.randrange(8))
    return bytes(changed)


def _number(rng: random.Random, old: int) -> int:
    kind = rng.random()
    if kind < 0.5:
        return old + rng.choice((-1, 1, 2))
    return rng.choice(SMALL if kind < 0.85 else NUMBERS)


def _tensors(model: ModelProto) -> list[str]:
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)]
    return names + [name for node in graph.node for name in node.output]


def _dim(model: ModelProto, rng: random.Random) -> None:
    dim = rng.choice(rng.choice(model.graph.input).type.tensor_type.shape.dim)
    if rng.random() < 0.1:
        dim.dim_param = rng.choice(("n", "", "?", "h" * 300))
    else:
        dim.dim_value = _number(rng, dim.dim_value)


def _rank(model: ModelProto, rng: random.Random) -> None:
    dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
    if rng.random() < 0.5:
        dims.add(dim_value=rng.choice(SMALL))
    else:
        del dims[rng.randrange(len(dims))]


def _element_type(model: ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.5:
        rng.choice(model.graph.input).type.tensor_type.elem_type = rng.choice(TYPES)
    else:
        rng.choice(model.graph.initializer).data_type = rng.choice(TYPES)


def _weight_shape(model: ModelProto, rng: random.Random) -> None:
    """A weight of another shape, usually with the data that goes with it."""
    weight = rng.choice(model.graph.initializer)
    dims = list(weight.dims)
    place = rng.randrange(len(dims) or 1)
    value = _number(rng, dims[place])
    if rng.random() < 0.2 or not 0 <= value < 2000:
        weight.dims[place] = value
        return
    dims[place] = value
    filled = np.resize(numpy_helper.to_array(weight), dims)
    weight.CopyFrom(numpy_helper.from_array(filled, weight.name))


def _weight_values(model: ModelProto, rng: random.Random) -> None:
    weight = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(weight).copy()
    place = rng.randrange(array.size or 1)
    is_float = array.dtype.kind == "f"
    array.flat[place] = rng.choice(FLOATS) if is_float else _number(rng, int(array.flat[place]))
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))


def _attribute(model: ModelProto, rng: random.Random) -> None:
    attribute = rng.choice(rng.choice([node for node in model.graph.node if node.attribute]).attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = _number(rng, attribute.i)
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        place, kind = rng.randrange(len(attribute.ints)), rng.random()
        if kind < 0.8:
            attribute.ints[place] = _number(rng, attribute.ints[place])
        elif kind < 0.9:
            del attribute.ints[place]
        else:
            attribute.ints.append(rng.choice(SMALL))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"constant", b"edge", b"wrap", b"nearest", b"cubic", b"", b"\xff"))


def _attributes(model: ModelProto, rng: random.Random) -> None:
    """One goes, or one of another node or of another kind comes."""
    node = rng.choice(model.graph.node)
    kind = rng.random()
    if kind < 0.5 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind < 0.8:
        donor = rng.choice([n for n in model.graph.node if n.attribute])
        node.attribute.append(rng.choice(donor.attribute))
    else:
        names = ("axis", "axes", "group", "ceil_mode", "auto_pad", "keepdims", "to", "alpha", "perm", "mode")
        value = rng.choice((0, 1, -1, 2.5, [1, 2], [], "SAME_UPPER", "VALID", ["a"], [0.5]))
        of_nothing = AttributeProto.INT if value == [] else None
        node.attribute.append(helper.make_attribute(rng.choice(names), value, attr_type=of_nothing))


def _operator(model: ModelProto, rng: random.Random) -> None:
    rng.choice(model.graph.node).op_type = rng.choice(OPERATORS)


def _wire(model: ModelProto, rng: random.Random) -> None:
    node, kind = rng.choice(model.graph.node), rng.random()
    if kind < 0.6:
        node.input[rng.randrange(len(node.input))] = rng.choice(_tensors(model))
    elif kind < 0.7:
        del node.input[rng.randrange(len(node.input))]
    elif kind < 0.8:
        node.input.append(rng.choice([*_tensors(model), ""]))
    elif kind < 0.9:
        node.input[rng.randrange(len(node.input))] = rng.choice(("", "ghost"))
    else:
        node.output.append(rng.choice(("", "more")))


def _node(model: ModelProto, rng: random.Random) -> None:
    """A node put behind another, or one taken out."""
    nodes = model.graph.node
    place = rng.randrange(len(nodes))
    if rng.random() < 0.25:
        del nodes[place]
        return
    after = nodes[place]
    old, new = after.output[0], f"{after.output[0]}:before"
    op = rng.choice(OPERATORS[:9]) if rng.random() < 0.7 else rng.choice(OPERATORS)
    further = [rng.choice(_tensors(model))] if rng.random() < 0.2 else []
    after.output[0] = new
    nodes.append(helper.make_node(op, [new, *further], [old], name=f"{op}:{place}"))


def _output(model: ModelProto, rng: random.Random) -> None:
    name = rng.choice(_tensors(model))
    if rng.random() < 0.5:
        model.graph.output[0].name = name
    else:
        model.graph.output.append(helper.make_empty_tensor_value_info(name))


def _opset(model: ModelProto, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.8:
        rng.choice(model.opset_import).version = rng.randrange(6, 24)
    elif kind < 0.9:
        model.opset_import.add(domain=rng.choice(("", "other", "ai.onnx.ml")), version=rng.choice(NUMBERS))
    else:
        model.ir_version = rng.choice((0, 1, 2, 3, 9, 10, 99, -1))


def _name(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    first = model.graph.node[0].name
    node.name = rng.choice(("", "a/b/../c", "\u540d\u524d", "x", first, "n" * 5000, "{0}%s"))


def _external(model: ModelProto, rng: random.Random) -> None:
    weight = rng.choice(model.graph.initializer)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    del weight.external_data[:]
    location = rng.choice(("../w", "/etc/passwd", "w", "", "a/../../b", "//etc/passwd", "w\0"))
    weight.external_data.add(key="location", value=location)


Mutation = Callable[[ModelProto, random.Random], None]
MUTATIONS: tuple[tuple[Mutation, int], ...] = (
    (_dim, 14), (_rank, 1), (_element_type, 2), (_weight_shape, 6), (_weight_values, 48), (_attribute, 20),
    (_attributes, 5), (_operator, 4), (_wire, 4), (_node, 34), (_output, 8), (_opset, 8), (_name, 10),
    (_external, 1),
)  # fmt: skip
