"""A GPU's depthwise convolution: its loads fill the sectors of memory they touch; how long its strips are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minicnn.device import nvcc
from minicnn.device.sim import SimDevice
from minicnn.lab import checking
from minicnn.lab.arrangements import arrangements
from minicnn.lab.checking import arrays_of, check_case, problem_of_case
from minicnn.ops.conv import Conv
from minicnn.ops.conv_depthwise import DepthwiseQuads
from minicnn.ops.conv_variants import Depthwise
from minicnn.registry import Case, Target, Variant
from minicnn.sim import library

SECTOR_BYTES = 32


def case_of(C: int, H: int, W: int) -> Case:
    return Case(
        operator=Conv(group=C, pads=(1, 1, 1, 1)), shapes=((1, C, H, W), (C, 1, 3, 3)), constants=(1,)
    )


def used_of_sectors(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> float:
    """Bytes that loads asked for, of those in the sectors that each load touched; channels padded."""
    device = SimDevice()
    monkeypatch.setattr(checking, "_with_nan", lambda case, arrays: None)
    monkeypatch.setattr(checking, "arrangements", lambda *given: [next(arrangements(*given))])
    check_case(case_of(32, 6, 9), variant, device)
    counted = library.counters(device._library, device._machine)
    device.close()
    return counted["global_load_bytes"] / (SECTOR_BYTES * counted["global_load_sectors"])


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
def test_loads_fill_what_they_touch(monkeypatch):
    assert used_of_sectors(DepthwiseQuads(), monkeypatch) > 0.95
    assert used_of_sectors(Depthwise(), monkeypatch) < 0.3


@pytest.mark.parametrize("C, extent, pixels", [(960, 7, 2), (144, 112, 4)])
def test_strips_are_short_where_a_gpu_is_not_full(C, extent, pixels):
    case = case_of(C, extent, extent)
    problem = replace(problem_of_case(case, arrays_of(case)), target=Target(kind="cuda"))
    variant = DepthwiseQuads()
    packed = replace(problem.inputs[1], shape=variant.packings(problem)[1].shape)
    (step,) = variant.steps(replace(problem, inputs=(problem.x, packed)))
    assert dict(step.kernel.defines)["PIXELS"] == pixels
