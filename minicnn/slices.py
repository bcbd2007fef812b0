"""Concatenations that cost nothing: their inputs are written where they belong in the first place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minicnn.choose import Chosen
from minicnn.geometry import NHWC
from minicnn.step import Operand


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A tensor that lies in another one, `whole`, from its channel `first_channel` on."""

    whole: str
    first_channel: int


def find_slices(chosen: Sequence[Chosen], outputs: Sequence[str]) -> dict[str, Slice]:
    """Tensors that their producers can write into the output of a Concat along the channels.

    A Concat takes part when every one of its inputs can; Concats of Concats (DenseNet) end in the outermost.
    """
    order: dict[str, str] = {}
    maker: dict[str, Chosen] = {}
    for choice in chosen:
        for index, output in enumerate(choice.problem.outputs):
            order[output.name] = choice.output_order(index, order)
            maker[output.name] = choice
    slices: dict[str, Slice] = {}
    for choice in reversed(chosen):
        if not _joins_channels(choice):
            continue
        parts = [o for o in choice.problem.inputs if o is not None]
        if not all(
            _can_be_slice(o, maker, order) and o.name not in slices and o.name not in outputs for o in parts
        ):
            continue
        y = choice.problem.y.name
        outer = slices.get(y, Slice(whole=y, first_channel=0))
        first = outer.first_channel
        for part in parts:
            slices[part.name] = Slice(whole=outer.whole, first_channel=first)
            first += part.shape[1]
        order[y] = "NHWC"
    return slices


def _joins_channels(choice: Chosen) -> bool:
    """Whether this is a Concat of pictures' channels at places where vectors of channels begin."""
    y = choice.problem.y if choice.problem.outputs else None
    if choice.node.op != "Concat" or choice.variant is None or y is None or y.dtype != "float32":
        return False
    parts = [o for o in choice.problem.inputs if o is not None]
    if (
        len(y.shape) != 4
        or choice.problem.operator.axis % 4 != 1
        or len({o.name for o in parts}) < len(parts)
    ):
        return False
    return all(o.shape[1] % NHWC.channel_pad == 0 for o in parts[:-1])


def _can_be_slice(operand: Operand, maker: Mapping[str, Chosen], order: Mapping[str, str]) -> bool:
    producer = maker.get(operand.name)
    if producer is None or producer.variant is None or producer.variant.is_view:
        return False
    return order[operand.name] == "NHWC"
