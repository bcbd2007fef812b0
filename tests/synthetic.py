"""A device whose clock is made up: every layer takes a known time, with noise that is known too.

The real executor, engine and measuring run on it, so what they report can be held against the truth. Nothing
is computed: downloads leave zeros. Noise is Gaussian (independent), autoregressive, or replayed from a
recorded machine: blocks of the trace of random length (stationary bootstrap), so that the marginal
distribution, and with it the true median, are the trace's own, and neighbours resemble each other as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from minicnn.device.base import Action, Address, Device, DeviceInfo
from minicnn.step import Copy, Fft, Fill, Gemm, Kernel, Launch, Step

TRACES = Path(__file__).parent / "traces.npz"  # recorded by tools/record_traces.py
Noise = Callable[[np.random.Generator, int], np.ndarray]  # n factors about 1, their true median 1


def gaussian(spread: float) -> Noise:
    return lambda rng, n: np.exp(spread * rng.standard_normal(n))


def autoregressive(spread: float, memory: float) -> Noise:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        shocks = rng.standard_normal(n) * np.sqrt(1 - memory**2)
        series = np.empty(n)
        last = rng.standard_normal()
        for i in range(n):
            last = memory * last + shocks[i]
            series[i] = last
        return np.exp(spread * series)

    return draw


def replayed(trace: np.ndarray, block: float) -> Noise:
    """Source    D. N. Politis, J. P. Romano, The stationary bootstrap, JASA 89, 1994"""
    factors = trace / np.median(trace)

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        jumps = rng.random(n) < 1 / block
        jumps[0] = True
        starts = rng.integers(0, factors.size, n)
        last_jump = np.maximum.accumulate(np.where(jumps, np.arange(n), 0))
        return factors[(starts[last_jump] + np.arange(n) - last_jump) % factors.size]

    return draw


def recorded() -> Mapping[str, np.ndarray]:
    """Layer times of real runs on a machine that others were using: name -> us, in the order of time."""
    with np.load(TRACES) as file:
        return {name: file[name].astype(np.float64) for name in file.files}


@dataclass
class SyntheticDevice(Device):
    """Every step takes `of_step` times a factor of its own noise, plus its delay.

    delays_us    step -> us added to it: how a test slows one layer down
    unclaimed_us passes in `sync` behind the last event, unseen by any clock but the caller's
    bracket_us   what recording an event takes
    warmup       factor of all steps in the n-th run
    """

    noise: Noise = gaussian(0.0)
    of_step: Callable[[Step], float] = lambda step: 100.0
    delays_us: dict[Step, float] = field(default_factory=dict)
    unclaimed_us: float = 0.0
    bracket_us: float = 0.0
    transfer_us: float = 10.0
    warmup: Callable[[int], float] = lambda run: 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.now_us = 0.0
        self.runs = 0
        self._rng = np.random.default_rng(self.seed)

    def _factors(self) -> Iterator[float]:
        while True:
            yield from self.noise(self._rng, 1024).tolist()

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo(kind="sim", name="synthetic", architecture="none", memory_bytes=1 << 30)

    def alloc(self, nbytes: int) -> int:
        return 256

    def free(self, pointer: int) -> None:
        pass

    def upload(self, pointer: int, array: np.ndarray) -> None:
        self.now_us += self.transfer_us

    def download(self, pointer: int, array: np.ndarray) -> None:
        array[...] = 0
        self.now_us += self.transfer_us

    def build(self, kernels: Iterable[Kernel]) -> None:
        pass

    def _pass(self, step: Step) -> Action:
        base, factors = self.of_step(step), self._factors()

        def action() -> None:
            self.now_us += base * next(factors) * self.warmup(self.runs) + self.delays_us.get(step, 0.0)

        return action

    def launch(self, step: Launch, address: Address) -> Action:
        return self._pass(step)

    def gemm(self, step: Gemm, address: Address) -> Action:
        return self._pass(step)

    def fft(self, step: Fft, address: Address) -> Action:
        return self._pass(step)

    def copy(self, step: Copy, address: Address) -> Action:
        return self._pass(step)

    def fill(self, step: Fill, address: Address) -> Action:
        return self._pass(step)

    def event(self) -> list[float]:
        return [0.0]

    def record(self, event: object) -> Action:
        assert isinstance(event, list)

        def action() -> None:
            event[0] = self.now_us
            self.now_us += self.bracket_us

        return action

    def elapsed_us(self, first: object, second: object) -> float:
        assert isinstance(first, list) and isinstance(second, list)
        return second[0] - first[0]

    def capture(self, actions: Iterable[Action]) -> Action:
        actions = tuple(actions)

        def run() -> None:
            for action in actions:
                action()
            self.runs += 1

        return run

    def sync(self) -> None:
        self.now_us += self.unclaimed_us

    def clock_ns(self) -> int:
        return round(self.now_us * 1e3)

    def close(self) -> None:
        pass


def chain(path: Path, layers: int) -> Path:
    """A network of so many Relus, one behind the other: r0, r1 ..."""
    nodes = [
        helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"r{i}") for i in range(layers)
    ]
    ends = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [1, 4]) for i in (0, layers)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
