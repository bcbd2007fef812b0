"""The ladder of cuda/ladder: convolution in nine rungs and depthwise convolution in four, one idea each.

    python tools/ladder.py [--device sim|host|cuda] [--write docs/ladder.md]

Checks every rung against its definition in float64, then prints what the device at hand can say: times and
rates where there is a clock; on the simulated GPU instructions, memory transactions and bank conflicts. What
a kernel takes of a GPU comes from NVIDIA's assembler, where nvcc is.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from minicnn import kernels, stats  # noqa: E402
from minicnn.device import nvcc, open_device, ptxas  # noqa: E402
from minicnn.device.base import Device  # noqa: E402
from minicnn.device.sim import SimDevice  # noqa: E402
from minicnn.geometry import ceil_div  # noqa: E402
from minicnn.occupancy import occupancy  # noqa: E402
from minicnn.step import Extent3, Kernel, Launch, View  # noqa: E402
from tools.make_readme import fill  # noqa: E402

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11}
TARGET = "90"  # of the column that says what a kernel takes
RUNS = 30
GPU_WARP = 32


@dataclass(frozen=True, kw_only=True)
class Size:
    """A convolution of stride 1 in ONNX's letters. Depthwise: K is C."""

    N: int = 1
    C: int
    H: int
    W: int
    K: int
    R: int = 3
    S: int = 3
    pad: int = 1

    @property
    def P(self) -> int:
        return self.H + 2 * self.pad - self.R + 1

    @property
    def Q(self) -> int:
        return self.W + 2 * self.pad - self.S + 1

    @property
    def pixels(self) -> int:
        return self.N * self.P * self.Q

    def arguments(self, *names: str) -> dict[str, int]:
        return {name: getattr(self, name) for name in names}


CONV = Size(C=32, H=28, W=28, K=64)  # of the table: a layer as in ResNet's middle, small enough to simulate
DEPTHWISE = Size(C=64, H=28, W=28, K=64)
# Tails in every tile; several images; no pads and a filter that isn't square; one pixel.
CHECKED = (
    Size(C=12, H=19, W=21, K=36),
    Size(N=2, C=20, H=7, W=9, K=8, R=5, S=2, pad=2),
    Size(C=4, H=5, W=37, K=68, R=1, S=7, pad=0),
    Size(N=3, C=32, H=1, W=1, K=4),
)
Steps = Callable[[Size], Sequence[Launch]]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One kernel file: what is new in it, and what that was expected to do. `steps` launches it."""

    file: str
    idea: str
    expected: str
    steps: Steps
    channels_last: bool = False
    is_depthwise: bool = False
    precision: str = "fp32"

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def size(self) -> Size:
        return DEPTHWISE if self.is_depthwise else CONV


def _launch(file: str, entry: str, grid: Extent3, block: Extent3, **numbers: int) -> Sequence[Launch]:
    """Tensors go by the kernel's own parameter names."""
    parameters = kernels.entries(f"ladder/{file}")[entry]
    arguments: dict[str, View | int] = {p.name: View(tensor=p.name) for p in parameters if p.code == "P"}
    arguments |= numbers
    kernel = Kernel(file=f"ladder/{file}", entry=entry)
    return kernels.launch(kernel, grid=grid, block=block, **arguments)  # type: ignore[arg-type]


def _conv(name: str, grid: Callable[[Size], Extent3], block: Extent3) -> Steps:
    letters = ("N", "C", "H", "W", "K", "R", "S", "P", "Q", "pad")
    return lambda o: _launch(f"{name}.cu", name, grid(o), block, **o.arguments(*letters))


def _depthwise(name: str, grid: Callable[[Size], Extent3], block: Extent3) -> Steps:
    letters = ("N", "C", "H", "W", "R", "S", "P", "Q", "pad")
    return lambda o: _launch(f"{name}.cu", name, grid(o), block, **o.arguments(*letters))


def _im2col(o: Size) -> Sequence[Launch]:
    unfold = _launch(
        "im2col.cu", "unfold", (ceil_div(o.C, 32), o.R * o.S, o.pixels), (32, 1, 1),
        **o.arguments("C", "H", "W", "R", "S", "P", "Q", "pad"),
    )  # fmt: skip
    grid = (ceil_div(o.K, 16), ceil_div(o.pixels, 16), 1)
    terms = o.R * o.S * o.C
    return (*unfold, *_launch("im2col.cu", "multiply", grid, (16, 16, 1), M=o.pixels, K=o.K, terms=terms))


def _tiles(o: Size) -> Extent3:
    return ceil_div(o.pixels, 64), ceil_div(o.K, 32), 1


def parts_of(o: Size) -> int:
    """Rung 8: so many parts that some 100 blocks run."""
    blocks = _tiles(o)[0] * _tiles(o)[1]
    return max(1, min(100 // blocks, o.R * o.S * o.C // 8))


RUNGS = (
    Rung(
        file="direct.cu",
        idea="one thread an output",
        expected="a warp's filters lie apart: a transaction for every lane",
        steps=_conv("direct", lambda o: (ceil_div(o.K, 64), o.P * o.Q, o.N), (64, 1, 1)),
    ),
    Rung(
        file="coalesced.cu",
        idea="threads along a row of the image",
        expected="transactions fall by an order; as many instructions",
        steps=_conv(
            "coalesced", lambda o: (ceil_div(o.Q, 32), ceil_div(o.P, 4), o.N * o.K), (32, 4, 1)
        ),
    ),
    Rung(
        file="shared_tile.cu",
        idea="the block's part of the image in shared memory",
        expected="x is fetched about once for each filter, not R*S times; barriers are new",
        steps=_conv(
            "shared_tile", lambda o: (ceil_div(o.Q, 16), ceil_div(o.P, 16), o.N * o.K), (16, 16, 1)
        ),
    ),
    Rung(
        file="register_tile.cu",
        idea="eight filters a thread",
        expected="a value from shared memory serves eight products: fewer instructions for each",
        steps=_conv(
            "register_tile",
            lambda o: (ceil_div(o.Q, 16), ceil_div(o.P, 16), o.N * ceil_div(o.K, 8)),
            (16, 16, 1),
        ),
    ),
    Rung(
        file="vectorised.cu",
        idea="channels last, 16 bytes a load, no shared memory",
        expected="16 products for five loads; no barrier left",
        channels_last=True,
        steps=_conv(
            "vectorised", lambda o: (ceil_div(o.K, 64), ceil_div(o.Q, 16), o.N * o.P), (16, 4, 1)
        ),
    ),
    Rung(
        file="im2col.cu",
        idea="windows as a matrix, then a product",
        expected="R*S times the bytes of x written and read; the product itself is like any other",
        channels_last=True,
        steps=_im2col,
    ),
    Rung(
        file="implicit_gemm.cu",
        idea="the matrix is never written; 4x4 outputs a thread",
        expected="the matrix's traffic is gone; index arithmetic is new",
        channels_last=True,
        steps=_conv("implicit_gemm", _tiles, (128, 1, 1)),
    ),
    Rung(
        file="split_k.cu",
        idea="the sum in parts, the last block adds them up",
        expected="more blocks for the same work; parts are written and read once more",
        channels_last=True,
        steps=lambda o: _launch(
            "split_k.cu", "split_k", (*_tiles(o)[:2], parts_of(o)), (128, 1, 1),
            **o.arguments("N", "C", "H", "W", "K", "R", "S", "P", "Q", "pad"),
        ),
    ),
    Rung(
        file="tensor_cores.cu",
        idea="TF32 on tensor cores, cp.async two stages deep",
        expected="a warp's instruction does 1,024 multiply-adds; error of 10-bit factors",
        channels_last=True,
        precision="tf32",
        steps=_conv("tensor_cores", _tiles, (128, 1, 1)),
    ),
    Rung(
        file="depthwise_direct.cu",
        idea="one thread an output of a plane",
        expected="rows of 28 leave lanes of 32 idle",
        is_depthwise=True,
        steps=_depthwise(
            "depthwise_direct", lambda o: (ceil_div(o.Q, 32), ceil_div(o.P, 4), o.N * o.C), (32, 4, 1)
        ),
    ),
    Rung(
        file="depthwise_channels.cu",
        idea="channels last, a warp along them",
        expected="full warps, whole transactions, no divergence at the edges",
        is_depthwise=True,
        channels_last=True,
        steps=_depthwise(
            "depthwise_channels", lambda o: (ceil_div(o.C, 32), ceil_div(o.Q, 4), o.N * o.P), (32, 4, 1)
        ),
    ),
    Rung(
        file="depthwise_strip.cu",
        idea="four outputs of a row a thread",
        expected="half of the loads: windows share what they see, outputs share taps",
        is_depthwise=True,
        channels_last=True,
        steps=_depthwise(
            "depthwise_strip", lambda o: (ceil_div(o.C, 32), ceil_div(o.Q, 16), o.N * o.P), (32, 4, 1)
        ),
    ),
    Rung(
        file="depthwise_vectorised.cu",
        idea="four channels a load, two outputs a thread",
        expected="a quarter of the load instructions for as many bytes",
        is_depthwise=True,
        channels_last=True,
        steps=_depthwise(
            "depthwise_vectorised", lambda o: (ceil_div(o.C, 64), ceil_div(o.Q, 8), o.N * o.P), (16, 4, 1)
        ),
    ),
)


def reference(o: Size, x: np.ndarray, w: np.ndarray, *, is_depthwise: bool) -> np.ndarray:
    """The definition in float64. Shapes    x (N, C, H, W), w (K, C, R, S) or (C, R, S) -> (N, K, P, Q)"""
    image = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (o.pad, o.pad), (o.pad, o.pad)))
    y = np.zeros((o.N, o.K, o.P, o.Q))
    for r in range(o.R):
        for s in range(o.S):
            seen = image[:, :, r : r + o.P, s : s + o.Q]
            if is_depthwise:
                y += seen * w[:, r, s, None, None]
            else:
                y += np.einsum("ncpq,kc->nkpq", seen, w[:, :, r, s].astype(np.float64))
    return y


class Trial:
    """A rung on a device with its tensors, seeded; y starts as NaN."""

    def __init__(self, rung: Rung, o: Size, device: Device):
        if rung.is_depthwise:
            o = Size(**(o.arguments("N", "C", "H", "W", "R", "S", "pad") | {"K": o.C}))
        self.rung, self.o, self.device = rung, o, device
        rng = np.random.default_rng(0)
        self.x = rng.uniform(-1, 1, (o.N, o.C, o.H, o.W)).astype(np.float32)
        shape = (o.C, o.R, o.S) if rung.is_depthwise else (o.K, o.C, o.R, o.S)
        self.w = rng.uniform(-1, 1, shape).astype(np.float32)
        last = rung.channels_last
        filters = np.moveaxis(self.w, 0, -1) if rung.is_depthwise else self.w.transpose(2, 3, 1, 0)
        tensors = {
            "x": self.x.transpose(0, 2, 3, 1) if last else self.x,
            "w": filters if last else self.w,
            "y": np.full(o.pixels * o.K, np.nan, np.float32),
            "columns": np.zeros(o.pixels * o.R * o.S * o.C, np.float32),
            "partial": np.full(parts_of(o) * o.pixels * o.K, np.nan, np.float32),
            "arrived": np.zeros(_tiles(o)[0] * _tiles(o)[1], np.int32),
        }
        steps = rung.steps(o)
        used = {view.tensor for step in steps for view in (*step.reads, *step.writes)}
        device.build(step.kernel for step in steps)
        self.pointers = {}
        for name in used:
            array = np.ascontiguousarray(tensors[name])
            self.pointers[name] = device.alloc(array.nbytes)
            device.upload(self.pointers[name], array)
        self.actions = [device.launch(step, lambda view: self.pointers[view.tensor]) for step in steps]

    def run(self) -> None:
        for action in self.actions:
            action()
        self.device.sync()

    def y(self) -> np.ndarray:
        o = self.o
        last = self.rung.channels_last
        found = np.empty((o.N, o.P, o.Q, o.K) if last else (o.N, o.K, o.P, o.Q), np.float32)
        self.device.download(self.pointers["y"], found)
        return found.transpose(0, 3, 1, 2) if last else found

    def close(self) -> None:
        for pointer in self.pointers.values():
            self.device.free(pointer)


def check(rung: Rung, o: Size, device: Device) -> float:
    """Largest error over its bound: 4 sqrt(terms) roundoffs of the sum of magnitudes, plus the factors' own.

    Raises    AssertionError: beyond it
    """
    trial = Trial(rung, o, device)
    try:
        trial.run()
        y = trial.y()
        trial.run()  # counters and partial sums must be as they were
        assert np.array_equal(y, trial.y()), f"{rung.name}: a second run differs"
    finally:
        trial.close()
    exact = reference(trial.o, trial.x, trial.w, is_depthwise=rung.is_depthwise)
    size = reference(trial.o, abs(trial.x), abs(trial.w), is_depthwise=rung.is_depthwise)
    terms = o.R * o.S * (1 if rung.is_depthwise else o.C)
    bound = 4 * np.sqrt(terms) * UNIT_ROUNDOFF["fp32"] * size
    if rung.precision != "fp32":
        bound += 2.01 * UNIT_ROUNDOFF[rung.precision] * size
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = float(np.max(np.where(abs(y - exact) <= 0, 0, abs(y - exact) / bound)))
    assert worst <= 1, f"{rung.name}, {o}: error {worst:.2f} of the bound"
    return worst


def rungs_of(device: Device) -> list[Rung]:
    """Tensor cores are a GPU's."""
    return [rung for rung in RUNGS if rung.precision == "fp32" or device.info.kind != "host"]


def counted(rung: Rung, device: SimDevice) -> list[str]:
    """Warp instructions and bytes per thousand multiply-adds, and how the memory was used."""
    trial = Trial(rung, rung.size, device)
    before = device.counters()
    trial.run()
    found = {name: count - before[name] for name, count in device.counters().items()}
    trial.close()
    thousands = macs(rung) / 1000
    issued = sum(count for name, count in found.items() if name.startswith("warp_"))
    sectors = found["global_load_sectors"] + found["global_store_sectors"]
    asked = found["global_load_bytes"] + found["global_store_bytes"]
    requests = found["shared_load_requests"] + found["shared_store_requests"]
    conflicts = found["shared_load_conflicts"] + found["shared_store_conflicts"]
    lanes = sum(count for name, count in found.items() if name.startswith("lane_"))
    return [
        f"{issued / thousands:.1f}",
        f"{lanes / issued / GPU_WARP:.0%}",
        f"{32 * sectors / thousands:,.0f}",
        f"{asked / (32 * sectors):.0%}",
        f"{requests / thousands:.1f}" if requests else "",
        f"{conflicts / requests:.2f}" if requests else "",
        f"{found['blocks']:,}",
    ]


COUNTED = (
    "instructions of a warp",
    "lanes at work",
    "global bytes moved",
    "asked for over moved",
    "shared requests",
    "conflicts a request",
    "blocks",
)


def timed(rung: Rung, device: Device) -> list[str]:
    trial = Trial(rung, rung.size, device)
    first, last = device.event(), device.event()
    begin, end = device.record(first), device.record(last)
    times = []
    for _ in range(RUNS):
        begin()
        for action in trial.actions:
            action()
        end()
        device.sync()
        times.append(device.elapsed_us(first, last))
    trial.close()
    summary = stats.summary(times[RUNS // 3 :])
    interval = summary.interval
    return [
        f"{summary.median:,.1f}",
        f"{interval.low:,.1f} to {interval.high:,.1f}",
        f"{2e-3 * macs(rung) / summary.median:,.1f}",
    ]


TIMED = ("us", "95 % interval", "GFLOP/s")


def macs(rung: Rung) -> int:
    o = rung.size
    return o.pixels * o.K * o.R * o.S * (1 if rung.is_depthwise else o.C)


def taken(rung: Rung, compiler: nvcc.Nvcc) -> str:
    """Registers and shared memory of its last kernel, and the occupancy that leaves."""
    step = rung.steps(rung.size)[-1]
    found = ptxas.resources(compiler, step.kernel.file, (), (TARGET,))[step.kernel.entry, TARGET]
    threads = step.block[0] * step.block[1] * step.block[2]
    shared, registers = found.shared_bytes, found.registers
    resident = occupancy(
        ptxas.compute_capability(TARGET), threads=threads, registers=registers, shared_bytes=shared
    )
    spilled = f", {found.spill_bytes} B spilled" if found.spill_bytes else ""
    return f"{registers} registers, {shared:,} B, {resident.ratio:.0%}{spilled}"


def table(device: Device) -> Iterable[str]:
    is_counted = isinstance(device, SimDevice)
    compiler = nvcc.find()
    measured = COUNTED if is_counted else TIMED
    head = ["rung", "what is new", "expected", *measured, *([f"takes, sm_{TARGET}"] if compiler else [])]
    o, d = CONV, DEPTHWISE
    yield (
        f"On {device.info.name}. Convolution: {o.C} x {o.H} x {o.W}, {o.K} filters of {o.R} x {o.S}; "
        f"depthwise: {d.C} x {d.H} x {d.W}."
        + (" It has no times; what it counts is for every 1,000 multiply-adds." if is_counted else "")
    )
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] * 3 + ['---:'] * (len(head) - 3))} |"
    for rung in rungs_of(device):
        found = counted(rung, device) if isinstance(device, SimDevice) else timed(rung, device)
        cells = [f"`{rung.name}`", rung.idea, rung.expected, *found]
        yield f"| {' | '.join([*cells, *([taken(rung, compiler)] if compiler else [])])} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--device", default="sim", help="sim (default), host or cuda")
    parser.add_argument("--write", metavar="FILE", help="put the table into its part `ladder`")
    options = parser.parse_args(arguments)
    device = open_device(options.device)
    try:
        for rung in rungs_of(device):
            for o in CHECKED:
                check(rung, o, device)
        command, day = f"python tools/ladder.py --device {options.device}", datetime.date.today()
        made = f"`{command}`, {day.isoformat()}: all rungs right."
        text = "\n".join([made, "", *table(device)])
    finally:
        device.close()
    print(text)
    if options.write:
        path = Path(options.write)
        path.write_text(fill(path.read_text(), "ladder", text))


if __name__ == "__main__":
    main()
