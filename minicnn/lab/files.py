"""A user's kernel file: Python beside a .cu, imported because the user named it, and for no other reason."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minicnn import registry
from minicnn.errors import InputError
from minicnn.lab.checking import cases
from minicnn.registry import Variant

_found: list[BroughtIn] = []  # by the file that is being imported


@dataclass(frozen=True, kw_only=True)
class BroughtIn:
    """A variant and the operator it is for."""

    op: str
    variant: Variant


def variant(op: str) -> Callable[[type[Variant]], type[Variant]]:
    """Enters a class: `@variant("Relu") class MyRelu(Variant): ...`. Its name is the class's `name`.

    Raises    InputError: no such operator, no name, or one that a variant of minicnn's has
    """

    def enter(cls: type[Variant]) -> type[Variant]:
        made = cls()
        known = sorted(name for domain, name in registry.table() if not domain)
        if op not in known:
            raise InputError("no operator of this name has kernels", found=op, accepted=", ".join(known))
        taken = sorted({v.name for case in cases(op).values() for v in case.operator.variants()})
        if not made.name or made.name in taken:
            accepted = f"any but {', '.join(taken)}"
            raise InputError("a variant needs a name of its own", found=repr(made.name), accepted=accepted)
        registry.bring_in(op, made)
        _found.append(BroughtIn(op=op, variant=made))
        return cls

    return enter


def beside(file: str) -> str:
    """The path of a file in the folder of the Python file that asks."""
    return str(Path(inspect.stack()[1].filename).resolve().parent / file)


def bring_in(path: str | Path) -> list[BroughtIn]:
    """Imports a kernel file, and with it brings in its variants.

    Raises    InputError: it isn't there, fails when it is imported, or enters no variant
    """
    place = Path(path).resolve()
    if not place.is_file():
        raise InputError("the kernel file isn't there", file=path)
    _found.clear()
    spec = importlib.util.spec_from_file_location(f"minicnn_kernel_{place.stem}", place)
    if spec is None or spec.loader is None:
        raise InputError("the kernel file isn't Python", file=path, expected="NAME.py beside NAME.cu")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise error.at(file=path) from None
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(place)]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 0
        found = f"{type(error).__name__}: {error}"
        raise InputError("the kernel file fails", file=f"{path}:{line}", found=found) from None
    if not _found:
        expected = '@variant("Relu") before a class'
        raise InputError("the kernel file enters no variant", file=path, expected=expected)
    return list(_found)
