"""What every kernel takes of a GPU, and how full that leaves its multiprocessors: docs/kernels.md.

    python tools/make_kernel_table.py

Needs nvcc, and no GPU. The blocks and the macros are those of the operators' own cases.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import harness  # noqa: E402
from minicnn.device import nvcc, prebuilt, ptxas  # noqa: E402
from minicnn.occupancy import Occupancy, occupancy  # noqa: E402
from minicnn.step import Extent3, Kernel  # noqa: E402
from tools import inner_loop  # noqa: E402

COMMAND = "python tools/make_kernel_table.py"
FILE = ROOT / "docs" / "kernels.md"
TENSOR_TARGETS = ("80", "89", "90")
INITIALS = {"warps": "W", "blocks": "B", "registers": "R", "shared memory": "S"}
Resources = dict[tuple[str, str], ptxas.Resources]
Launch = tuple[Extent3, int]


def make() -> str:
    """The table with the line that says where it comes from."""
    compiler = nvcc.find()
    if compiler is None:
        raise SystemExit(nvcc.REMEDY)
    launches = harness.launches("cuda")
    modules = sorted({(kernel.file, kernel.defines) for kernel in launches})
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # nvcc is a process of its own
        found = list(pool.map(lambda m: ptxas.resources(compiler, m[0], m[1], targets_of(m[0])), modules))
    taken = dict(zip(modules, found, strict=True))
    kernels = sorted(launches, key=lambda k: (k.file, k.entry, k.defines))
    targets = [f"sm_{target}" for target in ptxas.TARGETS]
    head = ["file and kernel", "macros", "block", "shared", "memory", *targets]
    rows = [row(k, launches[k], taken[k.file, k.defines]) for k in kernels]
    date = datetime.date.today().isoformat()
    count = f"{len(kernels)} kernels in {len(modules)} modules"
    made = f"`{COMMAND}`, on {date}, nvcc {compiler.version}: {count}"
    table = [made, "", line(head), line(["---"] * 3 + ["---:"] * (len(head) - 3)), *map(line, rows)]
    return "\n".join([*table, "", *tensor_table(compiler, kernels)])


def tensor_table(compiler: nvcc.Nvcc, kernels: Iterable[Kernel]) -> list[str]:
    """Products of whole warps among the instructions of the inner loop."""
    wanted = [kernel for kernel in kernels if prebuilt.oldest(kernel.file)]
    jobs = [(kernel.file, kernel.defines, target) for kernel in wanted for target in TENSOR_TARGETS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(jobs, pool.map(lambda job: inner_loop.of_kernel(compiler, *job), jobs), strict=True))
    code = "machine code (nvdisasm)" if inner_loop.disassembler() else "PTX, for want of nvdisasm"
    rows = [
        [name(kernel), macros(kernel), *(str(found[kernel.file, kernel.defines, t]) for t in TENSOR_TARGETS)]
        for kernel in wanted
    ]
    head = ["file and kernel", "macros", *(f"sm_{target}" for target in TENSOR_TARGETS)]
    said = f"Tensor instructions of the inner loop, counted in {code}. `COPY`: of pixels not aligned to 16."
    return [said, "", line(head), line(["---", "---", *("---:" for _ in TENSOR_TARGETS)]), *map(line, rows)]


def name(kernel: Kernel) -> str:
    return f"{Path(kernel.file).stem} `{kernel.entry}`"


def macros(kernel: Kernel) -> str:
    return " ".join(f"{macro}={value}" for macro, value in kernel.defines)


def targets_of(file: str) -> tuple[str, ...]:
    return tuple(t for t in ptxas.TARGETS if ptxas.compute_capability(t) >= prebuilt.oldest(file))


def row(kernel: Kernel, launches: Iterable[Launch], found: Resources) -> list[str]:
    """The largest of the blocks it is launched with stands for all."""
    block, dynamic = max(launches, key=lambda one: (one[0][0] * one[0][1] * one[0][2], one[1]))
    takes = {target: found[kernel.entry, target] for target in targets_of(kernel.file)}
    static = max(one.shared_bytes for one in takes.values())
    stack = max(one.stack_bytes for one in takes.values())
    cells = ["" for target in ptxas.TARGETS if target not in takes]  # older than it needs
    for target, one in takes.items():
        resident = occupancy(
            ptxas.compute_capability(target),
            threads=block[0] * block[1] * block[2],
            registers=one.registers,
            shared_bytes=one.shared_bytes + dynamic,
        )
        cells.append(f"{one.registers} · {short(resident)}" + (" spill" if one.spill_bytes else ""))
    shape = " × ".join(str(extent) for extent in block if extent > 1) or "1"
    shared, memory = (f"{count:,}" if count else "" for count in (static + dynamic, stack))
    return [name(kernel), macros(kernel), shape, shared, memory, *cells]


def short(resident: Occupancy) -> str:
    return f"{resident.ratio:.0%} {''.join(INITIALS[name] for name in resident.limiters)}"


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    text = FILE.read_text()
    part = re.compile(r"(<!-- kernels -->\n).*?(<!-- end -->)", re.DOTALL)
    if not part.search(text):
        raise SystemExit(f"{FILE} has no part between <!-- kernels --> and <!-- end -->")
    FILE.write_text(part.sub(lambda found: f"{found[1]}{make()}\n{found[2]}", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
