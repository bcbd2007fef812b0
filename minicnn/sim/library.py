"""The simulator's C interface (sim.h), loaded: built first where it isn't there yet."""

from __future__ import annotations

import ctypes
from functools import cache as remember

from minicnn import cache
from minicnn.sim import build

KINDS = (  # of faults, in sim.h's order
    "fine parse unsupported out_of_bounds misaligned uninitialised barrier collective race async_copy "
    "endless launch trap"
).split()
Extent = ctypes.c_uint * 3


class KernelInfo(ctypes.Structure):
    """sim_kernel_info."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "parameter_bytes",
            "parameter_count",
            "static_shared_bytes",
            "local_bytes",
            "max_threads",
        )
    ]


@remember
def load() -> ctypes.CDLL:
    """The library with its prototypes declared.

    Raises    BuildError: no C++ compiler
    """
    lib = ctypes.CDLL(str(build.build(cache.folder("sim"))))
    void, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    lib.sim_create.restype = void
    lib.sim_destroy.argtypes = [void]
    lib.sim_set_option.argtypes = [void, text, ctypes.c_int64]
    lib.sim_register.argtypes = [void, ctypes.c_uint64, size]
    lib.sim_unregister.argtypes = [void, ctypes.c_uint64]
    lib.sim_load.argtypes, lib.sim_load.restype = [void, text], void
    lib.sim_unload.argtypes = [void, void]
    lib.sim_kernel_count.argtypes = [void]
    lib.sim_kernel_name.argtypes, lib.sim_kernel_name.restype = [void, ctypes.c_int], text
    lib.sim_kernel.argtypes = [void, void, text, ctypes.POINTER(KernelInfo)]
    lib.sim_variable.argtypes = [void, void, text, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(size)]
    lib.sim_launch.argtypes = [void, void, text, Extent, Extent, ctypes.c_uint, void, size]
    lib.sim_last_fault.argtypes, lib.sim_last_fault.restype = [void], text
    lib.sim_last_fault_kind.argtypes = [void]
    lib.sim_counter_name.restype = text
    lib.sim_counter.argtypes, lib.sim_counter.restype = [void, ctypes.c_int], ctypes.c_uint64
    lib.sim_reset_counters.argtypes = [void]
    return lib


def counters(lib: ctypes.CDLL, machine: int) -> dict[str, int]:
    """What a machine has counted since it was made or reset, by sim.h's names."""
    names = (lib.sim_counter_name(index).decode() for index in range(lib.sim_counter_count()))
    return {name: lib.sim_counter(machine, index) for index, name in enumerate(names)}
