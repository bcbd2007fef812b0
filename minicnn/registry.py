"""Operators and their variants: the contract, and the one table of who implements what.

An operator is a frozen dataclass in `minicnn/ops/<op>.py`, its fields named as ONNX names the attributes:

    infer(*types) -> tuple of TensorType      shapes in -> shapes out; raises ShapeError
    variants() -> tuple of Variant            plain rung first
    cost(problem) -> Cost                     MACs and FLOPs of the definition
    reference(*arrays) -> array or tuple      the definition in numpy, float64

and a module-level `CASES`. Files in that folder are found by themselves; there is no list to edit.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import Epilogue, Graph, Node, TensorType
from minicnn.step import Operand, Step

T = TypeVar("T", bound=type)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Work that the definition asks for, whichever variant does it. FLOP = 2 x MAC for multiply-adds."""

    macs: int = 0
    flops: int = 0


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Memory orders a variant reads and writes: "NCHW", "NHWC", "any" (strides are honoured), "same" (as
    input 0).

    One entry an input (constants' entries are ignored) and an output; the last entry stands for all that
    follow.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """A constant input rearranged once at load, after which the original is released unless others read it.

    `name` tells packings of one tensor apart; `function(array) -> array of shape` does it.
    """

    name: str
    shape: tuple[int, ...]
    function: Callable[[np.ndarray], np.ndarray] = field(compare=False, repr=False)
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The device that a plan is made for, as far as choices depend on it. "": any of its kind.

    kind          "host", "cuda", "sim"
    name          as in DeviceInfo: what was measured on it is kept under this name
    architecture  as in DeviceInfo: "x86-64-v3", "sm_90"
    threads       of the host device
    """

    kind: str = "host"
    name: str = ""
    architecture: str = ""
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One layer to be planned. Inputs an operator doesn't have are None.

    While a variant is being chosen the operands' layouts are PLAIN; in `steps` they are the chosen ones,
    packed constants stand in the place of the originals, `workspace` is there if the variant asked for one,
    and `tables` are those it made.
    """

    operator: Any
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    epilogue: Epilogue = Epilogue()
    precision: str = "fp32"
    workspace: Operand | None = None
    tables: tuple[Operand, ...] = ()
    target: Target = Target()

    @property
    def x(self) -> Operand:
        first = self.inputs[0]
        assert first is not None
        return first

    @property
    def y(self) -> Operand:
        return self.outputs[0]

    def input(self, index: int) -> Operand | None:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def residual(self) -> Operand | None:
        return self.inputs[-1] if self.epilogue.has_residual else None


class Variant:
    """One way to do an operator's work. Subclasses override what differs from these defaults."""

    name = ""
    precisions: tuple[str, ...] = ("fp32",)
    dtypes: tuple[str, ...] | None = ("float32",)  # of all inputs and outputs; None: any
    keeps_bound = True  # its errors stay within the operator's own bound, so that a race may choose it
    is_view = False  # no steps: the output is the input's memory under another shape
    may_overwrite = False  # the output may take input 0's memory where nobody reads that any more
    devices: tuple[str, ...] = ()  # the kinds it is made for; (): all

    @property
    def label(self) -> str:
        """Its name, and what sets it apart from others of that name."""
        return self.name

    def applies(self, problem: Problem) -> str:
        """ "" where the variant can do the problem, else the reason why not, as a clause."""
        return ""

    def declines(self, problem: Problem) -> str:
        """Why it isn't to be chosen where nothing was measured, though it applies; "": it may be."""
        return ""

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        """The forms of this variant that are worth timing, told apart by their labels."""
        return (self,)

    def spread(self, errors: np.ndarray) -> np.ndarray:
        """What may happen to each output, given what may happen to it by the definition (an error bound, a
        NaN).

        The same, but for a variant that makes several outputs from shared sums.
        """
        return errors

    def bound(self, operator: Any, *arrays: np.ndarray | None) -> Any:
        """How far outputs may be from the definition in float64; some variants round what they multiply."""
        return operator.bound(*arrays)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NCHW",), outputs=("NCHW",))

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """Input index -> how that constant is rearranged at load."""
        return {}

    def workspace_bytes(self, problem: Problem) -> int:
        return 0

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """Constants that follow from attributes and shapes (which neighbours an output has, their
        weights)."""
        return ()

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the table holds of an operator class."""

    cls: Any
    opsets: tuple[int, int | None]
    parameters: Mapping[int, str]
    fuses: tuple[str, ...]


_TABLE: dict[tuple[str, str], Entry] = {}


def operator(
    op: str,
    *,
    opsets: tuple[int, int | None],
    domain: str = "",
    parameters: Mapping[int, str] | None = None,
    fuses: tuple[str, ...] = (),
) -> Callable[[T], T]:
    """Enters an operator class into the table.

    opsets      first and last version of the ONNX domain whose meaning the class knows (None: to the newest)
    parameters  input index -> field: inputs that are constants and belong to the operator, not to the data
    fuses       activations (and "Residual", "Bias") that every variant's epilogue can do
    """

    def enter(cls: T) -> T:
        _TABLE[(domain, op)] = Entry(cls=cls, opsets=opsets, parameters=parameters or {}, fuses=fuses)
        return cls

    return enter


_BROUGHT_IN: dict[type, list[Variant]] = {}


def bring_in(op: str, variant: Variant) -> None:
    """Adds a variant from outside the package, or puts it in the place of one of its name. It does a layer
    only where it is asked for, or was measured to win."""
    cls = table()["", op].cls
    others = [v for v in _BROUGHT_IN.get(cls, []) if v.name != variant.name]
    _BROUGHT_IN[cls] = [*others, variant]


def variants_of(operator: Any) -> tuple[Variant, ...]:
    """The variants of an operator, plain rung first: those brought in, then its own."""
    return (*_BROUGHT_IN.get(type(operator), ()), *operator.variants())


@lru_cache(maxsize=1)
def table() -> Mapping[tuple[str, str], Entry]:
    """(domain, operator) -> entry, every file of minicnn/ops looked at."""
    import minicnn.ops

    for module in pkgutil.iter_modules(minicnn.ops.__path__):
        importlib.import_module(f"minicnn.ops.{module.name}")
    return _TABLE


def find(domain: str, op: str) -> Entry | None:
    """An operator's entry. Of minicnn/ops only the file that enters it is imported, as far as that shows."""
    if (domain, op) not in _TABLE:
        for module, text in _sources().items():
            if f'operator("{op}"' in text:
                importlib.import_module(f"minicnn.ops.{module}")
    return _TABLE.get((domain, op)) or table().get((domain, op))


@lru_cache(maxsize=1)
def _sources() -> Mapping[str, str]:
    import minicnn.ops

    files = (path for folder in minicnn.ops.__path__ for path in sorted(Path(folder).glob("*.py")))
    return {path.stem: path.read_text() for path in files}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A node's operator with its attributes filled in, and the inputs that are data."""

    operator: Any
    inputs: tuple[str, ...]
    fuses: tuple[str, ...]

    def infer(self, node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
        """Types of the node's outputs from those of its inputs.

        Raises    UnsupportedError: something the operator doesn't do, or an output it doesn't compute
                  ShapeError: shapes that don't fit together
        """
        inputs = self.inputs[:-1] if node.epilogue.has_residual else self.inputs
        found = self.operator.infer(*(types[name] if name else None for name in inputs))
        beyond = [name for name in node.outputs[len(found) :] if name]
        if beyond:
            raise UnsupportedError("an output that isn't computed", tensor=", ".join(beyond))
        return found


def bind(node: Node, graph: Graph) -> Bound:
    """The operator of a node.

    Raises    UnsupportedError with the reason: no kernel of ours, an opset or attribute it doesn't know, a
              parameter that is computed at run time. The caller decides whether the fallback may take it.
    """
    entry = find(node.domain, node.op)
    if entry is None:
        raise UnsupportedError("no kernel of ours for this operator", node=node.name, operator=node.op)
    version = graph.opsets.get(node.domain, 1)
    first, last = entry.opsets
    if version < first or (last is not None and version > last):
        raise UnsupportedError(
            "an opset this operator isn't known in",
            node=node.name, operator=node.op, found=version, accepted=entry.opsets,
        )  # fmt: skip
    fields = {f.name: f for f in dataclasses.fields(entry.cls)}
    values = {name: _plain(value) for name, value in node.attributes.items()}
    kept = list(node.inputs)
    for index, name in entry.parameters.items():
        if index < len(kept) and kept[index]:
            constant = graph.constants.get(kept[index])
            if constant is None:
                raise UnsupportedError(
                    "computed at run time", node=node.name, operator=node.op, tensor=f"{name} = {kept[index]}"
                )
            kind = str(fields[name].type)
            is_list = kind.startswith("tuple")
            is_shaped = constant.ndim < 2 if is_list else constant.size == 1
            if not is_shaped or ("int" in kind and constant.dtype.kind not in "iu"):
                raise ShapeError(
                    "not what this parameter may be", node=node.name, operator=node.op, tensor=kept[index],
                    expected=f"{name}: {kind}", found=f"{constant.dtype} {constant.shape}",
                )  # fmt: skip
            # Some files give a scalar for a list, or a list of one for a scalar.
            values[name] = _plain(constant.reshape(-1 if is_list else ()))
            kept[index] = ""
    while kept and not kept[-1] and len(kept) > 1:
        kept.pop()
    if "opset" in fields:
        values["opset"] = version
    if "outputs" in fields:
        named = [i for i, name in enumerate(node.outputs) if name]
        values["outputs"] = len(named)
        if named != list(range(len(named))):
            raise UnsupportedError("an output left out before another", node=node.name, operator=node.op)
    unknown = set(values) - set(fields)
    if unknown:
        raise UnsupportedError(
            "an attribute this operator doesn't know", node=node.name, operator=node.op, found=sorted(unknown)
        )
    try:
        bound = entry.cls(**values)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            "attributes that don't make sense", node=node.name, operator=node.op, found=error
        ) from None
    return Bound(operator=bound, inputs=tuple(kept), fuses=entry.fuses)


def _plain(value: object) -> object:
    """Attribute values and constant inputs as Python's own: ints, floats, strings, tuples of them."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value.item()
        return tuple(value.tolist()) if value.ndim == 1 else value
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class Case:
    """One named instance of an operator for tests, `--check` and the kernel lab: random inputs in [-1, 1].

    shapes     of the inputs, None for one that is absent
    constants  input indices that are weights (known at load, may be packed)
    dtype      of all inputs
    dtypes     input index -> dtype of one that has another
    epilogue   what is fused; a residual's shape is the last of `shapes`
    ranges     input index -> (low, high) where [-1, 1] makes no sense (variances, divisors)
    """

    operator: Any
    shapes: tuple[tuple[int, ...] | None, ...]
    constants: tuple[int, ...] = ()
    dtype: str = "float32"
    dtypes: Mapping[int, str] = field(default_factory=dict)
    epilogue: Epilogue = Epilogue()
    ranges: Mapping[int, tuple[float, float]] = field(default_factory=dict)
