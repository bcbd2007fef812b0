"""Whether a plan fits the memory it may take, said before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from minicnn.choose import able_variants
from minicnn.errors import MemoryLimitError
from minicnn.plan import Layer, Plan

Built = TypeVar("Built")
Make = Callable[[Mapping[str, str]], Plan]  # from wanted variants


def bytes_of(plan: Plan) -> int:
    """What the plan takes of a device: weights and arena."""
    return plan.weight_bytes + plan.arena_bytes


def within(make: Make, limit: int | None, wanted: Mapping[str, str]) -> Plan:
    """The plan, or where it passes `limit` bytes the one of variants with the smallest workspaces.

    Raises    MemoryLimitError: neither fits
    """
    plan = make(wanted)
    if limit is None or bytes_of(plan) <= limit:
        return plan
    smaller = thrifty(make, plan, wanted) or plan
    if bytes_of(smaller) > limit:
        raise refusal(smaller, limit)
    return smaller


def built(build: Callable[[Plan], Built], make: Make, plan: Plan, wanted: Mapping[str, str]) -> Built:
    """What `build` makes of the plan, or where it finds too little memory, of one with smaller workspaces.

    Raises    MemoryLimitError: of what the device has, there isn't enough for either
    """
    with suppress(MemoryLimitError):
        return build(plan)
    smaller = thrifty(make, plan, wanted) or plan
    try:
        return build(smaller)
    except MemoryLimitError as error:
        raise error.at(**refusal(smaller, bytes_of(smaller) - 1).facts) from None


def thrifty(make: Make, plan: Plan, wanted: Mapping[str, str]) -> Plan | None:
    """The plan again with the smallest workspaces, where that takes less; what the user wants stays."""
    leanest = {layer.name: name for layer in plan.layers if (name := _leanest(layer)) is not None}
    if not leanest:
        return None
    again = make({**leanest, **wanted})
    return again if bytes_of(again) < bytes_of(plan) else None


def _leanest(layer: Layer) -> str | None:
    """The variant of a layer that takes the least workspace; None where it has that already."""
    if layer.problem is None or not layer.workspace_bytes:
        return None
    able = reversed(able_variants(layer.problem))
    needs = {variant.name: variant.workspace_bytes(layer.problem) for variant in able}
    name = min(needs, key=needs.__getitem__, default=layer.variant)
    return name if name != layer.variant and needs[name] < layer.workspace_bytes else None


def refusal(plan: Plan, limit: int) -> MemoryLimitError:
    """The error that names the layer at the peak, what is needed, and what would make it fit."""
    peak = max(plan.layers, key=lambda layer: layer.live_bytes, default=None)
    needed = bytes_of(plan)
    remedy = f"--memory-limit {needed}"
    batch = max((o.shape[0] for o in plan.inputs if o.shape), default=1)
    fitting = (limit - plan.weight_bytes) * batch // max(plan.arena_bytes, 1)
    if 0 < fitting < batch:
        remedy = f"--batch {fitting}, or {remedy}"
    elif plan.weight_bytes < limit:
        remedy = f"a smaller --shape, or {remedy}"
    return MemoryLimitError(
        "the network doesn't fit the memory it may take",
        file=plan.graph.file,
        node=None if peak is None else peak.name,
        operator=None if peak is None else f"{peak.op} by {peak.variant}, where most is alive",
        expected=f"at most {limit} B",
        found=f"{needed} B: weights {plan.weight_bytes}, arena {plan.arena_bytes}",
        remedy=remedy,
    )
