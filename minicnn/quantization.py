"""Networks with QuantizeLinear and DequantizeLinear about their layers (QDQ), computed in 8-bit integers.

    DequantizeLinear(x), DequantizeLinear(w), ... -> Conv, Gemm or MatMul -> Relu, Clip -> QuantizeLinear
becomes a QLinearConv where all scales are constants; a product of matrices is one, of one-pixel images. Relu
and Clip go where saturation does the same. Sums are exact and rounded once: a layer is within a step of y's
scale of what its pieces give.

Source    ONNX's quantisation format; onnxruntime joins the same patterns
Not here  additions and poolings between quantised tensors: computed in float32
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn.graph import Graph, Node, TensorType

BYTES = ("uint8", "int8")
_LAYERS = ("Conv", "Gemm", "MatMul")


def fold(graph: Graph) -> Graph:
    """Constants that are stored as integers, as the float32 that their readers ask for."""
    if not any(_is_dequantised_constant(node, graph) for node in graph.nodes):
        return graph
    constants, types, kept = dict(graph.constants), dict(graph.types), []
    for node in graph.nodes:
        if not _is_dequantised_constant(node, graph):
            kept.append(node)
            continue
        value = _real(node, graph)
        constants[node.outputs[0]] = value
        types[node.outputs[0]] = TensorType(dtype="float32", shape=value.shape)
    return replace(graph, nodes=tuple(kept), constants=constants, types=types).without_dead_ends()


def _is_dequantised_constant(node: Node, graph: Graph) -> bool:
    is_plain = node.op == "DequantizeLinear" and not node.domain and not node.attributes.get("block_size", 0)
    known = all(name in graph.constants for name in node.inputs if name)
    return is_plain and known and graph.types[node.outputs[0]].dtype == "float32"


def _real(node: Node, graph: Graph) -> np.ndarray:
    x, scale, *zero = (graph.constants[name] for name in node.inputs if name)
    axis = node.attributes.get("axis", 1)
    assert isinstance(axis, int)
    along = [1] * x.ndim
    if scale.size > 1:
        along[axis] = -1
    shift = zero[0].astype(np.int64).reshape(along) if zero else 0
    return np.asarray(
        (x.astype(np.int64) - shift).astype(np.float32) * scale.reshape(along if x.ndim else ())
    )


def join(graph: Graph) -> Graph:
    """Whole QDQ layers as QLinearConv; all others stay."""
    if not any(node.op == "QuantizeLinear" for node in graph.nodes):
        return graph
    return _Joiner(graph).result()


@dataclass(frozen=True, kw_only=True)
class _Quantised:
    """An 8-bit tensor with its scale and zero point, all by name; `node` made a float32 of it."""

    name: str
    scale: str
    zero: str
    node: Node


class _Joiner:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.constants = dict(graph.constants)
        self.types = dict(graph.types)
        self.makers = {name: node for node in graph.nodes for name in node.outputs if name}
        self.readers = Counter(name for node in graph.nodes for name in node.inputs) + Counter(graph.outputs)

    def result(self) -> Graph:
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self._joined(node) or [node]
        graph = replace(self.graph, nodes=tuple(nodes), constants=self.constants, types=self.types)
        return graph.without_dead_ends()

    def _joined(self, last: Node) -> list[Node]:
        """What takes the place of a QuantizeLinear that ends such a layer; []: it doesn't."""
        y = self._quantiser(last)
        if y is None:
            return []
        between: list[Node] = []
        layer = self._maker(last.inputs[0])
        while layer is not None and layer.op in ("Relu", "Clip") and not layer.domain:
            if not self._saturates(layer, y):
                return []
            between.append(layer)
            layer = self._maker(layer.inputs[0])
        if layer is None or layer.op not in _LAYERS or layer.domain:
            return []
        x, w = (self._dequantised(name) for name in layer.inputs[:2])
        if x is None or w is None or w.name not in self.constants or self._value(x.scale).size != 1:
            return []
        bias = self._bias(layer, x, w)
        if bias is None:
            return []
        sources = [s for n in (x.node, w.node, layer, *between, last) for s in n.sources]
        made = replace(last, sources=tuple(dict.fromkeys(sources)))
        if layer.op == "Conv":
            return self._convolution(made, layer, x, w, y, bias)
        return self._product(made, layer, x, w, y, bias)

    def _convolution(
        self, made: Node, layer: Node, x: _Quantised, w: _Quantised, y: _Quantised, bias: str
    ) -> list[Node]:
        if self._value(w.scale).size > 1 and w.node.attributes.get("axis", 1) != 0:
            return []
        inputs = (x.name, x.scale, x.zero, w.name, w.scale, w.zero, y.scale, y.zero, bias)
        return [replace(made, op="QLinearConv", inputs=_without_last(inputs), attributes=layer.attributes)]

    def _product(
        self, made: Node, layer: Node, x: _Quantised, w: _Quantised, y: _Quantised, bias: str
    ) -> list[Node]:
        """A matrix of constants times x's rows: each row an image of one pixel."""
        matrix, rows = self._value(w.name), self.types[x.name].extents
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        is_plain = all(layer.attributes.get(name, value) == value for name, value in plain.items())
        if matrix.ndim != 2 or len(rows) < 2 or not is_plain:
            return []
        is_turned = bool(layer.attributes.get("transB", 0))
        axis = w.node.attributes.get("axis", 1)
        assert isinstance(axis, int)
        if self._value(w.scale).size > 1 and axis % 2 != (0 if is_turned else 1):
            return []
        filters = matrix if is_turned else matrix.T
        K, C = filters.shape
        stem = made.outputs[0]
        count = int(np.prod(rows[:-1]))
        weights = self._constant(f"{stem}:filters", np.ascontiguousarray(filters).reshape(K, C, 1, 1))
        shapes = {
            "in": self._constant(f"{stem}:in", np.array([count, C, 1, 1])),
            "out": self._constant(f"{stem}:out", np.array(self.types[made.outputs[0]].extents)),
        }
        dtype = self.types[made.outputs[0]].dtype
        images = self._tensor(f"{stem}:images", self.types[x.name].dtype, (count, C, 1, 1))
        pixels = self._tensor(f"{stem}:pixels", dtype, (count, K, 1, 1))
        inputs = (images, x.scale, x.zero, weights, w.scale, w.zero, y.scale, y.zero, bias)
        name = made.name
        return [
            replace(made, name=f"{name}:in", op="Reshape", inputs=(x.name, shapes["in"]), outputs=(images,),
                    attributes={}),
            replace(made, op="QLinearConv", inputs=_without_last(inputs), outputs=(pixels,), attributes={}),
            replace(made, name=f"{name}:out", op="Reshape", inputs=(pixels, shapes["out"]), attributes={}),
        ]  # fmt: skip

    def _bias(self, layer: Node, x: _Quantised, w: _Quantised) -> str | None:
        """An int32 constant whose step is that of the sums, "" where there is none; None: another."""
        if len(layer.inputs) < 3 or not layer.inputs[2]:
            return ""
        maker = self.makers.get(layer.inputs[2])
        filters = self.types[layer.outputs[0]].extents[1]
        if maker is None or maker.op != "DequantizeLinear" or maker.inputs[0] not in self.constants:
            return None
        value, scale = self._value(maker.inputs[0]), self._value(maker.inputs[1])
        step = self._value(x.scale).reshape(-1) * self._value(w.scale).reshape(-1)
        zero = self._value(maker.inputs[2]) if len(maker.inputs) > 2 and maker.inputs[2] else np.zeros(1)
        is_fit = value.dtype == np.int32 and value.shape == (filters,) and not zero.any()
        return maker.inputs[0] if is_fit and np.allclose(scale.reshape(-1), step, rtol=1e-5, atol=0) else None

    def _maker(self, name: str) -> Node | None:
        """Of a tensor that nobody else reads."""
        return self.makers.get(name) if self.readers[name] == 1 and name not in self.graph.outputs else None

    def _dequantised(self, name: str) -> _Quantised | None:
        node = self.makers.get(name)
        if node is None or node.op != "DequantizeLinear" or node.domain:
            return None
        return self._of(node, node.inputs[0], self.types[node.inputs[0]].dtype)

    def _quantiser(self, node: Node) -> _Quantised | None:
        if node.op != "QuantizeLinear" or node.domain or self.types[node.inputs[0]].dtype != "float32":
            return None
        found = self._of(node, node.outputs[0], self.types[node.outputs[0]].dtype)
        return found if found is not None and self._value(found.scale).size == 1 else None

    def _of(self, node: Node, name: str, dtype: str) -> _Quantised | None:
        scale = node.inputs[1]
        zero = node.inputs[2] if len(node.inputs) > 2 else ""
        if dtype not in BYTES or scale not in self.constants or node.attributes.get("block_size", 0):
            return None
        if not zero:
            zero = self._constant(f"{node.outputs[0]}:zero", np.zeros(self._value(scale).shape, dtype))
        if zero not in self.constants or self._value(scale).dtype != np.float32:
            return None
        return _Quantised(name=name, scale=scale, zero=zero, node=node)

    def _saturates(self, node: Node, y: _Quantised) -> bool:
        """Whether y's integers end where the activation does."""
        zero = self._value(y.zero)
        limits, scale = np.iinfo(zero.dtype), float(self._value(y.scale).reshape(()))
        low, high = (scale * (float(end) - float(zero.reshape(()))) for end in (limits.min, limits.max))
        least, most = self._ends(node)
        return least <= low + scale / 2 and (most is None or most >= high - scale / 2)

    def _ends(self, node: Node) -> tuple[float, float | None]:
        if node.op == "Relu":
            return 0.0, None
        given: list[Any] = [node.attributes.get("min"), node.attributes.get("max")]
        for index, name in enumerate(node.inputs[1:3]):
            if name:
                given[index] = self.constants.get(name, np.float32(np.nan))
        least, most = (None if value is None else float(np.reshape(value, ())) for value in given)
        return -np.inf if least is None else least, most

    def _value(self, name: str) -> np.ndarray:
        return self.constants[name]

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = value
        return self._tensor(name, value.dtype.name, value.shape)

    def _tensor(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        self.types[name] = TensorType(dtype=dtype, shape=shape)
        return name


def _without_last(inputs: tuple[str, ...]) -> tuple[str, ...]:
    return inputs if inputs[-1] else inputs[:-1]
