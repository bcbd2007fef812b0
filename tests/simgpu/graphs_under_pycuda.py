"""Checks of the stand-in driver under the real PyCUDA: capture, graphs, and cuBLAS inside them.

Run as `python graphs_under_pycuda.py CHECK FOLDER_OF_PTX`: test_simgpu.py runs each in a process of its own,
with the stand-in first on the loader's path.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pycuda.driver as cuda
from pycuda_tools import (
    EXTERNAL,
    NON_BLOCKING,
    Graph,
    N,
    arrays,
    context,
    from_gpu,
    libcuda,
    module,
    pinned,
    refused,
    run_named,
    to_gpu,
)

# ---------------------------------------------------------------- graphs, by ctypes


def check_graph_replays() -> None:
    with context():
        x, y = arrays()
        stream = cuda.Stream(NON_BLOCKING)
        on_x, on_y, out = to_gpu(x), to_gpu(y), pinned(np.zeros(N, np.float32))
        axpy = module().get_function("axpy").prepare("fPPi")

        def enqueue() -> None:
            axpy.prepared_async_call((4, 1), (256, 1, 1), stream, np.float32(2), on_x, on_y, N)
            cuda.memcpy_dtoh_async(out, on_y, stream)

        graph = Graph(stream, enqueue)
        assert graph.nodes == 2 and (from_gpu(on_y) == y).all()  # captured, not run
        want = y
        for _ in range(3):
            graph.launch()
            stream.synchronize()
            want = np.float32(2) * x + want
            assert np.allclose(out, want, rtol=1e-6)


def check_graph_records_external_events() -> None:
    with context():
        lib = libcuda()
        stream = cuda.Stream(NON_BLOCKING)
        handle = ctypes.c_void_p(stream.handle)
        memory = to_gpu(np.zeros(N, np.float32))
        events = [ctypes.c_void_p() for _ in range(3)]
        for event in events:
            assert lib.cuEventCreate(ctypes.byref(event), 0) == 0

        def enqueue() -> None:
            for event in events:
                assert lib.cuEventRecordWithFlags(event, handle, EXTERNAL) == 0
                cuda.memset_d32_async(memory, 0, N, stream)

        graph = Graph(stream, enqueue)
        assert graph.nodes == 6
        elapsed = ctypes.c_float(-1)
        assert (
            lib.cuEventElapsedTime_v2(ctypes.byref(elapsed), events[0], events[2]) == 400
        )  # not recorded yet
        for _ in range(2):
            graph.launch()
            assert (
                lib.cuEventElapsedTime_v2(ctypes.byref(elapsed), events[0], events[2]) == 600
            )  # not complete
            stream.synchronize()
            assert lib.cuEventElapsedTime_v2(ctypes.byref(elapsed), events[0], events[2]) == 0
            assert elapsed.value >= 0


def check_plain_event_in_a_capture_has_no_time() -> None:
    with context():
        lib = libcuda()
        stream, event = cuda.Stream(NON_BLOCKING), cuda.Event()
        graph = Graph(stream, lambda: event.record(stream))
        assert graph.nodes == 0
        with refused(cuda.LogicError, "captur"):
            event.synchronize()
        del lib


def check_capture_is_broken_by_a_synchronisation() -> None:
    with context():
        stream = cuda.Stream(NON_BLOCKING)
        memory = cuda.mem_alloc(4 * N)

        def enqueue() -> None:
            cuda.memset_d32_async(memory, 0, N, stream)
            with refused(cuda.LogicError, "not permitted when stream is capturing"):
                cuda.mem_alloc(16)

        graph = Graph(stream, enqueue)
        assert graph.status == 901  # the capture is invalidated


def check_capture_joins_a_second_stream() -> None:
    with context():
        first, second = cuda.Stream(NON_BLOCKING), cuda.Stream(NON_BLOCKING)
        forked, joined = cuda.Event(), cuda.Event()
        a, b = to_gpu(np.zeros(N, np.float32)), to_gpu(np.zeros(N, np.float32))

        def enqueue() -> None:
            cuda.memset_d32_async(a, 0x3F800000, N, first)
            forked.record(first)
            second.wait_for_event(forked)
            cuda.memcpy_dtod_async(b, a, 4 * N, second)
            joined.record(second)
            first.wait_for_event(joined)

        graph = Graph(first, enqueue)
        assert graph.nodes == 2
        graph.launch()
        first.synchronize()
        assert (from_gpu(b) == 1).all()


# ---------------------------------------------------------------- cuBLAS, by ctypes


def product(a: np.ndarray, b: np.ndarray, compute: int) -> np.ndarray:
    """a @ b, row-major, through cublasGemmEx on a captured stream, replayed twice."""
    blas = ctypes.CDLL("libcublas.so.13")
    stream, handle = cuda.Stream(NON_BLOCKING), ctypes.c_void_p()
    assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
    assert blas.cublasSetStream_v2(handle, ctypes.c_void_p(stream.handle)) == 0
    (m, k), n = a.shape, b.shape[1]
    kind = {np.dtype(np.float32): 0, np.dtype(np.float16): 2}[a.dtype]
    on_a, on_b, on_c = to_gpu(a), to_gpu(b), cuda.mem_alloc(a.itemsize * m * n)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def pointer(memory: object) -> ctypes.c_void_p:
        return ctypes.c_void_p(int(memory))

    def enqueue() -> None:
        status = blas.cublasGemmEx(
            handle, 0, 0, n, m, k, ctypes.byref(one), pointer(on_b), kind, n, pointer(on_a), kind, k,
            ctypes.byref(zero), pointer(on_c), kind, n, compute, -1,
        )  # fmt: skip
        assert status == 0

    graph = Graph(stream, enqueue)
    graph.launch()
    graph.launch()
    stream.synchronize()
    out = from_gpu(on_c, m * n, a.dtype).reshape(m, n)
    assert blas.cublasDestroy_v2(handle) == 0
    return out


def check_cublas() -> None:
    with context():
        rng = np.random.default_rng(0)
        a, b = (
            rng.standard_normal((33, 40)).astype(np.float32),
            rng.standard_normal((40, 17)).astype(np.float32),
        )
        exact = a.astype(np.float64) @ b.astype(np.float64)
        bound = 4 * np.sqrt(40) * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b))
        assert (np.abs(product(a, b, 68) - exact) <= bound).all()
        rough = np.abs(product(a, b, 77) - exact)
        assert (rough > bound).any() and (rough <= 2**13 * bound).all()  # TF32 is really rounded
        half = product(a.astype(np.float16), b.astype(np.float16), 68)
        exact_of_halves = a.astype(np.float16).astype(np.float64) @ b.astype(np.float16).astype(np.float64)
        assert np.allclose(half, exact_of_halves, rtol=2.0**-10, atol=1e-3)


def check_cublas_strided_batches() -> None:
    with context():
        blas = ctypes.CDLL("libcublas.so.13")
        handle = ctypes.c_void_p()
        assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
        rng = np.random.default_rng(0)
        a = rng.standard_normal((3, 5, 4)).astype(np.float32)
        b = rng.standard_normal((3, 6, 4)).astype(np.float32)  # used transposed
        on_a, on_b, on_c = to_gpu(a), to_gpu(b), cuda.mem_alloc(3 * 5 * 6 * 4)
        one, zero = ctypes.c_float(2), ctypes.c_float(0)
        at = [ctypes.c_void_p(int(memory)) for memory in (on_a, on_b, on_c)]
        stride = ctypes.c_longlong
        status = blas.cublasGemmStridedBatchedEx(
            handle, 1, 0, 6, 5, 4, ctypes.byref(one), at[1], 0, 4, stride(24), at[0], 0, 4, stride(20),
            ctypes.byref(zero), at[2], 0, 6, stride(30), 3, 68, -1,
        )  # fmt: skip
        assert status == 0
        out = from_gpu(on_c, 90).reshape(3, 5, 6)
        assert np.allclose(out, 2 * a @ b.transpose(0, 2, 1), atol=1e-5)
        overlong = blas.cublasGemmStridedBatchedEx(
            handle, 1, 0, 6, 5, 4, ctypes.byref(one), at[1], 0, 4, stride(24), at[0], 0, 4, stride(20),
            ctypes.byref(zero), at[2], 0, 6, stride(30), 4, 68, -1,
        )  # fmt: skip
        assert overlong == 13
        blas.cublasDestroy_v2(handle)


if __name__ == "__main__":
    run_named(globals())
