"""minicnn as a backend of ONNX's own test suite, and what becomes of each case of it.

    python tests/backend.py test_conv_with_strides_padding      runs these cases, prints what became of them

The suite's cases hand every input over at run time, parameters (pads, axes, scales) and weights included.
Networks carry those as constants, and kernels are planned for them; so a case that doesn't run natively as it
is runs once more with all inputs but the first made constants. Both ways must be right.

Source    onnx.backend.test: node cases made in memory; pytorch-operator, pytorch-converted from its package
Not here  the cases named `real`, whose models are downloaded; test_networks.py has what the package holds
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
import unittest
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

import minicnn
from minicnn.device import open_device
from minicnn.device.base import Device
from minicnn.errors import MinicnnError, UnsupportedError
from minicnn.plan import Layer

NATIVE = "native"  # no layer but our kernels, views, and what is computed at load
CONSTANTS = "native, parameters constant"  # so once all inputs but the first are constants
FALLBACK = "fallback"  # at least one layer by onnx's evaluator
REFUSED = "refused"  # by a typed error, before anything ran
FAILED = "failed"  # a wrong answer, an error while running, or a traceback
STATUSES = (NATIVE, CONSTANTS, FALLBACK, REFUSED, FAILED)
KINDS = {"Node": "node", "PyTorchOperator": "pytorch-operator", "PyTorchConverted": "pytorch-converted"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one case.

    op       the operator that the case is for: of a function written out into others, the function
    opset    of the operator's domain
    dtypes   of the inputs
    reason   why not native, in the words of the layer or of the error
    blamed   operators whose layers fell back, with their reasons
    """

    name: str
    kind: str
    op: str
    opset: int
    dtypes: tuple[str, ...]
    status: str
    reason: str = ""
    blamed: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.op}, opset {self.opset}): {self.status}; {self.reason}"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One case of the suite; `run` does it through onnx's runner and raises what that raises."""

    name: str
    kind: str
    test: type[unittest.TestCase]
    method: str

    def run(self) -> None:
        getattr(self.test(self.method), self.method)()


class _Prepared(BackendRep):
    """A model and, once it has run, the layers that did it. Planned with its inputs: shapes may be open."""

    def __init__(self, model: onnx.ModelProto, device: Device, *, constants: bool):
        self.model = model
        self.device = device
        self.constants = constants
        self.inputs: list[Any] = []
        self.layers: tuple[Layer, ...] = ()
        self.has_run = False

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        self.inputs = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs]
        names = _data_inputs(self.model)
        model = self.model
        feeds = dict(zip(names, self.inputs, strict=False))
        if self.constants:
            model = _with_constants(model, {name: feeds.pop(name) for name in names[1:]})
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            file.write_bytes(model.SerializeToString())
            shapes = {name: value.shape for name, value in feeds.items() if isinstance(value, np.ndarray)}
            loaded = minicnn.load(file, shapes)
            with loaded.plan(device=self.device) as engine:
                self.has_run = True
                outputs = engine.run(feeds)
                self.layers = engine.layers
        return tuple(outputs[value.name] for value in model.graph.output)


class MinicnnBackend(Backend):
    """minicnn on the host device. `last` is what the suite prepared last."""

    constants: ClassVar[bool] = False
    last: ClassVar[_Prepared | None] = None

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
        MinicnnBackend.last = _Prepared(model, host(), constants=MinicnnBackend.constants)
        return MinicnnBackend.last


@lru_cache(maxsize=1)
def expected() -> dict[str, dict[str, str]]:
    """tests/backend.toml: status -> case (a glob) or operator -> why it isn't native."""
    return tomllib.loads(Path(__file__).with_name("backend.toml").read_text())


def explanations(outcome: Outcome) -> dict[str, str]:
    """The lines of tests/backend.toml that are about this outcome."""

    def fits(key: str) -> bool:
        return fnmatchcase(outcome.name, key) if key.startswith("test_") else outcome.op == key

    return {key: why for key, why in expected().get(outcome.status, {}).items() if fits(key)}


@lru_cache(maxsize=1)
def host() -> Device:
    return open_device("host", threads=1)


def _data_inputs(model: onnx.ModelProto) -> list[str]:
    given = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in given]


def _with_constants(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """A copy with these inputs turned into initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [value for value in copy.graph.input if value.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in values.items())
    return copy


@lru_cache(maxsize=1)
def cases() -> dict[str, _Case]:
    """All cases by name. Making those in memory takes onnx five seconds or more: not before somebody asks."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test import BackendTest

        tests = BackendTest(MinicnnBackend, __name__).test_cases
    found: dict[str, _Case] = {}
    for title, test in tests.items():
        kind = KINDS.get(title.removeprefix("OnnxBackend").removesuffix("ModelTest"))
        for method in dir(test) if kind else ():
            if method.startswith("test_") and method.endswith("_cpu"):
                name = method.removesuffix("_cpu")
                found[name] = _Case(name=name, kind=str(kind), test=test, method=method)
    return found


def outcome(case: _Case) -> Outcome:
    """Runs the case as it is, and where that isn't native once more with constants."""
    as_it_is = _run(case, constants=False)
    last = MinicnnBackend.last
    has_only_tensors = last is not None and all(isinstance(a, np.ndarray) for a in last.inputs)
    if as_it_is.status in (NATIVE, FAILED) or case.kind != "node" or not has_only_tensors:
        return as_it_is
    with_constants = _run(case, constants=True)
    if with_constants.status == NATIVE:
        return replace(as_it_is, status=CONSTANTS)
    return with_constants if with_constants.status in (FALLBACK, FAILED) else as_it_is


def outcomes(names: Iterable[str] | None = None) -> Iterator[Outcome]:
    """What becomes of these cases, or of all."""
    for case in cases().values() if names is None else (cases()[name] for name in names):
        yield outcome(case)


def _run(case: _Case, *, constants: bool) -> Outcome:
    MinicnnBackend.constants, MinicnnBackend.last = constants, None
    status, reason = NATIVE, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run()
    except MinicnnError as error:
        last = MinicnnBackend.last
        is_refusal = isinstance(error, UnsupportedError) and last is not None and not last.has_run
        status, reason = REFUSED if is_refusal else FAILED, _brief(error)
    except Exception as error:
        status, reason = FAILED, _brief(error)
    prepared = MinicnnBackend.last
    assert prepared is not None, case.name
    blamed = tuple(dict.fromkeys((la.op, la.reason) for la in prepared.layers if la.is_fallback))
    if status == NATIVE and blamed:
        status, reason = FALLBACK, "; ".join(f"{op}: {why}" for op, why in blamed)
    domain, op = _operator(case.name, prepared.model)
    opsets = {entry.domain: entry.version for entry in prepared.model.opset_import}
    return Outcome(
        name=case.name,
        kind=case.kind,
        op=op,
        opset=opsets.get(domain, 0),
        dtypes=tuple(a.dtype.name for a in prepared.inputs if isinstance(a, np.ndarray)),
        status=status,
        reason=reason,
        blamed=blamed,
    )


def _operator(name: str, model: onnx.ModelProto) -> tuple[str, str]:
    """Domain and operator that a case is for."""
    return _functions().get(name.partition("_expanded")[0]) or _first_operator(model)


@lru_cache(maxsize=1)
def _functions() -> dict[str, tuple[str, str]]:
    """The operators of the node cases that aren't written out."""
    from onnx.backend.test.loader import load_model_tests

    found = load_model_tests(kind="node")
    whole = [case for case in found if "_expanded" not in case.name]
    return {case.name: _first_operator(case.model) for case in whole if case.model is not None}


def _first_operator(model: onnx.ModelProto) -> tuple[str, str]:
    nodes = [node for node in model.graph.node if node.op_type != "Constant"] or model.graph.node
    return nodes[0].domain, nodes[0].op_type


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def main() -> int:
    for found in outcomes(sys.argv[1:] or None):
        print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
