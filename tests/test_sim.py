"""The PTX interpreter against numpy, on what nvcc makes of simgpu/kernels; and every planted fault, named."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest
from simgpu import build
from simgpu.simulator import Simulator, SimulatorFault

pytestmark = pytest.mark.skipif(build.find_nvcc() is None, reason=build.NO_NVCC)

N = 256
FLOAT32_ULP = 2.0**-23


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rows_of(kernel: str, count: int, out_type: object, *inputs: np.ndarray, **options: int) -> np.ndarray:
    """Runs a kernel of numbers.cu: one row per operation."""
    n = len(inputs[0])
    out = np.zeros((count, n), out_type)
    Simulator("numbers", **options).run(kernel, *inputs, out, np.int32(n), block=128, grid=-(-n // 128))
    return out


# ---------------------------------------------------------------- integers


def c_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array([int(abs(int(a)) // abs(int(b))) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x, y)])


def reverse_bits(x: np.ndarray, bits: int) -> np.ndarray:
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in x], np.uint64)


def bytes_of(x: np.ndarray) -> np.ndarray:
    return x.view(np.int8).reshape(-1, 4).astype(np.int64)


def test_integers() -> None:
    x, y = random().integers(-(2**31), 2**31, (2, N)).astype(np.int32)
    y[y == 0] = 3
    x[0], y[0] = -(2**31), 7
    u, v = x.view(np.uint32), y.view(np.uint32)
    wide_x, wide_y, wide_u, wide_v = x.astype(np.int64), y.astype(np.int64), u.astype(np.uint64), v.astype(np.uint64)
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
    ]
    out = rows_of("integers", len(expected), np.int32, x, y)
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row], np.asarray(want).astype(np.int64).astype(np.int32), f"row {row}")


def test_longs() -> None:
    x, y = random(1).integers(-(2**63), 2**63 - 1, (2, N), np.int64)
    exact_x, exact_y = x.astype(object), y.astype(object)
    exact_u, exact_v = x.view(np.uint64).astype(object), y.view(np.uint64).astype(object)
    quotient = np.array([abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(exact_x, exact_y)])
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
    }
    out = rows_of("floats", 25, np.float32, x, y)
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
    fused = np.array([math.fsum([a * b, 1.5]) for a, b in zip(wide_x[plain], wide_y[plain])], np.float32)
    assert np.max(np.abs(out[4][plain] - fused) / np.abs(fused)) <= FLOAT32_ULP


def test_float_fma_rounds_once() -> None:
    x = np.full(N, -(1 + 2.0**-12), np.float32)
    y = np.full(N, 1 + 2.0**-12, np.float32)
    out = rows_of("floats", 25, np.float32, x, y)  # the exact product is -(1 + 2^-11 + 2^-24)
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


def rounded_to_tf32(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_floats_to_tf32() -> None:
    x = random(13).standard_normal(N).astype(np.float32)
    np.testing.assert_array_equal(rows_of("to_tf32", 1, np.float32, x)[0], rounded_to_tf32(x))


# ---------------------------------------------------------------- memory

POINTER_OPTIONS = np.dtype([("scale", np.int32), ("weights", np.float32, 3)], align=True)
FLOAT4 = np.dtype([(name, np.float32) for name in "xyzw"], align=True, metadata={"align": 16})


def test_vectors() -> None:
    x = random().standard_normal((32, 4)).astype(np.float32)
    y = random().integers(0, 256, (32, 4)).astype(np.uint8)
    z = random().standard_normal((32, 2))
    s = random().integers(-99, 99, (32, 2)).astype(np.int16)
    out = aligned((32, 4), np.float32)
    Simulator("memory").run("vectors", aligned_copy(x), aligned_copy(y), aligned_copy(z), aligned_copy(s), out)
    want = np.stack(
        [x[:, 3] + y[:, 0], x[:, 2] + y[:, 3], x[:, 1] + z[:, 1].astype(np.float32), x[:, 0] + s[:, 1]], 1
    )
    np.testing.assert_array_equal(out, want.astype(np.float32))


def aligned(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """An array whose address is a multiple of 256, as a GPU allocation's."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
    raw = np.zeros(size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape)  # type: ignore[call-overload]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    out = aligned(array.shape, array.dtype)
    out[...] = array
    return out


def test_local_arrays() -> None:
    index = random().integers(0, 16, 64).astype(np.int32)
    x, y = random().standard_normal(16).astype(np.float32), np.zeros(64, np.float32)
    Simulator("memory").run("local_array", index, x, y, block=64)
    scale = np.arange(1, 65, dtype=np.float32)
    np.testing.assert_array_equal(y, x[index] * scale + x[(index + 3) & 15] * scale)


def test_constants_and_variables() -> None:
    sim = Simulator("memory")
    x, y = random().standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    i = np.arange(32)
    for factor in (1, 2):
        coefficients = sim.variable("coefficients", np.float32)
        coefficients *= factor
        sim.run("constants", x, y)
        square = (np.arange(10, dtype=np.float32) ** 2)[: 8 + 2]
        want = np.float32(factor) * np.array([1, -2, 3, 0.5], np.float32)[i & 3] * x
        np.testing.assert_allclose(y, want + square[i & 7] + square[2:][i & 3], rtol=1e-6)


def test_parameters_of_every_width() -> None:
    out = np.zeros(39, np.float32)
    options = np.array((3, (0.5, 1.5, 2.5)), POINTER_OPTIONS)
    vector = np.array((1, 2, 3, 9), FLOAT4)
    Simulator("memory").run(
        "parameters", np.int8(-3), np.float64(2.5), np.int16(-7), out, np.int64(1 << 33), np.uint8(11), vector, options
    )
    assert out[:7].tolist() == [-3, 2.5, -7, 2.0**33, 11, 1, 9]
    np.testing.assert_array_equal(out[7:], 3 * np.array([0.5, 1.5, 2.5], np.float32)[np.arange(32) % 3])


@pytest.mark.parametrize("n", [1, 32], ids=["to global", "to shared and local"])
def test_generic_pointers(n: int) -> None:
    x, y = random().standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    Simulator("memory").run("generic_pointers", x, y, np.int32(n))
    small = np.arange(1, 5, dtype=np.float32) if n > 16 else x[:4]
    np.testing.assert_array_equal(y, (x * (2 if n > 16 else 1))[::-1] + np.tile(small, 8))


def test_dynamic_shared_memory() -> None:
    x, y = random().standard_normal(128).astype(np.float32), np.zeros(128, np.float32)
    Simulator("memory").run("dynamic_shared", x, y, block=128, shared=512)
    np.testing.assert_array_equal(y, x[::-1] + 1)


def test_atomics() -> None:
    x = random().integers(1, 1000, 192).astype(np.int32)
    integers = np.zeros(8, np.int32)
    integers[2] = 5000
    floats, longs = np.zeros(1, np.float32), np.zeros(1, np.uint64)
    sim = Simulator("memory")
    sim.run("atomics", integers, floats, longs, x, grid=3, block=64)
    total = int(x.sum())
    ored, xored = int(np.bitwise_or.reduce(x)), int(np.bitwise_xor.reduce(x))
    assert integers.tolist() == [total, x.max(), x.min(), ored, xored, 192 % 10, 2 * 192, total]
    assert floats[0] == total and longs[0] == total
    assert sim.variable("counter", np.int32)[0] == 5 + 192


def test_device_functions() -> None:
    x, d = random().standard_normal((32, 4)).astype(np.float32), random().uniform(0.5, 2, 32)
    y, z = aligned((32, 4), np.float32), np.zeros(32)
    Simulator("memory").run("calls", aligned_copy(x), d, y, z)
    turns = [(i & 3) + (2 if i & 1 else 0) for i in range(32)]
    np.testing.assert_array_equal(y, np.stack([np.roll(row, turn) for row, turn in zip(x, turns)]))
    np.testing.assert_allclose(z, d ** (np.arange(32) % 7), rtol=1e-13)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_switch(architecture: str) -> None:
    x, y, i = random().integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32), np.arange(64)
    Simulator("memory", architecture=architecture).run("switched", x, y, block=64)
    cases = [i * i + 7, i ^ 0x55, -i, i << 4, i // 3, i % 3, [int(k).bit_count() for k in i]]
    cases += [np.full(64, 1000)] * 2
    np.testing.assert_array_equal(y, np.array(cases)[x, i])


# ---------------------------------------------------------------- warps and barriers


def test_shuffles_and_votes() -> None:
    x = random().integers(-1000, 1000, 32).astype(np.int32)
    out = np.zeros((15, 32), np.int32)
    Simulator("warps").run("shuffles", x, out)
    i = np.arange(32)
    ballot = sum(1 << k for k in range(32) if x[k] & 1)
    expected = [
        x[(i * 7) & 31],
        np.where(i >= 3, x[(i - 3) % 32], x),
        np.where(i < 27, x[(i + 5) % 32], x),
        x[i ^ 9],
        x[i // 8 * 8 + 3],
        np.where(i % 16 < 14, x[(i + 2) % 32], x),
        np.full(32, ballot),
        np.ones(32),
        np.ones(32),
        [sum(1 << k for k in range(32) if (x[k] & 3) == (x[j] & 3)) for j in i],
        np.full(32, x.sum()),
        np.full(32, x.max()),
        np.full(32, np.bitwise_xor.reduce(x)),
        np.where(i < 12, x[i ^ 1], 0),
        np.full(32, -1),
    ]
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(out[row], np.asarray(want).astype(np.int64).astype(np.int32), f"row {row}")


def test_branches_meet_again() -> None:
    x = random().integers(1, 50, 32).astype(np.int32)
    y = np.zeros(32, np.int32)
    Simulator("warps").run("branches", x, y)
    want = []
    for i in range(32):
        v = int(x[i])
        if i & 1:
            for k in range(i & 7):
                v += k * v
        else:
            v = int(x[i ^ 2])
        while v > 100:
            v //= 2
        want.append(v)
    assert y.tolist() == [v + want[0] for v in want]


@pytest.mark.parametrize("seed", range(4))
def test_named_barriers_order_producer_and_consumer(seed: int) -> None:
    x, y = random().standard_normal(320).astype(np.float32), np.zeros(320, np.float32)
    Simulator("warps", seed=seed).run("producer_consumer", x, y, np.int32(5), block=128)
    np.testing.assert_array_equal(y.reshape(5, 64), 2 * x.reshape(5, 64)[:, ::-1])


def test_counted_barriers() -> None:
    x = random().integers(-5, 6, 96).astype(np.int32)
    out = np.zeros((3, 96), np.int32)
    Simulator("warps").run("counted_barriers", x, out, block=96)
    assert (out[0] == (x > 0).sum()).all() and (out[1] != 0).all() and (out[2] != 0).all()


def test_syncwarp_of_two_halves() -> None:
    x, y = random().standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    Simulator("warps").run("split_warp", x, y)
    np.testing.assert_array_equal(y, np.concatenate([x[15::-1], 3 * x[:15:-1]]))


@pytest.mark.parametrize("seed", range(3))
def test_block_sum(seed: int) -> None:
    x, y = random().integers(-9, 9, (5, 1000)).astype(np.float32), np.zeros(5, np.float32)
    Simulator("warps", seed=seed).run("block_sum", x, y, np.int32(1000), grid=5, block=256)
    np.testing.assert_array_equal(y, x.sum(1))


# ---------------------------------------------------------------- tensor cores


def sum_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """style.md's bound for sums of products in fp32."""
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    return 4 * math.sqrt(a.shape[1]) * 2.0**-24 * size + 2.0**-20


def test_mma_f16() -> None:
    a, b = random().standard_normal((16, 16)).astype(np.float16), random(1).standard_normal((16, 8)).astype(np.float16)
    c = np.zeros((16, 8), np.float32)
    Simulator("tensor").run("mma_f16_k16", a, b, c)
    start = np.tile([[1, 2]], (16, 4)) + np.repeat([[0], [2]], 8, 0)  # as the kernel sets its four registers
    exact = a.astype(np.float64) @ b.astype(np.float64) + start
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def test_mma_f16_with_f16_sums() -> None:
    a, b = random().standard_normal((16, 8)).astype(np.float16), random(1).standard_normal((8, 8)).astype(np.float16)
    c = np.zeros((16, 8), np.float16)
    Simulator("tensor").run("mma_f16_sums", a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, exact, rtol=2.0**-10, atol=1e-4)


def test_mma_bf16() -> None:
    a = random().standard_normal((16, 16)).astype(ml_dtypes.bfloat16)
    b = random(1).standard_normal((16, 8)).astype(ml_dtypes.bfloat16)
    c = np.zeros((16, 8), np.float32)
    Simulator("tensor").run("mma_bf16_k16", a.view(np.uint16), b.view(np.uint16), c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def truncated_to_tf32(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_mma_tf32_ignores_the_low_bits() -> None:
    a, b = random().standard_normal((16, 8)).astype(np.float32), random(1).standard_normal((8, 8)).astype(np.float32)
    c = np.zeros((16, 8), np.float32)
    Simulator("tensor").run("mma_tf32_k8", a, b, c)
    exact = truncated_to_tf32(a).astype(np.float64) @ truncated_to_tf32(b).astype(np.float64)
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()
    assert (np.abs(c - a.astype(np.float64) @ b) > sum_bound(a, b)).any()


def test_mma_s8() -> None:
    a, b = random().integers(-128, 128, (16, 32)).astype(np.int8), random(1).integers(0, 256, (32, 8)).astype(np.uint8)
    c = np.zeros((16, 8), np.int32)
    Simulator("tensor").run("mma_s8_k32", a, b, c)
    start = np.zeros((16, 8), np.int32)
    start[:8, 0::2], start[8:, 1::2] = 100, -100
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32) + start)


def test_ldmatrix() -> None:
    x = random().integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((7, 32), np.uint32)
    Simulator("tensor").run("ldmatrix_all", x, out)
    plain = x.reshape(4, 32, 2).view(np.uint32)[..., 0]
    turned = np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(4, 32, 2).view(np.uint32)[..., 0]
    np.testing.assert_array_equal(out, np.concatenate([plain, turned[:2], plain[:1]]))


def test_wmma_f16() -> None:
    a, b = random().standard_normal((32, 48)).astype(np.float16), random(1).standard_normal((48, 32)).astype(np.float16)
    c = np.zeros((32, 32), np.float32)
    Simulator("tensor").run("wmma_f16", a, b, c, np.int32(32), np.int32(48), grid=(2, 2))
    exact = a.astype(np.float64) @ b.astype(np.float64) / 2
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def test_wmma_tf32() -> None:
    a, b = random().standard_normal((16, 8)).astype(np.float32), random(1).standard_normal((8, 16)).astype(np.float32)
    c = np.zeros((16, 16), np.float32)
    Simulator("tensor").run("wmma_tf32", a, np.ascontiguousarray(b.T), c)
    exact = rounded_to_tf32(a).astype(np.float64) @ rounded_to_tf32(b).astype(np.float64)
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def test_wmma_s8() -> None:
    a, b = random().integers(-128, 128, (2, 16, 16)).astype(np.int8)
    c = np.zeros((16, 16), np.int32)
    Simulator("tensor").run("wmma_s8", a, b, c)
    np.testing.assert_array_equal(c.T, a.astype(np.int32) @ b.astype(np.int32) + 3)


@pytest.mark.parametrize("late_async", [0, 1])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 72, 36)], ids=["whole tiles", "tails"])
def test_double_buffered_gemm(shape: tuple[int, int, int], seed: int, late_async: int) -> None:
    rows, columns, depth = shape
    a = aligned_copy(random().standard_normal((rows, depth)).astype(np.float32))
    b = aligned_copy(random(1).standard_normal((depth, columns)).astype(np.float32))
    c = aligned((rows, columns), np.float32)
    sizes = [np.int32(n) for n in shape]
    grid = (-(-columns // 64), -(-rows // 64))
    Simulator("tensor", seed=seed, late_async=late_async).run("sgemm_async", a, b, c, *sizes, grid=grid, block=256)
    assert (np.abs(c - a.astype(np.float64) @ b) <= sum_bound(a, b)).all()


# ---------------------------------------------------------------- faults


def zeros(count: int = 512, dtype: object = np.float32) -> np.ndarray:
    out = aligned((count,), dtype)
    out[...] = 0
    return out


FAULTS: dict[str, tuple[str, int, Callable[[], Sequence[object]], str]] = {
    # kernel: kind, threads, arguments, what the sentence says
    "global_out_of_bounds": ("out_of_bounds", 32, lambda: [zeros(40), np.int32(9)], "bytes past an allocation"),
    "shared_out_of_bounds": ("out_of_bounds", 32, lambda: [zeros(), np.int32(2)], "the block has 128 bytes"),
    "local_out_of_bounds": ("out_of_bounds", 32, lambda: [zeros(), np.int32(3)], "local access"),
    "misaligned": ("misaligned", 32, lambda: [zeros(), zeros()], "16 bytes at an address that is 4 past"),
    "uninitialised_shared": ("uninitialised", 32, lambda: [zeros()], "byte 124 of shared memory"),
    "uninitialised_local": ("uninitialised", 32, lambda: [np.arange(32, dtype=np.int32) % 16, zeros()], "local memory"),
    "divergent_barrier": ("barrier", 32, lambda: [zeros()], "divergent barrier"),
    "early_return_before_barrier": ("barrier", 96, lambda: [zeros()], "has left the kernel"),
    "two_barriers_for_one": ("barrier", 32, lambda: [zeros()], "different barrier instructions"),
    "partial_shuffle": ("collective", 32, lambda: [zeros()], "only part of its member mask"),
    "partial_syncwarp": ("collective", 32, lambda: [zeros()], "only part of its member mask"),
    "missing_barrier": ("race", 256, lambda: [zeros()], "no barrier between"),
    "missing_second_barrier": ("race", 128, lambda: [zeros(), zeros(), np.int32(2)], "no barrier between"),
    "missing_syncwarp": ("race", 32, lambda: [zeros()], "no barrier between"),
    "barrier_of_half": ("race", 128, lambda: [zeros()], "no barrier between"),
    "plain_beside_atomic": ("race", 64, lambda: [zeros(64, np.int32)], "no barrier between"),
    "missing_async_wait": ("async_copy", 64, lambda: [zeros(), zeros()], "has not been waited for"),
    "wait_leaves_one_too_many": ("async_copy", 64, lambda: [zeros(), zeros()], "has not been waited for"),
    "missing_barrier_after_wait": ("race", 64, lambda: [zeros(), zeros()], "no barrier between"),
    "unsupported": ("unsupported", 32, lambda: [zeros(64, np.int32)], "mbarrier.init"),
    "traps": ("trap", 32, lambda: [zeros(64, np.int32) - 1], "trap"),
    "asserts": ("trap", 32, lambda: [zeros(64, np.int32) - 1], "assertion failed"),
    "prints": ("unsupported", 32, lambda: [zeros(64, np.int32)], "printf"),
}


@pytest.mark.parametrize("late_async", [0, 1], ids=["async at once", "async late"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kernel", FAULTS)
def test_fault_is_found_in_every_order(kernel: str, seed: int, late_async: int) -> None:
    kind, threads, arguments, words = FAULTS[kernel]
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults", seed=seed, late_async=late_async).run(kernel, *arguments(), block=threads)
    assert fault.value.kind == kind, fault.value
    assert words in str(fault.value)
    assert f"kernel {kernel}" in str(fault.value) and "PTX line" in str(fault.value)


def test_fault_names_block_thread_and_source_line() -> None:
    x = zeros(100)
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults").run("global_out_of_bounds", x, np.int32(98), grid=3, block=(8, 4))
    source = (build.KERNELS / "faults.cu").read_text().splitlines()
    line = next(k for k, text in enumerate(source, 1) if "void global_out_of_bounds" in text)
    assert "block (0,0,0), thread (2,0,0)" in str(fault.value)
    assert "st.global.f32" in str(fault.value) or "st.global.u32" in str(fault.value)
    assert f"faults.cu:{line}" in str(fault.value)


def test_endless_loop_meets_the_budget() -> None:
    with pytest.raises(SimulatorFault) as fault:
        Simulator("faults", budget=10_000).run("endless", zeros(2, np.int32))
    assert fault.value.kind == "endless" and "10000 warp instructions" in str(fault.value)


def test_checks_can_be_switched_off() -> None:
    y = zeros(256)
    Simulator("faults", check_races=0).run("missing_barrier", y, block=256)  # a warp reads what a later one will write
    assert (y == -1).any()
    Simulator("faults", check_uninitialised=0).run("uninitialised_shared", y)
    assert np.isnan(y[31]) and (y[:31] == 1).all()


def test_late_copies_are_late() -> None:
    x, y = zeros() + 1, zeros()
    off = {"check_races": 0, "check_uninitialised": 0}
    Simulator("faults", late_async=1, **off).run("missing_async_wait", x, y, block=64)
    assert np.isnan(y[:64]).all()
    Simulator("faults", late_async=0, **off).run("missing_async_wait", x, y, block=64)
    assert (y[:64] == 1).all()


def test_launch_is_checked() -> None:
    sim = Simulator("tensor")
    cases = {
        "1 to 256": dict(block=512),
        "parameter bytes": dict(block=256, extra=[np.int32(0)]),
        "grid is empty": dict(block=256, grid=0),
        "bytes of shared memory": dict(block=256, shared=230_000),
    }
    for words, launch in cases.items():
        extra = launch.pop("extra", [])
        arguments = [zeros(), zeros(), zeros(), np.int32(8), np.int32(8), np.int32(8), *extra]
        with pytest.raises(SimulatorFault, match=words) as fault:
            sim.run("sgemm_async", *arguments, **launch)
        assert fault.value.kind == "launch"
    with pytest.raises(SimulatorFault, match="no kernel named 'nothing'"):
        sim.run("nothing")


def test_text_that_is_no_ptx() -> None:
    with pytest.raises(SimulatorFault) as fault:
        Simulator(text=".version 8.0\n.visible .entry broken()\n{ mov.u32 %r1, 5;\n")
    assert fault.value.kind == "parse" and "PTX line" in str(fault.value)
    with pytest.raises(SimulatorFault, match="'%r1' is not declared"):
        Simulator(text=".version 8.0\n.visible .entry broken()\n{ mov.u32 %r1, 5; ret; }\n").run("broken")


def test_kernel_info() -> None:
    sim = Simulator("tensor")
    info = sim.info("sgemm_async")
    assert (info.parameter_bytes, info.parameter_count, info.max_threads) == (36, 6, 256)
    assert info.static_shared_bytes == 2 * 2 * 64 * 16 * 4
    assert "ldmatrix_all" in sim.kernels()


# ---------------------------------------------------------------- counters


@pytest.mark.parametrize(
    "kernel, load_sectors, store_conflicts",
    [
        ("coalesced", 4, 0),  # 32 lanes x 4 bytes / 32 bytes
        ("stride_2", 8, 0),
        ("stride_32", 32, 0),  # every lane a sector of its own
        ("conflict_free", 4, 0),
        ("conflict_2_way", 4, 1),  # lanes k and k + 16 share a bank: one more cycle
        ("conflict_32_way", 4, 31),
    ],
)
def test_counters_by_hand(kernel: str, load_sectors: int, store_conflicts: int) -> None:
    sim = Simulator("counted")
    sim.run(kernel, zeros(1024), zeros(32))
    c = sim.counters()
    assert (c["global_load_requests"], c["global_load_bytes"]) == (1, 128)
    assert (c["global_store_requests"], c["global_store_bytes"], c["global_store_sectors"]) == (1, 128, 4)
    assert c["global_load_sectors"] == load_sectors
    shared = 1 if "conflict" in kernel else 0
    assert (c["shared_load_requests"], c["shared_store_requests"]) == (shared, shared)
    assert (c["shared_load_conflicts"], c["shared_store_conflicts"]) == (store_conflicts, store_conflicts)


def test_wide_shared_access_has_no_conflicts() -> None:
    sim = Simulator("counted")
    sim.run("wide_shared", zeros(128), zeros(128))
    c = sim.counters()
    assert (c["shared_load_bytes"], c["shared_load_conflicts"], c["shared_store_conflicts"]) == (512, 0, 0)
    assert c["global_load_sectors"] == 16


def test_divergence_and_instruction_classes() -> None:
    sim = Simulator("counted")
    sim.run("half_of_each_warp", zeros(128, np.int32), zeros(64, np.int32), block=64)
    c = sim.counters()
    assert c["divergent_branches"] == 2  # one in each warp
    assert c["global_load_requests"] == 4 and c["global_load_bytes"] == 256  # both sides of both warps
    assert c["lane_memory"] >= 128 and c["lane_integer"] > 0 and c["lane_fp32"] == c["lane_tensor"] == 0
    sim.reset()
    assert not any(sim.counters().values())


def test_tensor_instructions_are_counted() -> None:
    sim = Simulator("tensor")
    a, b, c = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    sim.run("mma_f16_k16", a, b, c)
    assert (sim.counters()["warp_tensor"], sim.counters()["lane_tensor"]) == (1, 32)
