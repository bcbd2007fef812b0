"""Launches of the kernels in host_kernels/: right ones with numpy's results, and planted faults.

As a program it runs them in a checked build, for sanitizers must be there before Python starts:
`python tests/host_cases.py address beyond_shared`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from minicnn import kernels
from minicnn.device.host import HostDevice
from minicnn.device.host_build import Check
from minicnn.step import Kernel, View

KERNELS = Path(__file__).parent / "host_kernels"
# For Python programs of the tests: they find the same minicnn, and this module.
PATHS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), str(Path(__file__).parent)])}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch: its arrays by parameter name, and what the outputs must then be (None: not known)."""

    file: str = "good.cu"
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray]  # contents before
    expected: dict[str, np.ndarray] | None = None
    scalars: dict[str, int | float] = field(default_factory=dict)
    shared_bytes: int = 0
    tolerance: float = 0.0


def randoms(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _shuffles() -> Case:
    x = randoms(64) * 4
    warps, lane = x.reshape(2, 32), np.arange(32)
    ballot = ((warps > 0) * 2 ** np.arange(32)).sum(axis=1) // 2**16
    tree = warps.copy()
    for distance in (16, 8, 4, 2, 1):
        tree[:, :distance] += tree[:, distance : 2 * distance]
    votes = (warps > 2).any(axis=1) * 2 + (warps > -9).all(axis=1)
    rows = [
        warps[:, lane * 0 + 5],
        warps[:, lane ^ 3],
        warps[:, np.where(lane + 4 < 32, lane + 4, lane)],
        warps[:, np.where(lane >= 2, lane - 2, lane)],
        warps[:, np.where(lane % 16 + 4 < 16, lane + 4, lane)],
        warps[:, lane // 8 * 8 + 3],
        *(
            np.repeat(np.reshape(v, (2, 1)), 32, axis=1)
            for v in (ballot, tree[:, 0], warps.max(axis=1), votes)
        ),
    ]
    expected = np.stack(rows).reshape(10, 64).astype(np.float32)
    return Case(
        grid=(1, 1, 1),
        block=(64, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(10, 64)},
        expected={"y": expected},
    )


def _uneven_lanes() -> Case:
    x = randoms(96)
    v = x.reshape(3, 32).copy()
    v[:, :16] += x.reshape(3, 32)[:, np.arange(16) ^ 1]
    v += v[:, np.arange(32) ^ 16]
    return Case(
        grid=(1, 1, 1),
        block=(96, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(96)},
        expected={"y": v.reshape(96)},
    )


def _histogram() -> Case:
    x = np.random.default_rng(3).integers(0, 1000, 5001, dtype=np.int32)
    counts = np.bincount(x % 8, minlength=8).astype(np.int32)
    return Case(
        grid=(20, 1, 1),
        block=(256, 1, 1),
        inputs={"x": x},
        outputs={"counts": np.zeros(8, np.int32), "largest": np.zeros(1, np.int32)},
        expected={"counts": counts, "largest": x.max(keepdims=True)},
        scalars={"n": 5001},
    )


def _vectors(width: int) -> Case:
    x = randoms(960)
    x[5] = np.nan
    wide = x.astype(np.float64)
    expected = np.stack(
        [
            np.where(2 * wide + 1 < 0, 0, 2 * wide + 1),
            np.maximum(wide, 0),
            np.minimum(wide, 0) / (wide * wide + 1) - (wide * wide + wide),
        ]
    )
    return Case(
        grid=(-(-960 // width // 32), 1, 1),
        block=(32, 1, 1),
        inputs={"x": x},
        outputs={"y": zeros(3, 960)},
        expected={"y": expected},
        scalars={"n": 960},
        tolerance=4e-7,
    )


def _matmul() -> Case:
    a, b = randoms(48, 48), randoms(48, 48)[::-1].copy()
    expected = a.astype(np.float64) @ b
    arrays = {"A": a, "B": b}
    return Case(
        grid=(3, 3, 1),
        block=(16, 16, 1),
        inputs=arrays,
        outputs={"C": zeros(48, 48)},
        expected={"C": expected},
        scalars={"n": 48},
        tolerance=4e-6,
    )


def _scale() -> Case:
    x, expected = randoms(1000), np.full(3005, 7, np.float32)
    expected[5:3005:3] = np.float32(0.1) * x + np.float32(0.25)
    scalars = {"n": 1000, "step": 3, "offset": 5, "a": 0.1, "b": 0.25}
    y = np.full(3005, 7, np.float32)
    return Case(
        grid=(4, 1, 1),
        block=(256, 1, 1),
        inputs={"x": x},
        outputs={"y": y},
        expected={"y": expected},
        scalars=scalars,
        tolerance=1e-7,
    )


def _where() -> Case:
    z, y, x = np.ogrid[:6, :7, :37]
    expected = (z * 10000 + y * 100 + x).astype(np.int32)
    outputs = {"y": np.zeros((6, 7, 37), np.int32)}
    return Case(
        grid=(5, 3, 3),
        block=(8, 3, 2),
        outputs=outputs,
        expected={"y": expected},
        scalars={"ny": 7, "nx": 37},
    )


def _by_blocks(x: np.ndarray, threads: int) -> np.ndarray:
    return x.reshape(-1, threads)[:, ::-1].reshape(-1)


X = randoms(4096)
GOOD: dict[str, Callable[[], Case]] = {
    "scale": _scale,
    "where": _where,
    "reverse": lambda: Case(
        grid=(4, 1, 1), block=(1024, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": _by_blocks(X, 1024)},
    ),
    "reverse_dynamic": lambda: Case(
        grid=(64, 1, 1), block=(64, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": _by_blocks(X, 64)}, scalars={"times": 3}, shared_bytes=256,
    ),
    "matmul": _matmul,
    "shuffles": _shuffles,
    "uneven_lanes": _uneven_lanes,
    "warp_tree": lambda: Case(
        grid=(1, 1, 1), block=(32, 1, 1), inputs={"x": X[:32]}, outputs={"y": zeros(1)},
        expected={"y": X[:32].sum(dtype=np.float64, keepdims=True)}, tolerance=1e-6,
    ),
    "histogram": _histogram,
    "vectors_4": lambda: _vectors(4),
    "vectors_8": lambda: _vectors(8),
    "vectors_16": lambda: _vectors(16),
    "vectors_32": lambda: _vectors(32),
    "mirror": lambda: Case(
        file="scoped.cu", grid=(16, 1, 1), block=(256, 1, 1), inputs={"x": X}, outputs={"y": zeros(4096)},
        expected={"y": 2 * _by_blocks(X, 256)},
    ),
}  # fmt: skip


def _fault(
    threads: int | tuple[int, int, int], outputs: dict[str, np.ndarray], blocks: int = 1, **rest
) -> Case:
    block = threads if isinstance(threads, tuple) else (threads, 1, 1)
    grid = rest.pop("grid", (blocks, 1, 1))
    return Case(file="faults.cu", grid=grid, block=block, outputs=outputs, **rest)


_SQUARES = {"A": X.reshape(64, 64), "B": X.reshape(64, 64)}
FAULTS: dict[str, Case] = {
    "beyond_global": _fault(256, {"y": zeros(1000)}, 4, inputs={"x": X[:1000]}, scalars={"n": 2}),
    "beyond_shared": _fault(32, {"y": zeros(32)}),
    "beyond_dynamic": _fault(32, {"y": zeros(32)}, scalars={"n": 32}, shared_bytes=128),
    "beyond_row": _fault(255, {"y": zeros(255)}),
    "misaligned": _fault(32, {"y": zeros(32)}, inputs={"x": X}),
    "misaligned_vector": _fault(32, {"y": zeros(32)}, inputs={"x": X}),
    "missing_barrier": _fault(256, {"y": zeros(256)}, inputs={"x": X}),
    "missing_second_barrier": _fault(
        (16, 16, 1), {"C": zeros(64, 64)}, grid=(4, 4, 1), inputs=_SQUARES, scalars={"n": 64}
    ),
    "missing_warp_barrier": _fault(64, {"y": zeros(1)}, inputs={"x": X}),
    "divergent": _fault(64, {"y": zeros(64)}),
    "two_barriers": _fault(64, {"y": zeros(64)}),
    "deadlock": _fault(32, {"y": zeros(32)}),
    "race": _fault(64, {"y": zeros(1)}, 4, inputs={"x": X}, scalars={"n": 256}),
    "race_of_blocks": _fault(32, {"y": zeros(1)}, 4),
    "unwritten": _fault(64, {"y": zeros(64)}),
    "unwritten_dynamic": _fault(32, {"y": zeros(32)}, shared_bytes=128),
}


def run(device: HostDevice, entry: str, case: Case) -> dict[str, np.ndarray]:
    """Launches the case, every array in device memory of its own, to the byte; returns the outputs."""
    arrays = case.inputs | case.outputs
    pointers = {name: device.alloc(array.nbytes) for name, array in arrays.items()}
    for name, array in arrays.items():
        device.upload(pointers[name], array)
    views = {name: View(tensor=name) for name in arrays}
    kernel = Kernel(file=str(KERNELS / case.file), entry=entry)
    launches = kernels.launch(
        kernel, grid=case.grid, block=case.block, shared_bytes=case.shared_bytes, **views, **case.scalars
    )
    for launch in launches:
        device.launch(launch, lambda view: pointers[view.tensor] + view.byte_offset)()
    outputs = {name: np.empty_like(array) for name, array in case.outputs.items()}
    for name, array in outputs.items():
        device.download(pointers[name], array)
    for pointer in pointers.values():
        device.free(pointer)
    return outputs


def assert_right(case: Case, outputs: dict[str, np.ndarray]) -> None:
    assert case.expected is not None
    for name, expected in case.expected.items():
        np.testing.assert_allclose(
            outputs[name], expected, rtol=0, atol=case.tolerance, equal_nan=True, err_msg=name
        )


if __name__ == "__main__":
    checked = HostDevice(check=Check(sanitize=sys.argv[1]))
    for name in sys.argv[2:]:
        case = GOOD[name]() if name in GOOD else FAULTS[name]
        outputs = run(checked, name, case)
        if name in GOOD:
            assert_right(case, outputs)
        print(name, flush=True)
