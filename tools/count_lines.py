"""Code lines of the project: lines that hold code, comments and docstrings free.

    python tools/count_lines.py            the table by part, and the core's sum

The core is what a reader needs to understand how a network is run: everything in minicnn/ and cuda/ but reports,
studies, the lab and the simulator.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE_LIMIT = 4_000
FILE_LIMIT = 400
APART = ("minicnn/report", "minicnn/study", "minicnn/lab.py", "minicnn/sim", "minicnn/doctor.py")
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
    """ "core", or the part that is counted apart."""
    name = str(path.relative_to(ROOT))
    if not name.startswith(("minicnn/", "cuda/")):
        return name.split("/")[0]
    if name.startswith("cuda/ladder"):
        return "cuda/ladder"
    return next((p for p in APART if name.startswith(p)), "core")


def core_lines() -> int:
    return sum(n for path, n in file_lines().items() if part(path) == "core")


def main() -> None:
    sums: dict[str, int] = {}
    for path, n in file_lines().items():
        sums[part(path)] = sums.get(part(path), 0) + n
        print(f"{n:6d}  {part(path):16s} {path.relative_to(ROOT)}")
    for name, n in sorted(sums.items(), key=lambda item: -item[1]):
        print(f"{n:6d}  {name}")


if __name__ == "__main__":
    main()
