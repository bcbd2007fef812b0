"""A variant held against its operator's definition: guarded memory, NaN, every arrangement that it honours.

`check_case` runs a variant's steps directly on a device: no planner, no reused memory: a fault is the
kernel's. It does so for every arrangement in memory that the variant honours, each once more with a NaN in
the input. That time what is read fills its allocations to the brim: a simulated GPU reports a stray read.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minicnn import elements, epilogue
from minicnn.device.base import Device
from minicnn.errors import CheckError, DeviceError
from minicnn.geometry import PLAIN
from minicnn.graph import Epilogue, TensorType
from minicnn.lab.arrangements import Arrangement, arrangements, lay_out
from minicnn.registry import Case, Entry, Problem, Variant, table
from minicnn.step import Launch, Operand, View

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


def refusal(variant: Variant, problem: Problem) -> str:
    """Why a variant can't do the problem: a type that isn't its own, or what it says itself."""
    types = {o.dtype for o in (*problem.inputs, *problem.outputs) if o is not None}
    if variant.dtypes is not None and not types.issubset(variant.dtypes):
        return f"{sorted(types)}, not {variant.dtypes}"
    return variant.applies(problem)


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


def check_case(
    case: Case, variant: Variant, device: Device, *, threads: int = 1, where: str = ""
) -> int:
    """Runs a variant of a case in every arrangement and holds it against the definition in float64.

    threads  that the variant's steps are made for
    where    ends every complaint: how to run this case again
    Returns  how many runs that were
    Raises   CheckError: a result, a NaN, or a byte outside the output isn't as it must be
             DeviceError: a fault; nothing more runs in a CUDA context that had one
    """
    arrays = arrays_of(case)
    problem = problem_of_case(case, arrays)
    problem = replace(problem, target=replace(problem.target, threads=threads))
    _require(not refusal(variant, problem), f"doesn't apply: {refusal(variant, problem)}", where)
    exact, bounds = definition(case, arrays, arrays, variant)
    for output, reference in zip(problem.outputs, exact, strict=True):
        fits = output.shape == reference.shape
        _require(fits, f"infer says {output.shape}, reference gives {reference.shape}", where)
    if variant.is_view:
        assert arrays[0] is not None
        same = np.array_equal(arrays[0].reshape(problem.y.shape), exact[0])
        _require(same, "a view that isn't its input", where)
        return 1
    poisoned = None if _leaves_nan_open(problem) else _with_nan(case, arrays)
    runs = 0
    for arrangement in arrangements(problem, variant):
        runs += 1 + (poisoned is not None)
        found = _run(device, variant, problem, arrangement, arrays, _joined(arrangement.label, where))
        compare(found, exact, bounds, problem.outputs, _joined(arrangement.label, where), variant)
        if poisoned is not None:
            where_nan = _joined(f"{arrangement.label}, a NaN in input 0", where)
            exact_nan, _ = definition(case, poisoned, arrays)
            found = _run(device, variant, problem, arrangement, poisoned, where_nan, guard=0)
            compare(found, exact_nan, bounds, problem.outputs, where_nan, variant)
    return runs


def _require(holds: bool, complaint: str, where: str) -> None:
    if not holds:
        raise CheckError(_joined(complaint, where))


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if second else first


def problem_of(
    op: Any,
    inputs: tuple[Operand | None, ...],
    outputs: tuple[Operand, ...],
    *,
    epilogue: Epilogue = Epilogue(),
    precision: str = "fp32",
) -> Problem:
    """A problem with all layouts plain, as `applies` and `orders` want it."""
    plain_inputs = tuple(None if o is None else o.with_layout(PLAIN) for o in inputs)
    plain_outputs = tuple(o.with_layout(PLAIN) for o in outputs)
    return Problem(
        operator=op, inputs=plain_inputs, outputs=plain_outputs, epilogue=epilogue, precision=precision
    )


def problem_of_case(case: Case, arrays: list[np.ndarray | None]) -> Problem:
    """The case as a variant's `applies` sees it."""
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


def definition(
    case: Case,
    arrays: list[np.ndarray | None],
    clean: list[np.ndarray | None],
    variant: Variant = Variant(),
) -> tuple[tuple[np.ndarray, ...], tuple[Any, ...]]:
    """Reference values of `arrays` in float64, error bounds of the same arrays without NaN."""
    residual, clean_residual = (arrays[-1], clean[-1]) if case.epilogue.has_residual else (None, None)
    count = len(arrays) - case.epilogue.has_residual
    with np.errstate(all="ignore"):
        exact = _tuple(case.operator.reference(*arrays[:count]))
        bounds = _tuple(variant.bound(case.operator, *clean[:count]))
        if case.epilogue != Epilogue():
            clean_exact = exact if arrays is clean else _tuple(case.operator.reference(*clean[:count]))
            bounds = (epilogue.bound(case.epilogue, clean_exact[0], bounds[0], clean_residual),)
            exact = (epilogue.reference(case.epilogue, exact[0], residual),)
            stored = elements.storage_bound(np.nan_to_num(exact[0]), np.dtype(case.dtype))
            bounds = (bounds[0] + stored,)
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

    def __init__(
        self, device: Device, operand: Operand, array: np.ndarray | None, fill: int, guard: int = GUARD_BYTES
    ):
        self.device, self.operand, self.guard = device, operand, guard
        body = _elements(operand) * operand.itemsize
        self.image = np.full(body + 2 * guard, fill, np.uint8)
        self.writable = np.zeros(self.image.size, bool)
        if array is not None:
            self.logical(self.image)[...] = array
        self.pointer = device.alloc(self.image.size)
        device.upload(self.pointer, self.image)

    @property
    def address(self) -> int:
        return self.pointer + self.guard

    def logical(self, image: np.ndarray, *, padded: bool = False) -> np.ndarray:
        """The operand's elements in their logical shape, as a window into `image`."""
        shape = self.operand.shape
        if padded and self.operand.layout.order == "NHWC":
            shape = (shape[0], self.operand.channels_padded, *shape[2:])
        start = self.guard + self.operand.view().byte_offset
        typed = image[start : image.size - self.guard].view(self.operand.dtype)
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
        self.writable[self.guard : self.image.size - self.guard] = True

    def finish(self, where: str) -> np.ndarray:
        """What the memory holds after the run; every byte that nobody may write must be as it was."""
        after = np.empty_like(self.image)
        self.device.download(self.pointer, after)
        self.device.free(self.pointer)
        bad = np.flatnonzero((after != self.image) & ~self.writable)
        place = (int(bad[0]) - self.guard) // self.operand.itemsize if bad.size else 0
        fault = f"{self.operand.name}: {bad.size} bytes written outside the output, first at element {place}"
        _require(not bad.size, fault, where)
        return after


def _elements(operand: Operand) -> int:
    """Elements of the (wider) tensor that holds the operand."""
    layout = operand.layout
    if layout.order == "NCHW" and layout.is_slice:
        return operand.shape[0] * layout.channel_stride * math.prod(operand.shape[2:])
    return operand.elements


def _run(
    device: Device,
    variant: Variant,
    problem: Problem,
    arrangement: Arrangement,
    arrays: list[np.ndarray | None],
    where: str,
    guard: int = GUARD_BYTES,
) -> tuple[np.ndarray, ...]:
    """guard  bytes before and behind what is read; outputs always have GUARD_BYTES"""
    laid_out, contents = lay_out(variant, problem, arrangement, arrays, where)
    inputs, outputs = laid_out.inputs, laid_out.outputs
    buffers: dict[str, _Buffer] = {}
    for index, operand in enumerate((*inputs, *laid_out.tables)):
        if operand is not None:
            own_guard = GUARD_BYTES if arrangement.in_place and index == 0 else guard  # it is written too
            buffers[operand.name] = _Buffer(
                device, operand, contents[operand.name], NAN_BYTE, own_guard
            )
    for index, output in enumerate(outputs):
        if index == 0 and arrangement.in_place:
            assert inputs[0] is not None
            buffers[output.name] = buffers.pop(inputs[0].name)
        else:
            buffers[output.name] = _Buffer(device, output, None, MARK_BYTE)
        buffers[output.name].allow_writes()
    workspace = laid_out.workspace
    if workspace is not None:
        buffers[workspace.name] = _Buffer(device, workspace, None, NAN_BYTE, guard)
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
        raise type(error)(_joined(error.sentence, where), **error.facts) from None
    images = {name: buffer.finish(where) for name, buffer in buffers.items()}
    return tuple(buffers[o.name].logical(images[o.name]).copy() for o in outputs)


def compare(
    found: tuple[np.ndarray, ...],
    exact: tuple[np.ndarray, ...],
    bounds: tuple[Any, ...],
    outputs: tuple[Operand, ...],
    where: str,
    variant: Variant = Variant(),
) -> None:
    """Shape, dtype, NaN, values, in this order. Errors and NaN may spread as far as the variant says."""
    for y, reference, bound, output in zip(found, exact, bounds, outputs, strict=True):
        fits = y.shape == reference.shape == output.shape
        _require(fits, f"shape {y.shape}, expected {reference.shape}", where)
        _require(y.dtype == output.dtype, f"dtype {y.dtype}, expected {output.dtype}", where)
        if y.dtype.kind != "f":
            good = y == reference
        else:
            nan = np.isnan(reference)
            good = (np.isnan(y) >= nan) & (np.isnan(y) <= variant.spread(nan))
            if not good.all():
                _require(False, f"NaN: {_first_bad(good, y, reference)}", where)
            nan = np.isnan(y)
            with np.errstate(invalid="ignore"):
                err = np.where((y == reference) | nan, 0.0, np.abs(y.astype(np.float64) - reference))
            bound = variant.spread(np.broadcast_to(bound, y.shape))
            good = err <= np.where(nan, 0.0, bound)
        if not good.all():
            _require(False, f"{_first_bad(good, y, reference)}, bound {_at(bound, good)}", where)


def _first_bad(good: np.ndarray, y: np.ndarray, reference: np.ndarray) -> str:
    """How many elements are wrong, and the first of them."""
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    values = f"expected {reference[index]}, found {y[index]}"
    return f"{(~good).sum()} of {good.size} elements wrong, the first at {index}: {values}"


def _at(bound: Any, good: np.ndarray) -> float:
    return float(np.broadcast_to(bound, good.shape)[tuple(np.argwhere(~good)[0])])
