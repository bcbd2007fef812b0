"""Functions that exporters write out in pieces, recognised: Swish, HardSwish, Gelu, Mish and others.

Runs before fusion, which sees a single consumer then where there were two. Exporters write
    x * Sigmoid(x)                          Swish
    x * HardSigmoid(x)                      HardSwish
    Clip(x + 3, 0, 6) / 6, times x          HardSigmoid, HardSwish
    x * Tanh(Softplus(x))                   Mish
    x * (Erf(x / sqrt(2)) + 1) * 0.5        Gelu
    ReduceMean over all pixels, kept as one GlobalAveragePool
    Reshape, Transpose, Reshape             ChannelShuffle
and order factors as they like; a division by a constant is a factor, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from minicnn import registry
from minicnn.elements import FLOATS
from minicnn.errors import UnsupportedError
from minicnn.graph import Epilogue, Graph, Node


@dataclass(frozen=True, kw_only=True)
class _Match:
    """What a node computes from x with the help of the `inner` nodes, named by outputs nobody else reads."""

    op: str
    x: str
    inner: tuple[str, ...] = ()
    attributes: Mapping[str, Any]


def join(graph: Graph) -> Graph:
    """The graph with every such group as one node that remembers whom it stands for."""
    finder = _Finder(graph)
    for node in graph.nodes:
        match = finder.match(node)
        if match is None:
            continue
        gone = [finder.makers.pop(name) for name in match.inner]
        sources = (*(source for inner in gone for source in inner.sources), *node.sources)
        finder.makers[node.outputs[0]] = replace(
            node, op=match.op, inputs=(match.x,), attributes=match.attributes,
            sources=tuple(dict.fromkeys(sources)),
        )  # fmt: skip
    kept = (finder.makers.get(node.outputs[0]) if len(node.outputs) == 1 else node for node in graph.nodes)
    return replace(graph, nodes=tuple(node for node in kept if node is not None))


class _Finder:
    """Looks from a node towards its inputs. `makers`: nodes by their only output."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.makers = {node.outputs[0]: node for node in graph.nodes if len(node.outputs) == 1}
        self.readers = Counter(name for node in graph.nodes for name in node.inputs) + Counter(graph.outputs)

    def match(self, node: Node) -> _Match | None:
        known = self.graph.types.get(node.outputs[0])
        if known is None or not known.is_known or known.dtype not in FLOATS or not _is_plain(node):
            return None
        if node.op == "ReduceMean":
            return self._mean(node)
        if node.op == "Reshape":
            return self._shuffle(node)
        if node.op not in ("Mul", "Div"):
            return None
        scale, factors, inner = self._factors(node)
        found = self._function(scale, factors, 1e-6 if known.dtype == "float32" else 1e-3)
        if found is None or self.graph.types.get(found.x) != known:  # another shape: a constant stretched x
            return None
        return replace(found, inner=(*inner, *found.inner))

    def _mean(self, node: Node) -> _Match | None:
        x = self.graph.types.get(node.inputs[0])
        operator = self._operator(node)
        if x is None or not x.is_known or x.dtype != "float32" or operator is None or not operator.keepdims:
            return None
        rank = len(x.extents)
        if rank < 3 or 0 in x.extents or operator.reduced(rank) != tuple(range(2, rank)):
            return None
        return _Match(op="GlobalAveragePool", x=node.inputs[0], attributes={})

    def _shuffle(self, node: Node) -> _Match | None:
        """node: a Reshape that joins channels which another has split, behind a Transpose of the parts."""
        transpose = self._inner(node.inputs[0], "Transpose")
        split = None if transpose is None else self._inner(transpose.inputs[0], "Reshape")
        if transpose is None or split is None:
            return None
        x, parts = (self.graph.types.get(name) for name in (split.inputs[0], split.outputs[0]))
        known = self.graph.types[node.outputs[0]]
        if x is None or parts is None or x != known or not parts.is_known or x.dtype != "float32":
            return None
        N, *rest = parts.extents
        is_split = len(rest) >= 2 and x.extents == (N, rest[0] * rest[1], *rest[2:])
        if not is_split or transpose.attributes.get("perm") != (0, 2, 1, *range(3, len(parts.extents))):
            return None
        inner = (transpose.outputs[0], split.outputs[0])
        return _Match(op="ChannelShuffle", x=split.inputs[0], inner=inner, attributes={"group": rest[0]})

    def _function(self, scale: float, factors: list[str], tolerance: float) -> _Match | None:
        def is_near(value: float | None, wanted: float) -> bool:
            return value is not None and math.isclose(value, wanted, rel_tol=tolerance)

        if len(factors) == 1 and is_near(scale, 1 / 6):
            clipped = self._clip_of_sum(factors[0], is_near)
            attributes = {"alpha": 1 / 6, "beta": 0.5}
            return clipped and replace(clipped, op="HardSigmoid", attributes=attributes)
        if len(factors) != 2:
            return None
        for x, other in (factors, factors[::-1]):
            found = self._times(x, other, scale, is_near)
            if found is not None and found.x == x:
                return found
        return None

    def _times(self, x: str, other: str, scale: float, is_near: Any) -> _Match | None:
        """x times what `other` names, where that is a function of x."""
        if is_near(scale, 1 / 6):
            return self._clip_of_sum(other, is_near)
        node = self._inner(other, "Sigmoid", "HardSigmoid", "Tanh", "Add")
        if node is None:
            return None
        if node.op == "Add":
            return self._gelu(node, is_near) if is_near(scale, 0.5) else None
        if not is_near(scale, 1):
            return None
        if node.op == "Sigmoid":
            return _Match(op="Swish", x=node.inputs[0], inner=(other,), attributes={"alpha": 1.0})
        if node.op == "HardSigmoid":
            hard = self._operator(node)
            fits = hard is not None and is_near(hard.alpha, 1 / 6) and is_near(hard.beta, 0.5)
            return _Match(op="HardSwish", x=node.inputs[0], inner=(other,), attributes={}) if fits else None
        plus = self._inner(node.inputs[0], "Softplus")
        if plus is None:
            return None
        return _Match(op="Mish", x=plus.inputs[0], inner=(other, plus.outputs[0]), attributes={})

    def _gelu(self, node: Node, is_near: Any) -> _Match | None:
        """node: Erf(x / sqrt(2)) + 1"""
        one, summand = self._constant_and_other(node)
        erf = self._inner(summand, "Erf")
        if not is_near(one, 1) or erf is None:
            return None
        scaled = self._inner(erf.inputs[0], "Mul", "Div")
        if scaled is None:
            return None
        scale, factors, inner = self._factors(scaled)
        if len(factors) != 1 or not is_near(scale, math.sqrt(0.5)):
            return None
        names = (node.outputs[0], summand, erf.inputs[0], *inner)
        return _Match(op="Gelu", x=factors[0], inner=names, attributes={})

    def _clip_of_sum(self, name: str, is_near: Any) -> _Match | None:
        """Clip(x + 3, 0, 6)"""
        clip = self._inner(name, "Clip")
        operator = None if clip is None else self._operator(clip)
        if clip is None or operator is None or operator.limits() != (0, 6):
            return None
        added = self._inner(clip.inputs[0], "Add")
        if added is None:
            return None
        three, x = self._constant_and_other(added)
        names = (name, added.outputs[0])
        return _Match(op="HardSwish", x=x, inner=names, attributes={}) if is_near(three, 3) else None

    def _factors(self, node: Node) -> tuple[float, list[str], tuple[str, ...]]:
        """A product's constant part, its other factors, and the products within it that nobody else reads."""
        scale = 1.0
        factors: list[str] = []
        inner: tuple[str, ...] = ()
        for position, name in enumerate(node.inputs):
            divides = node.op == "Div" and position == 1
            value = self._scalar(name)
            part = self._inner(name, "Mul", "Div")
            if value is not None and not (divides and value == 0):
                scale = scale / value if divides else scale * value
            elif part is None or divides:
                factors.append(name if not divides else "")  # "": nothing divides by a tensor
            else:
                own_scale, own_factors, own_inner = self._factors(part)
                scale *= own_scale
                factors += own_factors
                inner = (*inner, name, *own_inner)
        return scale, factors, inner

    def _constant_and_other(self, node: Node) -> tuple[float | None, str]:
        first, second = node.inputs
        value = self._scalar(first)
        return (self._scalar(second), first) if value is None else (value, second)

    def _scalar(self, name: str) -> float | None:
        value = self.graph.constants.get(name)
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

    def _inner(self, name: str, *ops: str) -> Node | None:
        """The node that makes this tensor, if it is one of `ops` and nobody but one node reads it."""
        node = self.makers.get(name)
        is_inner = node is not None and node.op in ops and self.readers[name] == 1 and _is_plain(node)
        return node if is_inner else None

    def _operator(self, node: Node) -> Any:
        try:
            return registry.bind(node, self.graph).operator
        except UnsupportedError:
            return None


def _is_plain(node: Node) -> bool:
    return not node.domain and node.epilogue == Epilogue()
