"""What one run measured, as data: facts of each layer, samples of each repetition, where and how it ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

NAN = math.nan
OF_LAYERS = ("time_us", "gap_us", "enqueue_us", "alone_warm_us", "alone_cold_us")
OF_RUNS = ("plain_us", "profiled_us", "wall_us", "profiled_wall_us", "upload_us", "download_us", "host_us",
           "unattributed_us", "preemptions", "is_outlier")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """One layer of a plan: what it computes, how, and what that costs. Nothing here is measured.

    Units    bytes; MACs; FLOP = 2 x MAC for multiply-adds
    """

    name: str  # unique within the plan
    op: str
    nodes: tuple[str, ...] = ()  # the ONNX nodes it stands for
    variant: str = ""
    reason: str = ""  # why this variant: the user's flag, the tuning cache, the static model
    kernel: tuple[str, ...] = ()  # its steps in order, launches with <<<grid, block>>>
    macs: int = 0
    flops: int = 0
    bytes_min: int = 0  # inputs, weights and outputs, each moved once
    bytes_moved: int = 0  # what this variant asks for: bytes_min, re-reads, and its workspace's traffic
    live_bytes: int = 0  # tensors and workspace that have to exist while it runs; weights are counted apart
    workspace_bytes: int = 0
    resources: tuple[str, ...] = ()  # what each of them takes of a GPU, "" where nothing is known
    fingerprint: str = ""  # of its launches: equal fingerprints ran the same kernels with the same arguments
    inputs: tuple[str, ...] = ()  # "name dtype shape order", for people
    outputs: tuple[str, ...] = ()
    is_fallback: bool = False  # ran through onnx's evaluator on the CPU
    sources: tuple[str, ...] = ()  # "file.cu SHA-256" of its kernels, what they include among it
    energy_uj: float = NAN  # of one run of the layer, idle power taken off; by the device's counter
    energy_by_power_uj: float = NAN  # the same by summing power readings
    is_checked: bool = False  # held against its definition in float64; the rest is of that check
    check_max_abs: float = NAN
    check_max_relative: float = NAN  # of the largest exact value
    check_max_ulp: float = NAN  # in units of the last place of the exact value, as float32
    check_of_bound: float = NAN  # beyond 1: wrong
    check_index: str = ""  # the first element beyond its bound, else the worst one, as "n,c,h,w"

    @property
    def is_wrong(self) -> bool:
        """Found beyond its error bound; a NaN where there should be none is, too."""
        return self.is_checked and not self.check_of_bound <= 1


@dataclass(frozen=True, kw_only=True)
class BufferFacts:
    """One piece of planned memory, alive from layer `first` to `last`; `offset` is into its arena."""

    name: str
    kind: str = ""  # input, output, activation, workspace (in the arena); weight
    nbytes: int = 0
    offset: int = 0
    first: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """One run: its layers, the raw samples of every repetition, memory, and what it takes to repeat it.

    A repetition has a plain run (two device events and the caller's clock) and a profiled one (an event at
    every layer's boundary), in turn first and second; if asked for, a third with brackets. Warm-up is
    kept and flagged. NaN means: not measured.

    Shapes    time_us, gap_us, enqueue_us, alone_* (repetitions, layers); the other samples (repetitions,)
    Units     us by the end of the name; bytes; fractions for closure_residual, profiling_overhead, drift
    """

    layers: tuple[LayerFacts, ...]
    time_us: np.ndarray  # device time between a layer's boundaries, profiled runs
    gap_us: np.ndarray  # device idle between a layer and the one before, runs with brackets
    enqueue_us: np.ndarray  # the calling thread's time to hand a layer, by itself, to the device
    alone_warm_us: np.ndarray  # the layer by itself, run just before
    alone_cold_us: np.ndarray  # the layer by itself, caches emptied
    plain_us: np.ndarray  # first event to last, plain runs
    profiled_us: np.ndarray  # the same, profiled runs
    wall_us: np.ndarray  # the caller's clock around a plain run, upload to download
    profiled_wall_us: np.ndarray
    upload_us: np.ndarray
    download_us: np.ndarray
    host_us: np.ndarray  # the engine's own time on the host, in no layer and no transfer
    unattributed_us: np.ndarray  # of wall_us, what neither transfers, layers (time_us) nor host_us claim
    preemptions: np.ndarray  # times the system took a processor from us
    is_warmup: np.ndarray
    is_outlier: np.ndarray

    model_file: str = ""
    model_sha256: str = ""
    command: str = ""
    started: str = ""  # ISO 8601, UTC
    precision: str = "fp32"
    input_types: Mapping[str, str] = field(default_factory=dict)  # the network's inputs as they were run
    device: str = ""
    device_kind: str = ""
    device_architecture: str = ""
    device_memory_bytes: int = 0
    threads: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)

    live_peak_bytes: int = 0  # the largest live sum of any layer: no plan can be smaller
    planned_peak_bytes: int = 0
    touched_peak_bytes: float = NAN  # the high-water mark really written, found by a canary
    allocated_peak_bytes: float = NAN  # what the driver or the process grew by, everything included
    weights_bytes: int = 0
    inputs_bytes: int = 0
    outputs_bytes: int = 0
    activations_bytes: int = 0
    workspaces_bytes: int = 0

    closure_residual: float = NAN  # median of unattributed_us / wall_us
    closure_residual_low: float = NAN  # its interval
    closure_residual_high: float = NAN
    profiling_overhead: float = NAN  # median of profiled_wall_us / wall_us, less 1
    profiling_overhead_low: float = NAN
    profiling_overhead_high: float = NAN
    profiled_every: int = 1  # sampling: one run in so many was a profiled one

    bracket_us: float = NAN  # calibration: two events with nothing between
    bracket_spread_us: float = NAN  # its quartiles' distance
    null_kernel_us: float = NAN  # two events around a kernel that does nothing
    clock_step_us: float = NAN  # the smallest difference the device's clock shows
    copy_gb_per_s: float = NAN  # roofs: memory copied, read and written bytes
    fma_gflop_per_s: float = NAN  # multiply-adds in registers

    drift: float = NAN  # the last third of the steady repetitions against the first
    drift_low: float = NAN
    drift_high: float = NAN
    other_load: float = NAN  # processors kept busy by others meanwhile
    throttled_share: float = NAN  # of the repetitions, where the device says so
    idle_power_w: float = NAN
    energy_source: str = ""  # what was read, or why nothing could be

    kernel_sources: Mapping[str, str] = field(default_factory=dict)  # file -> text, of kernels brought in

    buffers: tuple[BufferFacts, ...] = ()

    path: str = ""  # where it is stored; "" while it is only in memory
    notes: tuple[str, ...] = ()  # what a reader has to know, such as repetitions that didn't finish

    def __post_init__(self) -> None:
        repetitions = len(self.is_warmup)
        for name in OF_LAYERS:
            _check(name, getattr(self, name), (repetitions, len(self.layers)))
        for name in OF_RUNS:
            _check(name, getattr(self, name), (repetitions,))

    @property
    def repetitions(self) -> int:
        return len(self.is_warmup)

    @property
    def is_steady(self) -> np.ndarray:
        """(repetitions,) True where a repetition counts: not warm-up, unless there is nothing else."""
        steady = ~self.is_warmup
        return steady if steady.any() else np.ones_like(steady)

    @property
    def beyond_plan_bytes(self) -> float:
        """What the driver or the process took beyond weights and planned arena: context, libraries, code."""
        return self.allocated_peak_bytes - self.planned_peak_bytes - self.weights_bytes

    def __str__(self) -> str:
        steady = self.is_steady
        model, device = self.model_file or "a model", self.device or "an unknown device"
        warmup = self.repetitions - steady.sum()
        lines = [
            f"run of {model} on {device}, {self.precision}",
            f"  {len(self.layers)} layers, {steady.sum()} repetitions and {warmup} of warm-up",
        ]
        for name, samples in (("plain", self.plain_us), ("wall", self.wall_us)):
            measured = samples[steady & ~np.isnan(samples)]
            if measured.size:
                lines.append(f"  {name} {np.median(measured):,.1f} us (median of {measured.size})")
        peaks = {"live peak": self.live_peak_bytes, "planned": self.planned_peak_bytes}
        memory = peaks | {"weights": self.weights_bytes}
        lines.append("  " + ", ".join(f"{name} {nbytes:,} B" for name, nbytes in memory.items()))
        lines += [f"  note: {note}" for note in self.notes]
        if self.path:
            lines.append(f"  record {self.path}")
        return "\n".join(lines)


def _check(name: str, samples: np.ndarray, shape: tuple[int, ...]) -> None:
    if samples.shape != shape:
        raise ValueError(f"{name} has shape {samples.shape}, expected {shape}")
