"""`kernel new`: a kernel and its variant that run as they are, to be changed."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from minicnn.errors import InputError, OutputError

TEMPLATES = Path(__file__).parent / "templates"


def operators() -> tuple[str, ...]:
    """Those that there is a template for."""
    return tuple(sorted(path.name.removesuffix(".py.txt") for path in TEMPLATES.glob("*.py.txt")))


def write(name: str, op: str, folder: Path) -> tuple[Path, Path]:
    """NAME.py and NAME.cu in a folder, which must not hold either.

    Raises    InputError: a name that isn't one, an operator without a template; OutputError
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        expected = "small letters, digits and _, a letter first"
        raise InputError("a name that can't be a file's and a kernel's", found=name, expected=expected)
    if op not in operators():
        raise InputError("no template for this operator", found=op, accepted=", ".join(operators()))
    class_name = "".join(part.capitalize() for part in name.split("_"))
    paths = folder / f"{name}.py", folder / f"{name}.cu"
    for path in paths:
        if path.exists():
            raise OutputError("there is a file of this name already", file=path)
    for path in paths:
        text = (TEMPLATES / f"{op}{path.suffix}.txt").read_text()
        try:
            path.write_text(text.replace("NAME", name).replace("CLASS", class_name))
        except OSError as error:
            raise OutputError("the file can't be written", file=path, found=error.strerror or error) from None
    return paths
