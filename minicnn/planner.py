"""Graph to plan.

Three passes: choose a variant for every node; find the concatenations whose inputs can be written in place;
then lay every tensor out, put conversions where producer and consumer differ, and collect the steps. No
device is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from minicnn import fallback, memory, registry
from minicnn.choose import NOTHING_MEASURED, Chosen, Measured, check_wanted, choose
from minicnn.errors import MinicnnError, UnsupportedError
from minicnn.geometry import INT32_MAX, NHWC, PLAIN, Layout
from minicnn.graph import Epilogue, Graph, Node
from minicnn.memory import Lifetime
from minicnn.plan import Buffer, Layer, Plan
from minicnn.registry import Orders, Problem, Target, Variant
from minicnn.segments import cut, is_known
from minicnn.slices import Slice, find_slices
from minicnn.step import HostCall, Operand
from minicnn.strided import copy_steps


def plan(
    graph: Graph,
    *,
    wanted: Mapping[str, str] | None = None,
    precision: str = "fp32",
    allow_fallback: bool = True,
    target: Target = Target(),
    measured: Measured = NOTHING_MEASURED,
) -> Plan:
    """Plans a resolved (and usually rewritten) graph.

    wanted    variants the user asks for, as `choose.choose` reads them
    Raises    UnsupportedError: an operator that neither runs natively nor may fall back; tensors past int32
              InputError: a wanted variant that is unknown or doesn't apply
    """
    head, rest = cut(graph)
    planner = _Planner(
        head,
        wanted=wanted or {},
        precision=precision,
        allow_fallback=allow_fallback,
        target=target,
        measured=measured,
    )
    return replace(planner.plan(), rest=rest)


_FALLBACK_ORDERS = Orders(inputs=("NCHW",), outputs=("NCHW",))


class _Planner:
    def __init__(
        self,
        graph: Graph,
        *,
        wanted: Mapping[str, str],
        precision: str,
        allow_fallback: bool,
        target: Target,
        measured: Measured,
    ):
        self.graph = graph
        self.wanted = wanted
        self.precision = precision
        self.target = target
        self.measured = measured
        self.allow_fallback = allow_fallback
        self.layers: list[Layer] = []
        self.laid_out: dict[str, Operand] = {}
        self.places: dict[str, str] = {}  # tensor -> buffer
        self.tenants: dict[str, list[str]] = {}  # buffer -> tensors
        self.sizes: dict[str, int] = {}  # buffer -> bytes
        self.kinds: dict[str, str] = {}
        self.packed: dict[str, HostCall] = {}
        self.tables: dict[str, Operand] = {}
        self.weights: dict[str, Operand] = {}
        self.slices: dict[str, Slice] = {}
        self.last_reader: dict[str, int] = {}

    def plan(self) -> Plan:
        known = {name: node.op for node in self.graph.nodes for name in (node.name, *node.sources)}
        check_wanted(self.wanted, known)
        chosen = [self._choose(node) for node in self.graph.nodes]
        self.slices = find_slices(chosen, self.graph.outputs)
        for index, node in enumerate(self.graph.nodes):
            for name in node.inputs:
                self.last_reader[name] = index
        for name in self.graph.outputs:
            self.last_reader[name] = len(chosen)
        for name in self.graph.inputs:
            self._place(self._operand(name), "input")
        for index, choice in enumerate(chosen):
            self._lay_out(index, choice)
        outputs = {name: self._plain_output(name) for name in self.graph.outputs}
        return self._finish(outputs)

    # first pass: variants

    def _operand(self, name: str) -> Operand:
        known = self.graph.types[name]
        if known.dtype == "object":
            raise UnsupportedError("a tensor of strings", file=self.graph.file, tensor=name)
        if math.prod(known.extents) > INT32_MAX:
            raise UnsupportedError(
                "a tensor too large for 32-bit indices", file=self.graph.file, tensor=name, found=known
            )
        return Operand(
            name=name, dtype=known.dtype, shape=known.extents, value=self.graph.constants.get(name)
        )

    def _choose(self, node: Node) -> Chosen:
        outputs = tuple(self._operand(name) for name in node.outputs if name and is_known(self.graph, name))
        try:
            bound = registry.bind(node, self.graph)
            bound.infer(node, self.graph.types)  # for what it refuses
        except UnsupportedError as error:
            return self._fall_back(node, outputs, error)
        try:
            inputs = tuple(self._operand(name) if name else None for name in bound.inputs)
            problem = Problem(
                operator=bound.operator,
                inputs=inputs,
                outputs=outputs,
                epilogue=node.epilogue,
                precision=self.precision,
                target=self.target,
            )
            choice = choose(
                problem,
                node=node.name,
                op=node.op,
                sources=node.sources,
                wanted=self.wanted,
                measured=self.measured,
            )
            if choice.variant is None:
                return self._fall_back(
                    node, outputs, UnsupportedError("no variant applies", found=choice.reason)
                )
            orders = choice.variant.orders(problem)
        except MinicnnError as error:
            raise error.at(file=self.graph.file, node=node.name, operator=node.op) from None
        return Chosen(node=node, problem=problem, variant=choice.variant, reason=choice.reason, orders=orders)

    def _fall_back(self, node: Node, outputs: tuple[Operand, ...], why: UnsupportedError) -> Chosen:
        why.at(file=self.graph.file, node=node.name, operator=node.op)
        if node.epilogue != Epilogue():
            raise why.at(remedy="--fuse none, since the CPU evaluator knows no fused operators")
        if fallback.is_refused(node):
            raise why.at(remedy="this operator never falls back to the CPU evaluator")
        if not self.allow_fallback:
            raise why.at(remedy="run without --no-fallback to have the CPU evaluator do it")
        inputs = tuple(self._operand(name) if name else None for name in node.inputs)
        problem = Problem(operator=None, inputs=inputs, outputs=outputs, precision=self.precision)
        reason = "; ".join(
            [why.sentence, *(str(why.facts[key]) for key in ("tensor", "found") if key in why.facts)]
        )
        return Chosen(node=node, problem=problem, variant=None, reason=reason, orders=_FALLBACK_ORDERS)

    # third pass: layouts, conversions, steps

    def _lay_out(self, index: int, choice: Chosen) -> None:
        node, variant = choice.node, choice.variant
        inputs = [
            o
            if o is None or (o.is_constant and (i > 0 or choice.input_order(i) != "NHWC"))
            else self._in_order(o.name, choice.input_order(i))
            for i, o in enumerate(choice.problem.inputs)
        ]
        orders = {o.name: o.layout.order for o in inputs if o is not None}
        x = inputs[0] if inputs else None
        outputs = tuple(
            self._output(index, choice, i, x, choice.output_order(i, orders))
            for i in range(len(choice.problem.outputs))
        )
        data = tuple(o for o in inputs if o is not None and not o.is_constant)
        layer = Layer(
            name=node.name,
            op=node.op,
            nodes=node.sources or (node.name,),
            variant="fallback",
            reason=choice.reason,
            inputs=data,
            outputs=outputs,
            steps=(),
            is_fallback=variant is None,
            bytes_min=_compulsory(choice.problem),
            output_names=node.outputs,
        )
        if variant is None:
            function = fallback.function(node, self.graph)
            call = HostCall(name=node.op, function=function, inputs=tuple(inputs), outputs=outputs)
            self.layers.append(replace(layer, steps=(call,), bytes_moved=layer.bytes_min))
            return
        if node.op == "Concat" and all(o.name in self.slices for o in data):
            self.layers.append(
                replace(layer, variant="slices", reason="its inputs were written in place", bytes_min=0)
            )
            return
        if not variant.is_view and not any(math.prod(o.shape) for o in outputs):
            self.layers.append(replace(layer, variant=variant.name, reason="its output is empty"))
            return
        problem = replace(choice.problem, inputs=tuple(inputs), outputs=outputs)
        workspace_bytes = variant.workspace_bytes(problem)
        ready = self._with_packed(problem, variant)
        ready = replace(ready, tables=self._tables(node, variant.tables(problem)))
        if workspace_bytes:
            workspace = Operand(
                name=f"{node.name}:workspace", dtype="float32", shape=(-(-workspace_bytes // 4),)
            )
            self._place(workspace, "workspace")
            ready = replace(ready, workspace=workspace)
        steps = () if variant.is_view else variant.steps(ready)
        moved = 0 if variant.is_view else layer.bytes_min + 2 * workspace_bytes
        self.layers.append(
            replace(
                layer,
                variant=variant.name,
                steps=steps,
                cost=choice.problem.operator.cost(choice.problem),
                bytes_moved=moved,
                bytes_min=0 if variant.is_view else layer.bytes_min,
                workspace_bytes=workspace_bytes,
                problem=problem,
            )
        )

    def _in_order(self, name: str, order: str) -> Operand:
        """The tensor in the order asked for, through a conversion layer if it lies otherwise."""
        operand = self.laid_out.get(name) or self._operand(name)  # or a constant in the place of data
        if order in ("any", "same"):
            return operand
        seen = seen_as(operand, order)
        if seen is not None:
            return seen
        converted = f"{name}@{order}"
        if converted not in self.laid_out:
            target = replace(operand, name=converted, value=None, layout=PLAIN if order == "NCHW" else NHWC)
            self._place(target, "activation")
            self.last_reader[converted] = self.last_reader.get(name, 0)
            moved = 2 * math.prod(operand.shape) * operand.itemsize
            self.layers.append(
                Layer(
                    name=converted,
                    op="Convert",
                    nodes=(),
                    variant="strided_copy",
                    reason=f"{operand.layout.order} to {order}",
                    inputs=(operand,),
                    outputs=(target,),
                    steps=copy_steps(operand, target),
                    bytes_min=moved,
                    bytes_moved=moved,
                )
            )
        return self.laid_out[converted]

    def _output(self, index: int, choice: Chosen, position: int, x: Operand | None, order: str) -> Operand:
        """Lays out one output: in its input's memory, in a Concat's, or in its own."""
        variant, output = choice.variant, choice.problem.outputs[position]
        if variant is not None and variant.is_view and x is not None and position == 0:
            return self._share(output.with_layout(view_layout(x, output)), x.name)
        if output.name in self.slices:
            part = self.slices[output.name]
            whole = self._operand(part.whole).with_layout(NHWC)
            if whole.name not in self.places:
                self._place(whole, "activation")
            layout = replace(NHWC, channel_stride=whole.channels_padded, offset=part.first_channel)
            return self._share(output.with_layout(layout), whole.name)
        if output.name in self.places:  # a Concat whose inputs have been written into it
            return self.laid_out[output.name]
        laid = output.with_layout(NHWC if order == "NHWC" and len(output.shape) >= 2 else PLAIN)
        if x is not None and self._may_overwrite(index, choice, x, laid):
            return self._share(laid, x.name)
        return self._place(laid, "activation")

    def _may_overwrite(self, index: int, choice: Chosen, x: Operand, y: Operand) -> bool:
        """Whether y may take x's memory: read once, nobody reads anything there any more, both lie alike."""
        may = choice.variant is not None and choice.variant.may_overwrite
        if not may or x.is_constant or x.layout != y.layout or x.nbytes != y.nbytes:
            return False
        place = self.places[x.name]
        reads = [self.places.get(operand.name) for operand in choice.problem.inputs if operand is not None]
        if reads.count(place) > 1 or x.layout.is_slice:
            return False
        return all(self.last_reader.get(name, -1) <= index for name in self.tenants[place])

    def _place(self, operand: Operand, kind: str) -> Operand:
        """Gives a tensor a buffer of its own."""
        self.laid_out[operand.name] = operand
        self.places[operand.name] = operand.name
        self.tenants[operand.name] = [operand.name]
        self.sizes[operand.name] = operand.nbytes
        self.kinds[operand.name] = kind
        return operand

    def _share(self, operand: Operand, owner: str) -> Operand:
        """Puts a tensor into the buffer of another."""
        self.laid_out[operand.name] = operand
        self.places[operand.name] = self.places[owner]
        self.tenants[self.places[owner]].append(operand.name)
        return operand

    def _tables(self, node: Node, arrays: tuple[np.ndarray, ...]) -> tuple[Operand, ...]:
        """Constants that a variant has made, as weights of the plan."""
        made = tuple(
            Operand(name=f"{node.name}:table{i}", dtype=a.dtype.name, shape=a.shape, value=a)
            for i, a in enumerate(arrays)
        )
        self.tables.update({operand.name: operand for operand in made})
        return made

    def _with_packed(self, problem: Problem, variant: Variant) -> Problem:
        """Puts packed constants in the place of the originals."""
        inputs = list(problem.inputs)
        for position, packing in variant.packings(problem).items():
            original = inputs[position]
            assert original is not None and original.value is not None
            name = f"{original.name}:{packing.name}"
            packed = Operand(name=name, dtype=packing.dtype, shape=packing.shape, value=original.value)
            function = packing.function
            self.packed[name] = HostCall(
                name=packing.name,
                function=lambda a, f=function: (f(a),),
                inputs=(original,),
                outputs=(packed,),
            )
            inputs[position] = packed
        return replace(problem, inputs=tuple(inputs))

    def _plain_output(self, name: str) -> Operand:
        if not is_known(self.graph, name):
            known = self.graph.types.get(name)
            return Operand(name=name, dtype="float32" if known is None else known.dtype, shape=())
        if name in self.graph.constants:
            return self._operand(name)
        operand = self._in_order(name, "NCHW")
        buffer = self.places[operand.name]
        if self.kinds[buffer] == "activation":
            self.kinds[buffer] = "output"
        return operand

    # memory

    def _finish(self, outputs: Mapping[str, Operand]) -> Plan:
        count = len(self.layers)
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for operand in self._used_constants():
            self.weights[operand.name] = operand
            self._place(operand, "weight")
        for index, layer in enumerate(self.layers):
            for view in (v for step in layer.steps for v in (*step.reads, *step.writes)):
                buffer = self.places.get(view.tensor)
                if buffer is not None:
                    first.setdefault(buffer, index)
                    last[buffer] = index
            for name in (o.name for o in (*layer.inputs, *layer.outputs)):
                if name in self.places and not self.sizes[self.places[name]]:  # no step touches nothing
                    first.setdefault(self.places[name], index)
                    last.setdefault(self.places[name], index)
        for name in self.graph.inputs:
            first[self.places[name]] = 0
            last.setdefault(self.places[name], 0)
        for operand in outputs.values():
            if operand.name in self.places:
                last[self.places[operand.name]] = max(count - 1, 0)
                first.setdefault(self.places[operand.name], 0)
        arena = [
            Lifetime(name=name, first=first[name], last=last[name], nbytes=self.sizes[name])
            for name in first
            if self.kinds[name] != "weight"
        ]
        arrangement = memory.arrange(arena)
        alive = memory.live_bytes(arena, count)
        offsets = dict(arrangement.offsets)
        weight_bytes = 0
        for name in self.weights:
            offsets[name] = weight_bytes
            weight_bytes += -(-self.sizes[name] // memory.ALIGNMENT) * memory.ALIGNMENT
        buffers = {
            name: Buffer(
                name=name, kind=self.kinds[name], nbytes=self.sizes[name], offset=offset,
                first=first.get(name, 0), last=last.get(name, 0),
            )  # fmt: skip
            for name, offset in offsets.items()
        }
        used = {view.tensor for layer in self.layers for step in layer.steps for view in step.reads}
        return Plan(
            graph=self.graph,
            layers=tuple(replace(layer, live_bytes=alive[i]) for i, layer in enumerate(self.layers)),
            inputs=tuple(self.laid_out[name] for name in self.graph.inputs),
            outputs=outputs,
            load_steps=tuple(call for name, call in self.packed.items() if name in used),
            weights=self.weights,
            buffers=buffers,
            places={name: buffer for name, buffer in self.places.items() if buffer in buffers},
            arena_bytes=arrangement.peak,
            live_peak_bytes=arrangement.live_peak,
            weight_bytes=weight_bytes,
        )

    def _used_constants(self) -> list[Operand]:
        """Constants that device steps read, packed or as they are; a HostCall takes them from host memory."""
        used: dict[str, Operand] = {}
        for layer in self.layers:
            for step in layer.steps:
                if isinstance(step, HostCall):
                    continue
                for view in (*step.reads, *step.writes):
                    if view.tensor in self.packed:
                        used[view.tensor] = self.packed[view.tensor].outputs[0]
                    elif view.tensor in self.tables:
                        used[view.tensor] = self.tables[view.tensor]
                    elif view.tensor in self.graph.constants:
                        used[view.tensor] = self._operand(view.tensor)
        return list(used.values())


def seen_as(operand: Operand, order: str) -> Operand | None:
    """The same memory read in another order, or None where a copy is needed."""
    layout, shape = operand.layout, operand.shape
    if layout.order == order and (order == "NHWC" or not layout.is_slice):
        return operand
    if len(shape) < 2:
        return operand
    if math.prod(shape[2:]) == 1 or shape[1] == 1:
        if order == "NHWC" and layout.order == "NCHW":
            return operand.with_layout(Layout(order="NHWC"))
        if order == "NCHW" and (
            operand.pixel_stride == shape[1] or (shape[0] == 1 and math.prod(shape[2:]) == 1)
        ):
            return operand.with_layout(Layout(offset=layout.offset))
    return None


def view_layout(x: Operand, y: Operand) -> Layout:
    """How a view lies: row-major like its source, or with the source's row stride where both are a pixel a
    row."""
    if x.layout.order == "NHWC" and len(y.shape) >= 2:
        return replace(x.layout, channel_stride=x.pixel_stride) if x.layout.is_slice else x.layout
    return x.layout


def _compulsory(problem: Problem) -> int:
    """Bytes of every distinct input and every output, moved once."""
    distinct = {o.name: o for o in (*problem.inputs, *problem.outputs) if o is not None}
    return sum(math.prod(o.shape) * o.itemsize for o in distinct.values())
