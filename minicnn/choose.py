"""Which variant does a layer's work, and why: the user's word, or a static order."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minicnn import cache
from minicnn.errors import BuildError, InputError
from minicnn.graph import Node
from minicnn.kernels import source_hash
from minicnn.registry import Orders, Problem, Target, Variant, variants_of


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A variant, and the clause that says why it and not another. None: nothing of ours applies."""

    variant: Variant | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A node with its variant; the problem's layouts are plain. No variant: the fallback."""

    node: Node
    problem: Problem
    variant: Variant | None
    reason: str
    orders: Orders

    def input_order(self, index: int) -> str:
        return self.orders.inputs[min(index, len(self.orders.inputs) - 1)]

    def output_order(self, index: int, order: Mapping[str, str]) -> str:
        """The order an output will have, given those of the inputs by name."""
        said = self.orders.outputs[min(index, len(self.orders.outputs) - 1)]
        data = [o for o in self.problem.inputs if o is not None and not o.is_constant]
        if said == "same":
            return order.get(data[0].name, "NCHW") if data else "NCHW"
        if said == "any":
            rank = len(self.problem.outputs[index].shape)
            is_like = [len(o.shape) == rank >= 3 and order.get(o.name) == "NHWC" for o in data]
            return "NHWC" if any(is_like) else "NCHW"
        return said


@dataclass(frozen=True, kw_only=True)
class Winner:
    """What was fastest where it was measured; `sources`: kernel file -> its hash at that time."""

    label: str
    time_us: float
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_current(self) -> bool:
        try:
            return all(source_hash(file) == known for file, known in self.sources.items())
        except BuildError:
            return False


Measured = Mapping[str, Winner]  # problem_key -> winner
NOTHING_MEASURED: Measured = {}


def problem_key(problem: Problem) -> str:
    """What decides about a layer's speed: operator, shapes, what is fused, which inputs are constants."""
    operands = [None if o is None else (o.dtype, o.shape, o.is_constant) for o in problem.inputs]
    return f"{problem.operator} {operands} {problem.epilogue} {problem.precision}"


def measured_file(target: Target) -> Path:
    """Where the winners of one device are kept."""
    name = re.sub(r"[^\w.-]+", "-", f"{target.name}-{target.architecture}-{target.threads}")
    return cache.folder("tune") / f"{target.kind}-{name}.json"


def load_measured(target: Target) -> Measured:
    """Winners whose kernels are still as they were; nothing where the file is missing or damaged."""
    try:
        content = json.loads(measured_file(target).read_text())
        winners = {key: Winner(**value) for key, value in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return NOTHING_MEASURED
    return {key: winner for key, winner in winners.items() if winner.is_current}


def save_measured(target: Target, winners: Measured) -> Path:
    """Adds winners to the file of their device. Raises    OutputError"""
    path = measured_file(target)
    merged = {**load_measured(target), **winners}
    content = json.dumps({key: asdict(winner) for key, winner in merged.items()}, indent=1)
    cache.write_atomically(path, content.encode())
    return path


def choose(
    problem: Problem,
    *,
    node: str,
    op: str,
    sources: tuple[str, ...] = (),
    wanted: Mapping[str, str],
    measured: Measured = NOTHING_MEASURED,
) -> Choice:
    """Picks the variant for one layer.

    wanted    {"conv": "im2col"} for every layer of an operator where it applies, {"Conv_12": "direct"} for
              one node
    Raises    InputError: a variant wanted for this very node is unknown or doesn't apply
    """
    variants = variants_of(problem.operator)
    refusals = {v.name: _refusal(v, problem) for v in variants}
    able = [v for v in variants if not refusals[v.name]]
    for name in (node, *sources):
        if name in wanted:
            return _wanted_for_node(variants, refusals, node=name, op=op, wanted=wanted[name])
    preferred = wanted.get(op.lower())
    if preferred is not None and any(v.name == preferred for v in able):
        return Choice(variant=next(v for v in able if v.name == preferred), reason=f"asked for all {op}")
    if not able:
        return Choice(variant=None, reason="; ".join(f"{name}: {why}" for name, why in refusals.items()))
    chosen, reason = _measured(able, problem, measured) or _static(able, problem)
    if preferred is not None:
        reason = f"{preferred} was asked for: {refusals.get(preferred, 'no such variant here')}"
    return Choice(variant=chosen, reason=reason)


def able_variants(problem: Problem) -> list[Variant]:
    """The variants that can do a problem, plain rung first."""
    return [v for v in variants_of(problem.operator) if not _refusal(v, problem)]


def _measured(able: list[Variant], problem: Problem, measured: Measured) -> tuple[Variant, str] | None:
    winner = measured.get(problem_key(problem))
    if winner is None:
        return None
    for variant in able:
        for tuned in variant.tunings(problem):
            if tuned.label == winner.label:
                return tuned, f"measured: {winner.label}, {winner.time_us:,.0f} us, the fastest"
    return None


def _static(able: list[Variant], problem: Problem) -> tuple[Variant, str]:
    """The last rung that doesn't decline; the reason names the rungs above it and what they say."""
    if len(able) == 1:
        return able[0], "the only one that applies"
    declined: list[str] = []
    for variant in reversed(able):
        why = variant.declines(problem)
        if not why:
            return variant, "; ".join([f"last of {len(able)} rungs that apply", *declined])
        declined.append(f"not {variant.name}: {why}")
    return able[-1], f"last of {len(able)} rungs that apply"


def _refusal(variant: Variant, problem: Problem) -> str:
    if variant.devices and problem.target.kind not in variant.devices:
        return f"is made for {' and '.join(variant.devices)}"
    if not {"fp32", problem.precision} & set(variant.precisions):
        return f"computes in {', '.join(variant.precisions)}, not in {problem.precision}"
    if variant.dtypes is not None and not variant.is_view:
        for operand in (*problem.inputs, *problem.outputs):
            if operand is not None and operand.dtype not in variant.dtypes:
                return f"{operand.name} is {operand.dtype}, not {' or '.join(variant.dtypes)}"
    return variant.applies(problem)


def _wanted_for_node(
    variants: tuple[Variant, ...], refusals: Mapping[str, str], *, node: str, op: str, wanted: str
) -> Choice:
    if wanted not in refusals:
        raise InputError(
            "no such variant", node=node, operator=op, found=wanted, accepted=", ".join(refusals)
        )
    if refusals[wanted]:
        raise InputError(
            "the variant doesn't apply to this node",
            node=node,
            operator=op,
            found=f"{wanted}: {refusals[wanted]}",
        )
    return Choice(variant=next(v for v in variants if v.name == wanted), reason="asked for this node")


def check_wanted(wanted: Mapping[str, str], nodes: Mapping[str, str]) -> None:
    """Refuses what names neither an operator nor a node of the graph (`nodes`: name -> operator)."""
    operators = {op.lower() for op in nodes.values()}
    for name, variant in wanted.items():
        if name not in nodes and name not in operators:
            raise InputError(
                "--variant names neither a node nor an operator of this model",
                found=f"{name}={variant}",
                accepted=f"an operator ({', '.join(sorted(operators))}) or a node's name (see: minicnn plan)",
            )
