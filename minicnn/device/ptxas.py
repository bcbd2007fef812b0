"""What NVIDIA's assembler says of a kernel, for any architecture: registers, shared memory, spills.

Source    the lines that `nvcc -Xptxas -v` prints
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from minicnn import cache, kernels
from minicnn.device import nvcc
from minicnn.errors import BuildError

TARGETS = ("75", "80", "86", "89", "90", "90a", "100", "120")  # what every kernel must compile for
FORMAT = 1  # of what is kept; raised when Resources or its reading changes
_KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
_TEXT = re.compile(rb"\.target sm_(\w+).*?(?=\0)", re.DOTALL)  # PTX in a fat binary, ended by a zero
_BODY = re.compile(r"\.entry (\w+)\(.*?^\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_WRITE = re.compile(r"\b(st(?!\.(?:param|local|shared))|red|atom)\b")


def compute_capability(target: str) -> int:
    """90 of "90a"."""
    return int(target.rstrip("af"))


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one kernel takes of a GPU.

    shared_bytes  static, of a block
    stack_bytes   of a thread: arrays that aren't in registers, spills included
    spill_bytes   stored and loaded again because registers ran out
    writes        whether the code can change memory at all: a kernel without is empty, or only a trap
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    writes: bool


def resources(
    compiler: nvcc.Nvcc, file: str, defines: nvcc.Defines, targets: Sequence[str]
) -> dict[tuple[str, str], Resources]:
    """(entry, target) -> what it takes, of every entry of a kernel file. A target is "80" or "90a".

    Kept in the cache: an entry costs the assembler up to a second.
    Raises    BuildError: it doesn't compile, or not without a warning
    """
    folder, stem = cache.folder("ptxas"), Path(file).stem
    keys = {target: nvcc.key(file, defines, f"{target} {compiler.version} {FORMAT}") for target in targets}
    paths = {target: folder / f"{stem}-{key}.json" for target, key in keys.items()}
    missing = [target for target, path in paths.items() if not path.is_file()]
    if missing:
        made = _parse(file, *_compile(compiler, file, defines, missing))
        for target in missing:
            own = {entry: asdict(taken) for (entry, t), taken in made.items() if t == target}
            cache.write_atomically(paths[target], json.dumps(own).encode())
    kept = {target: json.loads(path.read_text()) for target, path in paths.items()}
    return {(e, target): Resources(**taken) for target, own in kept.items() for e, taken in own.items()}


def _parse(file: str, said: str, binary: bytes) -> dict[tuple[str, str], Resources]:
    writers = _writers(binary)
    result = {}
    for part in said.split("Compiling entry function")[1:]:
        kernel = _KERNEL.match("Compiling entry function" + part)
        stack, used = _STACK.search(part), _USED.search(part)
        if kernel is None or stack is None or used is None:
            raise BuildError("nvcc reports what a kernel takes in other words", file=file, found=part[:300])
        result[kernel[1], kernel[2]] = Resources(
            registers=int(used[1]),
            shared_bytes=int(used[2] or 0),
            stack_bytes=int(stack[1]),
            spill_bytes=int(stack[2]) + int(stack[3]),
            writes=(kernel[1], kernel[2]) in writers,
        )
    return result


def _compile(
    compiler: nvcc.Nvcc, file: str, defines: nvcc.Defines, targets: Sequence[str]
) -> tuple[str, bytes]:
    """What the assembler says, and the fat binary of machine code and PTX for each target."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernel.fatbin"
        command = [compiler.path, "-fatbin", "--no-compress", "-std=c++17", f"-I{kernels.source_folder()}"]
        # 186, "unsigned below zero": kernels are built for one element type after the other.
        command += ["-Werror", "all-warnings", "-diag-suppress", "186", "-Xptxas", "-v"]
        command += [f"-gencode=arch=compute_{t},code=[sm_{t},compute_{t}]" for t in targets]
        command += [f"-D{name}={value}" for name, value in defines]
        command += ["-o", str(output), str(kernels.source_path(file))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ptxas info" not in line]
            raise BuildError("the kernel doesn't compile", file=file, found="\n".join(lines[:8]))
        return done.stderr + done.stdout, output.read_bytes()


def _writers(binary: bytes) -> set[tuple[str, str]]:
    """(entry, target) of the kernels whose PTX stores to memory, itself or in a function that it calls."""
    found = set()
    for text in _TEXT.finditer(binary):
        target, code = text[1].decode(), text[0].decode()
        bodies = dict(_BODY.findall(code))
        functions = code
        for body in bodies.values():
            functions = functions.replace(body, "")
        for entry, body in bodies.items():
            reached = body + functions if "call" in body else body
            if _WRITE.search(reached):
                found.add((entry, target))
    return found
