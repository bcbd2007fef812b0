"""Shapes of every tensor, and whatever follows from shapes and constants alone computed once and for all.

Source    ONNX: operators' own `infer` where there is one, else onnx.shape_inference
Not here  shapes that depend on data: their tensors stay open, and the plan is cut there
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from minicnn import fallback, registry
from minicnn.errors import InputError, MinicnnError, ShapeError, UnsupportedError
from minicnn.form import check_form
from minicnn.geometry import Shape
from minicnn.graph import Dim, Epilogue, Graph, Node, TensorType

FOLD_BYTES_LIMIT = 1 << 30
# New at every run, or wanted as integers by `quantization`.
_LATER = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli"
    " DequantizeLinear".split()
)
# Extents depend on data, but the output is never much larger than the input.
_BOUNDED_BY_INPUT = frozenset("NonZero Compress Unique".split())
_LARGEST_UNFORESEEN = 1 << 20  # elements going into one of those
_ABSURD = 1 << 60  # elements; beyond, numpy can't even describe an array


def resolve(
    graph: Graph,
    shapes: Mapping[str, Shape],
    batch: int | None,
    fold_bytes_limit: int = FOLD_BYTES_LIMIT,
) -> Graph:
    """The graph with all types that can be known, constants folded, dead ends dropped. Idempotent.

    Tensors whose shape depends on data get a type with open extents, or none; so does what they lead to.

    shapes  input name -> shape, where the file leaves extents open
    batch   first extent of the inputs that leave it open and aren't in `shapes`
    Units   fold_bytes_limit in bytes of constants added; what would pass it stays a node
    Raises  ShapeError: an extent is left open, or shapes contradict each other; InputError: no such input
    """
    types = _input_types(graph, shapes, batch)
    types |= {n: TensorType(dtype=a.dtype.name, shape=a.shape) for n, a in graph.constants.items()}
    walk = _Walk(graph, types, fold_bytes_limit)
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    for node in graph.nodes:
        try:
            walk.visit(_without_unread(node, graph, read))
        except MinicnnError as error:
            raise error.at(file=graph.file, node=node.name, operator=node.op) from None
    return walk.result()


def _input_types(graph: Graph, shapes: Mapping[str, Shape], batch: int | None) -> dict[str, TensorType]:
    """The inputs' types with what the user gave filled in. A dimension's name stands for one extent."""
    for name in shapes:
        if name not in graph.inputs:
            raise InputError("no such input", file=graph.file, tensor=name, accepted=", ".join(graph.inputs))
    found: dict[str, list[Dim]] = {}
    for name in graph.inputs:
        declared = graph.types[name].shape
        given = tuple(shapes[name]) if name in shapes else None
        if given is not None and not _fits(declared, given):
            found_shape = "x".join(map(str, given))
            raise ShapeError(
                "a shape that contradicts the file",
                file=graph.file, tensor=name, expected=graph.types[name], found=found_shape,
            )  # fmt: skip
        if given is None and declared is None:
            remedy = f"--shape {name}=EXTENT,EXTENT,..."
            raise ShapeError("an input without a shape", file=graph.file, tensor=name, remedy=remedy)
        found[name] = list(given if given is not None else declared or ())
        if batch is not None and found[name] and not isinstance(found[name][0], int):
            found[name][0] = batch
    _check_batch(graph, {n: e for n, e in found.items() if n not in shapes}, batch)
    named: dict[str, tuple[int, str]] = {}  # extent, and the input that says so
    for name, extents in found.items():
        for label, extent in zip(graph.types[name].shape or (), extents, strict=False):
            if not isinstance(label, str) or not isinstance(extent, int):
                continue
            value, first = named.setdefault(label, (extent, name))
            if value != extent:
                raise ShapeError(
                    f"two extents for the dimension '{label}'",
                    file=graph.file, tensor=name, expected=f"{value}, as in {first}", found=extent,
                )  # fmt: skip
    types = {}
    for name, extents in found.items():
        filled = [named[e][0] if isinstance(e, str) and e in named else e for e in extents]
        _refuse_open(graph, name, filled)
        types[name] = replace(graph.types[name], shape=tuple(filled))
    return types


def _fits(declared: tuple[Dim, ...] | None, given: Shape) -> bool:
    if any(extent < 0 for extent in given):
        return False
    if declared is None:
        return True
    same_rank = len(declared) == len(given)
    return same_rank and all(not isinstance(d, int) or d == g for d, g in zip(declared, given, strict=True))


def _check_batch(graph: Graph, found: Mapping[str, list[Dim]], batch: int | None) -> None:
    """A batch that no input takes was asked for in vain, and silence would hide that."""
    if batch is None or not found:
        return
    if batch < 1 or not any(extents and extents[0] == batch for extents in found.values()):
        declared = ", ".join(f"{name} {graph.types[name]}" for name in found)
        raise ShapeError("a batch that contradicts the file", file=graph.file, expected=declared, found=batch)


def _refuse_open(graph: Graph, name: str, extents: list[Dim]) -> None:
    for axis, extent in enumerate(extents):
        if isinstance(extent, int):
            continue
        label = f" '{extent}'" if extent else ""
        example = ",".join(str(e) if isinstance(e, int) else "EXTENT" for e in extents)
        remedy = f"--shape {name}={example}"
        only_first = all(isinstance(e, int) for e in extents[1:])
        raise ShapeError(
            f"dimension {axis}{label} of an input is open",
            file=graph.file,
            tensor=name,
            found=graph.types[name],
            remedy=f"--batch N, or {remedy}" if only_first else remedy,
        )


def _without_unread(node: Node, graph: Graph, read: set[str]) -> Node:
    """The node without optional outputs that nobody reads (masks, indices): with them it would be refused."""
    outputs = list(node.outputs)
    for index, name in enumerate(outputs[1:], start=1):
        if name and name not in read and fallback.is_optional(node, graph, index):
            outputs[index] = ""
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return node if len(outputs) == len(node.outputs) else replace(node, outputs=tuple(outputs))


class _Walk:
    """The nodes in order, types and constants known so far."""

    def __init__(self, graph: Graph, types: dict[str, TensorType], fold_bytes_limit: int):
        self.types: dict[str, TensorType] = {}
        self.constants = dict(graph.constants)
        self.bytes_left = fold_bytes_limit
        self.kept: list[Node] = []
        # What operators and the fallback look at: it shares the two dicts, so it knows what the walk knows.
        self.graph = replace(graph, types=self.types, constants=self.constants)
        for name, known in types.items():
            self._set_type(name, known)

    def result(self) -> Graph:
        graph = replace(self.graph, nodes=tuple(self.kept)).without_dead_ends()
        names = {*graph.inputs, *graph.constants, *(name for node in graph.nodes for name in node.outputs)}
        return replace(graph, types={name: known for name, known in self.types.items() if name in names})

    def visit(self, node: Node) -> None:
        check_form(node, self.graph)
        is_plain = not node.domain and not node.captured
        if node.op in ("Shape", "Size") and is_plain and self._knows(node.inputs):
            # The values don't matter, so a stand-in that takes no memory will do.
            x = self.types[node.inputs[0]]
            stand_in = np.broadcast_to(np.zeros((), x.dtype), x.extents)
            if self._fold(node, [stand_in]):
                return
        if all(name in self.types for name in node.inputs if name):
            for name, found in zip(node.outputs, self._infer(node), strict=True):
                if name and found is not None:
                    self._set_type(name, found)
        values = [self.constants.get(name) for name in node.inputs]
        if not (self._can_fold(node) and self._fold(node, values)):
            self.kept.append(node)

    def _set_type(self, name: str, known: TensorType) -> None:
        extents = known.extents if known.is_known else ()
        if min(extents, default=0) < 0 or math.prod(max(extent, 1) for extent in extents) > _ABSURD:
            raise ShapeError("an absurd size", file=self.graph.file, tensor=name, found=known)
        self.types[name] = known

    def _knows(self, names: tuple[str, ...]) -> bool:
        return all(name in self.types and self.types[name].is_known for name in names if name)

    def _infer(self, node: Node) -> tuple[TensorType | None, ...]:
        nothing: tuple[TensorType | None, ...] = (None,) * len(node.outputs)
        try:
            bound = registry.bind(node, self.graph)
            if not self._knows(bound.inputs):
                return nothing
            return (*bound.infer(node, self.types), *nothing)[: len(nothing)]
        except UnsupportedError:
            pass  # whether the node may run at all is the planner's to say
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ShapeError(f"attributes or inputs that don't fit together: {error}") from error
        return fallback.infer(node, self.graph)

    def _can_fold(self, node: Node) -> bool:
        if not all(name in self.constants for name in node.inputs if name):
            return False
        # Loops may run forever, and the evaluator knows no fused nodes.
        is_plain = node.epilogue == Epilogue() and node.op not in _LATER and not node.captured
        has_graph = any(hasattr(value, "node") for value in node.attributes.values())
        if not is_plain or has_graph or fallback.is_refused(node):
            return False
        if not self._knows(tuple(name for name in node.outputs if name)):
            taken = sum(self.constants[name].size for name in node.inputs if name)
            return node.op in _BOUNDED_BY_INPUT and taken <= _LARGEST_UNFORESEEN
        return sum(self._nbytes(name) for name in node.outputs if name) <= self.bytes_left

    def _nbytes(self, name: str) -> int:
        known = self.types[name]
        return math.prod(known.extents) * np.dtype(known.dtype).itemsize

    def _fold(self, node: Node, inputs: list[np.ndarray | None]) -> bool:
        try:
            values = fallback.evaluate(node, self.graph, inputs)
        except MinicnnError:
            return False  # a kernel may do it all the same; if none can, the plan says so
        for name, value in zip(node.outputs, values, strict=True):
            if name:
                value.flags.writeable = False
                self.constants[name] = value
                self.types[name] = TensorType(dtype=value.dtype.name, shape=value.shape)
                self.bytes_left -= value.nbytes
        return True
