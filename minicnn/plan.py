"""A plan: layers in order, each with its variant, steps and memory. Data only; `planner.plan` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minicnn.graph import Graph
from minicnn.registry import Cost, Problem
from minicnn.step import HostCall, Operand, Step, View


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is timed as one: the steps for one or more ONNX nodes (`nodes`), or a conversion the plan put in.

    bytes_min    each input, weight and output moved once; bytes_moved adds the workspace, written and read
    live_bytes   activations, inputs, outputs and workspaces alive while it runs
    problem      what the variant was asked, its constants as they came
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    variant: str
    reason: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    steps: tuple[Step, ...]
    cost: Cost = Cost()
    bytes_min: int = 0
    bytes_moved: int = 0
    workspace_bytes: int = 0
    live_bytes: int = 0
    is_fallback: bool = False
    problem: Problem | None = field(default=None, repr=False)
    output_names: tuple[str, ...] = ()  # of a fallback: also those whose shape is known only at run time

    def __str__(self) -> str:
        steps = ", ".join(map(str, self.steps)) or "nothing to do"
        return f"{self.name}: {self.op} by {self.variant} ({self.reason}): {steps}"


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Memory for one or more tensors. kind: "input", "output", "activation", "workspace" (in the arena) or
    "weight".

    Alive in layers `first` to `last`; `offset` in bytes from the start of the arena, or of the weights.
    """

    name: str
    kind: str
    nbytes: int
    first: int
    last: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a device needs to run a graph (or its head, as far as shapes are known), and what a person
    asks of it.

    load_steps  packings of constants, run once; `weights` are the constants that live on the device
    rest        the graph behind the last layer, whose input shapes are known only when these layers have run
    """

    graph: Graph
    layers: tuple[Layer, ...]
    inputs: tuple[Operand, ...]
    outputs: Mapping[str, Operand]
    load_steps: tuple[HostCall, ...]
    weights: Mapping[str, Operand]
    buffers: Mapping[str, Buffer]
    places: Mapping[str, str]  # tensor -> buffer; where in it, the operand's layout says
    arena_bytes: int
    live_peak_bytes: int
    weight_bytes: int
    rest: Graph | None = None

    def bytes_of(self, kind: str) -> int:
        """Sum over the buffers of a kind, as if none shared memory."""
        return sum(b.nbytes for b in self.buffers.values() if b.kind == kind)

    def byte_offset(self, view: View) -> tuple[bool, int]:
        """(is it among the weights, bytes from the start of the weights or of the arena)"""
        buffer = self.buffers[self.places[view.tensor]]
        return buffer.kind == "weight", buffer.offset + view.byte_offset

    def __str__(self) -> str:
        memory = f"arena {self.arena_bytes} B, weights {self.weight_bytes} B"
        head = f"plan of {self.graph.name}: {len(self.layers)} layers, {memory}"
        return "\n".join([head, *(f"  {layer}" for layer in self.layers)])
