"""Networks computed in half precision on a GPU: sums on its tensor cores, and what lies between them.

After fusion, convolutions and fully connected layers whose kernels take halves get them, and so does what
reads a half and can. All else stays float32, a Cast on the way. Sums are floats in every kernel; what is
stored between layers is rounded to half, and beyond 65,504 infinite.

Not here  fusion in half: statistics are folded into weights while both are float32
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minicnn import registry
from minicnn.choose import able_variants
from minicnn.errors import MinicnnError
from minicnn.graph import Graph, Node
from minicnn.registry import Problem, Target
from minicnn.step import Operand
from minicnn.widening import HALF, SINGLE, SUMS, cast, is_typed

GPUS = ("cuda", "sim")
OWN_CONSTANTS = frozenset(("BatchNormalization",))  # kept in float32: its variances are small
LARGEST = 65504.0


def narrow(graph: Graph, target: Target) -> Graph:
    """A rewritten graph with float16 in the place of float32 where the target's kernels can."""
    return _Narrowing(graph, target).result() if target.kind in GPUS else graph


class _Narrowing:
    """The new graph as it grows. `half`: float32 tensor -> its float16 form."""

    def __init__(self, graph: Graph, target: Target):
        self.graph = graph
        self.target = target
        self.half: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self.constants = dict(graph.constants)
        self.grown = replace(graph, types=self.types, constants=self.constants)

    def result(self) -> Graph:
        for node in self.graph.nodes:
            if node.op == "Cast" and not node.domain and self._casts(node):
                continue
            narrowed = self._narrowed(node)
            self.nodes.append(node if narrowed is None else narrowed)
            if narrowed is not None:
                for name, half in zip(node.outputs, narrowed.outputs, strict=True):
                    if half != name:
                        self.half[name] = half
                        self.nodes.append(cast(half, name, SINGLE))  # a dead end where nobody reads floats
        return replace(self.grown, nodes=tuple(self.nodes)).without_dead_ends()

    def _casts(self, node: Node) -> bool:
        """Casts between the two types: one from half gives a half form, one to half may find it there."""
        (source,), (target,) = node.inputs, node.outputs
        kinds = self.types[source].dtype, self.types[target].dtype
        if kinds == (HALF, SINGLE):
            self.half[target] = source
        if kinds != (SINGLE, HALF) or source not in self.half:
            return False
        self.nodes.append(replace(node, op="Identity", inputs=(self.half[source],), attributes={}))
        return True

    def _narrowed(self, node: Node) -> Node | None:
        """The node on halves; None where it stays as it is."""
        inputs = [name for name in node.inputs if self._is_single(name)]
        data = [name for name in inputs if name not in self.constants]
        if is_typed(node) or not data or not (node.op in SUMS or any(name in self.half for name in data)):
            return None
        kept = self.constants if node.op in OWN_CONSTANTS else {}
        new = {name: self._name(name) for name in inputs if name not in kept}
        if not all(self._add_half(name, half) for name, half in new.items()):
            return None
        outputs = {name: self._name(name) for name in node.outputs if self._is_single(name)}
        for name, half in outputs.items():
            self.types[half] = replace(self.types[name], dtype=HALF)
        changed = replace(
            node,
            inputs=tuple(new.get(name, name) for name in node.inputs),
            outputs=tuple(outputs.get(name, name) for name in node.outputs),
        )
        if not outputs or not self._is_able(changed):
            return None
        for name in data:
            if name not in self.half:
                self.half[name] = new[name]
                self.nodes.append(cast(name, new[name], HALF))
        return changed

    def _is_single(self, name: str) -> bool:
        return bool(name) and name in self.types and self.types[name].dtype == SINGLE

    def _name(self, name: str) -> str:
        return self.half.get(name, f"{name}/{HALF}")

    def _add_half(self, name: str, half: str) -> bool:
        """False: a constant that a half can't hold."""
        self.types[half] = replace(self.types[name], dtype=HALF)
        if name in self.constants and half not in self.constants:
            value = self.constants[name]
            if not (np.abs(value) <= LARGEST).all():
                return False
            self.constants[half] = value.astype(np.float16)
        return True

    def _is_able(self, node: Node) -> bool:
        try:
            bound = registry.bind(node, self.grown)
            bound.infer(node, self.types)
            inputs = tuple(self._operand(name) if name else None for name in bound.inputs)
            outputs = tuple(self._operand(name) for name in node.outputs if name)
            problem = Problem(
                operator=bound.operator,
                inputs=inputs,
                outputs=outputs,
                epilogue=node.epilogue,
                target=self.target,
            )
            return bool(able_variants(problem))
        except MinicnnError:
            return False

    def _operand(self, name: str) -> Operand:
        known = self.types[name]
        return Operand(name=name, dtype=known.dtype, shape=known.extents, value=self.constants.get(name))
