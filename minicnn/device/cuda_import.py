"""Importing PyCUDA, which needs the NVIDIA driver's library to be imported; and why it can't be."""

from __future__ import annotations

import warnings
from typing import Any

from minicnn.errors import DeviceError

REMEDY_PYCUDA = (
    "`pip install pycuda` where the CUDA toolkit is, `python tools/build_pycuda.py --install` where it isn't"
)
REMEDY_DRIVER = "install NVIDIA's driver (`nvidia-smi` then lists the GPU), or use --device host"
REMEDY_OLD_DRIVER = "a newer driver, or PyCUDA built for this one: `python tools/build_pycuda.py --install`"


def explain_import(error: ImportError) -> DeviceError:
    """Why PyCUDA can't be imported, in one sentence with the remedy."""
    said = str(error)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.startswith("pycuda"):
        return DeviceError("PyCUDA isn't installed", remedy=REMEDY_PYCUDA)
    if isinstance(error, ModuleNotFoundError):
        name = error.name
        return DeviceError("PyCUDA lacks a package it needs", found=name, remedy=f"`pip install {name}`")
    if "libcuda" in said and "cannot open shared object" in said:
        return DeviceError("there is no NVIDIA driver here (no libcuda.so.1)", remedy=REMEDY_DRIVER)
    if "undefined symbol" in said:
        symbol = said.rpartition("undefined symbol:")[2].strip()
        return DeviceError(
            "the NVIDIA driver is older than the CUDA that PyCUDA was built for",
            found=f"no {symbol}",
            remedy=REMEDY_OLD_DRIVER,
        )
    return DeviceError("PyCUDA can't be imported", found=said, remedy=REMEDY_PYCUDA)


def load_pycuda() -> Any:
    """pycuda.driver, initialised.

    Raises    DeviceError: PyCUDA or the driver is missing, too old, or doesn't start
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an old driver it warns, beside the error
            import pycuda.driver as pycuda
    except ImportError as error:
        raise explain_import(error) from None
    try:
        pycuda.init()
    except pycuda.Error as error:
        sentence = "the NVIDIA driver doesn't start, or sees no GPU"
        raise DeviceError(sentence, found=error, remedy=REMEDY_DRIVER) from None
    return pycuda
