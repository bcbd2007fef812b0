"""Every layer against its definition in float64, on the tensors that the layer really read. No times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from minicnn import describe, epilogue
from minicnn.describe import RunFacts
from minicnn.device.base import Device
from minicnn.engine import Engine, Inputs
from minicnn.graph import Epilogue
from minicnn.plan import Layer
from minicnn.record import LayerFacts, RunRecord
from minicnn.registry import variants_of
from minicnn.store import Recorder


def check(engine: Engine, x: Inputs) -> list[LayerFacts]:
    """The layers in order, with what was found; unchecked where they ran through the fallback."""
    return [_check_layer(layer, engine.device, before, after) for layer, before, after in engine.walk(x)]


def store(
    engine: Engine, x: Inputs, results: Sequence[LayerFacts], *, path: Path, command: str, seed: int | None
) -> RunRecord:
    """The findings as a record without repetitions. Its fingerprints say which launches they hold for.

    Raises    OutputError
    """
    inputs, executables = engine.executables(x)
    options = RunFacts(
        graph=engine.model.graph, precision=engine.options.precision, command=command, seed=seed
    )
    attributes = describe.attributes(engine.device, options, inputs) | describe.memory(executables)
    with Recorder(path, results, 0, attributes, describe.buffers(executables)) as recorder:
        pass
    return recorder.record


def _check_layer(
    layer: Layer, device: Device, before: dict[str, np.ndarray], after: dict[str, np.ndarray]
) -> LayerFacts:
    found = after[layer.outputs[0].name] if layer.outputs else np.zeros(0)
    blank = describe.layer_facts(layer, device)
    if layer.op == "Convert":
        return _compared(blank, found, before[layer.inputs[0].name], 0.0)
    if layer.problem is None:
        return blank
    problem = layer.problem
    arrays = [None if o is None else o.value if o.is_constant else before[o.name] for o in problem.inputs]
    residual = arrays.pop() if problem.epilogue.has_residual else None
    variant = next(v for v in variants_of(problem.operator) if v.name == layer.variant)
    with np.errstate(all="ignore"):
        exact = problem.operator.reference(*arrays)
        bound = variant.bound(problem.operator, *arrays)
        exact, bound = (v[0] if isinstance(v, tuple) else v for v in (exact, bound))
        if problem.epilogue != Epilogue():
            bound = epilogue.bound(problem.epilogue, exact, bound, residual)
            exact = epilogue.reference(problem.epilogue, exact, residual)
    exact = np.asarray(exact)
    if exact.dtype.kind == "c":  # moved, never computed with
        return blank
    return _compared(blank, found, exact, variant.spread(np.broadcast_to(bound, exact.shape)))


def _compared(
    facts: LayerFacts, found: np.ndarray, exact: np.ndarray, bound: np.ndarray | float
) -> LayerFacts:
    same = (found == exact) | ((found != found) & (exact != exact))
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(found.astype(np.float64) - exact))
        of_bound = np.where(same, 0.0, error / np.broadcast_to(bound, error.shape))
        ulp = np.where(same, 0.0, error / np.spacing(np.abs(exact).astype(np.float32)))
    of_bound = np.where(np.isnan(of_bound), np.inf, of_bound)  # a NaN on one side alone
    if not of_bound.size:
        return facts
    is_beyond = of_bound > 1
    place = int(is_beyond.argmax() if is_beyond.any() else of_bound.argmax())
    index = np.unravel_index(place, of_bound.shape)
    scale = float(np.nanmax(np.abs(exact), initial=0.0)) or 1.0
    return replace(
        facts,
        is_checked=True,
        check_max_abs=float(error.max()),
        check_max_relative=float(error.max()) / scale,
        check_max_ulp=float(ulp.max()),
        check_of_bound=float(of_bound.max()),
        check_index=",".join(str(int(i)) for i in index),
    )
