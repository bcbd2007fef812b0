"""Which layers of a model a kernel of one's own can be held against."""

from __future__ import annotations

from minicnn.engine import Model, Options
from minicnn.plan import Plan
from minicnn.registry import Target


def plan_with(op: str, model: Model, target: Target) -> Plan:
    """The model's plan; where fusion leaves no layer of the operator (a Relu within a Conv), without it."""
    plan = model.make_plan(options=Options(), target=target)
    if any(layer.op == op for layer in plan.layers):
        return plan
    return model.make_plan(options=Options(fuse=False), target=target)
