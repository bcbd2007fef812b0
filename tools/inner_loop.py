"""What share of a kernel's inner loop are tensor instructions: counted in its code, not while it runs.

In machine code where NVIDIA's nvdisasm is on PATH (the wheel nvidia-cuda-nvdisasm has it), else in PTX, which
the assembler still rearranges. The inner loop: of the loops with the most tensor instructions the shortest;
loops within it count once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from minicnn import kernels
from minicnn.device import nvcc

TENSOR = re.compile(r"^(?:HMMA|IMMA|HGMMA|UTCHMMA|mma\.sync)\b")
LABEL = re.compile(r"^\s*(\.L_x_\d+|\$L__BB\d+_\d+):")
MACHINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(?P<word>[A-Z][\w.]*)(?P<rest>[^;]*);")
PTX = re.compile(r"^\s+(?:@!?%p\d+ )?(?P<word>[a-z][\w.:]*)(?P<rest>[^;]*);")
TARGET = re.compile(r"\.L_x_\d+|\$L__BB\d+_\d+")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Instructions of one turn, and those of them that are products of a whole warp."""

    instructions: int
    tensor: int

    def __str__(self) -> str:
        return f"{self.tensor} of {self.instructions:,}, {self.tensor / self.instructions:.0%}"


def inner_loop(code: str, is_ptx: bool) -> Loop | None:
    """None: no loop has a tensor instruction."""
    instruction = PTX if is_ptx else MACHINE
    labels: dict[str, int] = {}
    words: list[str] = []
    loops: list[Loop] = []
    for line in code.splitlines():
        label = LABEL.match(line)
        if label:
            labels[label[1]] = len(words)
            continue
        found = instruction.match(line)
        if found is None:
            continue
        words.append(found["word"])
        target = TARGET.search(found["rest"])
        if found["word"].lower().startswith("bra") and target and target[0] in labels:
            body = words[labels[target[0]] :]
            loops.append(Loop(instructions=len(body), tensor=sum(bool(TENSOR.match(word)) for word in body)))
    best = max(loops, key=lambda loop: (loop.tensor, -loop.instructions), default=None)
    return best if best is not None and best.tensor else None


def disassembler() -> str:
    """The program, or "" where it isn't on PATH."""
    return shutil.which("nvdisasm") or ""


def of_kernel(compiler: nvcc.Nvcc, file: str, defines: nvcc.Defines, target: str) -> Loop | None:
    """Raises    BuildError, CalledProcessError: it doesn't compile"""
    program = disassembler()
    if not program:
        architecture = compiler.architecture_for(int(target.rstrip("af")))
        text = nvcc.compile_ptx(compiler, file, defines, architecture, line_info=False)
        return inner_loop(text.decode(), True)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        command = [compiler.path, "-cubin", f"-arch=sm_{target}", "-std=c++17"]
        command += [f"-I{kernels.source_folder()}"]
        command += [f"-D{name}={value}" for name, value in defines]
        subprocess.run([*command, "-o", str(cubin), str(kernels.source_path(file))], check=True)
        code = subprocess.run([program, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    return inner_loop(code, False)
