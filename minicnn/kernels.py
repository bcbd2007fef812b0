"""Kernel sources: where they lie, what their entries take, how a launch of one is written down.

A launch names its arguments as the .cu file names its parameters, and the file is the only place that says
their order and types: `launch(kernel, grid=..., block=..., x=x, y=y, N=..., C=...)`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minicnn.errors import BuildError, UnsupportedError
from minicnn.geometry import INT32_MAX
from minicnn.step import Argument, Extent3, Kernel, Launch, Operand, View

GRID_YZ_MAX = 65_535  # CUDA's limit for a grid in y and z
_ENTRY = re.compile(r"^KERNEL\((\w+)\)\s*\(([^)]*)\)", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_CODES = {"int": "i", "unsigned": "I", "float": "f", "long long": "q", "double": "d"}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a kernel: `code` is struct's ("P" a pointer); a pointer to const is only read."""

    name: str
    code: str
    is_written: bool


def source_folder() -> Path:
    """cuda/ beside the package in a checkout, minicnn/cuda in an installed one."""
    package = Path(__file__).parent
    installed = package / "cuda"
    return installed if installed.is_dir() else package.parent / "cuda"


def source_path(file: str) -> Path:
    return Path(file) if Path(file).is_absolute() else source_folder() / file


@cache
def entries(file: str) -> dict[str, tuple[Parameter, ...]]:
    """The entry points of a .cu file and their parameters, read from its `KERNEL(name)(...)` lines."""
    path = source_path(file)
    try:
        text = re.sub(r"//[^\n]*", "", path.read_text())
    except OSError as error:
        raise BuildError("the kernel source can't be read", file=path, found=error) from None
    return {
        name: tuple(_parameter(p, file) for p in parameters.split(","))
        for name, parameters in _ENTRY.findall(text)
    }


def _parameter(text: str, file: str) -> Parameter:
    words = text.replace("*", " * ").replace("__restrict__", " ").split()
    name, is_const = words[-1], words[0] == "const"
    type_name = " ".join(w for w in words[:-1] if w != "const")
    if "*" in words:
        return Parameter(name=name, code="P", is_written=not is_const)
    if type_name not in _CODES:
        raise BuildError(
            "a kernel parameter of a type that can't be passed",
            file=file,
            found=text.strip(),
            accepted="pointers, " + ", ".join(_CODES),
        )
    return Parameter(name=name, code=_CODES[type_name], is_written=False)


def launch(
    kernel: Kernel,
    *,
    grid: Extent3,
    block: Extent3,
    shared_bytes: int = 0,
    **arguments: Operand | View | int | float | bool | None,
) -> tuple[Launch, ...]:
    """Launches of `kernel` (usually one), its arguments checked by name against the .cu file.

    A grid beyond CUDA's limit in z is cut into several launches for a kernel that has a parameter `z_first`
    (which the caller doesn't give), and likewise for y and `y_first`.

    Raises    UnsupportedError: the grid is too large, or an integer passes int32
    """
    parameters = entries(kernel.file).get(kernel.entry)
    if parameters is None:
        raise BuildError(
            "the kernel file has no such entry",
            file=kernel.file,
            expected=kernel.entry,
            found=list(entries(kernel.file)),
        )
    splits = {p.name for p in parameters} & {"y_first", "z_first"}
    names = {p.name for p in parameters} - splits
    if names != set(arguments):
        missing, unknown = names - set(arguments), set(arguments) - names
        raise TypeError(f"{kernel.file} {kernel.entry}: missing {missing}, unknown {unknown}")
    if 0 in grid:
        return ()  # a tensor without elements
    result = []
    for y_first in _chunks(grid[1], "y_first" in splits, kernel):
        for z_first in _chunks(grid[2], "z_first" in splits, kernel):
            values = arguments | {"y_first": y_first, "z_first": z_first}
            packed = tuple((p.name, _argument(p, values[p.name], kernel)) for p in parameters)
            pointers = [(p, v) for p, (_, v) in zip(parameters, packed, strict=True) if isinstance(v, View)]
            result.append(
                Launch(
                    kernel=kernel,
                    grid=(grid[0], min(grid[1] - y_first, GRID_YZ_MAX), min(grid[2] - z_first, GRID_YZ_MAX)),
                    block=block,
                    arguments=packed,
                    format="".join(p.code for p in parameters),
                    shared_bytes=shared_bytes,
                    reads=tuple(v for p, v in pointers if not p.is_written),
                    writes=tuple(v for p, v in pointers if p.is_written),
                )
            )
    return tuple(result)


def _chunks(extent: int, may_split: bool, kernel: Kernel) -> range:
    if extent > GRID_YZ_MAX and not may_split:
        raise UnsupportedError(
            "a grid too large for a GPU", operator=kernel.entry, found=extent, accepted=GRID_YZ_MAX
        )
    return range(0, extent, GRID_YZ_MAX)


def _argument(parameter: Parameter, value: Operand | View | int | float | None, kernel: Kernel) -> Argument:
    if parameter.code == "P":
        if isinstance(value, Operand):
            return value.view()
        if value is None or isinstance(value, View):
            return value
    elif parameter.code in "fd" and isinstance(value, (int, float)):
        return float(value)
    elif isinstance(value, int):
        if abs(value) > INT32_MAX and parameter.code != "q":
            raise UnsupportedError(
                "an extent passes 32 bits", operator=kernel.entry, tensor=parameter.name, found=value
            )
        return int(value)
    raise TypeError(f"{kernel.file} {kernel.entry}: {parameter.name} can't be {value!r}")


def included_files(file: str) -> tuple[Path, ...]:
    """The .cu file and all it includes from its own folder or cuda/, each once, in order of first mention."""
    found: dict[Path, None] = {}

    def visit(path: Path) -> None:
        if path in found or not path.is_file():
            return
        found[path] = None
        for name in _INCLUDE.findall(path.read_text()):
            beside = path.parent / name
            visit(beside if beside.is_file() else source_folder() / name)

    visit(source_path(file))
    return tuple(found)


def source_hash(file: str) -> str:
    """SHA-256 over the kernel file and all it includes: the key of caches and a line of the record."""
    digest = hashlib.sha256()
    for path in included_files(file):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
