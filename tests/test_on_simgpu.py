"""Every test that takes a device, once more on the simulated GPU: real PyCUDA, our CudaDevice, nvcc's PTX.

The loader reads LD_LIBRARY_PATH when a process starts, so each file runs in a pytest of its own with
`--device cuda` (tests/conftest.py). By hand:

    export LD_LIBRARY_PATH=$(python tests/simgpu/build.py)
    python -m pytest --device cuda tests/test_relu.py
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minicnn import cache
from minicnn.device import nvcc
from simgpu import build

HERE = Path(__file__).parent
TAKES_A_DEVICE = re.compile(r"\*harness\.grid|, harness\.DEVICES")
FILES = sorted(p.name for p in HERE.glob("test_*.py") if TAKES_A_DEVICE.search(p.read_text()))

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA isn't installed"),
    pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY),
]


@pytest.mark.parametrize("file", FILES)
def test_file(file: str) -> None:
    done = pytest_on_simulated_gpu(file)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and re.search(r"^\d+ passed", said, re.MULTILINE), said
    print(said)  # how many tests, for pytest -rP


def pytest_on_simulated_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["LD_LIBRARY_PATH"] = str(build.build(cache.folder("simgpu")))
    options = ["--device", "cuda", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
