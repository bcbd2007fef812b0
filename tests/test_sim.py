"""The PTX interpreter's numbers against numpy: integers, floats, halves, conversions, on what nvcc emits."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from minicnn.device import nvcc
from simgpu.arrays import random, rounded_to_tf32
from simgpu.simulator import Simulator

pytestmark = pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)

N = 256
FLOAT32_ULP = 2.0**-23


def rows_of(kernel: str, count: int, out_type: object, *inputs: np.ndarray, **options: int) -> np.ndarray:
    """Runs a kernel of numbers.cu: one row per operation."""
    n = len(inputs[0])
    out = np.zeros((count, n), out_type)
    Simulator("numbers", **options).run(kernel, *inputs, out, np.int32(n), block=128, grid=-(-n // 128))
    return out


# ---------------------------------------------------------------- integers


def c_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array(
        [
            int(abs(int(a)) // abs(int(b))) * (1 if (a < 0) == (b < 0) else -1)
            for a, b in zip(x, y, strict=True)
        ]
    )


def reverse_bits(x: np.ndarray, bits: int) -> np.ndarray:
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in x], np.uint64)


def bytes_of(x: np.ndarray) -> np.ndarray:
    return x.view(np.int8).reshape(-1, 4).astype(np.int64)


def test_integers() -> None:
    x, y = random().integers(-(2**31), 2**31, (2, N)).astype(np.int32)
    y[y == 0] = 3
    x[0], y[0] = -(2**31), 7
    u, v = x.view(np.uint32), y.view(np.uint32)
    wide_x, wide_y, wide_u, wide_v = (
        x.astype(np.int64),
        y.astype(np.int64),
        u.astype(np.uint64),
        v.astype(np.uint64),
    )
    shift = (y & 31).astype(np.uint32)
    quotient = c_divide(x, y)
    permuted = np.stack([bytes_of(x)[:, 0], bytes_of(y)[:, 0], bytes_of(x)[:, 1], bytes_of(y)[:, 1]], 1)
    expected = [
        wide_x + wide_y,
        wide_x - wide_y,
        wide_x * wide_y,
        quotient,
        wide_x - quotient * wide_y,
        wide_u // wide_v,
        wide_u % wide_v,
        np.minimum(x, y),
        np.maximum(x, y),
        np.minimum(u, v),
        np.abs(wide_x),
        x & y,
        x | y,
        x ^ y,
        ~x,
        u << shift,
        x >> shift.astype(np.int32),
        u >> shift,
        (wide_x * wide_y) >> 32,
        (wide_u * wide_v) >> np.uint64(32),
        [int(a).bit_count() for a in u],
        [32 - int(a).bit_length() for a in u],
        reverse_bits(u, 32),
        permuted.astype(np.int8).view(np.int32)[:, 0],
        (wide_v << np.uint64(7)) | (wide_u >> np.uint64(25)),
        (bytes_of(x) * bytes_of(y)).sum(1) + 11,
        np.maximum(wide_u, wide_v) - np.minimum(wide_u, wide_v) + np.uint64(3),
        (u >> np.uint32(5)) & np.uint32(0x3FF),
        (x & 0x0FF0FF0F) | (y & ~0x0FF0FF0F),
        x.astype(np.int16).astype(np.int64) * y.astype(np.int16),
        x.astype(np.int8),
        x.astype(np.uint8),
        (wide_x ^ 1) - c_divide(wide_x ^ 1, wide_y) * wide_y,
        ((x >> 7) & 0xFFF) - ((x >> 6) & 0x1000),
        (y & ~(0x7FF << 9)) | ((x & 0x7FF) << 9),
        (x & y) | (~x & (y * 3)),
    ]
    out = rows_of("integers", len(expected), np.int32, x, y)
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(
            out[row], np.asarray(want).astype(np.int64).astype(np.int32), f"row {row}"
        )


def test_longs() -> None:
    x, y = random(1).integers(-(2**63), 2**63 - 1, (2, N), np.int64)
    exact_x, exact_y = x.astype(object), y.astype(object)
    exact_u, exact_v = x.view(np.uint64).astype(object), y.view(np.uint64).astype(object)
    quotient = np.array(
        [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(exact_x, exact_y, strict=True)]
    )
    shift = np.array([int(a) & 63 for a in y], object)
    narrow_x, narrow_y = x.astype(np.int32).astype(object), y.astype(np.int32).astype(object)
    narrow_u, narrow_v = x.astype(np.uint32).astype(object), y.astype(np.uint32).astype(object)
    expected = [
        exact_x + exact_y,
        exact_x - exact_y,
        exact_x * exact_y,
        quotient,
        exact_x - quotient * exact_y,
        exact_u // exact_v,
        exact_x << shift,
        exact_x >> shift,
        exact_u >> shift,
        (exact_x * exact_y) >> 64,
        (exact_u * exact_v) >> 64,
        [a.bit_count() for a in exact_u],
        [64 - a.bit_length() for a in exact_u],
        [int(f"{a:064b}"[::-1], 2) for a in exact_u],
        narrow_x * narrow_y,
        narrow_u * narrow_v,
    ]
    out = rows_of("longs", len(expected), np.uint64, x, y)
    for row, want in enumerate(expected):
        assert [int(a) for a in out[row]] == [int(a) % 2**64 for a in want], f"row {row}"


# ---------------------------------------------------------------- floats


def odd_floats(count: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Ordinary numbers, and in front all pairs of the special ones."""
    x, y = (random(2).standard_normal((2, count)) * [[3.0], [50.0]]).astype(np.float32)
    special = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40], np.float32)
    x[:64], y[:64] = np.repeat(special, 8), np.tile(special, 8)
    return x, y


def same(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    """Equal bits, any NaN counting as any other."""
    nan = np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), nan, what)
    unsigned = f"u{found.itemsize}"
    np.testing.assert_array_equal(found.view(unsigned)[~nan], wanted.view(unsigned)[~nan], what)


def directed(exact: np.ndarray, towards: str) -> np.ndarray:
    """float64 values rounded to float32, towards zero, up or down."""
    nearest = exact.astype(np.float32)
    value = nearest.astype(np.float64)
    up, down = np.nextafter(nearest, np.float32(np.inf)), np.nextafter(nearest, np.float32(-np.inf))
    high = np.where(value < exact, up, nearest)
    low = np.where(value > exact, down, nearest)
    return {"up": high, "down": low, "zero": np.where(exact > 0, low, high)}[towards]


def extremum(x: np.ndarray, y: np.ndarray, larger: bool) -> np.ndarray:
    """A number wins over NaN, and +0 is larger than -0."""
    out = (np.fmax if larger else np.fmin)(x, y)
    zeros = (x == 0) & (y == 0)
    sign = np.signbit(x) & np.signbit(y) if larger else np.signbit(x) | np.signbit(y)
    return np.where(zeros, np.where(sign, -0.0, 0.0), out).astype(x.dtype)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats() -> None:
    x, y = odd_floats()
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    one, two = np.float32(1), np.float32(2)
    expected = {
        0: x + y,
        1: x - y,
        2: x * y,
        3: x / y,
        5: extremum(x, y, larger=False),
        6: extremum(x, y, larger=True),
        7: np.sqrt(np.abs(x)),
        8: np.abs(x),
        9: -x,
        10: np.floor(x),
        11: np.ceil(x),
        12: np.trunc(x),
        13: np.rint(x),
        14: np.copysign(x, y),
        15: np.where(np.isnan(x), np.float32(0), np.clip(x, 0, 1)),
        16: np.where(x < y, x, np.float32(2) * y),
        24: np.float32(1) / y,
        25: np.where(x < y, two, one),
        26: np.where(x != y, one, two),
        27: np.where(np.isnan(x), one, two),
    }
    out = rows_of("floats", 28, np.float32, x, y)
    for row, want in expected.items():
        if row == 15:  # the sign of a saturated zero is of no interest
            np.testing.assert_array_equal(out[row], want)
        else:
            same(out[row], want, f"row {row}")
    plain = slice(64, N)  # float64 holds these sums and products exactly
    for row, (towards, exact) in {
        17: ("zero", wide_x + wide_y),
        18: ("up", wide_x + wide_y),
        19: ("down", wide_x + wide_y),
        20: ("zero", wide_x * wide_y),
        21: ("up", wide_x * wide_y),
        22: ("down", wide_x * wide_y),
    }.items():
        same(out[row][plain], directed(exact, towards)[plain], f"row {row}")
    fused = np.array(
        [math.fsum([a * b, 1.5]) for a, b in zip(wide_x[plain], wide_y[plain], strict=True)], np.float32
    )
    assert np.max(np.abs(out[4][plain] - fused) / np.abs(fused)) <= FLOAT32_ULP


def test_float_fma_rounds_once() -> None:
    x = np.full(N, -(1 + 2.0**-12), np.float32)
    y = np.full(N, 1 + 2.0**-12, np.float32)
    out = rows_of("floats", 28, np.float32, x, y)  # the exact product is -(1 + 2^-11 + 2^-24)
    assert out[2][0] == np.float32(-(1 + 2.0**-11))
    assert out[23][0] == np.float32(-(2.0**-11 + 2.0**-24))  # 1 + product, of which no bit was lost before


def test_functions() -> None:
    x = random(3).uniform(-4, 4, N).astype(np.float32)
    wide = x.astype(np.float64)
    size = np.abs(wide)
    expected = [
        np.exp(wide),
        np.log(size),
        np.sin(wide),
        np.cos(wide),
        np.tanh(wide),
        [math.erf(a) for a in wide],
        size**1.7,
        1 / np.sqrt(size),
        np.exp(wide),
        1 / (1 + np.exp(-wide)),
    ]
    out = rows_of("functions", len(expected), np.float32, x)
    for row, want in enumerate(expected):
        np.testing.assert_allclose(out[row], want, rtol=2e-6, atol=2e-7, err_msg=f"row {row}")


def test_doubles() -> None:
    x, y = random(4).standard_normal((2, N)) * [[3.0], [50.0]]
    x[:4] = [0.0, -2.5, 0.5, 1.5]
    expected = [
        x + y, x - y, x * y, x / y, None, np.minimum(x, y), np.maximum(x, y), np.sqrt(np.abs(x)), np.floor(x),
        np.rint(x), np.where(x < y, x, -y),
    ]  # fmt: skip
    out = rows_of("doubles", len(expected), np.float64, x, y)
    for row, want in enumerate(expected):
        if want is not None:
            same(out[row], want, f"row {row}")
    np.testing.assert_allclose(out[4], x * y + 1.5, rtol=1e-14, atol=1e-13)


def test_double_functions_call_device_functions() -> None:
    x = random(5).uniform(-4, 4, N)
    expected = [np.abs(x) ** 1.7, np.exp(x), np.log(np.abs(x)), np.sin(x)]
    out = rows_of("double_functions", len(expected), np.float64, x)
    for row, want in enumerate(expected):
        np.testing.assert_allclose(out[row], want, rtol=1e-14, atol=1e-15, err_msg=f"row {row}")


# ---------------------------------------------------------------- halves


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_halves() -> None:
    x, y = (random(6).standard_normal((2, N)) * 4).astype(np.float16)
    x[:4], y[:4] = [60000, 6e-8, np.inf, np.nan], [60000, 6e-8, 1, 1]
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    expected = [
        wide_x + wide_y,
        wide_x - wide_y,
        wide_x * wide_y,
        None,  # a division is made of several instructions, not all of them rounded once
        wide_x * wide_y + wide_y,
        np.fmin(wide_x, wide_y),
        np.fmax(wide_x, wide_y),
        -wide_x,
        np.abs(wide_x),
        np.where(wide_x < wide_y, wide_x, wide_y),
    ]
    out = rows_of("halves", len(expected), np.float16, x, y)
    for row, want in enumerate(expected):
        if want is not None:
            same(out[row], want.astype(np.float16), f"row {row}")
    np.testing.assert_allclose(out[3][4:], (wide_x / wide_y)[4:], rtol=2.0**-10)


def test_half_pairs() -> None:
    x, y = (random(7).standard_normal((2, 2 * N)) * 2).astype(np.float16)
    a, b = x.astype(np.float64), y.astype(np.float64)
    expected = [a + b, a * b, a * b + a, np.maximum(a, b), np.maximum(a * b + a, 0), (a > b) * 1.0]
    out = np.zeros((len(expected), 2 * N), np.float16)
    Simulator("numbers").run("half_pairs", x, y, out, np.int32(N), block=N)
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row], want.astype(np.float16), f"row {row}")


def test_bfloats() -> None:
    x, y = (random(8).standard_normal((2, N)) * 2).astype(ml_dtypes.bfloat16)
    a, b = x.astype(np.float64), y.astype(np.float64)
    expected = [a + b, a * b, a * b + b, np.maximum(a, b)]
    out = rows_of("bfloats", len(expected), np.uint16, x.view(np.uint16), y.view(np.uint16))
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row], want.astype(ml_dtypes.bfloat16).view(np.uint16), f"row {row}")


# ---------------------------------------------------------------- conversions


NAN_TO_INTEGERS = """.version 7.0
.target sm_80
.address_size 64
.visible .entry nan_to_integers(.param .u64 to)
{
    .reg .f32 %f<2>; .reg .f64 %fd<2>; .reg .b32 %r<4>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    mov.f32 %f1, 0f7FFFFFFF;
    mov.f64 %fd1, 0d7FF8000000000000;
    cvt.rzi.s32.f32 %r1, %f1;
    cvt.rzi.s64.f32 %rd2, %f1;
    cvt.rzi.u64.f32 %rd3, %f1;
    cvt.rzi.s32.f64 %r2, %fd1;
    cvt.rzi.u32.f64 %r3, %fd1;
    cvt.rzi.s64.f64 %rd4, %fd1;
    cvt.s64.s32 %rd5, %r1;
    st.global.u64 [%rd1], %rd5;
    st.global.u64 [%rd1+8], %rd2;
    st.global.u64 [%rd1+16], %rd3;
    cvt.s64.s32 %rd5, %r2;
    st.global.u64 [%rd1+24], %rd5;
    cvt.u64.u32 %rd5, %r3;
    st.global.u64 [%rd1+32], %rd5;
    st.global.u64 [%rd1+40], %rd4;
    ret;
}
"""


def test_nan_to_integers() -> None:
    """Source: PTX ISA, cvt. Zero from float to 32 bits, else the highest bit alone."""
    out = np.ones(6, np.int64)
    Simulator(text=NAN_TO_INTEGERS).run("nan_to_integers", out, block=1)
    assert out.tolist() == [0, -(2**63), -(2**63), -(2**31), 2**31, -(2**63)]


def test_floats_to_integers() -> None:
    x = (random(9).standard_normal(N) * 1000).astype(np.float32)
    x[:6] = [0.5, 1.5, -0.5, -1.5, 2.5e9, -2.5e9]
    wide = x.astype(np.float64)

    def clipped(values: np.ndarray) -> np.ndarray:
        return np.clip(values, -(2**31), 2**31 - 1).astype(np.int64)

    expected = [
        clipped(np.trunc(wide)),
        clipped(np.rint(wide)),
        clipped(np.ceil(wide)),
        clipped(np.floor(wide)),
        np.clip(np.trunc(wide), 0, 2**32 - 1).astype(np.int64),
        clipped(np.trunc(wide)).astype(np.int8),
        np.trunc(wide).astype(np.int64),
    ]
    out = rows_of("to_integers", len(expected), np.int32, x)
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row], want.astype(np.int64).astype(np.int32), f"row {row}")


def test_not_a_number_becomes_integer_zero() -> None:
    assert (rows_of("to_integers", 7, np.int32, np.full(N, np.nan, np.float32))[:4] == 0).all()


def test_integers_to_floats() -> None:
    x = random(10).integers(-(2**63), 2**63 - 1, N, np.int64)
    x[0] = 2**53 + 2**29 + 1  # float64 would round this before float32 does
    narrow = x.astype(np.int32).astype(np.float32)
    out = rows_of("from_integers", 7, np.float32, x)
    np.testing.assert_array_equal(out[0], x.astype(np.float32))
    shrinks = np.abs(out[1].astype(np.float64)) <= np.abs(out[0].astype(np.float64))
    assert shrinks.all() and (out[1] != out[0]).any()
    np.testing.assert_array_equal(out[2], x.view(np.uint64).astype(np.float32))
    np.testing.assert_array_equal(out[3], narrow)
    np.testing.assert_array_equal(out[4], x.astype(np.uint32).astype(np.float32))
    np.testing.assert_array_equal(out[5], x.astype(np.float64).astype(np.float32))
    np.testing.assert_array_equal(out[6], x.astype(np.int16).astype(np.float32))


def half_towards(x: np.ndarray, towards: str) -> np.ndarray:
    nearest = x.astype(np.float16)
    value = nearest.astype(np.float64)
    high = np.where(value < x, np.nextafter(nearest, np.float16(np.inf)), nearest)
    low = np.where(value > x, np.nextafter(nearest, np.float16(-np.inf)), nearest)
    return {"up": high, "down": low, "zero": np.where(x > 0, low, high)}[towards].astype(np.float16)


def test_floats_to_halves() -> None:
    x = (random(11).standard_normal(N) * 10.0 ** random(12).integers(-8, 4, N)).astype(np.float32)
    wide = x.astype(np.float64)
    out = rows_of("to_halves", 7, np.float16, x)
    expected = [
        x.astype(np.float16),
        half_towards(wide, "zero"),
        half_towards(wide, "up"),
        half_towards(wide, "down"),
        (wide * 1.0000001).astype(np.float16),
        x.astype(np.float16),
        (-x).astype(np.float16),
    ]
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row].astype(np.float32), want.astype(np.float32), f"row {row}")


def test_floats_to_tf32() -> None:
    x = random(13).standard_normal(N).astype(np.float32)
    np.testing.assert_array_equal(rows_of("to_tf32", 1, np.float32, x)[0], rounded_to_tf32(x))
