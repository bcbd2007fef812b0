"""The compile matrix: every kernel, with every set of macros that operators give it, for every architecture.

`launches` (harness.py) tells the macros and the blocks, from the operators' own cases.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import harness
from minicnn import kernels
from minicnn.device import nvcc, prebuilt, ptxas
from minicnn.errors import BuildError
from minicnn.occupancy import LIMITS, Occupancy, occupancy
from minicnn.step import Extent3, Kernel

QUICK = ("75", "90")
MANY_FORMS = 8  # of one file: they needn't be compiled for what is another target to the register
TWINS = {"86": "89", "90a": "90"}  # compiled alike as far as kernels use no instruction of 90a's own
OTHERS = tuple(target for target in ptxas.TARGETS if target not in QUICK)
# (file, entry): why it may keep registers in memory
SPILLS: dict[tuple[str, str], str] = {}
MEASURING = {"calibrate.cu"}  # what no operator runs: kernels that measure the device
EMPTY = {("calibrate.cu", "null_kernel")}  # on purpose
FILES = sorted(path.name for path in kernels.source_folder().glob("*.cu"))

COMPILER = nvcc.find()
needs_nvcc = pytest.mark.skipif(COMPILER is None, reason=nvcc.REMEDY)


@cache
def launches(kind: str = "cuda") -> dict[Kernel, set[tuple[Extent3, int]]]:
    return harness.launches(kind)


def host_only() -> set[str]:
    """Kernel files that no variant made for a GPU uses: one architecture will do, and they may spill."""
    return {kernel.file for kernel in launches("host")} - {kernel.file for kernel in launches()}


def check(file: str, targets: tuple[str, ...]) -> None:
    assert COMPILER is not None
    if file in host_only():
        targets = targets[:1]
    used = {kernel.defines for kernel in launches() if kernel.file == file}
    targets = tuple(t for t in targets if ptxas.compute_capability(t) >= prebuilt.oldest(file))
    if len(used) > MANY_FORMS:
        targets = tuple(t for t in targets if t not in TWINS)
    for defines in sorted(used) or [()]:
        found = ptxas.resources(COMPILER, file, defines, targets)
        assert set(found) == {(entry, target) for entry in kernels.entries(file) for target in targets}
        for (entry, target), taken in found.items():
            where = f"{file} {entry} {dict(defines)} sm_{target}: {taken}"
            assert taken.writes or (file, entry) in EMPTY, f"an empty kernel or a trap; {where}"
            may_spill = (file, entry) in SPILLS or file in host_only()
            assert may_spill or not taken.spill_bytes, f"a spill; {where}"
            for block, shared_bytes in launches().get(Kernel(file=file, entry=entry, defines=defines), ()):
                threads = block[0] * block[1] * block[2]
                resident = occupancy(
                    ptxas.compute_capability(target),
                    threads=threads,
                    registers=taken.registers,
                    shared_bytes=taken.shared_bytes + shared_bytes,
                )
                assert resident.blocks > 0, f"a launch that can't be, {block}, {shared_bytes} B; {where}"


@needs_nvcc
@pytest.mark.parametrize("file", FILES)
def test_kernels_compile(file: str) -> None:
    check(file, QUICK)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_kernels_compile_for_all_others(file: str) -> None:
    check(file, OTHERS)


def test_every_kernel_has_a_case() -> None:
    """On the GPU, but for the files that are the host's alone."""
    run = {(k.file, k.entry) for k in (*launches(), *(k for k in launches("host") if k.file in host_only()))}
    files = set(FILES) - MEASURING
    assert not [(f, e) for f in files for e in kernels.entries(f) if (f, e) not in run]


BAD = """#include "kernel.cuh"
KERNEL(trap)(float* x) { asm("trap;"); }
KERNEL(empty)(const float* x) { volatile float kept = x[0]; }
KERNEL(good)(const float* x, float* y, int n) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[0] = tile[n];
}
KERNEL(array)(const float* x, float* y, int n) {
    float kept[100];
    for (int i = 0; i < 100; ++i) kept[i] = x[i] * x[n];
    y[0] = kept[n];
}
__global__ void __launch_bounds__(1024, 2) crowded(const float* x, float* y) {
    float kept[64];
    UNROLL(64) for (int i = 0; i < 64; ++i) kept[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    UNROLL(64) for (int i = 0; i < 64; ++i) y[i * 1024 + threadIdx.x] = kept[i] * kept[63 - i];
}
"""


@needs_nvcc
def test_what_the_assembler_says_is_understood(tmp_path: Path) -> None:
    assert COMPILER is not None
    path = tmp_path / "bad.cu"
    path.write_text(BAD)
    found = ptxas.resources(COMPILER, str(path), (), ("80", "90a"))
    by_name = {entry.rstrip("PKf").lstrip("_Z0123456789"): found[entry, "80"] for entry, _ in found}
    assert {name: taken.writes for name, taken in by_name.items()} == {
        "trap": False, "empty": False, "good": True, "array": True, "crowded": True
    }  # fmt: skip
    assert by_name["good"].shared_bytes == 256 and by_name["good"].registers < 32
    assert by_name["array"].stack_bytes == 400 and by_name["array"].spill_bytes == 0
    assert by_name["crowded"].spill_bytes > 0 and by_name["crowded"].registers == 32
    path.write_text('#include "kernel.cuh"\nKERNEL(f)(float* x) { int unused; x[0] = 1; }\n')
    with pytest.raises(BuildError, match="never referenced"):
        ptxas.resources(COMPILER, str(path), (), ("80",))


# What NVIDIA's calculator spreadsheet shows for these, or follows by hand from the guide's table.
@pytest.mark.parametrize(
    "architecture, threads, registers, shared_bytes, blocks, limiters",
    [
        (80, 256, 32, 0, 8, ("warps", "registers")),
        (80, 256, 33, 0, 6, ("registers",)),  # 40 once rounded up: 12 warps in each partition
        (80, 32, 16, 0, 32, ("blocks",)),
        (80, 128, 16, 163 << 10, 1, ("shared memory",)),
        (80, 128, 16, (163 << 10) + 1, 0, ("shared memory",)),
        (75, 128, 16, 16 << 10, 4, ("shared memory",)),
        (75, 64, 16, 0, 16, ("warps", "blocks")),
        (90, 128, 16, 16 << 10, 13, ("shared memory",)),  # 17 KB with what the driver keeps
        (89, 1024, 64, 0, 1, ("warps", "registers")),
        (89, 1024, 65, 0, 0, ("registers",)),
        (120, 64, 255, 0, 4, ("registers",)),
        (120, 2048, 16, 0, 0, ("warps",)),
    ],
)
def test_occupancy(
    architecture: int, threads: int, registers: int, shared_bytes: int, blocks: int, limiters: tuple[str, ...]
) -> None:
    found = occupancy(architecture, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert (found.blocks, found.limiters) == (blocks, limiters)


def test_occupancy_prints_itself() -> None:
    found = Occupancy(blocks=6, warps=48, warps_possible=64, limiters=("registers",))
    assert str(found) == "75%, 6 blocks, limited by registers"


CALCULATOR = """#include <cuda_occupancy.h>
#include <cstdio>
int main() {
    int major, minor, warps, threads, registers, shared, shared_sm, reserved;
    while (scanf("%d %d %d %d %d %d %d %d", &major, &minor, &warps, &shared_sm, &reserved, &threads,
                 &registers, &shared) == 8) {
        cudaOccDeviceProp device;
        device.computeMajor = major, device.computeMinor = minor, device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = 32 * warps, device.warpSize = 32, device.numSms = 1;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.sharedMemPerBlock = 49152, device.sharedMemPerMultiprocessor = shared_sm;
        device.sharedMemPerBlockOptin = shared_sm - reserved, device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF, kernel.numBlockBarriers = 1;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = shared;
        cudaOccDeviceState state;
        cudaOccResult found;
        bool is_known =
            !cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &kernel, &state, threads, shared);
        printf("%d\\n", is_known ? found.activeBlocksPerMultiprocessor : -1);
    }
}
"""


@needs_nvcc
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ isn't on PATH")
def test_occupancy_agrees_with_nvidias_calculator(tmp_path: Path) -> None:
    """On random launches, where the toolkit has the header."""
    from simgpu import build

    include = build.cuda_include()
    if not (include / "cuda_occupancy.h").is_file():
        pytest.skip("this toolkit has no cuda_occupancy.h")
    (tmp_path / "calculator.cpp").write_text(CALCULATOR)
    program = tmp_path / "calculator"
    subprocess.run(["g++", f"-I{include}", str(tmp_path / "calculator.cpp"), "-o", str(program)], check=True)
    number = random.Random(0).randint
    asked = [
        (architecture, number(1, 1024), number(16, 255), max(0, number(-233_000, 233_000)))
        for architecture in LIMITS
        for _ in range(2000)
    ]
    lines = []
    for a, t, r, s in asked:
        known = LIMITS[a]
        sm = f"{a // 10} {a % 10} {known.warps} {known.shared_bytes} {known.shared_reserved}"
        lines.append(f"{sm} {t} {r} {s}")
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, check=True)
    for line, (a, t, r, s) in zip(done.stdout.split(), asked, strict=True):
        found = occupancy(a, threads=t, registers=r, shared_bytes=s)
        assert found.blocks == int(line), (a, t, r, s, found)
