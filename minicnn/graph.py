"""A network as data: tensors with types, nodes with attributes, constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from minicnn.geometry import Shape

Dim = int | str | None  # known, named ("batch"), or known only at run time


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How integers stand for reals: real = scale * (integer - zero_point), per tensor or along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """dtype is numpy's name ("float32", "int64", "bool"); shape None: even the rank is unknown."""

    dtype: str
    shape: tuple[Dim, ...] | None
    quantization: Quantization | None = None

    @property
    def is_known(self) -> bool:
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def extents(self) -> Shape:
        """The shape, known in full. Callers check `is_known` or come after `shapes.resolve`."""
        assert self.shape is not None and self.is_known
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        dims = (
            "unknown rank"
            if self.shape is None
            else "x".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.dtype} {dims or 'scalar'}"


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """What a layer does to each sum before it is stored: y = activation(sum [+ bias] [+ residual]).

    activation  "" or an operator's name ("Relu", "Clip", "LeakyRelu", ...); alpha and beta are its parameters
    has_residual  the node's last input is added before the activation
    """

    activation: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    has_residual: bool = False


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator application; an absent input is "". `sources`: the ONNX nodes it stands for.

    captured  what the node's subgraphs (If, Loop, Scan) read from outside, by the names used there. They are
              also its last inputs, in this order; renaming an input leaves `captured` alone
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    domain: str = ""
    sources: tuple[str, ...] = ()
    epilogue: Epilogue = Epilogue()
    captured: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes in topological order. `types` covers inputs and constants; after `shapes.resolve`, all."""

    name: str
    file: str
    sha256: str
    opsets: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]
    types: Mapping[str, TensorType]
    metadata: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[tuple[str, str], object] = field(
        default_factory=dict
    )  # model-local functions, for the fallback

    @property
    def opset(self) -> int:
        """Version of the default ONNX domain."""
        return self.opsets.get("", 1)

    def consumers(self) -> dict[str, list[Node]]:
        """tensor -> the nodes that read it, once for every time they read it"""
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    result.setdefault(name, []).append(node)
        return result

    def producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    def without_dead_ends(self) -> Graph:
        """Drops nodes and constants that no output needs."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        constants = {name: value for name, value in self.constants.items() if name in needed}
        return replace(self, nodes=tuple(reversed(kept)), constants=constants)

    def __str__(self) -> str:
        lines = [f"graph {self.name} (opset {self.opset}), {len(self.nodes)} nodes"]
        lines += [f"  {n.name}: {n.op}({', '.join(n.inputs)}) -> {', '.join(n.outputs)}" for n in self.nodes]
        return "\n".join(lines)
