"""Devices: the CUDA GPU, the CPU as `host`, a simulated GPU. All keep the contract of `base.Device`."""

from __future__ import annotations

from minicnn.device.base import Device
from minicnn.errors import DeviceError, InputError


def open_device(name: str, *, threads: int | None = None) -> Device:
    """The device of that name: "host", "cuda", "cuda:1", "sim", or "auto": a GPU, else the host.

    threads  of the host device; None: all processors this process may use
    Raises   InputError: no such name; DeviceError: the device can't be used, with the remedy
    """
    kind, _, index = name.partition(":")
    if kind == "auto" and not index:
        try:
            return open_device("cuda")
        except DeviceError:
            return open_device("host", threads=threads)
    if kind == "host" and not index:
        from minicnn.device.host import HostDevice

        return HostDevice(threads=threads)
    if kind == "cuda" and (index.isdigit() or not index):
        from minicnn.device.cuda import CudaDevice

        return CudaDevice(int(index or 0))
    if kind == "sim" and not index:
        from minicnn.device.sim import SimDevice

        return SimDevice()
    raise InputError("no such device", found=name, accepted="auto, host, cuda, cuda:N, sim")
