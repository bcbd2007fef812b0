"""Code lines of the project: lines that hold code, comments and docstrings free.

    python tools/count_lines.py            every file, then the sum of each part

The core is the way of the data, from a model file to a record: what a reader reads to understand how a
network is run. Operators are counted apart because their number grows with the networks that people bring,
each read when needed; so are the statistics of repeated runs, the devices, the command line with what it
prints, and the simulator.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE_LIMIT = 4_150  # 4,000, and 150 for the table of what a record holds: data, in schema.py and record.py
FILE_LIMIT = 400
PARTS = {  # part: what its files' names begin with; the first that fits
    "simulator": ("minicnn/sim/",),
    "ladder": ("cuda/ladder/",),
    "devices": ("minicnn/device/", "cuda/host_"),
    "operators": (
        "minicnn/ops/",
        "cuda/",
        "minicnn/activations.py",
        "minicnn/detection.py",
        "minicnn/elements.py",
        "minicnn/epilogue.py",
        "minicnn/narrowing.py",
        "minicnn/normalization.py",
        "minicnn/patterns.py",
        "minicnn/pooling.py",
        "minicnn/product.py",
        "minicnn/quantization.py",
        "minicnn/reduction.py",
        "minicnn/resampling.py",
        "minicnn/strided.py",
        "minicnn/tiling.py",
        "minicnn/widening.py",
        "minicnn/window.py",
    ),
    "statistics and tuning": (
        "minicnn/calibrate.py",
        "minicnn/describe.py",
        "minicnn/facts.py",
        "minicnn/machine.py",
        "minicnn/occupancy.py",
        "minicnn/predict.py",
        "minicnn/energy.py",
        "minicnn/stats.py",
        "minicnn/steady.py",
        "minicnn/tune.py",
    ),
    "command line and reports": (
        "minicnn/report/",
        "minicnn/cli/",
        "minicnn/answers.py",
        "minicnn/doctor.py",
        "minicnn/feeds.py",
        "minicnn/image.py",
        "minicnn/progress.py",
        "minicnn/check.py",
        "minicnn/compare.py",
        "minicnn/lab/",
    ),
    "studies": ("minicnn/study/",),
    "weights left in their file, limits": ("minicnn/onnx_raw.py", "minicnn/limits.py", "minicnn/form.py",),
    "core": ("minicnn/",),
    "models": ("models/",),
    "tools": ("tools/",),
    "tests": ("tests/",),
}
C_LIKE = (".cu", ".cuh", ".h", ".cpp")


def code_lines(path: Path) -> int:
    """Lines with at least one token of code."""
    text = path.read_text()
    return _python_lines(text) if path.suffix == ".py" else _c_lines(text)


def _python_lines(text: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    free = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in free:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _c_lines(text: str) -> int:
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    return sum(1 for line in bare.splitlines() if line.strip())


def file_lines() -> dict[Path, int]:
    """Every source file of the project with its code lines; tests included."""
    places = ("minicnn", "cuda", "models", "tools", "tests")
    files = [p for place in places for p in sorted((ROOT / place).rglob("*")) if p.suffix in (".py", *C_LIKE)]
    return {path: code_lines(path) for path in files}


def part(path: Path) -> str:
    """The part of the project that a file belongs to."""
    name = str(path.relative_to(ROOT))
    return next(part for part, starts in PARTS.items() if name.startswith(starts))


def parts() -> dict[str, int]:
    """Code lines of each part."""
    sums = dict.fromkeys(PARTS, 0)
    for path, lines in file_lines().items():
        sums[part(path)] += lines
    return {name: lines for name, lines in sums.items() if lines}


def core_lines() -> int:
    return parts()["core"]


def main() -> None:
    for path, lines in file_lines().items():
        print(f"{lines:6d}  {path.relative_to(ROOT)}")
    for name, lines in parts().items():
        print(f"{lines:6d}  {name}")


if __name__ == "__main__":
    main()
