"""The house itself: floors, pins of third-party packages, sizes. Read off the sources, nothing imported."""

import ast
from pathlib import Path

import pytest

from tools.count_lines import CORE_LIMIT, FILE_LIMIT, core_lines, file_lines

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "minicnn"

# A module imports only from lower floors, or from its own where the pair is listed in SAME_FLOOR.
FLOORS = [
    ["errors", "version", "elements", "activations", "onnx_raw"],
    ["cache", "geometry", "record", "schema", "stats", "progress", "machine"],
    ["graph", "step", "occupancy", "steady", "facts"],
    ["onnx_tensor", "kernels", "memory", "store", "detection", "window", "image", "resampling", "sim"],
    ["registry", "onnx_file"],
    ["fallback", "strided", "tiling"],
    ["epilogue", "form"],
    ["normalization", "pooling", "product", "reduction"],
    ["ops", "device"],
    ["shapes", "choose", "patterns", "plan", "calibrate", "energy", "compare"],
    ["rewrite", "segments", "slices", "widening", "quantization", "limits", "predict"],
    ["planner", "narrowing"],
    ["execute"],
    ["describe"],
    ["measure"],
    ["engine", "doctor", "report", "tune"],
    ["check", "answers", "lab"],
    ["feeds", "study"],
    ["cli"],
    ["__init__", "__main__"],
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
PINS = {
    "onnx": {"onnx_file", "onnx_tensor", "fallback", "study"},
    "h5py": {"store", "study"},
    "matplotlib": {"study"},
    "onnxruntime": {"study"},
    "torch": {"study"},
    "pycuda": {"device"},
    "skcuda": {"device"},
    "PIL": {"image"},
    "rich": {"report", "progress"},
}
STANDARD_LIKE = {"minicnn", "numpy"}


def modules() -> list[Path]:
    return [p for p in PACKAGE.rglob("*.py") if "cuda" not in p.relative_to(PACKAGE).parts[:1]]


def place(path: Path) -> str:
    """The floor plan's name of a module: its file or its folder."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports at any depth, type-checking blocks left out."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_come_from_lower_floors(path: Path) -> None:
    own = place(path)
    assert own in FLOOR, f"{own} has no floor"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "minicnn" or len(parts) < 2:
            continue
        other = parts[1]
        if other not in FLOOR or (own, other) == ("registry", "ops"):
            continue  # a name of minicnn/__init__.py; the table looks for operators where they are
        if other != own:
            assert FLOOR[other] < FLOOR[own], (
                f"{own} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})"
            )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_party_packages_are_pinned(path: Path) -> None:
    for name in imports(path):
        package = name.split(".")[0]
        if package in PINS:
            assert place(path) in PINS[package], f"{place(path)} imports {package}"


def test_no_file_is_too_long() -> None:
    long = {str(p.relative_to(ROOT)): n for p, n in file_lines().items() if n > FILE_LIMIT}
    assert not long, f"beyond {FILE_LIMIT} code lines: {long}"


def test_the_core_is_readable_in_an_afternoon() -> None:
    assert core_lines() <= CORE_LIMIT


def test_the_readme_prints_the_count() -> None:
    assert f"{core_lines():,} code lines" in (ROOT / "README.md").read_text()
