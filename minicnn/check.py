"""Every layer against its definition in float64, on the tensors that the layer really read. No times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minicnn import epilogue
from minicnn.engine import Engine, Inputs
from minicnn.graph import Epilogue
from minicnn.plan import Layer


@dataclass(frozen=True, kw_only=True)
class Checked:
    """How far one layer is from its definition.

    worst        largest error as a fraction of what the variant's bound allows there; 0 where nothing may
                 round
    index        where that is, in the logical shape of the first output
    is_checked   False: through the fallback, or nothing was computed
    """

    layer: str
    op: str
    variant: str
    max_abs: float = 0.0
    max_relative: float = 0.0
    worst: float = 0.0
    index: tuple[int, ...] = ()
    is_checked: bool = True

    @property
    def is_within(self) -> bool:
        return self.worst <= 1.0


def check(engine: Engine, x: Inputs) -> list[Checked]:
    """One result a layer, in order."""
    return [_check_layer(layer, before, after) for layer, before, after in engine.walk(x)]


def _check_layer(layer: Layer, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> Checked:
    found = after[layer.outputs[0].name] if layer.outputs else np.zeros(0)
    blank = Checked(layer=layer.name, op=layer.op, variant=layer.variant, is_checked=False)
    if layer.op == "Convert":
        return _compared(blank, found, before[layer.inputs[0].name], 0.0)
    if layer.problem is None:
        return blank
    problem = layer.problem
    arrays = [None if o is None else o.value if o.is_constant else before[o.name] for o in problem.inputs]
    residual = arrays.pop() if problem.epilogue.has_residual else None
    with np.errstate(all="ignore"):
        exact = problem.operator.reference(*arrays)
        bound = problem.operator.bound(*arrays)
        exact, bound = (v[0] if isinstance(v, tuple) else v for v in (exact, bound))
        if problem.epilogue != Epilogue():
            bound = epilogue.bound(problem.epilogue, exact, bound, residual)
            exact = epilogue.reference(problem.epilogue, exact, residual)
    exact = np.asarray(exact)
    variant = next(v for v in problem.operator.variants() if v.name == layer.variant)
    return _compared(blank, found, exact, variant.spread(np.broadcast_to(bound, exact.shape)))


def _compared(blank: Checked, found: np.ndarray, exact: np.ndarray, bound: np.ndarray | float) -> Checked:
    same = (found == exact) | ((found != found) & (exact != exact))
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(found.astype(np.float64) - exact))
        worst = np.where(same, 0.0, error / np.broadcast_to(bound, error.shape))
    worst = np.where(np.isnan(worst), np.inf, worst)  # a NaN on one side alone
    if not worst.size:
        return blank
    index = np.unravel_index(int(worst.argmax()), worst.shape)
    scale = float(np.nanmax(np.abs(exact), initial=0.0)) or 1.0
    return Checked(
        layer=blank.layer,
        op=blank.op,
        variant=blank.variant,
        max_abs=float(error.max()),
        max_relative=float(error.max()) / scale,
        worst=float(worst[index]),
        index=tuple(int(i) for i in index),
    )
