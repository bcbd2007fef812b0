"""Together, an operator's cases tell a launch's arguments apart: none could be left out or taken for another.

And every loop of a kernel runs, every check of an end is needed.
What no case can show is listed with the reason; so is what other tests show.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from functools import cache

import harness
from minicnn import kernels
from minicnn.ops.conv_depthwise import QUAD
from minicnn.step import Launch
from minicnn.tiling import VECTOR

SPLITS = ("y_first", "z_first")  # of grids beyond CUDA's limit: tests/test_kernels.py
# A kernel's body, an index that it makes of its block and thread, the refusal of threads beyond the end
BODY = re.compile(r"^KERNEL\((\w+)\)\s*\([^)]*\)\s*\{(.*?)^\}", re.MULTILINE | re.DOTALL)
INDEX = re.compile(r"\bint (\w+) = ([^;]*blockIdx\.([xy])[^;]*threadIdx\.\3[^;]*);")
LEAVES = re.compile(r"if \(([^;{}]*?)\) return;")
# Files whose entries have one body, by a macro: what one of them shows holds for all.
SHARED_BODY = ("broadcast.cu", "compare.cu")
_ONE_AXIS = "x and y lie the same way: what is before the axis, behind it, and channels (NHWC)"
WALK = """int i = blockIdx.x * blockDim.x + threadIdx.x; int j = blockIdx.y * blockDim.y + threadIdx.y;
if (i >= E0 || j >= E1) return;"""  # what the macro makes
# (file, entry): the loops that memory makes at most, of four, with the reason
FEWER_LOOPS = {
    ("cumsum.cu", "cumsum"): (3, _ONE_AXIS),
    ("lpnormalization.cu", "lpnormalization"): (3, _ONE_AXIS),
    ("softmax.cu", "softmax"): (3, _ONE_AXIS),
    ("softmax.cu", "softmax_warp"): (3, _ONE_AXIS),
    ("softmax.cu", "logsoftmax"): (3, _ONE_AXIS),
    ("softmax.cu", "logsoftmax_warp"): (3, _ONE_AXIS),
    ("softmax.cu", "hardmax"): (3, _ONE_AXIS),
    ("reduce.cu", "argreduce_vectors"): (3, _ONE_AXIS),
    ("gather.cu", "gather"): (3, "what is before the axis, the indices, what is behind it"),
    ("pad.cu", "pad"): (2, "one tensor's memory: images or pixels, and what is dense in them"),
}
_DENSE = "x and y lie the same way, whose innermost loop is dense"
_MERGED = "with a scale along the outermost axis all others merge into fewer loops"
# (file, entry, argument or two of them): why no case makes them differ
NOT_BY_CASES = {
    ("normalization.cu", "row_statistics", "CHUNK"): "what the workspace was made for",
    ("gather.cu", "gather", "n2"): "the third loop is over what is before the axis: indices stay the same",
    ("gather.cu", "gather", "y0"): "y is dense, its innermost loop the last axis",
    ("im2col.cu", "im2col", "first_row"): "0 in a first slab; others: test_conv.py",
    ("strided_copy.cu", "copy_bytes", "y0"): "the innermost loop is over the bytes of an element",
    ("quantizelinear.cu", "quantizelinear", "x0"): _DENSE,
    ("quantizelinear.cu", "quantizelinear", "y0"): _DENSE,
    ("quantizelinear.cu", "quantizelinear", "x0", "y0"): _DENSE,
    ("quantizelinear.cu", "quantizelinear", "s3"): _MERGED,
    ("quantizelinear.cu", "dequantizelinear", "x0"): _DENSE,
    ("quantizelinear.cu", "dequantizelinear", "y0"): _DENSE,
    ("quantizelinear.cu", "dequantizelinear", "x0", "y0"): _DENSE,
    ("quantizelinear.cu", "dequantizelinear", "s3"): _MERGED,
    ("conv_winograd.cu", "conv_winograd", "blocks", "blocks_together"): "where threads share: test_conv.py",
}
Kernel = tuple[str, str]  # file, entry ("": all of them)


@cache
def launches() -> dict[Kernel, list[Launch]]:
    """Those of all cases."""
    found = defaultdict(list)
    for launch in (*harness.every_launch("host"), *harness.every_launch("cuda")):
        file, entry = launch.kernel.file, launch.kernel.entry
        found[file, "" if file in SHARED_BODY else entry].append(launch)
    return found


def integers(launch: Launch) -> dict[str, int]:
    return {
        name: value
        for (name, value), code in zip(launch.arguments, launch.format, strict=True)
        if code == "i" and isinstance(value, int) and name not in SPLITS
    }


def loops_of(kernel: Kernel) -> int:
    return FEWER_LOOPS.get(kernel, (4, ""))[0]


def excused(kernel: Kernel, *names: str) -> bool:
    loops = loops_of(kernel)
    is_of_no_loop = any(name[1:].isdigit() and int(name[1:]) >= loops for name in names)
    return is_of_no_loop or (*kernel, *names) in NOT_BY_CASES


def test_cases_tell_arguments_apart() -> None:
    faults = []
    for kernel, every in launches().items():
        found = [integers(launch) for launch in every]
        for name in found[0]:
            if not excused(kernel, name) and len({one.get(name) for one in found}) == 1:
                faults.append(f"{kernel}: {name} is {found[0][name]} in all cases")
        for a, b in itertools.combinations(found[0], 2):
            if not excused(kernel, a, b) and all(one.get(a) == one.get(b) for one in found):
                faults.append(f"{kernel}: {a} is {b} in all cases")
    assert not faults, "\n".join(faults)


def test_cases_run_every_loop() -> None:
    faults = []
    for kernel, every in launches().items():
        found = [(integers(launch), launch.grid, launch.block) for launch in every]
        if not found[0][0].keys() >= {"E0", "E1", "E2"}:
            continue  # no walk of minicnn/strided.py
        steps = {1: "E1", 2: "E2"}
        for axis in range(1, min(loops_of(kernel), 3)):
            if all(one[steps[axis]] == 1 for one, _, _ in found):
                faults.append(f"{kernel}: {steps[axis]} is 1 in all cases")
        if loops_of(kernel) == 4 and all(grid[2] == one["E2"] for one, grid, _ in found):
            faults.append(f"{kernel}: the fourth loop is of one step in all cases")
    assert not faults, "\n".join(faults)


def beyond(launch: Launch, axis: str, index: str, limit: str) -> bool:
    """Whether a thread's index passes the limit. `index`: how the kernel makes it."""
    elements = VECTOR if "* VECTOR" in index else 1
    elements *= QUAD if "* QUAD" in index else 1
    if "* PIXELS" in index:
        elements *= int(dict(launch.kernel.defines)["PIXELS"])
    threads = launch.grid["xyz".index(axis)] * launch.block["xyz".index(axis)]
    return threads * elements > integers(launch)[limit]


def test_cases_end_within_a_block() -> None:
    """Else the check that keeps threads beyond the end from writing is never needed."""
    faults, seen = [], 0
    for (file, entry), every in launches().items():
        text = re.sub(r"//[^\n]*", "", kernels.source_path(file).read_text())
        body = WALK if file in SHARED_BODY else dict(BODY.findall(text)).get(entry, "")
        indices = {name: (axis, index) for name, index, axis in INDEX.findall(body)}
        for name, limit in re.findall(r"(\w+) >= (\w+)", " ".join(LEAVES.findall(body))):
            if name in indices and limit in integers(every[0]):
                seen += 1
                if not any(beyond(launch, *indices[name], limit) for launch in every):
                    faults.append(f"{file}, {entry}: {name} is below {limit} in all cases")
    assert not faults, "\n".join(faults)
    assert seen > 80, "kernels are written in another way than this test reads"


def test_what_is_excused_is_there() -> None:
    for file, entry, *names in NOT_BY_CASES:
        assert set(names) <= integers(launches()[file, entry][0]).keys(), (file, entry, names)
    assert FEWER_LOOPS.keys() <= launches().keys()
