"""Implicit GEMM: every tile in every precision, what its errors come from, when it is chosen.

The tiles are run on a GPU, real or simulated (tests/test_on_simgpu.py); that copies may land late, by the
simulator's own options. Conv's cases (tests/test_conv.py) are about windows, groups and what is fused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import harness
import test_nvcc
from minicnn import choose, registry
from minicnn.device import nvcc, ptxas
from minicnn.device.sim import SimDevice
from minicnn.errors import CheckError
from minicnn.graph import Epilogue, TensorType
from minicnn.lab.checking import arrays_of, check_case, problem_of_case
from minicnn.occupancy import occupancy
from minicnn.ops.conv import Conv
from minicnn.ops.conv_igemm import IMPLICIT_GEMMS, ImplicitGemm
from minicnn.ops.conv_variants import extents_of
from minicnn.ops.tensor_cores import SMALL, estimate_us, rounded_to_tf32
from minicnn.registry import Case, Problem, Target
from minicnn.sim import library

needs_nvcc = pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
RELU = Epilogue(activation="Relu", has_residual=True)
HALF, SINGLE, ROUNDED = IMPLICIT_GEMMS
TILES = list(dict.fromkeys(tile for one in IMPLICIT_GEMMS for tile in one.tiles))
FORMS = [
    replace(one, tile=tile, parts=parts) for one in IMPLICIT_GEMMS for tile in one.tiles for parts in (1, 3)
]
SMALL_FORMS = [form for form in FORMS if form.tile == SMALL]
each_small_form = pytest.mark.parametrize("form", SMALL_FORMS, ids=lambda form: f"{form.label}")


def case_of(form: ImplicitGemm, conv: Conv, x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    """With a bias, a residual and Relu."""
    (y,) = conv.infer(*(TensorType(dtype=form.dtype, shape=shape) for shape in (x, w)))
    return Case(
        operator=conv, shapes=(x, w, (w[0],), y.extents), constants=(1, 2), dtype=form.dtype, epilogue=RELU
    )


def tails(form: ImplicitGemm) -> Case:
    """More pixels and filters than a tile has, and the last of each nearly empty; several steps of terms, the
    last one cut short, and channels that end within 16 bytes."""
    assert form.tile is not None
    C = 37 if form.dtype == "float16" else 17
    conv = Conv(strides=(1, 2), pads=(1, 1, 1, 0))
    return case_of(form, conv, (1, C, form.tile.rows // 16, 35), (form.tile.columns + 5, C, 3, 3))


@pytest.mark.parametrize("device", harness.DEVICES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_tails_of_every_tile(form, device):
    if device == "host":
        pytest.skip("made for GPUs")
    case = tails(form)
    problem = problem_of_case(case, arrays_of(case))
    if form.parts > 1:
        assert form.workspace_bytes(problem)
    check_case(case, form, harness.open_device(device))


@needs_nvcc
@each_small_form
@pytest.mark.parametrize("seed", [1, 2])
def test_copies_may_land_late_and_warps_in_any_order(form, seed):
    device = SimDevice()
    for name, value in (("seed", seed), ("late_async", 1)):
        assert not device._library.sim_set_option(device._machine, name.encode(), value)
    check_case(tails(form), form, device)
    device.close()


@needs_nvcc
def test_a_launch_leaves_its_counters_as_they_were():
    """The second run finds them at zero again: results are the same to the bit."""
    form = replace(SINGLE, tile=SMALL, parts=3)
    case = tails(form)
    device = SimDevice()
    check_case(case, form, device)
    check_case(case, form, device)
    device.close()


@needs_nvcc
def test_one_tf32_product_would_break_the_bound_of_float32(monkeypatch):
    form = replace(ROUNDED, tile=SMALL, parts=1)
    monkeypatch.setattr(ImplicitGemm, "bound", registry.Variant.bound)
    with pytest.raises(CheckError, match="wrong"):
        check_case(tails(form), form, SimDevice())


def test_what_two_tf32_numbers_miss():
    """The figures of conv_igemm.py, on random floats of all sizes and on the worst bits."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0x00800000 + (40 << 23), 0x7F000000, 200_000).astype(np.uint32)
    worst = np.uint32(0x3F800000) + np.arange(1 << 13, dtype=np.uint32)
    for values in (bits.view(np.float32), worst.view(np.float32)):
        large = rounded_to_tf32(values)
        rest = values - large
        small = (rest.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)  # as a tensor core reads it
        exact = values.astype(np.float64)
        assert (np.abs(rest) <= 2.0**-11 * exact).all()
        assert (np.abs(exact - large - small.astype(np.float64)) <= 2.0**-23 * exact).all()
    assert not (large.view(np.uint32) & 0x1FFF).any() and not (small.view(np.uint32) & 0x1FFF).any()


def test_weights_that_are_no_numbers_stay():
    values = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0 - 2.0**-11, 1.0 + 2.0**-12], np.float32)
    values = np.concatenate([values, np.array([0xFFFFFFFF], np.uint32).view(np.float32)])
    found = rounded_to_tf32(values)
    wanted = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0 - 2.0**-10, 1.0, np.nan])
    np.testing.assert_array_equal(found, wanted)


GPU = Target(kind="cuda", architecture="sm_90")


def problem_on(
    target: Target,
    *,
    precision: str = "fp32",
    dtype: str = "float32",
    conv: Conv | None = None,
    x: tuple[int, ...] = (1, 64, 56, 56),
    w: tuple[int, ...] = (64, 64, 3, 3),
) -> Problem:
    conv = conv or Conv(pads=(1, 1, 1, 1))
    case = Case(operator=conv, shapes=(x, w), constants=(1,), dtype=dtype)
    return replace(problem_of_case(case, arrays_of(case)), target=target, precision=precision)


def chosen(problem: Problem) -> choose.Choice:
    return choose.choose(problem, node="n", op="Conv", wanted={})


@pytest.mark.parametrize(
    "problem, name",
    [
        (problem_on(GPU), "igemm"),
        (problem_on(GPU, precision="tf32"), "igemm_tf32"),
        (problem_on(GPU, dtype="float16"), "igemm_half"),
        (problem_on(replace(GPU, architecture="sm_75")), "winograd4_gemm"),
        (problem_on(GPU, conv=Conv(group=64, pads=(1, 1, 1, 1)), w=(64, 1, 3, 3)), "depthwise_quads"),
        (problem_on(GPU, conv=Conv(), x=(1, 3, 8, 8), w=(64, 3, 1, 1)), "gemm1x1"),
        (problem_on(GPU, conv=Conv(group=32), w=(64, 2, 3, 3)), "im2col"),
    ],
)  # fmt: skip
def test_choice_without_measurements(problem, name):
    assert chosen(problem).variant.name == name


@pytest.mark.parametrize("precision, name", [("fp32", "igemm"), ("tf32", "igemm_tf32")])
def test_only_what_is_allowed_may_race(precision, name):
    able = [v.name for v in choose.able_variants(problem_on(GPU, precision=precision))]
    assert name in able and ("igemm_tf32" in able) == (precision == "tf32") and "igemm_half" not in able


def test_on_a_cpu_it_is_not_made_for_it():
    found = chosen(problem_on(Target()))
    assert not found.variant.name.startswith("igemm")


def test_a_form_that_was_measured_is_found_again():
    problem = problem_on(GPU)
    form = SINGLE.tunings(problem)[1]
    measured = {choose.problem_key(problem): choose.Winner(label=form.label, time_us=1.0)}
    assert choose.choose(problem, node="n", op="Conv", wanted={}, measured=measured).variant == form


def test_forms_are_told_apart_by_their_labels():
    forms = SINGLE.tunings(problem_on(GPU))
    assert len({form.label for form in forms}) == len(forms) >= len(SINGLE.tiles)


def test_small_images_are_cut_into_parts_and_large_ones_into_large_tiles():
    late, early = (
        SINGLE._work(problem, extents_of(problem, (3, 3)))
        for problem in (
            problem_on(GPU, x=(1, 512, 7, 7), w=(512, 512, 3, 3)),
            problem_on(GPU, x=(32, 128, 56, 56), w=(128, 128, 3, 3)),
        )
    )
    assert late.parts > 4 and late.counters * late.parts > 60
    assert early.parts == 1 and early.tile.rows == 128


@needs_nvcc
@each_small_form
def test_factors_come_from_different_banks(form, monkeypatch):
    """The exchange of 16 bytes within rows: no load of a warp waits for a bank."""
    device = SimDevice()
    monkeypatch.setattr("minicnn.lab.checking._with_nan", lambda case, arrays: None)
    check_case(tails(form), form, device)
    counted = library.counters(device._library, device._machine)
    device.close()
    assert counted["warp_tensor"] and counted["shared_load_bytes"] and not counted["shared_load_conflicts"]


@needs_nvcc
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_an_sm_holds_the_blocks_that_the_model_says(tile):
    held = []
    for kernel, launches in test_nvcc.launches().items():
        if kernel.file == "conv_igemm.cu" and set(tile.defines) <= set(kernel.defines):
            taken = ptxas.resources(nvcc.find(), kernel.file, kernel.defines, ("90",))["conv_igemm", "90"]
            assert launches == {((tile.threads, 1, 1), tile.shared_bytes)}
            found = occupancy(
                90,
                threads=tile.threads,
                registers=taken.registers,
                shared_bytes=taken.shared_bytes + tile.shared_bytes,
            )
            held.append(found.blocks)
    assert min(held) == tile.resident


def test_estimates_grow_with_the_work():
    one = dict(tile=SMALL, parts=1, products=3)
    assert estimate_us(GPU, blocks=1000, steps=8, **one) < estimate_us(GPU, blocks=2000, steps=8, **one)
    assert estimate_us(GPU, blocks=1000, steps=8, **one) < estimate_us(GPU, blocks=1000, steps=16, **one)
    assert estimate_us(Target(kind="cuda", architecture="sm_121"), blocks=1000, steps=8, **one) > estimate_us(
        GPU, blocks=1000, steps=8, **one
    )
