"""The stand-in driver under the real PyCUDA: contexts, memory, streams, launches, graphs, cuBLAS."""

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

SCRIPTS = [build.HERE / name for name in ("under_pycuda.py", "graphs_under_pycuda.py")]
SETTINGS = {
    "two_gpus": {"SIMGPU_DEVICES": "2"},
    "no_device": {"SIMGPU_DEVICES": "0"},
    "old_driver_refuses_new_ptx": {"SIMGPU_DRIVER_VERSION": "12040"},
    "old_gpu_refuses_new_code": {"SIMGPU_COMPUTE_CAPABILITY": "75"},
}
CHECKS = [
    pytest.param(script, check, id=check)
    for script in SCRIPTS
    for check in re.findall(r"^def check_(\w+)", script.read_text(), re.MULTILINE)
]

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA isn't installed"),
    pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY),
]


@pytest.fixture(scope="session")
def libraries() -> Path:
    return build.build(cache.folder("simgpu"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ptx")
    for name in ("driver", "faults"):
        (folder / f"{name}.ptx").write_text(build.ptx(name))
    (folder / "driver.fatbin").write_bytes(build.fat_binary("driver"))
    return folder


def run(arguments: list[str], libraries: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)} | settings
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("script, check", CHECKS)
def test_pycuda(script: Path, check: str, libraries: Path, texts: Path) -> None:
    done = run([str(script), check, str(texts)], libraries, **SETTINGS.get(check, {}))
    assert done.returncode == 0 and done.stdout.strip().endswith("fine"), done.stdout + done.stderr


def test_old_driver_lacks_functions() -> None:
    """PyCUDA built with CUDA 13's headers cannot be imported on a driver of CUDA 12."""
    libraries = build.build(cache.folder("simgpu"), is_old_driver=True)
    done = run(["-c", "import pycuda.driver"], libraries)
    assert done.returncode != 0 and "undefined symbol: cuCtxCreate_v4" in done.stderr


def test_without_a_driver_pycuda_says_so(tmp_path: Path) -> None:
    done = run(["-c", "import pycuda.driver"], tmp_path)
    assert done.returncode != 0 and "libcuda.so.1" in done.stderr
