"""Checks of the stand-in driver under the real PyCUDA: devices, memory, streams, launches, settings.

Run as `python under_pycuda.py CHECK FOLDER_OF_PTX`: test_simgpu.py runs each in a process of its own,
with the stand-in first on the loader's path.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda_tools import (
    NON_BLOCKING,
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

# ---------------------------------------------------------------- the driver


def check_devices() -> None:
    cuda.init()
    device = cuda.Device(0)
    assert cuda.Device.count() == 1 and device.name() == "Simulated GPU 0"
    assert device.compute_capability() == (8, 0) and device.total_memory() == 4096 << 20
    assert device.get_attribute(cuda.device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == 232448
    with refused(cuda.LogicError, "invalid device ordinal"):
        cuda.Device(1)


def check_autoinit() -> None:
    import pycuda.autoinit  # noqa: F401

    x = np.arange(105, dtype=np.float32).reshape(3, 5, 7)
    on_gpu = gpuarray.to_gpu(x)
    assert (on_gpu.get() == x).all() and (on_gpu.reshape(15, 7).get() == x.reshape(15, 7)).all()


def check_context_stack() -> None:
    with context() as first:
        second = cuda.Device(0).make_context()
        assert cuda.Context.get_device() == cuda.Device(0)
        second.pop()
        second.detach()
        x, _ = arrays()
        assert (from_gpu(to_gpu(x)) == x).all()
        first.synchronize()


def check_fresh_memory_is_nan() -> None:
    with context():
        memory = cuda.mem_alloc(4 * N)
        assert np.isnan(from_gpu(memory)).all()
        free, total = cuda.mem_get_info()
        assert total - free == 4 * N
        memory.free()
        assert cuda.mem_get_info()[0] == total
        with refused(cuda.MemoryError, "out of memory"):
            cuda.mem_alloc(1 << 40)


def check_copies_are_range_checked() -> None:
    with context():
        memory = cuda.mem_alloc(4 * N)
        for count in (N, N + 1):
            values = np.zeros(count, np.float32)
            if count == N:
                cuda.memcpy_htod(memory, values)
                continue
            with refused(cuda.LogicError, "invalid argument"):
                cuda.memcpy_htod(memory, values)
            with refused(cuda.LogicError, "invalid argument"):
                cuda.memset_d32(memory, 0, count)


def check_canary_behind_pinned_memory() -> None:
    with context():
        host = cuda.pagelocked_empty(100, np.float32)
        (ctypes.c_char * 1).from_address(host.ctypes.data + 400)[0] = b"\0"
        host.base.free()
        with refused(cuda.LogicError, "illegal memory access"):
            cuda.mem_alloc(4)
        assert b"past the end of a buffer of 400 bytes, at byte 400" in libcuda().simgpu_last_fault()


def check_streams_are_lazy() -> None:
    with context():
        x, y = arrays()
        stream, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
        host_x, host_y, out = pinned(x), pinned(y), pinned(np.zeros(N, np.float32))
        on_x, on_y = cuda.mem_alloc(x.nbytes), cuda.mem_alloc(y.nbytes)
        axpy = module().get_function("axpy").prepare("fPPi")
        cuda.memcpy_htod_async(on_x, host_x, stream)
        cuda.memcpy_htod_async(on_y, host_y, stream)
        begin.record(stream)
        axpy.prepared_async_call((4, 1), (256, 1, 1), stream, np.float32(2), on_x, on_y, N)
        end.record(stream)
        cuda.memcpy_dtoh_async(out, on_y, stream)
        assert (out == 0).all() and not end.query() and not stream.is_done()
        stream.synchronize()
        assert np.allclose(out, 2 * x + y) and end.query() and end.time_since(begin) >= 0


def check_missing_synchronisation_shows() -> None:
    with context():
        stream = cuda.Stream(NON_BLOCKING)
        memory = to_gpu(np.ones(N, np.float32))
        cuda.memset_d32_async(memory, 0, N, stream)
        assert (from_gpu(memory) == 1).all()  # the default stream does not wait for a non-blocking one
        stream.synchronize()
        assert (from_gpu(memory) == 0).all()
        blocking = cuda.Stream()
        cuda.memset_d32_async(memory, 0x3F800000, N, blocking)
        assert (from_gpu(memory) == 1).all()  # but for a blocking one


def check_streams_wait_for_events() -> None:
    with context():
        first, second = cuda.Stream(NON_BLOCKING), cuda.Stream(NON_BLOCKING)
        event = cuda.Event(cuda.event_flags.DISABLE_TIMING)
        a, b = to_gpu(np.zeros(N, np.float32)), to_gpu(np.zeros(N, np.float32))
        out = pinned(np.zeros(N, np.float32))
        cuda.memset_d32_async(a, 0x3F800000, N, first)
        event.record(first)
        second.wait_for_event(event)
        cuda.memcpy_dtod_async(b, a, 4 * N, second)
        cuda.memcpy_dtoh_async(out, b, second)
        second.synchronize()
        assert (out == 1).all()
        with refused(cuda.LogicError, "invalid resource handle"):
            event.time_since(event)


def check_launches() -> None:
    with context():
        x, y = arrays()
        loaded = module()
        out = y.copy()
        axpy = loaded.get_function("axpy")
        axpy(np.float32(3), cuda.In(x), cuda.InOut(out), np.int32(N), block=(256, 1, 1), grid=(4, 1))
        assert np.allclose(out, 3 * x + y)
        address, size = loaded.get_global("launches")
        assert size == 4 and from_gpu(address, 1, np.int32)[0] == 1
        managed = cuda.managed_empty(N, np.float32, mem_flags=cuda.mem_attach_flags.GLOBAL)
        managed[:] = 1
        axpy(np.float32(2), to_gpu(x), managed, np.int32(N), block=(256, 1, 1), grid=(4, 1))
        cuda.Context.synchronize()
        assert np.allclose(managed, 2 * x + 1)


def check_fat_binary() -> None:
    with context():
        loaded = cuda.module_from_buffer((Path(sys.argv[2]) / "driver.fatbin").read_bytes())
        memory = cuda.mem_alloc(256)
        loaded.get_function("bounded")(memory, block=(64, 1, 1))
        assert (from_gpu(memory, 64) == 1).all()
        with refused(cuda.Error, "no kernel image"):
            cuda.module_from_buffer(b"\177ELF" + bytes(60))


def check_launch_by_pointers_to_arguments() -> None:
    """As other clients of the driver launch; PyCUDA packs a buffer."""
    with context():
        x, y = arrays()
        lib, loaded, function = libcuda(), ctypes.c_void_p(), ctypes.c_void_p()
        text = (Path(sys.argv[2]) / "driver.ptx").read_bytes() + b"\0"
        assert lib.cuModuleLoadData(ctypes.byref(loaded), text) == 0
        assert lib.cuModuleGetFunction(ctypes.byref(function), loaded, b"axpy") == 0
        on_x, on_y = to_gpu(x), to_gpu(y)
        values = [ctypes.c_float(2), ctypes.c_uint64(int(on_x)), ctypes.c_uint64(int(on_y)), ctypes.c_int(N)]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        assert lib.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, None, pointers, None) == 0
        assert np.allclose(from_gpu(on_y), 2 * x + y)


def check_mapped_memory() -> None:
    with context():
        host = cuda.pagelocked_zeros(64, np.float32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
        address = np.uintp(host.base.get_device_pointer())
        module().get_function("bounded")(address, block=(64, 1, 1))
        cuda.Context.synchronize()
        assert (host == 1).all()


def check_constants_and_dynamic_shared_memory() -> None:
    with context():
        loaded = module()
        address, size = loaded.get_global("factors")
        assert size == 16
        cuda.memcpy_htod(address, np.array([5, 2, 3, 4], np.float32))
        x = np.arange(512, dtype=np.float32)
        memory = to_gpu(x)
        loaded.get_function("reverse_each_block")(memory, block=(256, 1, 1), grid=(2, 1), shared=1024)
        assert (from_gpu(memory, 512) == 5 * x.reshape(2, 256)[:, ::-1].ravel()).all()


def check_function_attributes() -> None:
    with context():
        loaded, attribute = module(), cuda.function_attribute
        reverse = loaded.get_function("reverse_each_block")
        memory = to_gpu(np.zeros(256, np.float32))
        with refused(cuda.LogicError, "invalid argument"):
            reverse(memory, block=(256, 1, 1), shared=100 * 1024)
        reverse.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 * 1024)
        reverse(memory, block=(256, 1, 1), shared=100 * 1024)
        with refused(cuda.LogicError, "invalid argument"):
            reverse.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 300 * 1024)
        bounded = loaded.get_function("bounded")
        assert bounded.get_attribute(attribute.MAX_THREADS_PER_BLOCK) == 256
        assert reverse.get_attribute(attribute.SHARED_SIZE_BYTES) == 0
        with refused(cuda.LaunchError, "too many resources"):
            bounded(memory, block=(512, 1, 1))
        with refused(cuda.LogicError, "named symbol not found"):
            loaded.get_function("nothing")


def check_wrong_parameter_bytes() -> None:
    with context():
        x, y = (to_gpu(a) for a in arrays())
        axpy = module().get_function("axpy").prepare("fPPq")
        with refused(cuda.LogicError, "invalid argument"):
            axpy.prepared_call((1, 1), (32, 1, 1), np.float32(1), x, y, 5)


def check_fault_poisons_the_context() -> None:
    with context():
        memory, stream, out = cuda.mem_alloc(64), cuda.Stream(NON_BLOCKING), pinned(np.zeros(16, np.float32))
        write_at = module().get_function("write_at")
        write_at(memory, np.int64(64), block=(1, 1, 1), stream=stream)
        cuda.memcpy_dtoh_async(out, memory, stream)
        with refused(cuda.LogicError, "illegal memory access"):
            cuda.Context.synchronize()
        with refused(cuda.LogicError, "illegal memory access"):
            cuda.mem_get_info()
        assert (out == 0).all()  # what came behind the fault has not run
        sentence = libcuda().simgpu_last_fault().decode()
        assert "out of bounds" in sentence and "kernel write_at" in sentence and "driver.cu:" in sentence
    sys.stdout.flush()


def check_race_is_a_launch_failure() -> None:
    with context():
        module("faults").get_function("missing_barrier")(cuda.mem_alloc(1024), block=(256, 1, 1))
        with refused(cuda.LaunchError, "unspecified launch failure"):
            cuda.Context.synchronize()
        assert b"race" in libcuda().simgpu_last_fault()


def check_pools() -> None:
    from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

    with context():
        pool = DeviceMemoryPool()
        kept = [pool.allocate(size) for size in (100, 5000, 1 << 20)]
        assert pool.active_blocks == 3
        del kept
        pool.free_held()
        assert pool.held_blocks == 0
        host_pool = PageLockedMemoryPool()
        host = host_pool.allocate((16, 16), np.float32)
        host[:] = 3
        assert (gpuarray.to_gpu(host).get() == 3).all()
        del host
        host_pool.free_held()


def check_counters() -> None:
    with context():
        lib = libcuda()
        lib.sim_counter_name.restype, lib.sim_counter.restype = ctypes.c_char_p, ctypes.c_uint64
        lib.sim_counter.argtypes = [ctypes.c_void_p, ctypes.c_int]
        module().get_function("bounded")(cuda.mem_alloc(1024), block=(256, 1, 1))
        cuda.Context.synchronize()
        machine = lib.simgpu_machine(0)
        counters = {
            lib.sim_counter_name(k): lib.sim_counter(machine, k) for k in range(lib.sim_counter_count())
        }
        assert (counters[b"global_store_bytes"], counters[b"launches"]) == (1024, 1)


# ---------------------------------------------------------------- settings


def check_two_gpus() -> None:
    cuda.init()
    assert cuda.Device.count() == 2
    with context(0):
        memory = to_gpu(np.ones(N, np.float32))
        with context(1):
            assert cuda.Context.get_device() == cuda.Device(1)
            with refused(cuda.LogicError, "invalid argument"):
                from_gpu(memory)
            module().get_function("bounded")(memory, block=(32, 1, 1))
            with refused(cuda.LogicError, "illegal memory access"):
                cuda.Context.synchronize()
        assert (from_gpu(memory) == 1).all()  # the fault stays with its device


def check_no_device() -> None:
    with refused(cuda.RuntimeError, "no CUDA-capable device"):
        cuda.init()


def check_old_driver_refuses_new_ptx() -> None:
    with context():
        assert cuda.get_driver_version() == 12040
        with refused(cuda.Error, "unsupported toolchain"):
            module()


def check_old_gpu_refuses_new_code() -> None:
    with context():
        with refused(cuda.Error, "no kernel image"):
            module()


if __name__ == "__main__":
    run_named(globals())
