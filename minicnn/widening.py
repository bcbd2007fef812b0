"""Networks in half precision, computed in single where no kernel does their sums in half.

Where a graph multiplies matrices or convolves float16 tensors, all its float16 tensors become float32 but
the network's inputs and outputs, and what nodes with types of their own (Cast, subgraphs) read and write.
Constants are widened once. Sums are then as exact as a float32 network's, and nothing overflows in between.

Source    what onnxruntime does on a CPU
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from minicnn.graph import Graph, Node, TensorType

HALF, SINGLE = "float16", "float32"
ONNX_TYPES = {SINGLE: 1, HALF: 10}
SUMS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
# Their output's type isn't their input's: an attribute or another tensor says it.
TYPED = frozenset(
    "Bernoulli Cast CastLike ConstantOfShape EyeLike Multinomial RandomNormal RandomNormalLike RandomUniform"
    " RandomUniformLike".split()
)


def widen(graph: Graph) -> Graph:
    """The graph with float32 in the place of float16, or itself where its kernels do without."""
    sums = {name for node in graph.nodes if node.op in SUMS and not node.domain for name in node.outputs}
    if not any(name in sums and known.dtype == HALF for name, known in graph.types.items()):
        return graph
    return _Widening(graph).result()


def is_typed(node: Node) -> bool:
    return bool(node.op in TYPED or node.domain or node.captured or _has_subgraph(node))


def _has_subgraph(node: Node) -> bool:
    return any(hasattr(value, "node") for value in node.attributes.values())


class _Widening:
    """The new graph as it grows. `wide`: tensor -> its float32 form."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types: dict[str, TensorType] = dict(graph.types)
        self.constants = dict(graph.constants)
        self.nodes: list[Node] = []
        self.wide: dict[str, str] = {}

    def result(self) -> Graph:
        for node in self.graph.nodes:
            if is_typed(node):
                self.nodes.append(node)
            else:
                inputs = tuple(self._widened(name) for name in node.inputs)
                outputs = tuple(self._renamed(name) for name in node.outputs)
                self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
                for name in node.outputs:
                    self._narrow(name)
        graph = replace(self.graph, nodes=tuple(self.nodes), types=self.types, constants=self.constants)
        return graph.without_dead_ends()

    def _is_half(self, name: str) -> bool:
        known = self.graph.types.get(name)
        return known is not None and known.dtype == HALF

    def _renamed(self, name: str) -> str:
        if not self._is_half(name):
            return name
        self.wide[name] = wide = f"{name}/{SINGLE}"
        self.types[wide] = replace(self.graph.types[name], dtype=SINGLE)
        return wide

    def _widened(self, name: str) -> str:
        """The float32 form of an input: there already, a constant's, or made by a Cast."""
        if not self._is_half(name) or name in self.wide:
            return self.wide.get(name, name)
        wide = self._renamed(name)
        if name in self.constants:
            self.constants[wide] = self.constants[name].astype(np.float32)
        else:
            self.nodes.append(cast(name, wide, SINGLE))
        return wide

    def _narrow(self, name: str) -> None:
        """The float16 form under the old name, for whoever still reads it; else a dead end."""
        if name in self.wide:
            self.nodes.append(cast(self.wide[name], name, HALF))


def cast(source: str, target: str, dtype: str) -> Node:
    attributes: Mapping[str, object] = {"to": ONNX_TYPES[dtype]}
    return Node(
        name=f"{target}/cast", op="Cast", inputs=(source,), outputs=(target,), attributes=attributes
    )
