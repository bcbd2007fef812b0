"""Graph to faster graph: nodes that compute one thing together become one node, and remember whom they stand
for.

Runs after `shapes.resolve`, since what may fuse depends on shapes. Every rule looks at a node and its only
consumer; rules repeat until none applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from minicnn import patterns, registry
from minicnn.errors import UnsupportedError
from minicnn.graph import Graph, Node, TensorType

_SUMS = ("Conv", "ConvTranspose", "Gemm")  # nodes whose inputs are x, w and an optional b


def rewrite(graph: Graph) -> Graph:
    """Drops what does nothing at inference, folds per-channel affine maps into weights, fuses epilogues."""
    work = _Rewriter(patterns.join(graph))
    with np.errstate(all="ignore"):  # an infinite weight folds into an infinite or NaN one, as it would run
        work.run()
    return work.graph().without_dead_ends()


class _Rewriter:
    """A graph being edited: nodes in order, the consumers of each tensor kept up to date."""

    def __init__(self, graph: Graph):
        self.source = graph
        self.nodes: list[Node | None] = list(graph.nodes)
        self.constants = dict(graph.constants)
        self.types = dict(graph.types)
        self.outputs = set(graph.outputs)
        self.readers: dict[str, list[int]] = {}
        self.writer: dict[str, int] = {}
        for index, node in enumerate(graph.nodes):
            self._enter(index, node)

    def graph(self) -> Graph:
        nodes = tuple(node for node in self.nodes if node is not None)
        return replace(self.source, nodes=nodes, constants=self.constants, types=self.types)

    def run(self) -> None:
        for index, node in enumerate(self.nodes):
            if node is not None:
                self._drop_if_idle(index, node)
        for index in range(len(self.nodes)):
            current: int | None = index
            while current is not None and self.nodes[current] is not None:
                current = self._fuse_once(current)

    def _enter(self, index: int, node: Node) -> None:
        self.nodes[index] = node
        for name in node.inputs:
            if name:
                self.readers.setdefault(name, []).append(index)
        for name in node.outputs:
            self.writer[name] = index

    def _leave(self, index: int) -> Node:
        node = self.nodes[index]
        assert node is not None
        for name in node.inputs:
            if name:
                self.readers[name].remove(index)
        self.nodes[index] = None
        return node

    def _only_reader(self, name: str) -> int | None:
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def _drop_if_idle(self, index: int, node: Node) -> None:
        """Identity and inference-time Dropout: their readers read the input instead."""
        if (
            node.op not in ("Identity", "Dropout")
            or node.domain
            or any(self.readers.get(o) for o in node.outputs[1:])
        ):
            return
        if node.op == "Dropout" and any(node.inputs[2:]):
            return  # training_mode may be true
        if set(node.outputs) & self.outputs or node.inputs[0] in self.constants:
            return
        self._leave(index)
        for reader in set(self.readers.get(node.outputs[0], [])):
            old = self._leave(reader)
            inputs = tuple(node.inputs[0] if i == node.outputs[0] else i for i in old.inputs)
            self._enter(reader, replace(old, inputs=inputs))
        producer = self.writer.get(node.inputs[0])
        owner = None if producer is None else self.nodes[producer]
        if owner is not None and producer is not None:
            self.nodes[producer] = replace(owner, sources=owner.sources + node.sources)

    def _fuse_once(self, index: int) -> int | None:
        """Joins node `index` with its only reader if a rule allows; where the joined node stands, or None."""
        node = self.nodes[index]
        assert node is not None
        reader = self._only_reader(node.outputs[0]) if len(node.outputs) == 1 else None
        made = self.types.get(node.outputs[0])
        if reader is None or made is None or not made.is_known:
            return None
        after = self.nodes[reader]
        assert after is not None
        for rule in (self._pad, self._affine, self._matmul_bias, self._residual, self._activation):
            joined = rule(node, after)
            if joined is not None:
                self._leave(index)
                self._leave(reader)
                sources = tuple(dict.fromkeys(node.sources + after.sources))
                self._enter(reader, replace(joined, outputs=after.outputs, sources=sources))
                return reader
        return None

    def _fuses(self, node: Node) -> tuple[str, ...]:
        try:
            return registry.bind(node, self.graph_view()).fuses
        except UnsupportedError:
            return ()

    def graph_view(self) -> Graph:
        """What `registry.bind` looks at: opsets and constants as they stand."""
        return replace(self.source, nodes=(), constants=self.constants)

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.constants[name] = value
        self.types[name] = TensorType(dtype=str(value.dtype), shape=value.shape)
        return name

    def _pad(self, node: Node, after: Node) -> Node | None:
        """Zero padding of H and W before a convolution becomes the convolution's own."""
        if node.op != "Pad" or after.op != "Conv" or after.inputs[0] != node.outputs[0]:
            return None
        if after.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return None
        try:
            pad = registry.bind(node, self.graph_view()).operator
        except UnsupportedError:
            return None
        frame = pad.frame(len(self.types[node.inputs[0]].extents))  # (before, after) of every axis
        is_plain = pad.mode == "constant" and pad.fill() == 0
        if not is_plain or any(min(ends) < 0 for ends in frame) or any(map(any, frame[:2])):
            return None
        own = tuple(_ints(after.attributes.get("pads", ()))) or (0,) * (2 * len(frame) - 4)
        added = (*(before for before, _ in frame[2:]), *(behind for _, behind in frame[2:]))
        pads = [a + b for a, b in zip(own, added, strict=True)]
        attributes = {k: v for k, v in after.attributes.items() if k != "auto_pad"} | {"pads": pads}
        return replace(after, inputs=(node.inputs[0], *after.inputs[1:]), attributes=attributes)

    def _affine(self, node: Node, after: Node) -> Node | None:
        """A per-channel scale and shift after a layer with weights goes into them."""
        if node.epilogue.activation or node.epilogue.has_residual:
            return None
        if node.op not in (*_SUMS, "BatchNormalization") or any(
            name not in self.constants for name in node.inputs[1:] if name
        ):
            return None
        scale_shift = self._scale_shift(node, after)
        if scale_shift is None:
            return None
        scale, shift = scale_shift
        index = self.writer[node.outputs[0]]
        stem = f"{node.name}:{after.name}"
        if node.op == "BatchNormalization":
            gamma, beta = (self.constants[name].astype(np.float64) for name in node.inputs[1:3])
            new = [(gamma * scale), (beta * scale + shift)]
            names = [
                self._constant(f"{stem}:{what}", v.astype(np.float32))
                for what, v in zip(("scale", "shift"), new, strict=True)
            ]
            return replace(node, inputs=(node.inputs[0], *names, *node.inputs[3:]))
        weights = _scaled(node, self.constants[node.inputs[1]], scale)
        bias = np.zeros(len(scale))
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = np.broadcast_to(self.constants[node.inputs[2]].astype(np.float64).reshape(-1), scale.shape)
        if node.inputs[1] not in self.source.constants and self.readers[node.inputs[1]] == [index]:
            del self.constants[node.inputs[1]]  # scaled before, and now again
        w = self._constant(f"{stem}:weight", weights)
        b = self._constant(f"{stem}:bias", (bias * scale + shift).astype(np.float32))
        return replace(node, inputs=(node.inputs[0], w, b))

    def _scale_shift(self, node: Node, after: Node) -> tuple[np.ndarray, np.ndarray] | None:
        """(scale, shift) per channel if `after` is such a map of constants, in float64."""
        shape = self.types[node.outputs[0]].extents
        if len(shape) < 2 or self.types[node.outputs[0]].dtype != "float32":
            return None
        channels = shape[1]
        if node.op == "Gemm" and (
            node.attributes.get("alpha", 1.0) != 1.0 or node.attributes.get("beta", 1.0) != 1.0
        ):
            return None
        if after.op == "BatchNormalization" and len([o for o in after.outputs if o]) == 1:
            if any(name not in self.constants for name in after.inputs[1:]) or after.attributes.get(
                "training_mode", 0
            ):
                return None
            gamma, beta, mean, variance = (
                self.constants[name].astype(np.float64) for name in after.inputs[1:5]
            )
            epsilon = after.attributes.get("epsilon", 1e-5)
            assert isinstance(epsilon, float)
            scale = gamma / np.sqrt(variance + epsilon)
            return scale, beta - mean * scale
        if after.op not in ("Mul", "Add"):
            return None
        other = after.inputs[1] if after.inputs[0] == node.outputs[0] else after.inputs[0]
        value = self.constants.get(other)
        if value is None or value.size not in (1, channels):
            return None
        along = (channels, *(1,) * (len(shape) - 2))
        if value.size == channels and value.shape[-len(along) :] != along:
            return None
        flat = np.broadcast_to(value.astype(np.float64).reshape(-1), (channels,))
        return (flat, np.zeros(channels)) if after.op == "Mul" else (np.ones(channels), flat)

    def _matmul_bias(self, node: Node, after: Node) -> Node | None:
        """MatMul of two matrices, then a constant row added: a Gemm."""
        if node.op != "MatMul" or after.op != "Add" or len(self.types[node.outputs[0]].extents) != 2:
            return None
        if any(len(self.types[name].extents) != 2 for name in node.inputs):
            return None
        other = after.inputs[1] if after.inputs[0] == node.outputs[0] else after.inputs[0]
        columns = self.types[node.outputs[0]].extents[1]
        value = self.constants.get(other)
        if value is None or value.size != columns or value.shape[-1] != columns:
            return None
        bias = self._constant(f"{node.name}:{after.name}:bias", value.reshape(columns))
        return replace(node, op="Gemm", inputs=(*node.inputs, bias), attributes={})

    def _residual(self, node: Node, after: Node) -> Node | None:
        """An addition of a tensor of the same shape joins the layer that makes the other summand."""
        if after.op not in ("Add", "Sum") or len(after.inputs) != 2 or after.inputs[0] == after.inputs[1]:
            return None
        if node.epilogue.activation or node.epilogue.has_residual or "Residual" not in self._fuses(node):
            return None
        other = after.inputs[1] if after.inputs[0] == node.outputs[0] else after.inputs[0]
        if other in self.constants or self.types.get(other) != self.types[node.outputs[0]]:
            return None
        rival = self.writer.get(other, -1)
        if rival > self.writer[node.outputs[0]] and self._only_reader(other) is not None:
            summand = self.nodes[rival]
            if summand is not None and not summand.epilogue.activation and "Residual" in self._fuses(summand):
                return None  # the later of two layers takes it: less stays alive
        inputs = node.inputs + ("",) * (3 - len(node.inputs)) if node.op in _SUMS else node.inputs
        return replace(node, inputs=(*inputs, other), epilogue=replace(node.epilogue, has_residual=True))

    def _activation(self, node: Node, after: Node) -> Node | None:
        if (
            node.epilogue.activation
            or after.op not in self._fuses(node)
            or after.inputs[0] != node.outputs[0]
        ):
            return None
        if self.types[node.outputs[0]].dtype != "float32":
            return None
        try:
            parameters = registry.bind(after, self.graph_view()).operator.fused_parameters()
        except (UnsupportedError, AttributeError):
            return None
        alpha, beta = parameters
        return replace(node, epilogue=replace(node.epilogue, activation=after.op, alpha=alpha, beta=beta))


def _scaled(node: Node, weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Weights times a factor for each output channel, in float64 but a piece at a time, then rounded."""
    if node.op == "ConvTranspose":  # weights (C, K/group, R, S): c says which group's factors count
        groups = node.attributes.get("group", 1)
        assert isinstance(groups, int)
        split = weights.reshape(groups, -1, *weights.shape[1:])
        factors = scale.reshape(groups, 1, weights.shape[1], *(1 for _ in weights.shape[2:]))
    else:
        along = [1] * weights.ndim
        along[0 if node.op == "Conv" or node.attributes.get("transB", 0) else 1] = -1
        split, factors = weights, scale.reshape(along)
    out = np.empty(split.shape, np.float32)
    np.multiply(split, factors, out=out, dtype=np.float64, casting="unsafe")
    return out.reshape(weights.shape)


def _ints(value: object) -> Iterable[int]:
    assert isinstance(value, (list, tuple))
    return value
