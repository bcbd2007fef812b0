"""The PTX interpreter on whole kernels: memory of every space, warps and barriers, tensor cores, cp.async."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from minicnn.device import nvcc
from simgpu.arrays import aligned, aligned_copy, random, rounded_to_tf32
from simgpu.simulator import Simulator

pytestmark = pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)

# ---------------------------------------------------------------- memory

POINTER_OPTIONS = np.dtype([("scale", np.int32), ("weights", np.float32, 3)], align=True)
FLOAT4 = np.dtype([(name, np.float32) for name in "xyzw"], align=True, metadata={"align": 16})


def test_vectors() -> None:
    x = random().standard_normal((32, 4)).astype(np.float32)
    y = random().integers(0, 256, (32, 4)).astype(np.uint8)
    z = random().standard_normal((32, 2))
    s = random().integers(-99, 99, (32, 2)).astype(np.int16)
    out = aligned((32, 4), np.float32)
    Simulator("memory").run(
        "vectors", aligned_copy(x), aligned_copy(y), aligned_copy(z), aligned_copy(s), out
    )
    want = np.stack(
        [x[:, 3] + y[:, 0], x[:, 2] + y[:, 3], x[:, 1] + z[:, 1].astype(np.float32), x[:, 0] + s[:, 1]], 1
    )
    np.testing.assert_array_equal(out, want.astype(np.float32))


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
        "parameters",
        np.int8(-3),
        np.float64(2.5),
        np.int16(-7),
        out,
        np.int64(1 << 33),
        np.uint8(11),
        vector,
        options,
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


@pytest.mark.parametrize("seed", range(4))
def test_atomics(seed: int) -> None:
    x = random().integers(1, 1000, 192).astype(np.int32)
    integers = np.zeros(8, np.int32)
    integers[2] = 5000
    floats, longs = np.zeros(1, np.float32), np.zeros(1, np.uint64)
    sim = Simulator("memory", seed=seed)
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
    np.testing.assert_array_equal(
        y, np.stack([np.roll(row, turn) for row, turn in zip(x, turns, strict=True)])
    )
    np.testing.assert_allclose(z, d ** (np.arange(32) % 7), rtol=1e-13)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100"])
def test_switch(architecture: str) -> None:
    x, y, i = random().integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32), np.arange(64)
    Simulator("memory", architecture=architecture).run("switched", x, y, block=64)
    cases = [i * i + 7, i ^ 0x55, -i, i << 4, i // 3, i % 3, [int(k).bit_count() for k in i]]
    cases += [np.full(64, 1000)] * 2
    np.testing.assert_array_equal(y, np.array(cases)[x, i])


# What nvcc seldom writes into PTX: predicated calls, tables of branch targets, sums with carry.
BY_HAND = """
.version 7.0
.target sm_80
.address_size 64
.func (.param .b32 result) twice (.param .b32 given)
{
  .reg .b32 %r<2>;
  ld.param.b32 %r0, [given];
  add.u32 %r1, %r0, %r0;
  st.param.b32 [result], %r1;
  ret;
}
.visible .entry by_hand (.param .u64 .ptr .global out)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd1, %r0, 12;
  add.u64 %rd2, %rd0, %rd1;
  setp.lt.u32 %p1, %r0, 10;
  {
    .param .b32 number;
    .param .b32 doubled;
    st.param.b32 [number], %r0;
    st.param.b32 [doubled], -1;
    @%p1 call (doubled), twice, (number);
    ld.param.b32 %r1, [doubled];
  }
  st.global.u32 [%rd2], %r1;
  and.b32 %r2, %r0, 3;
  table: .branchtargets zero, one, two, one;
  brx.idx %r2, table;
zero:
  mov.u32 %r3, 100;
  bra.uni done;
one:
  mov.u32 %r3, 111;
  bra.uni done;
two:
  mov.u32 %r3, 122;
done:
  st.global.u32 [%rd2+4], %r3;
  add.cc.u32 %r4, %r0, 0xfffffff8;
  addc.u32 %r5, 0, 40;
  st.global.u32 [%rd2+8], %r5;
  ret;
}
"""


def test_what_nvcc_seldom_writes() -> None:
    out = np.zeros((32, 3), np.int32)
    Simulator(text=BY_HAND).run("by_hand", out)
    i = np.arange(32)
    np.testing.assert_array_equal(out[:, 0], np.where(i < 10, 2 * i, -1))
    np.testing.assert_array_equal(out[:, 1], np.array([100, 111, 122, 111])[i & 3])
    np.testing.assert_array_equal(out[:, 2], 40 + (i >= 8))


# ---------------------------------------------------------------- warps and barriers


def test_shuffles_and_votes() -> None:
    x = random().integers(-1000, 1000, 32).astype(np.int32)
    out = np.zeros((17, 32), np.int32)
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
        np.where(i % 8 >= 2, x[(i - 2) % 32], x),
        np.zeros(32),
    ]
    for row, want in enumerate(expected):
        np.testing.assert_array_equal(
            out[row], np.asarray(want).astype(np.int64).astype(np.int32), f"row {row}"
        )


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
    a, b = (
        random().standard_normal((16, 16)).astype(np.float16),
        random(1).standard_normal((16, 8)).astype(np.float16),
    )
    c = np.zeros((16, 8), np.float32)
    Simulator("tensor").run("mma_f16_k16", a, b, c)
    start = np.tile([[1, 2]], (16, 4)) + np.repeat([[0], [2]], 8, 0)  # as the kernel sets its four registers
    exact = a.astype(np.float64) @ b.astype(np.float64) + start
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def test_mma_f16_with_f16_sums() -> None:
    a, b = (
        random().standard_normal((16, 8)).astype(np.float16),
        random(1).standard_normal((8, 8)).astype(np.float16),
    )
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
    a, b = (
        random().standard_normal((16, 8)).astype(np.float32),
        random(1).standard_normal((8, 8)).astype(np.float32),
    )
    c = np.zeros((16, 8), np.float32)
    Simulator("tensor").run("mma_tf32_k8", a, b, c)
    exact = truncated_to_tf32(a).astype(np.float64) @ truncated_to_tf32(b).astype(np.float64)
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()
    assert (np.abs(c - a.astype(np.float64) @ b) > sum_bound(a, b)).any()


def test_mma_s8() -> None:
    a, b = (
        random().integers(-128, 128, (16, 32)).astype(np.int8),
        random(1).integers(0, 256, (32, 8)).astype(np.uint8),
    )
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
    a, b = (
        random().standard_normal((32, 48)).astype(np.float16),
        random(1).standard_normal((48, 32)).astype(np.float16),
    )
    c = np.zeros((32, 32), np.float32)
    Simulator("tensor").run("wmma_f16", a, b, c, np.int32(32), np.int32(48), grid=(2, 2))
    exact = a.astype(np.float64) @ b.astype(np.float64) / 2
    assert (np.abs(c - exact) <= sum_bound(a, b)).all()


def test_wmma_tf32() -> None:
    a, b = (
        random().standard_normal((16, 8)).astype(np.float32),
        random(1).standard_normal((8, 16)).astype(np.float32),
    )
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
    Simulator("tensor", seed=seed, late_async=late_async).run(
        "sgemm_async", a, b, c, *sizes, grid=grid, block=256
    )
    assert (np.abs(c - a.astype(np.float64) @ b) <= sum_bound(a, b)).all()
