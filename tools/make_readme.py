"""Fills the README's generated parts: what a command prints, and the count of code lines.

    python tools/make_readme.py            rewrites README.md in place

A part stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import datetime
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.count_lines import core_lines, parts

ROOT = Path(__file__).parent.parent
COMMAND = "python -m minicnn infer models/efficientnet_lite0.onnx --image models/cat.jpg --device host"
SHOWN_LAYERS = 8


def fill(text: str, name: str, content: str) -> str:
    """`text` with the part `name` replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"README.md has no part {name}")
    return pattern.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def output() -> str:
    """The main job's real output, its table cut after the first layers."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "efficientnet_lite0.h5"
        command = [sys.executable, *COMMAND.split()[1:], "--record", str(record)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.replace(str(record), "efficientnet_lite0.h5").splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("─"))
    end = lines.index("", rule)
    omitted = end - rule - 1 - SHOWN_LAYERS
    shown = [*lines[: rule + 1 + SHOWN_LAYERS], f"... {omitted} more layers", *lines[end:]]
    date = datetime.date.today().isoformat()
    return (
        f"`{COMMAND}`, on {date}, Python {platform.python_version()}:\n\n```text\n"
        + "\n".join(shown)
        + "\n```"
    )


def sizes() -> str:
    """The code lines of each part, the core's first."""
    others = ", ".join(f"{name} {lines:,}" for name, lines in parts().items() if name != "core")
    return (
        f"The core has {core_lines():,} code lines (comments and docstrings free); counted apart: {others}."
    )


def main() -> None:
    path = ROOT / "README.md"
    text = fill(path.read_text(), "size", sizes())
    if "--sizes" not in sys.argv:
        text = fill(text, "output", output())
    path.write_text(text)


if __name__ == "__main__":
    main()
