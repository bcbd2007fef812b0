"""Energy by looping: on a meter whose truth is known, on made-up powercap folders, on a stand-in for NVML."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from minicnn import energy
from minicnn.device.nvml import Nvml


class Machine:
    """10 W at rest, `draws` more while a layer runs for `seconds`; time passes only when something does."""

    name = "made up"

    def __init__(self, *, has_power: bool = True):
        self.now_s, self.joules, self.watts = 0.0, 0.0, 10.0
        self.has_power = has_power

    def pass_time(self, seconds: float, watts: float = 10.0) -> None:
        self.now_s += seconds
        self.joules += seconds * watts
        self.watts = watts

    def layer(self, seconds: float, draws: float):
        return lambda: self.pass_time(seconds, 10.0 + draws)

    def energy_uj(self) -> float:
        return self.joules * 1e6

    def power_w(self) -> float | None:
        return self.watts if self.has_power else None


@pytest.mark.parametrize("has_power", [True, False])
def test_a_layers_energy_is_what_it_draws_beyond_idle(has_power: bool) -> None:
    machine = Machine(has_power=has_power)
    layers = [machine.layer(0.001, 50.0), machine.layer(0.01, 5.0)]
    found = energy.measure(machine, layers, clock=lambda: machine.now_s, sleep=machine.pass_time)
    assert found.idle_power_w == pytest.approx(10.0)
    np.testing.assert_allclose(found.by_counter_uj, [50_000, 50_000], rtol=1e-6)
    if has_power:
        np.testing.assert_allclose(found.by_power_uj, [50_000, 50_000], rtol=0.03)
    else:
        assert np.isnan(found.by_power_uj).all()


def zone(root: Path, index: int, uj: int) -> Path:
    folder = root / f"intel-rapl:{index}"
    folder.mkdir()
    (folder / "name").write_text(f"package-{index}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    (folder / "max_energy_range_uj").write_text("1000000\n")
    (root / f"intel-rapl:{index}:0").mkdir()  # a part of the package: counted in it
    return folder


def test_counters_of_all_packages_add_and_carry_over(tmp_path: Path) -> None:
    first, second = zone(tmp_path, 0, 999_000), zone(tmp_path, 1, 5)
    meter = energy.find_rapl(tmp_path)
    assert isinstance(meter, energy.Rapl) and meter.name == "RAPL package-0, package-1"
    (first / "energy_uj").write_text("500")
    (second / "energy_uj").write_text("105")
    assert meter.energy_uj() == 1500 + 100
    assert meter.energy_uj() == 1600
    assert meter.power_w() is None


def test_why_there_is_no_meter(tmp_path: Path) -> None:
    assert energy.find_rapl(tmp_path) == f"no energy counter of this processor in {tmp_path}"
    (zone(tmp_path, 0, 1) / "energy_uj").write_text("no number")
    assert "can't be read" in str(energy.find_rapl(tmp_path))


class FakeNvml:
    """The functions that a driver has; others are missing, as in an old one."""

    def __init__(self, **numbers: int | None):
        self.numbers = numbers

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, handle: object) -> int:
        return 0 if bus_id == b"0000:3B:00.0" else 6

    def __getattr__(self, name: str):
        if name not in self.numbers:
            raise AttributeError(name)
        value = self.numbers[name]

        def function(handle: object, *arguments: object) -> int:
            if value is None:
                return 3  # not supported
            arguments[-1]._obj.value = value  # what byref was given
            return 0

        return function


def test_nvml_reads_units_and_reasons() -> None:
    library = FakeNvml(
        nvmlDeviceGetTotalEnergyConsumption=7, nvmlDeviceGetPowerUsage=123_456,
        nvmlDeviceGetClockInfo=1980, nvmlDeviceGetCurrentClocksThrottleReasons=0x20 | 1,
    )  # fmt: skip
    gpu = Nvml("0000:3B:00.0", library)
    assert gpu.energy_uj() == 7000 and gpu.power_w() == pytest.approx(123.456)
    assert gpu.clocks() == {"sm_mhz": 1980.0, "memory_mhz": 1980.0}
    assert gpu.is_throttled() is True
    library.numbers["nvmlDeviceGetCurrentClocksThrottleReasons"] = 1 | 2  # idle, clocks that somebody set
    assert gpu.is_throttled() is False


def test_what_nvml_cannot_tell_is_none() -> None:
    gpu = Nvml("0000:3B:00.0", FakeNvml(nvmlDeviceGetPowerUsage=None))
    assert gpu.energy_uj() is None and gpu.power_w() is None and gpu.is_throttled() is None
    assert gpu.clocks() == {}
    with pytest.raises(LookupError):
        Nvml("0000:00:00.0", FakeNvml())


def test_a_record_says_that_nothing_could_be_read(tmp_path: Path) -> None:
    import minicnn
    import synthetic

    path = synthetic.chain(tmp_path / "chain.onnx", 2)
    with minicnn.load(path).plan(device=synthetic.SyntheticDevice()) as engine:
        record = engine.profile(np.zeros((1, 4), np.float32), repeat=1, energy=True)
        assert engine.profile(np.zeros((1, 4), np.float32), repeat=1).energy_source == ""
    assert record.energy_source == "this device has no meter"
    assert all(math.isnan(layer.energy_uj) for layer in record.layers)
