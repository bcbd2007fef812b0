"""How the operands of one run of an operator may lie in memory, and the problem laid out so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import CheckError
from minicnn.geometry import NHWC, PLAIN, Layout
from minicnn.registry import Orders, Problem, Variant
from minicnn.step import Operand


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How the operands of one run lie in memory; `in_place`: output 0 takes input 0's memory."""

    label: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    in_place: bool = False


def arrangements(problem: Problem, variant: Variant) -> Iterator[Arrangement]:
    """Every meaning of "any": padded, dense, as slices of wider tensors; in place where that is allowed."""
    orders = variant.orders(problem)
    any_in = ("NCHW", "NHWC") if "any" in orders.inputs else ("-",)
    any_out = ("NCHW", "NHWC") if "any" in orders.outputs else ("-",)
    seen = set()
    for first, second, form in itertools.product(any_in, any_out, ("padded", "dense", "slice")):
        inputs, outputs = _layouts(problem, orders, first, second, form)
        if (inputs, outputs) in seen:
            continue
        seen.add((inputs, outputs))
        label = ", ".join(
            f"{kind}{i} {layout.order}/{layout.channel_pad}{' slice' if layout.is_slice else ''}"
            for kind, layouts in (("input", inputs), ("output", outputs))
            for i, layout in enumerate(layouts)
        )
        yield Arrangement(label=label, inputs=inputs, outputs=outputs)
        if variant.may_overwrite and _same_memory(problem) and inputs[0] == outputs[0]:
            yield Arrangement(label=f"{label}, in place", inputs=inputs, outputs=outputs, in_place=True)


def _same_memory(problem: Problem) -> bool:
    x, y = problem.input(0), problem.y
    return x is not None and not x.is_constant and (x.shape, x.dtype) == (y.shape, y.dtype)


def _layouts(
    problem: Problem, orders: Orders, any_in: str, any_out: str, form: str
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    def asked(wanted: tuple[str, ...], index: int) -> str:
        return wanted[min(index, len(wanted) - 1)]

    first_is_any = asked(orders.inputs, 0) == "any"
    first_order = any_in if first_is_any else asked(orders.inputs, 0)

    def layout(operand: Operand | None, order: str, any_order: str, place: int) -> Layout:
        if operand is None or operand.is_constant or len(operand.shape) < 2:
            return PLAIN
        strides_honoured = order == "any" or (order == "same" and first_is_any)
        order = {"any": any_order, "same": first_order}.get(order, order)
        dense = NHWC if order == "NHWC" else PLAIN
        if form == "dense" and order == "NHWC":
            return replace(dense, channel_pad=1)  # a tensor whose NCHW is NHWC too, seen so without a copy
        if form != "slice" or not (strides_honoured or order == "NHWC"):
            return dense
        offset = 16 * (place + 1)
        return replace(
            dense, offset=offset, channel_stride=offset + dense.channels_padded(operand.shape) + 16
        )

    inputs = tuple(layout(o, asked(orders.inputs, i), any_in, i) for i, o in enumerate(problem.inputs))
    outputs = tuple(
        layout(o, asked(orders.outputs, i), any_out, i + 2) for i, o in enumerate(problem.outputs)
    )
    return inputs, outputs


def lay_out(
    variant: Variant,
    problem: Problem,
    arrangement: Arrangement,
    arrays: list[np.ndarray | None],
    where: str = "",
) -> tuple[Problem, dict[str, np.ndarray]]:
    """The problem as the variant's `steps` gets it, and what its inputs (packed) and tables hold, by name."""
    packings = variant.packings(problem)
    contents: dict[str, np.ndarray] = {}
    originals: list[Operand | None] = []
    inputs: list[Operand | None] = []
    for index, (operand, array, layout) in enumerate(
        zip(problem.inputs, arrays, arrangement.inputs, strict=True)
    ):
        if operand is None or array is None:
            originals.append(None)
            inputs.append(None)
            continue
        operand = replace(operand.with_layout(layout), value=array if operand.is_constant else None)
        originals.append(operand)
        if index in packings:
            packing = packings[index]
            array = np.ascontiguousarray(packing.function(array), packing.dtype)
            if array.shape != packing.shape:
                says = f"packing {packing.name} gives {array.shape}, says {packing.shape}"
                raise CheckError(f"{says}; {where}")
            name = f"{operand.name}:{packing.name}"
            operand = Operand(name=name, dtype=packing.dtype, shape=array.shape, value=array)
        inputs.append(operand)
        contents[operand.name] = array
    outputs = tuple(
        o.with_layout(layout) for o, layout in zip(problem.outputs, arrangement.outputs, strict=True)
    )
    unpacked = replace(problem, inputs=tuple(originals), outputs=outputs)
    made = variant.tables(unpacked)
    tables = tuple(Operand(name=f"table{i}", dtype=a.dtype.name, shape=a.shape) for i, a in enumerate(made))
    contents |= {operand.name: array for operand, array in zip(tables, made, strict=True)}
    laid_out = replace(problem, inputs=tuple(inputs), outputs=outputs, tables=tables)
    if workspace_bytes := variant.workspace_bytes(unpacked):
        workspace = Operand(name="workspace", dtype="float32", shape=(-(-workspace_bytes // 4),))
        laid_out = replace(laid_out, workspace=workspace)
    return laid_out, contents
