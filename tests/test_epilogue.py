"""What layers fuse: every activation behind every kind of kernel that has an epilogue."""

import sys
from dataclasses import replace

import pytest

import harness
from minicnn import epilogue
from minicnn.graph import Epilogue
from minicnn.ops.unary import HardSigmoid, Selu
from minicnn.registry import table

PARAMETERS = {
    "Clip": (-0.2, 0.3), "HardSigmoid": HardSigmoid().fused_parameters(), "Elu": (1.7, 1.0),
    "Selu": Selu().fused_parameters(), "Swish": (1.5, 0.0),
}  # fmt: skip
ACTIVATIONS = [name for name in epilogue.CODES if name]
LAYERS = [("Conv", "direct"), ("Conv", "depthwise"), ("Conv", "gemm1x1"), ("Conv", "tiled"), ("Gemm", "blas")]


def plain_case(op, variant):
    """A case of the operator without an epilogue that the variant applies to."""
    for name, case in harness.cases(op).items():
        if case.epilogue == Epilogue():
            usable = [v for v in case.operator.variants() if not v.applies(harness.problem(op, name))]
            if variant in [v.name for v in usable]:
                return case
    raise AssertionError(f"{op} has no variant {variant}")


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("op, variant", LAYERS)
def test_activation(op, variant, activation, monkeypatch, device):
    alpha, beta = PARAMETERS.get(activation, (0.0, 0.0))
    case = replace(
        plain_case(op, variant), epilogue=Epilogue(activation=activation, alpha=alpha, beta=beta)
    )
    monkeypatch.setitem(sys.modules[table()[("", op)].cls.__module__].CASES, "fused", case)
    harness.check(op, "fused", variant, device)


@pytest.mark.parametrize("device", harness.DEVICES)
def test_gelu_with_tanh(monkeypatch, device):
    case = replace(plain_case("Conv", "direct"), epilogue=Epilogue(activation="Gelu", alpha=1.0))
    monkeypatch.setitem(sys.modules[table()[("", "Conv")].cls.__module__].CASES, "fused", case)
    harness.check("Conv", "fused", "direct", device)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_operators_say_how_they_are_fused(activation):
    assert len(table()[("", activation)].cls().fused_parameters()) == 2
