"""What every operator test does: a case, a variant, a device; the definition in float64; guarded memory.

    @pytest.mark.parametrize(*harness.grid("MaxPool"))
    def test_maxpool(case, variant, device):
        harness.check("MaxPool", case, variant, device)

The checking itself is minicnn/lab/checking.py, which people use on kernels of their own. Here the host's
memory is fenced besides: a stray read is a segmentation fault in `check`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import minicnn.device as devices
from fence import fenced
from minicnn.device.base import Device
from minicnn.errors import DeviceError
from minicnn.graph import Epilogue
from minicnn.lab.arrangements import arrangements, lay_out
from minicnn.lab.checking import (
    arrays_of,
    cases,
    check_case,
    compare,
    definition,
    entry,
    problem_of_case,
    refusal,
)
from minicnn.registry import Case, Problem, table, variants_of
from minicnn.step import Extent3, Kernel, Launch

DEVICES = ("host",)  # tests/conftest.py sets another, `pytest --device cuda`


def grid(op: str) -> tuple[str, list[Any]]:
    """For `pytest.mark.parametrize`: every case, with every variant that applies, on every device."""
    parameters = []
    known: set[str] = set()
    used: set[str] = set()
    for case_name, case in cases(op).items():
        problem = problem_of_case(case, arrays_of(case))
        variants = variants_of(case.operator)
        refusals = [refusal(v, problem) for v in variants]
        usable = [v for v, refusal in zip(variants, refusals, strict=True) if not refusal]
        assert usable, f"{op}, case {case_name!r}: no variant applies: {refusals}"
        known |= {v.name for v in variants}
        used |= {v.name for v in usable}
        for variant, device in itertools.product(usable, DEVICES):
            if variant.devices and device.partition(":")[0] not in variant.devices:
                continue
            parameters.append(
                pytest.param(case_name, variant.name, device, id=f"{case_name}-{variant.name}-{device}")
            )
    assert parameters, f"{op} has no cases"
    assert used == known, f"{op}: no case for the variants {sorted(known - used)}"
    return "case, variant, device", parameters


def grids(*ops: str) -> tuple[str, list[Any]]:
    """As `grid`, of operators that share a file; `op` is the first parameter."""
    parameters = [
        pytest.param(op, *one.values, id=f"{op}-{one.id}", marks=one.marks)
        for op in ops
        for one in grid(op)[1]
    ]
    return "op, case, variant, device", parameters


def problem(op: str, case_name: str) -> Problem:
    """The case as a variant's `applies` sees it."""
    case = cases(op)[case_name]
    return problem_of_case(case, arrays_of(case))


def check(op: str, case_name: str, variant_name: str, device_name: str = "host", *, threads: int = 1) -> None:
    """Runs one variant of one case in every arrangement and holds it against the definition in float64.

    threads  that the variant's steps are made for
    """
    case = cases(op)[case_name]
    variant = next(v for v in variants_of(case.operator) if v.name == variant_name)
    names = f"{op!r}, {case_name!r}, {variant_name!r}, {device_name!r}"
    where = f"replay with harness.check({names}, threads={threads})"
    try:
        with fenced(open_device(device_name)) as device:
            check_case(case, variant, device, threads=threads, where=where)
    except DeviceError:
        forget_devices()
        raise


def onnx_witness(op: str, case_name: str, *, slack: float = 0.0) -> None:
    """Holds `reference` (not a kernel) against onnxruntime on this one node; what is fused is left out.

    slack  added to the operator's bound, for what onnxruntime rounds and our kernels don't
    """
    case = _as_in_onnx(op, cases(op)[case_name])
    arrays = arrays_of(case)
    exact, bounds = definition(case, arrays, arrays)
    found = _onnxruntime(op, case, arrays)
    compare(
        found,
        exact,
        tuple(bound + slack for bound in bounds),
        problem_of_case(case, arrays).outputs,
        f"onnxruntime; harness.onnx_witness({op!r}, {case_name!r})",
    )


@cache
def open_device(name: str) -> Device:
    """A device of this kind, opened once a test session."""
    return devices.open_device(name)


def forget_devices() -> None:
    """After a fault: nothing more runs in the context that had one."""
    for name in DEVICES:
        open_device(name).close()
    open_device.cache_clear()


def _as_in_onnx(op: str, case: Case) -> Case:
    """Without the epilogue, and without inputs that only fusion adds."""
    import onnx

    count = len(case.shapes) - case.epilogue.has_residual
    schema = onnx.defs.get_schema(op, _opset(op, case))
    return replace(case, shapes=case.shapes[: min(count, schema.max_input)], epilogue=Epilogue())


def _opset(op: str, case: Case) -> int:
    """The operator's own where it has one, else the newest it knows, 21 at most if it is as old as that."""
    import onnx

    own = getattr(case.operator, "opset", None) or min(entry(op).opsets[1] or 21, 21)
    known = [s for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", op)]
    return max(own, min(s.since_version for s in known))


def every_launch(kind: str) -> Iterator[Launch]:
    """Of all cases, in all variants that this kind of device has (a GPU: all forms), in all arrangements."""
    for domain, op in table():
        for case in cases(op).values() if not domain else ():
            arrays = arrays_of(case)
            problem = problem_of_case(case, arrays)
            for variant in variants_of(case.operator):
                is_for_it = not variant.devices or kind in variant.devices
                if variant.is_view or not is_for_it or refusal(variant, problem):
                    continue
                forms = variant.tunings(problem) if kind == "cuda" else (variant,)
                for form, arrangement in itertools.product(forms, arrangements(problem, variant)):
                    steps = form.steps(lay_out(form, problem, arrangement, arrays)[0])
                    yield from (step for step in steps if isinstance(step, Launch))


def launches(kind: str) -> dict[Kernel, set[tuple[Extent3, int]]]:
    """(block, dynamic shared bytes) of every launch."""
    found: dict[Kernel, set[tuple[Extent3, int]]] = {}
    for launch in every_launch(kind):
        found.setdefault(launch.kernel, set()).add((launch.block, launch.shared_bytes))
    return found


def _onnxruntime(op: str, case: Case, arrays: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """What onnxruntime makes of the operator: fields become attributes or, if the opset says so, inputs."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    known = entry(op)
    opset = _opset(op, case)
    schema = onnx.defs.get_schema(op, opset)
    values = {f.name: getattr(case.operator, f.name) for f in fields(case.operator)}
    attributes = {
        name: value
        for name, value in values.items()
        if name in schema.attributes and value not in (None, (), "")
    }
    feeds = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    for index, name in known.parameters.items():
        if name not in schema.attributes and values[name] is not None:
            takes_places = "tensor(int64)" in schema.inputs[index].types
            value = np.asarray(values[name], np.int64 if values[name] == () and takes_places else None)
            feeds[f"i{index}"] = value.astype(case.dtype) if value.dtype.kind == "f" else value
    count = 1 + max((int(name[1:]) for name in feeds), default=-1)
    names = [f"i{i}" if f"i{i}" in feeds else "" for i in range(count)]
    outputs = [f"o{i}" for i in range(len(problem_of_case(case, arrays).outputs))]
    node = helper.make_node(op, names, outputs, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs]
    model = helper.make_model(
        helper.make_graph([node], "one node", inputs, results), opset_imports=[helper.make_opsetid("", opset)]
    )
    model.ir_version = 10
    for info in model.graph.output:
        info.ClearField("type")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return tuple(session.run(None, feeds))
