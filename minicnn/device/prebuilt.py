"""Which kernels are compiled when the package is installed, so that a first run need not: cuda/prebuilt.json.

`python tools/make_prebuilt.py` writes the list: the macros that plans of common networks ask for.
"""

from __future__ import annotations

import json
import re

from minicnn import kernels
from minicnn.errors import BuildError

Defines = tuple[tuple[str, int], ...]
_NEEDS = re.compile(r"^// needs +sm_(\d+)", re.MULTILINE)


def oldest(file: str) -> int:
    """The compute capability (80: 8.0) that a kernel file says it needs; 0: any, and the CPU will do."""
    found = _NEEDS.search(kernels.source_path(file).read_text())
    return int(found[1]) if found else 0


def modules(target: str) -> list[tuple[str, Defines]]:
    """Every kernel file without macros, and those with the macros listed for a level, or for "cuda".

    Raises    BuildError: the list can't be read
    """
    folder = kernels.source_folder()
    path = folder / "prebuilt.json"
    try:
        listed = json.loads(path.read_text()).get(target, {})
    except (OSError, ValueError) as error:
        raise BuildError("the list of prebuilt kernels can't be read", file=path, found=error) from None
    plain: list[tuple[str, Defines]] = [(file.name, ()) for file in sorted(folder.glob("*.cu"))]
    if target != "cuda":
        plain = [(file, defines) for file, defines in plain if not oldest(file)]
    return plain + [(file, defines_of(text)) for file, forms in listed.items() for text in forms]


def defines_of(text: str) -> Defines:
    """(("PIXELS", 7), ("VECTORS", 4)) of "PIXELS=7 VECTORS=4"."""
    pairs = (word.split("=") for word in text.split())
    return tuple((name, int(value)) for name, value in pairs)


def text_of(defines: Defines) -> str:
    return " ".join(f"{name}={value}" for name, value in defines)
