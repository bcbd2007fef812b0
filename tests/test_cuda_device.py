"""CudaDevice beside a second GPU, on the simulated ones: tests/simgpu/device_under_pycuda.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from minicnn import cache
from minicnn.device import nvcc
from minicnn.device.cuda_libraries import Functions
from minicnn.errors import DeviceError
from simgpu import build


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA isn't installed")
@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
def test_two_gpus_and_refusals() -> None:
    libraries = str(build.build(cache.folder("simgpu")))
    environment = os.environ | {"LD_LIBRARY_PATH": libraries, "SIMGPU_DEVICES": "2"}
    command = [sys.executable, str(build.HERE / "device_under_pycuda.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout + done.stderr
    assert "PyCUDA WARNING" not in done.stderr, done.stderr


def test_a_library_that_is_missing_is_one_sentence() -> None:
    with pytest.raises(DeviceError, match="libnothing isn't there.*install nothing"):
        Functions("nothing", {}, {}, "install nothing")
