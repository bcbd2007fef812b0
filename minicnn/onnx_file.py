"""Reading an ONNX file into a Graph. Nothing in the file is trusted: sizes, names, nesting, order.

Source    onnx.proto (the IR specification)
Not here  tensors' values (onnx_tensor), what operators mean (registry, fallback), shapes inside (shapes)
"""

from __future__ import annotations

import hashlib
import heapq
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, inliner

from minicnn.errors import MinicnnError, ModelError, UnsupportedError
from minicnn.graph import Dim, Graph, Node, TensorType
from minicnn.onnx_raw import detach
from minicnn.onnx_tensor import TensorReader, numpy_dtype, text

MEMORY_LIMIT = 8 << 30  # bytes of model file, and again of constants
MAP_FROM = 1 << 20  # bytes of a model file; a smaller one is read, and may be written over then
MAX_NESTING = 16  # subgraphs in subgraphs, functions calling functions
MAX_NODES = 1_000_000  # once every call of a model-local function is written out

# What exporters write for "any extent": these names say nothing, so two of them need not be equal.
_ANONYMOUS_DIMS = ("", "?", "-1", "None")


def load(path: str | Path, *, memory_limit: int = MEMORY_LIMIT) -> Graph:
    """The network in an ONNX file. Weights of large files stay on disk, mapped, until they are read.

    Units     memory_limit in bytes
    Raises    ModelError: no file, not ONNX, damaged, or contradicting itself
              UnsupportedError: newer than the installed onnx package, or a feature refused by name
    """
    file = Path(path)
    try:
        data = _read(file, memory_limit)
        digest = hashlib.sha256(data)
        rest, raw = detach(memoryview(data))
        model = _parse(bytes(rest), len(data))
        del data, rest  # or a large model would be held three times while its tensors are made
        return _Reader(file, _inline(model), memory_limit, raw).graph(digest)
    except MinicnnError as error:
        raise error.at(file=file) from None
    except MemoryError:
        raise ModelError("the model needs more memory than there is", file=file) from None


def _read(file: Path, limit: int) -> bytes | mmap.mmap:
    try:
        if not file.is_file():
            raise ModelError("not a file" if file.exists() else "no such file")
        size = file.stat().st_size
        if size > limit:
            raise ModelError("the file passes the memory limit", found=size, accepted=f"{limit} bytes")
        if size >= MAP_FROM:
            with file.open("rb") as opened:
                return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(f"the file can't be read: {error}") from None
    if not data:
        raise ModelError("the file is empty")
    return data


def _parse(data: bytes, nbytes: int) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's versions disagree about the type
        remedy = "beyond 2 GiB, keep weights as external data" if nbytes >= 2**31 else None
        raise ModelError("not an ONNX model, or a damaged one", found=error, remedy=remedy) from None
    if not model.HasField("graph") or model.ir_version < 1:
        raise ModelError("not an ONNX model, or a truncated one", expected="an IR version and a graph")
    _check_age("IR version", model.ir_version, onnx.IR_VERSION)
    return model


def _check_age(what: str, version: int, newest: int) -> None:
    if version > newest:
        raise UnsupportedError(
            f"written for a newer onnx than the installed {onnx.__version__}",
            found=f"{what} {version}", accepted=f"up to {newest}", remedy="pip install --upgrade onnx",
        )  # fmt: skip


def _inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Writes out the calls of model-local functions, so that nodes in them get kernels as all others do."""
    if not model.functions:
        return model
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    expanded: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        """Nodes after writing out, found without doing it: a small file can ask for 2^60 of them."""
        if depth > MAX_NESTING:
            raise UnsupportedError("functions nested too deeply, or calling themselves", accepted=MAX_NESTING)
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in expanded:
                expanded[key] = count(functions[key].node, depth + 1)
            total += expanded.get(key, 1) + sum(count(g.node, depth + 1) for g in _subgraphs(node))
        return total

    total = max(count(nodes, 0) for nodes in (model.graph.node, *(f.node for f in model.functions)))
    if total > MAX_NODES:
        raise UnsupportedError("too many nodes with functions written out", found=total, accepted=MAX_NODES)
    try:
        written = inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # C++ exceptions arrive as several types
        raise ModelError("the model's functions can't be written out", found=error) from None
    for function in written.functions:
        called = f"{text(function.domain, 'a domain')}.{text(function.name, 'a function')}"
        raise UnsupportedError("a function of an opset too far from the model's", operator=called)
    return written


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def _domain(name: str | bytes) -> str:
    domain = text(name, "an operator domain")
    return "" if domain == "ai.onnx" else domain


class _Reader:
    """One pass over a parsed model. Holds what the pass has found so far."""

    def __init__(
        self, file: Path, model: onnx.ModelProto, memory_limit: int, raw: Mapping[int, memoryview]
    ):
        self.file = file
        self.model = model
        self.raw = raw  # of the initializers whose values the proto lacks, by their place
        self.tensors = TensorReader(file, memory_limit)
        self.constants: dict[str, np.ndarray] = {}
        self.defined: dict[str, str] = {}  # tensor -> what defines it, in words

    def graph(self, digest: Any) -> Graph:
        proto = self.model.graph
        opsets = self._opsets()
        _refuse_sparse(proto)
        for index, tensor in enumerate(proto.initializer):
            name = self._define(tensor.name, "an initializer")
            self.constants[name] = self.tensors.array(tensor, raw=self.raw.get(index))
        inputs = {}
        for value in proto.input:
            if value.name not in self.constants:  # until IR 3 weights had to be inputs as well
                name = self._define(value.name, "a graph input")
                inputs[name] = _input_type(value, name)
        nodes = self._nodes(proto.node)
        outputs = tuple(text(value.name) for value in proto.output)
        if not outputs:
            raise ModelError("the graph has no outputs: not an ONNX model, or a truncated one")
        if len(set(outputs)) < len(outputs):
            raise ModelError("the graph names an output twice", found=outputs)
        for name in outputs:
            if name not in self.defined:
                raise ModelError("the graph names an output that nothing computes", tensor=name)
        for _, data in sorted(self.tensors.mapped.items()):
            digest.update(data.data)
        constant_types = {n: TensorType(dtype=a.dtype.name, shape=a.shape) for n, a in self.constants.items()}
        return Graph(
            name=text(proto.name, "the graph's name") or self.file.stem,
            file=str(self.file),
            sha256=digest.hexdigest(),
            opsets=opsets,
            inputs=tuple(inputs),
            outputs=outputs,
            nodes=_sorted(nodes, self.defined),
            constants=self.constants,
            types=inputs | constant_types,
            metadata={text(p.key, "metadata"): text(p.value, "metadata") for p in self.model.metadata_props},
        )

    def _opsets(self) -> dict[str, int]:
        opsets: dict[str, int] = {}
        for entry in self.model.opset_import:
            domain = _domain(entry.domain)
            if opsets.setdefault(domain, entry.version) != entry.version:
                found = (opsets[domain], entry.version)
                raise ModelError(f"two opsets for the domain '{domain}'", found=found)
        if self.model.ir_version < 3:
            opsets.setdefault("", 1)
        newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}
        for domain in sorted({_domain(node.domain) for node in self.model.graph.node}):
            version = opsets.setdefault(domain, 0 if domain in newest else 1)
            what = f"opset of '{domain or 'ai.onnx'}'"
            if version < 1:
                raise ModelError(f"no {what}: not an ONNX model, or a truncated one", found=version)
            _check_age(what, version, newest.get(domain, version))
        return opsets

    def _define(self, name: str | bytes, what: str) -> str:
        tensor = text(name)
        if not tensor:
            raise ModelError(f"{what} without a name")
        if tensor in self.defined:
            raise ModelError(f"a tensor twice, as {self.defined[tensor]} and as {what}", tensor=tensor)
        self.defined[tensor] = what
        return tensor

    def _nodes(self, protos: Iterable[onnx.NodeProto]) -> list[Node]:
        """The nodes under unique names, made up where the file has none, without the Constants."""
        protos = list(protos)
        given = {text(proto.name, "a node name") for proto in protos}
        seen: set[str] = set()
        suffixes: dict[str, int] = {}
        nodes = []
        for index, proto in enumerate(protos):
            op = text(proto.op_type, "an operator name")
            wanted = name = proto.name or f"{op}_{index}"
            while name in seen or (name in given and name != proto.name):
                suffixes[wanted] = suffixes.get(wanted, 0) + 1
                name = f"{wanted}_{suffixes[wanted]}"
            seen.add(name)
            try:
                node = self._node(proto, name, op)
            except MinicnnError as error:
                raise error.at(node=name, operator=op) from None
            if node.op == "Constant" and not node.domain:
                self.constants[node.outputs[0]] = _constant(node)
            else:
                nodes.append(node)
        return nodes

    def _node(self, proto: onnx.NodeProto, name: str, op: str) -> Node:
        if not op:
            raise ModelError("a node without an operator")
        for output in filter(None, proto.output):
            self._define(output, f"an output of node {name}")
        attributes: dict[str, object] = {}
        for attribute in proto.attribute:
            key = text(attribute.name, "an attribute name")
            if key in attributes:
                raise ModelError(f"the attribute '{key}' twice")
            attributes[key] = self._attribute(attribute, f"attribute '{key}'")
        captured = dict.fromkeys(n for graph in _subgraphs(proto) for n in self._captured(graph, 1))
        return Node(
            name=name,
            op=op,
            inputs=(*(text(value) for value in proto.input), *captured),
            outputs=tuple(proto.output),
            attributes=attributes,
            domain=_domain(proto.domain),
            sources=(name,),
            captured=tuple(captured),
        )

    def _attribute(self, attribute: AttributeProto, what: str) -> object:
        kind = attribute.type
        single = (AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.GRAPH, AttributeProto.TYPE_PROTO)
        if attribute.ref_attr_name:
            raise ModelError("a reference to a function's attribute, outside a function", tensor=what)
        if kind in single:
            return onnx.helper.get_attribute_value(attribute)
        if kind in (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.GRAPHS):
            return tuple(onnx.helper.get_attribute_value(attribute))
        if kind == AttributeProto.STRING:
            return _decoded(attribute.s)
        if kind == AttributeProto.STRINGS:
            return tuple(_decoded(value) for value in attribute.strings)
        if kind == AttributeProto.TENSOR:
            return self.tensors.array(attribute.t, what)
        if kind == AttributeProto.TENSORS:
            return tuple(self.tensors.array(tensor, what) for tensor in attribute.tensors)
        raise UnsupportedError("a kind of attribute that isn't handled", tensor=what, found=_kind_name(kind))

    def _captured(self, graph: onnx.GraphProto, depth: int) -> list[str]:
        """What a subgraph reads from outside, in order of first mention.

        Its tensors are checked on the way, and external ones brought in: the fallback takes the graph as is.
        """
        if depth > MAX_NESTING:
            raise UnsupportedError("subgraphs nested too deeply", accepted=MAX_NESTING)
        _refuse_sparse(graph)
        for tensor in graph.initializer:
            self.tensors.embed(tensor)
        local = {value.name for value in (*graph.input, *graph.initializer)}
        found: dict[str, None] = {}
        for node in graph.node:
            for attribute in node.attribute:
                for tensor in [attribute.t] if attribute.type == AttributeProto.TENSOR else attribute.tensors:
                    self.tensors.embed(tensor)
            read = [*node.input, *(n for g in _subgraphs(node) for n in self._captured(g, depth + 1))]
            found |= dict.fromkeys(text(name) for name in read if name and name not in local)
            local.update(node.output)
        found |= dict.fromkeys(text(value.name) for value in graph.output if value.name not in local)
        return list(found)


def _refuse_sparse(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        raise UnsupportedError("sparse weights", tensor=text(sparse.values.name))


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _kind_name(kind: int) -> str:
    names = {value: name for name, value in AttributeProto.AttributeType.items()}
    return names.get(kind, str(kind))


def _constant(node: Node) -> np.ndarray:
    """The value of a Constant node, of whichever attribute it came as."""
    kinds: dict[str, tuple[type, str]] = {
        "value_float": (float, "float32"), "value_floats": (tuple, "float32"),
        "value_int": (int, "int64"), "value_ints": (tuple, "int64"),
        "value_string": (str, "object"), "value_strings": (tuple, "object"),
    }  # fmt: skip
    (key, value), *more = node.attributes.items() or [("no value", None)]
    if node.inputs or len(node.outputs) != 1 or not node.outputs[0] or more:
        raise ModelError("a Constant has one value, one output and no input", node=node.name)
    if key == "value" and isinstance(value, np.ndarray):
        return value
    kind, dtype = kinds.get(key, (type(None), ""))
    try:
        if not dtype or not isinstance(value, kind):
            raise ValueError("not a value a Constant may have")
        array = np.array(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"a Constant's value can't be read: {error}", node=node.name, found=key) from None
    array.flags.writeable = False
    return array


def _input_type(value: onnx.ValueInfoProto, name: str) -> TensorType:
    """What the file says of an input. Extents it leaves open are names, or None where it gives none."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError("an input that isn't a tensor", tensor=name, found=kind or "no type")
    tensor = value.type.tensor_type
    try:
        dtype = numpy_dtype(tensor.elem_type).name
    except MinicnnError as error:
        raise error.at(tensor=name) from None
    if not tensor.HasField("shape"):
        return TensorType(dtype=dtype, shape=None)
    shape: list[Dim] = []
    for dim in tensor.shape.dim:
        label = text(dim.dim_param, "a dimension's name")
        if dim.HasField("dim_value") and dim.dim_value != -1:  # -1 is some exporters' "open"
            if dim.dim_value < 0:
                raise ModelError("a negative extent", tensor=name, found=dim.dim_value)
            shape.append(int(dim.dim_value))
        else:
            shape.append(None if label in _ANONYMOUS_DIMS else label)
    return TensorType(dtype=dtype, shape=tuple(shape))


def _sorted(nodes: list[Node], defined: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes in topological order; the file's own where that is one.

    Raises    ModelError: a tensor that nothing computes, nodes that wait for each other
    """
    producer = {output: index for index, node in enumerate(nodes) for output in node.outputs if output}
    waits_for: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            if name and name not in defined:
                raise ModelError("reads what nothing computes", node=node.name, operator=node.op, tensor=name)
        waits_for.append({producer[name] for name in node.inputs if name in producer})
        for other in waits_for[index]:
            readers.setdefault(other, []).append(index)
    ready = [index for index, others in enumerate(waits_for) if not others]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers.get(index, ()):
            waits_for[reader].discard(index)
            if not waits_for[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise ModelError("nodes that wait for each other in a circle", node=_cycle(nodes, waits_for))
    return tuple(order)


def _cycle(nodes: list[Node], waits_for: list[set[int]]) -> str:
    index = next(i for i, others in enumerate(waits_for) if others)
    path: dict[int, None] = {}  # in order of the walk
    while index not in path:
        path[index] = None
        index = min(waits_for[index])
    circle = list(path)[list(path).index(index) :]
    names = [nodes[i].name for i in reversed(circle)]
    return " -> ".join([*(names if len(names) <= 8 else [*names[:7], "..."]), names[0]])
