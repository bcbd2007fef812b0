"""How long a plan would take on a machine that isn't here: predicted by its roofs, nothing measured.

A layer takes as long as the slower of its arithmetic and its memory traffic, at the machine's rates, and a
launch for each of its steps. What overlaps, caches and half-filled machines are left out, so predictions of
small layers are too short.

Source    of every machine's numbers: its `source`
Not here  photonic machines but for convolutions and products; time of transfers
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from minicnn.errors import InputError
from minicnn.geometry import ceil_div
from minicnn.plan import Layer, Plan
from minicnn.registry import Target
from minicnn.step import Copy, Fill, HostCall

TENSOR_CORES = {"igemm": ("tf32", 3), "igemm_tf32": ("tf32", 1), "igemm_half": ("fp16", 1)}  # products a sum


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Rates of multiply-adds and of memory. 0: it hasn't got that.

    kind           of device that plans are made for: "cuda", "host"; "photonic": convolutions alone
    ps_per_output  photonic: a unit gives one output every so many picoseconds,
    modulators     of at most so many products, in `units` units
    """

    name: str
    kind: str
    source: str
    architecture: str = ""
    fp32_tflop_per_s: float = 0.0
    tf32_tflop_per_s: float = 0.0
    fp16_tflop_per_s: float = 0.0
    gb_per_s: float = 0.0
    launch_us: float = 0.0
    ps_per_output: float = 0.0
    modulators: int = 0
    units: int = 1

    @property
    def target(self) -> Target:
        """Of photonic machines the plan is the textbook's: which kernel a CPU would use doesn't matter."""
        kind = "host" if self.kind == "photonic" else self.kind
        return Target(kind=kind, name=self.name, architecture=self.architecture)


_LAUNCH_US = 2.0  # of a kernel in a CUDA graph: start and drain; a guess
_NVIDIA = "rates without sparsity and bandwidth: NVIDIA's datasheet; launch: a guess"
MACHINES = {
    machine.name: machine
    for machine in (
        Machine(
            name="h200", kind="cuda", architecture="sm_90", fp32_tflop_per_s=67, tf32_tflop_per_s=495,
            fp16_tflop_per_s=990, gb_per_s=4800, launch_us=_LAUNCH_US, source=f"H200 SXM, {_NVIDIA}",
        ),
        Machine(
            name="a100", kind="cuda", architecture="sm_80", fp32_tflop_per_s=19.5, tf32_tflop_per_s=156,
            fp16_tflop_per_s=312, gb_per_s=2039, launch_us=_LAUNCH_US, source=f"A100 80 GB SXM, {_NVIDIA}",
        ),
        Machine(
            name="rtx4090", kind="cuda", architecture="sm_89", fp32_tflop_per_s=82.6, tf32_tflop_per_s=82.6,
            fp16_tflop_per_s=165.2, gb_per_s=1008, launch_us=_LAUNCH_US,
            source=f"GeForce RTX 4090, sums in float32, {_NVIDIA}",
        ),
        Machine(
            name="tx1", kind="cuda", architecture="sm_53", fp32_tflop_per_s=0.512, fp16_tflop_per_s=1.024,
            gb_per_s=25.6, launch_us=10.0, source=f"Jetson TX1 (256 cores at 1 GHz), {_NVIDIA}",
        ),
        Machine(
            name="deap", kind="photonic", ps_per_output=200, modulators=1024,
            source="Bangari et al., DEAP-CNNs, 2020: 7 bits; second-hand, from a re-implementation's notes",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Of one layer. bound: "arithmetic", "memory", "launches", or "" where the machine can't do it (NaN)."""

    layer: Layer
    time_us: float
    bound: str


def machine_of(name: str) -> Machine:
    """A known machine, or one that a TOML file describes by Machine's fields.

    Raises    InputError: neither; a key or a value that a machine hasn't got
    """
    if name in MACHINES:
        return MACHINES[name]
    if not name.endswith(".toml"):
        raise InputError("no such machine", found=name, accepted=f"{', '.join(MACHINES)}, FILE.toml")
    try:
        content = tomllib.loads(Path(name).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("the machine's file can't be read", file=name, found=error) from None
    known = {field.name: field.type for field in fields(Machine)}
    for key, value in content.items():
        kinds: dict[str, tuple[type, ...]] = {"str": (str,), "float": (int, float), "int": (int,)}
        if key not in known:
            raise InputError("a machine has no such key", file=name, found=key, accepted=", ".join(known))
        if not isinstance(value, kinds[str(known[key])]) or isinstance(value, bool) or _is_negative(value):
            expected = "text" if known[key] == "str" else "a number of 0 or more"
            raise InputError("no value for this key", file=name, tensor=key, expected=expected, found=value)
    machine = Machine(**{"name": Path(name).stem, "kind": "cuda", "source": name} | content)
    if machine.kind not in ("cuda", "host", "photonic"):
        raise InputError("no kind of machine", file=name, found=machine.kind, accepted="cuda, host, photonic")
    needed = (
        ("ps_per_output", "modulators") if machine.kind == "photonic" else ("fp32_tflop_per_s", "gb_per_s")
    )
    for key in needed:
        if not getattr(machine, key) > 0:
            raise InputError(
                "the machine lacks a rate", file=name, expected=f"{key} above 0", found="nothing"
            )
    return machine


def _is_negative(value: object) -> bool:
    return isinstance(value, (int, float)) and not value >= 0


def predict(plan: Plan, machine: Machine) -> list[Prediction]:
    """Every layer of a plan that was made for the machine's target."""
    one = _photonic if machine.kind == "photonic" else _by_roofs
    return [one(layer, machine) for layer in plan.layers]


def total_us(predictions: list[Prediction]) -> float:
    """Of the layers that the machine can do."""
    return sum(p.time_us for p in predictions if not math.isnan(p.time_us))


def _by_roofs(layer: Layer, machine: Machine) -> Prediction:
    launches = sum(not isinstance(step, (Copy, Fill, HostCall)) for step in layer.steps)
    parts = {
        "arithmetic": layer.cost.flops / rate_of(layer, machine) / 1e6,
        "memory": layer.bytes_moved / machine.gb_per_s / 1e3 if layer.steps else 0.0,
    }
    bound = max(parts, key=lambda name: parts[name])
    waiting = launches * machine.launch_us
    time_us = parts[bound] + waiting
    return Prediction(layer=layer, time_us=time_us, bound="launches" if waiting > parts[bound] else bound)


def rate_of(layer: Layer, machine: Machine) -> float:
    """TFLOP/s that the layer's kernel can reach at most."""
    kind, products = TENSOR_CORES.get(layer.variant, ("", 1))
    tensor = {"tf32": machine.tf32_tflop_per_s, "fp16": machine.fp16_tflop_per_s}.get(kind, 0.0) / products
    return tensor or machine.fp32_tflop_per_s


def _photonic(layer: Layer, machine: Machine) -> Prediction:
    outputs = math.prod(layer.outputs[0].shape) if layer.outputs else 0
    if not layer.cost.macs or not outputs or layer.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return Prediction(layer=layer, time_us=math.nan, bound="")
    passes = ceil_div(ceil_div(layer.cost.macs, outputs), machine.modulators)
    time_us = ceil_div(outputs, machine.units) * passes * machine.ps_per_output / 1e6
    return Prediction(layer=layer, time_us=time_us, bound="arithmetic")
