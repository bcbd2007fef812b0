"""What every operator test does: a case, a variant, a device; the definition in float64; guarded memory.

    @pytest.mark.parametrize(*harness.grid("MaxPool"))
    def test_maxpool(case, variant, device):
        harness.check("MaxPool", case, variant, device)

`check` runs a variant's steps directly on a device: no planner, no reused memory: a fault is the kernel's. It
does so for every arrangement in memory that the variant honours, each once more with a NaN in the input.
"""

from __future__ import annotations

import itertools
import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import minicnn.device as devices
from arrangements import Arrangement, arrangements, lay_out
from minicnn import epilogue
from minicnn.device.base import Device
from minicnn.errors import DeviceError
from minicnn.graph import Epilogue, TensorType
from minicnn.registry import Case, Entry, Problem, Variant, problem_of, table
from minicnn.step import Extent3, Kernel, Launch, Operand, View

DEVICES = ("host",)  # tests/conftest.py sets another, `pytest --device cuda`
GUARD_BYTES = 4096  # before and behind every buffer
NAN_BYTE = 0xFF  # as float16, float32 or float64: NaN
MARK_BYTE = 0x5A  # finite in every float type: an output element that nobody wrote isn't hidden by NaN != NaN


def entry(op: str) -> Entry:
    return table()[("", op)]


def cases(op: str) -> Mapping[str, Case]:
    """The operator file's CASES, those of this operator alone where the file holds several."""
    cls = entry(op).cls
    return {
        name: case
        for name, case in sys.modules[cls.__module__].CASES.items()
        if isinstance(case.operator, cls)
    }


def grid(op: str) -> tuple[str, list[Any]]:
    """For `pytest.mark.parametrize`: every case, with every variant that applies, on every device."""
    parameters = []
    known: set[str] = set()
    used: set[str] = set()
    for case_name, case in cases(op).items():
        problem = _problem(case, arrays_of(case))
        variants = case.operator.variants()
        refusals = [_refusal(v, problem) for v in variants]
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


def _refusal(variant: Variant, problem: Problem) -> str:
    """Why a variant can't do the problem: a type that isn't its own, or what it says itself."""
    types = {o.dtype for o in (*problem.inputs, *problem.outputs) if o is not None}
    if variant.dtypes is not None and not types.issubset(variant.dtypes):
        return f"{sorted(types)}, not {variant.dtypes}"
    return variant.applies(problem)


def grids(*ops: str) -> tuple[str, list[Any]]:
    """As `grid`, of operators that share a file; `op` is the first parameter."""
    parameters = [
        pytest.param(op, *one.values, id=f"{op}-{one.id}", marks=one.marks)
        for op in ops
        for one in grid(op)[1]
    ]
    return "op, case, variant, device", parameters


def arrays_of(case: Case) -> list[np.ndarray | None]:
    """Seeded random inputs: floats in [-1, 1] (or the case's own range), small integers, booleans."""
    seed = zlib.crc32(f"{case.operator}{case.shapes}".encode())
    rng = np.random.default_rng(seed)
    result: list[np.ndarray | None] = []
    for index, shape in enumerate(case.shapes):
        if shape is None:
            result.append(None)
            continue
        dtype = np.dtype(case.dtypes.get(index, case.dtype))
        if dtype.kind == "b":
            result.append(rng.integers(0, 2, shape).astype(bool))
        elif dtype.kind in "iu":
            low, high = case.ranges.get(index, (-9, 9))
            result.append(rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype))
        else:
            low, high = case.ranges.get(index, (-1.0, 1.0))
            result.append(np.asarray(rng.uniform(low, high, shape)).astype(dtype))
    return result


def problem(op: str, case_name: str) -> Problem:
    """The case as a variant's `applies` sees it."""
    case = cases(op)[case_name]
    return _problem(case, arrays_of(case))


def check(op: str, case_name: str, variant_name: str, device_name: str = "host") -> None:
    """Runs one variant of one case in every arrangement and holds it against the definition in float64."""
    case = cases(op)[case_name]
    variant = next(v for v in case.operator.variants() if v.name == variant_name)
    device = open_device(device_name)
    arrays = arrays_of(case)
    problem = _problem(case, arrays)
    assert not _refusal(variant, problem), _refusal(variant, problem)
    where = f"replay with harness.check({op!r}, {case_name!r}, {variant_name!r}, {device_name!r})"
    exact, bounds = _definition(case, arrays, arrays)
    for output, reference in zip(problem.outputs, exact, strict=True):
        assert output.shape == reference.shape, (
            f"infer says {output.shape}, reference gives {reference.shape}; {where}"
        )
    if variant.is_view:
        assert arrays[0] is not None
        np.testing.assert_array_equal(arrays[0].reshape(problem.y.shape), exact[0], err_msg=where)
        return
    poisoned = None if _leaves_nan_open(problem) else _with_nan(case, arrays)
    for arrangement in arrangements(problem, variant):
        found = _run(device, variant, problem, arrangement, arrays, f"{arrangement.label}; {where}")
        _compare(found, exact, bounds, problem.outputs, f"{arrangement.label}; {where}", variant)
        if poisoned is not None:
            where_nan = f"{arrangement.label}, a NaN in input 0; {where}"
            exact_nan, _ = _definition(case, poisoned, arrays)
            found = _run(device, variant, problem, arrangement, poisoned, where_nan)
            _compare(found, exact_nan, bounds, problem.outputs, where_nan, variant)


def onnx_witness(op: str, case_name: str, *, slack: float = 0.0) -> None:
    """Holds `reference` (not a kernel) against onnxruntime on this one node; what is fused is left out.

    slack  added to the operator's bound, for what onnxruntime rounds and our kernels don't
    """
    case = _as_in_onnx(op, cases(op)[case_name])
    arrays = arrays_of(case)
    exact, bounds = _definition(case, arrays, arrays)
    found = _onnxruntime(op, case, arrays)
    _compare(
        found,
        exact,
        tuple(bound + slack for bound in bounds),
        _problem(case, arrays).outputs,
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


def _problem(case: Case, arrays: list[np.ndarray | None]) -> Problem:
    inputs = tuple(
        None
        if a is None
        else Operand(
            name=f"input{i}", dtype=a.dtype.name, shape=a.shape, value=a if i in case.constants else None
        )
        for i, a in enumerate(arrays)
    )
    own = inputs[:-1] if case.epilogue.has_residual else inputs
    types = case.operator.infer(
        *(None if o is None else TensorType(dtype=o.dtype, shape=o.shape) for o in own)
    )
    outputs = tuple(Operand(name=f"output{i}", dtype=t.dtype, shape=t.extents) for i, t in enumerate(types))
    return problem_of(case.operator, inputs, outputs, epilogue=case.epilogue)


def _definition(
    case: Case, arrays: list[np.ndarray | None], clean: list[np.ndarray | None]
) -> tuple[tuple[np.ndarray, ...], tuple[Any, ...]]:
    """Reference values of `arrays`, error bounds of the same arrays without NaN."""
    residual, clean_residual = (arrays[-1], clean[-1]) if case.epilogue.has_residual else (None, None)
    count = len(arrays) - case.epilogue.has_residual
    with np.errstate(all="ignore"):
        exact = _tuple(case.operator.reference(*arrays[:count]))
        bounds = _tuple(case.operator.bound(*clean[:count]))
        if case.epilogue != Epilogue():
            clean_exact = exact if arrays is clean else _tuple(case.operator.reference(*clean[:count]))
            bounds = (epilogue.bound(case.epilogue, clean_exact[0], bounds[0], clean_residual),)
            exact = (epilogue.reference(case.epilogue, exact[0], residual),)
    if len(bounds) < len(exact):
        bounds = bounds * len(exact)
    return tuple(np.asarray(e) for e in exact), bounds


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _leaves_nan_open(problem: Problem) -> bool:
    """A NaN cast to an integer: x86 gives the least number, PTX gives 0, ONNX doesn't say."""
    is_cast = type(problem.operator).__name__ in ("Cast", "CastLike")
    return is_cast and problem.y.dtype.startswith(("int", "uint"))


def _with_nan(case: Case, arrays: list[np.ndarray | None]) -> list[np.ndarray | None] | None:
    """The inputs with one NaN in the first; None where that is absent, constant, empty or not of floats."""
    if (
        not arrays
        or arrays[0] is None
        or not arrays[0].size
        or 0 in case.constants
        or not np.issubdtype(arrays[0].dtype, np.floating)
    ):
        return None
    first = arrays[0].copy()
    first.reshape(-1)[first.size // 2] = np.nan
    return [first, *arrays[1:]]


class _Buffer:
    """One operand's memory on the device, guards included, and what it held before the run."""

    def __init__(self, device: Device, operand: Operand, array: np.ndarray | None, fill: int):
        self.device, self.operand = device, operand
        body = _elements(operand) * operand.itemsize
        self.image = np.full(body + 2 * GUARD_BYTES, fill, np.uint8)
        self.writable = np.zeros(self.image.size, bool)
        if array is not None:
            self.logical(self.image)[...] = array
        self.pointer = device.alloc(self.image.size)
        device.upload(self.pointer, self.image)

    @property
    def address(self) -> int:
        return self.pointer + GUARD_BYTES

    def logical(self, image: np.ndarray, *, padded: bool = False) -> np.ndarray:
        """The operand's elements in their logical shape, as a window into `image`."""
        shape = self.operand.shape
        if padded and self.operand.layout.order == "NHWC":
            shape = (shape[0], self.operand.channels_padded, *shape[2:])
        start = GUARD_BYTES + self.operand.view().byte_offset
        typed = image[start : image.size - GUARD_BYTES].view(self.operand.dtype)
        strides = tuple(s * self.operand.itemsize for s in self.operand.strides)
        return np.lib.stride_tricks.as_strided(typed, shape, strides)

    def allow_writes(self) -> None:
        """The output's elements and, in NHWC, the padding channels behind them."""
        mask = np.zeros_like(self.image)
        self.logical(mask, padded=True)[...] = np.frombuffer(
            b"\1" * self.operand.itemsize, self.operand.dtype
        )[0]
        self.writable |= mask != 0

    def allow_all_but_guards(self) -> None:
        self.writable[GUARD_BYTES : self.image.size - GUARD_BYTES] = True

    def finish(self, where: str) -> np.ndarray:
        """What the memory holds after the run; every byte that nobody may write must be as it was."""
        after = np.empty_like(self.image)
        self.device.download(self.pointer, after)
        self.device.free(self.pointer)
        bad = np.flatnonzero((after != self.image) & ~self.writable)
        place = (int(bad[0]) - GUARD_BYTES) // self.operand.itemsize if bad.size else 0
        fault = f"{self.operand.name}: {bad.size} bytes written outside the output, first at element {place}"
        assert not bad.size, f"{fault}; {where}"
        return after


def _elements(operand: Operand) -> int:
    """Elements of the (wider) tensor that holds the operand."""
    layout = operand.layout
    if layout.order == "NCHW" and layout.is_slice:
        return operand.shape[0] * layout.channel_stride * math.prod(operand.shape[2:])
    return operand.elements


def launches(kind: str) -> dict[Kernel, set[tuple[Extent3, int]]]:
    """(block, dynamic shared bytes) of every launch: all cases, all variants that this kind of device has."""
    found: dict[Kernel, set[tuple[Extent3, int]]] = {}
    for domain, op in table():
        for case in cases(op).values() if not domain else ():
            arrays = arrays_of(case)
            problem = _problem(case, arrays)
            for variant in case.operator.variants():
                is_for_it = not variant.devices or kind in variant.devices
                if variant.is_view or not is_for_it or variant.applies(problem):
                    continue
                for arrangement in arrangements(problem, variant):
                    steps = variant.steps(lay_out(variant, problem, arrangement, arrays)[0])
                    for step in steps:
                        if isinstance(step, Launch):
                            found.setdefault(step.kernel, set()).add((step.block, step.shared_bytes))
    return found


def _run(
    device: Device,
    variant: Variant,
    problem: Problem,
    arrangement: Arrangement,
    arrays: list[np.ndarray | None],
    where: str,
) -> tuple[np.ndarray, ...]:
    laid_out, contents = lay_out(variant, problem, arrangement, arrays, where)
    inputs, outputs = laid_out.inputs, laid_out.outputs
    buffers: dict[str, _Buffer] = {}
    for operand in (*inputs, *laid_out.tables):
        if operand is not None:
            buffers[operand.name] = _Buffer(device, operand, contents[operand.name], NAN_BYTE)
    for index, output in enumerate(outputs):
        if index == 0 and arrangement.in_place:
            assert inputs[0] is not None
            buffers[output.name] = buffers.pop(inputs[0].name)
        else:
            buffers[output.name] = _Buffer(device, output, None, MARK_BYTE)
        buffers[output.name].allow_writes()
    workspace = laid_out.workspace
    if workspace is not None:
        buffers[workspace.name] = _Buffer(device, workspace, None, NAN_BYTE)
        buffers[workspace.name].allow_all_but_guards()
    aliases = {inputs[0].name: outputs[0].name} if arrangement.in_place and inputs[0] is not None else {}

    def address(view: View) -> int:
        return buffers[aliases.get(view.tensor, view.tensor)].address + view.byte_offset

    steps = variant.steps(laid_out)
    device.build([step.kernel for step in steps if isinstance(step, Launch)])
    try:
        for action in [device.prepare(step, address) for step in steps]:
            action()
        device.sync()
    except DeviceError as error:
        forget_devices()
        raise AssertionError(f"{error}; {where}") from error
    images = {name: buffer.finish(where) for name, buffer in buffers.items()}
    return tuple(buffers[o.name].logical(images[o.name]).copy() for o in outputs)


def _compare(
    found: tuple[np.ndarray, ...],
    exact: tuple[np.ndarray, ...],
    bounds: tuple[Any, ...],
    outputs: tuple[Operand, ...],
    where: str,
    variant: Variant = Variant(),
) -> None:
    """Shape, dtype, NaN, values, in this order. Errors and NaN may spread as far as the variant says."""
    for y, reference, bound, output in zip(found, exact, bounds, outputs, strict=True):
        assert y.shape == reference.shape == output.shape, (
            f"shape {y.shape}, expected {reference.shape}; {where}"
        )
        assert y.dtype == output.dtype, f"dtype {y.dtype}, expected {output.dtype}; {where}"
        if y.dtype.kind != "f":
            good = y == reference
        else:
            nan = np.isnan(reference)
            good = (np.isnan(y) >= nan) & (np.isnan(y) <= variant.spread(nan))
            assert good.all(), f"NaN: {_first_bad(good, y, reference)}; {where}"
            nan = np.isnan(y)
            with np.errstate(invalid="ignore"):
                err = np.where((y == reference) | nan, 0.0, np.abs(y.astype(np.float64) - reference))
            bound = variant.spread(np.broadcast_to(bound, y.shape))
            good = err <= np.where(nan, 0.0, bound)
        assert good.all(), f"{_first_bad(good, y, reference)}, bound {_at(bound, good)}; {where}"


def _first_bad(good: np.ndarray, y: np.ndarray, reference: np.ndarray) -> str:
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    values = f"expected {reference[index]}, found {y[index]}"
    return f"{(~good).sum()} of {good.size} wrong, first at {index}: {values}"


def _at(bound: Any, good: np.ndarray) -> float:
    return float(np.broadcast_to(bound, good.shape)[tuple(np.argwhere(~good)[0])])


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
    outputs = [f"o{i}" for i in range(len(_problem(case, arrays).outputs))]
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
