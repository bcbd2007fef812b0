"""Predicted times: by hand for a layer, in the right direction for a machine, and refused with names."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import minicnn
from minicnn.cli import main
from minicnn.engine import Options
from minicnn.errors import InputError
from minicnn.plan import Plan
from minicnn.predict import MACHINES, Machine, machine_of, predict, total_us
from test_models import MODELS

DIGIT = MODELS / "mnist-conv" / "model.onnx"


def plan_for(machine: Machine, precision: str = "fp32") -> Plan:
    options = Options(precision=precision, tuned=False)
    return minicnn.load(DIGIT).make_plan(options=options, target=machine.target)


def test_a_layer_by_hand() -> None:
    machine = replace(MACHINES["tx1"], launch_us=3.0)
    plan = plan_for(machine)
    for found in predict(plan, machine):
        layer = found.layer
        arithmetic, memory = layer.cost.flops / 0.512e6, layer.bytes_moved / 25.6e3
        if not layer.steps:
            assert found.time_us == 0
            continue
        launches = 3.0 * len(layer.steps)
        assert found.time_us == pytest.approx(max(arithmetic, memory) + launches)
        assert found.bound == "launches" if launches > max(arithmetic, memory) else found.bound


@pytest.mark.parametrize("precision, products", [("fp32", 3), ("tf32", 1), ("fp16", 1)])
def test_tensor_cores_have_a_rate_of_their_own(precision: str, products: int) -> None:
    machine = replace(MACHINES["h200"], gb_per_s=1e12, launch_us=0.0)
    plan = plan_for(machine, precision)
    rate = {"fp32": 495 / 3, "tf32": 495, "fp16": 990}[precision]
    convolutions = [
        p for p in predict(plan, machine) if p.layer.variant.startswith("igemm") and p.layer.op == "Conv"
    ]
    assert convolutions
    for found in convolutions:
        assert found.time_us == pytest.approx(found.layer.cost.flops / rate / 1e6)


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "deap"])
def test_a_better_machine_is_never_slower(name: str) -> None:
    machine = MACHINES[name]
    plan = plan_for(machine)
    before = total_us(predict(plan, machine))
    for key in ("fp32_tflop_per_s", "tf32_tflop_per_s", "gb_per_s"):
        better = replace(machine, **{key: 2 * getattr(machine, key)})
        assert total_us(predict(plan, better)) <= before
    assert total_us(predict(plan, replace(machine, gb_per_s=machine.gb_per_s / 10))) > before


def test_a_photonic_machine_makes_one_output_at_a_time() -> None:
    machine = replace(MACHINES["deap"], modulators=10)
    for found in predict(plan_for(machine), machine):
        layer = found.layer
        if layer.op not in ("Conv", "Gemm", "MatMul"):
            assert math.isnan(found.time_us) and not found.bound
            continue
        outputs = math.prod(layer.outputs[0].shape)
        passes = math.ceil(layer.cost.macs / outputs / 10)
        assert found.time_us == pytest.approx(outputs * passes * 200e-6)


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('architecture = "sm_90"\nfp32_tflop_per_s = 2\ngb_per_s = 100.0\n')
    assert machine_of(str(path)) == Machine(
        name="mine", kind="cuda", source=str(path), architecture="sm_90", fp32_tflop_per_s=2, gb_per_s=100.0
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("gb_per_second = 3", "no such key.*gb_per_second.*gb_per_s"),
        ('gb_per_s = "fast"', "tensor: gb_per_s.*found: fast"),
        ("gb_per_s = -1", "gb_per_s.*found: -1"),
        ("gb_per_s = nan", "gb_per_s.*found: nan"),
        ("gb_per_s = 3", "lacks a rate.*fp32_tflop_per_s"),
        ('kind = "abacus"\nfp32_tflop_per_s = 1\ngb_per_s = 1', "abacus"),
        ('kind = "photonic"', "ps_per_output"),
        ("= 3", "can't be read"),
    ],
)
def test_what_a_file_may_not_say(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as refused:
        machine_of(str(path))
    assert str(path) in str(refused.value)


def test_unknown_machines_are_named() -> None:
    with pytest.raises(InputError, match="found: h300; accepted: h200, a100"):
        machine_of("h300")


def test_the_command_says_that_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DIGIT), "--target", "a100"]) == 0
    said = capsys.readouterr().out
    assert "nothing was measured" in said and "igemm" in said and "A100" in said
    assert all(len(line) <= 100 for line in said.splitlines() if not line.startswith("source"))
