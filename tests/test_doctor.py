"""What `doctor` says of machines that we don't have: each thing missing is one sentence with its remedy."""

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minicnn import doctor
from minicnn.device import cuda_import, nvcc
from minicnn.device.cuda_driver import DriverFacts, Gpu
from minicnn.errors import BuildError, DeviceError

H200 = Gpu(index=0, name="NVIDIA H200", compute_capability=90, memory_bytes=139 << 30)
L4 = Gpu(index=1, name="NVIDIA L4", compute_capability=89, memory_bytes=22 << 30)
DRIVER = DriverFacts(is_present=True, cuda_version=(13, 0), release="580.65.06", gpus=(H200,))
NVCC = nvcc.Nvcc(path="/usr/local/cuda/bin/nvcc", version="13.0", architectures=(75, 80, 90))
WHOLE = doctor.Situation(
    processor="A CPU",
    threads=8,
    level="x86-64-v3",
    compiler="/usr/bin/g++",
    driver=DRIVER,
    compiler_of_cuda=NVCC,
    packages=dict.fromkeys((*doctor.REQUIRED, *doctor.OPTIONAL), "1.0"),
    python="3.11.7",
    cache=doctor.CacheFacts(path=Path("/home/me/.cache/minicnn"), nbytes=3 << 20, files=1),
)
NO_COMPILER = BuildError("no C++ compiler", remedy="apt install g++")
NO_PYCUDA = cuda_import.explain_import(ModuleNotFoundError("No module named 'pycuda'", name="pycuda"))
NO_LIBCUDA = cuda_import.explain_import(
    ImportError("libcuda.so.1: cannot open shared object file: No such file")
)
OLD_DRIVER = cuda_import.explain_import(ImportError("/x/_driver.so: undefined symbol: cuCtxCreate_v4"))


def row(situation: doctor.Situation, name: str) -> doctor.Row:
    (found,) = [r for r in doctor.diagnose(situation) if r.name == name]
    return found


def test_a_machine_with_everything() -> None:
    assert {r.state for r in doctor.diagnose(WHOLE)} == {doctor.OK}
    assert row(WHOLE, "cuda:0").detail == "NVIDIA H200, sm_90, 139.0 GiB, driver 580.65.06 (CUDA 13.0)"
    assert row(WHOLE, "host").detail == "A CPU, x86-64-v3, 8 threads"


# name: what differs from WHOLE; row -> its state, a part of its detail, a part of its remedy
SITUATIONS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str, str]]]] = {
    "no driver": (
        {"driver": DriverFacts(failure="no libcuda.so.1"), "pycuda_failure": NO_LIBCUDA},
        {"cuda": ("missing", "no NVIDIA driver", "install NVIDIA's driver"), "pycuda": ("ok", "1.0", "")},
    ),
    "a driver without a GPU": (
        {"driver": replace(DRIVER, gpus=())},
        {"cuda": ("missing", "sees no GPU", "CUDA_VISIBLE_DEVICES")},
    ),
    "a driver that doesn't start": (
        {"driver": replace(DRIVER, gpus=(), failure="system not yet initialized")},
        {"cuda": ("unusable", "system not yet initialized", "nvidia-smi")},
    ),
    "a driver without the toolkit": (
        {"compiler_of_cuda": None},
        {
            "cuda:0": ("unusable", "no compiler for its kernels", "nvcc"),
            "nvcc": ("missing", "nowhere", "pip install nvidia-"),
        },
    ),
    "a driver without the toolkit, kernels prebuilt": (
        {"compiler_of_cuda": None, "has_prebuilt_cuda": True},
        {"cuda:0": ("ok", "H200", ""), "nvcc": ("missing", "nowhere", "pip install nvidia-")},
    ),
    "a driver older than the toolkit": (
        {"driver": replace(DRIVER, cuda_version=(12, 4))},
        {"cuda:0": ("ok", "CUDA 12.4", ""), "nvcc": ("ok", "PTX is lowered", "")},
    ),
    "a driver older than PyCUDA's build": (
        {"driver": replace(DRIVER, cuda_version=(12, 4)), "pycuda_failure": OLD_DRIVER},
        {
            "cuda:0": ("unusable", "that PyCUDA was built for (no cuCtxCreate_v4)", "newer driver"),
            "pycuda": ("unusable", "1.0; the NVIDIA driver is older", "tools/build_pycuda.py"),
        },
    ),
    "no PyCUDA": (
        {"packages": dict.fromkeys((*doctor.REQUIRED, "scikit-cuda"), "1.0"), "pycuda_failure": NO_PYCUDA},
        {
            "cuda:0": ("unusable", "PyCUDA isn't installed", "tools/build_pycuda.py"),
            "pycuda": ("missing", "GPU", "tools/build_pycuda.py"),
        },
    ),
    "a GPU that nvcc has forgotten": (
        {"driver": replace(DRIVER, gpus=(replace(H200, compute_capability=61),))},
        {"cuda:0": ("unusable", "compiles for sm_75 and newer", "older CUDA toolkit")},
    ),
    "two GPUs": (
        {"driver": replace(DRIVER, gpus=(H200, L4))},
        {"cuda:0": ("ok", "NVIDIA H200", ""), "cuda:1": ("ok", "NVIDIA L4, sm_89", "")},
    ),
    "no C++ compiler": (
        {"compiler": "", "compiler_failure": NO_COMPILER},
        {
            "host": ("unusable", "no C++ compiler", "apt install"),
            "C++": ("missing", "no C++ compiler", "apt install"),
        },
    ),
    "no C++ compiler, kernels prebuilt": (
        {"compiler": "", "compiler_failure": NO_COMPILER, "has_prebuilt_host": True},
        {"host": ("ok", "A CPU", ""), "C++": ("missing", "no C++ compiler", "apt install")},
    ),
    "another processor": (
        {"level": "", "level_failure": DeviceError("this processor isn't known", found="riscv64")},
        {"host": ("unusable", "riscv64", "")},
    ),
    "no h5py": (
        {"packages": {name: "1.0" for name in (*doctor.REQUIRED, *doctor.OPTIONAL) if name != "h5py"}},
        {"h5py": ("missing", "", "pip install h5py")},
    ),
    "no scikit-cuda": (
        {"packages": {name: "1.0" for name in (*doctor.REQUIRED, "pycuda")}},
        {"scikit-cuda": ("missing", "optional", "pip install scikit-cuda"), "cuda:0": ("ok", "H200", "")},
    ),
    "a cache that can't be written": (
        {"cache": doctor.CacheFacts(path=Path("/home/it's me/cache"), is_usable=False)},
        {"kernels and tuning": ("unusable", "can't be written", "MINICNN_CACHE")},
    ),
    "a cache to clear": (
        {"cache": doctor.CacheFacts(path=Path("/home/it's me/cache"), nbytes=5 << 10, files=2)},
        {"kernels and tuning": ("ok", "2 files, 5.0 KiB; safe to delete at any time: rm -r '/home/it'", "")},
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(name: str) -> None:
    changes, expected = SITUATIONS[name]
    situation = replace(WHOLE, **changes)
    for row_name, (state, detail, remedy) in expected.items():
        found = row(situation, row_name)
        assert found.state == state, found
        assert detail in found.detail, found
        assert remedy in found.remedy and (remedy or not found.remedy), found
    others = [r for r in doctor.diagnose(situation) if r.name not in expected and r.state != doctor.OK]
    assert not others, "a row complains of what isn't its own"


def test_every_complaint_is_one_line() -> None:
    for changes, _ in SITUATIONS.values():
        for found in doctor.diagnose(replace(WHOLE, **changes)):
            assert "\n" not in found.detail + found.remedy, found


def test_this_machine() -> None:
    rows = doctor.examine()
    assert {r.section for r in rows} == {"devices", "compilers", "libraries", "caches"}
    assert {r.state for r in rows} <= {doctor.OK, doctor.MISSING, doctor.UNUSABLE}
    (python,) = [r for r in rows if r.name == "Python"]
    assert python.detail == sys.version.split()[0]


def test_import_errors_are_told_apart() -> None:
    assert "isn't installed" in str(NO_PYCUDA)
    assert "no NVIDIA driver" in str(NO_LIBCUDA)
    assert "older than the CUDA" in str(OLD_DRIVER)
    lacking = cuda_import.explain_import(ModuleNotFoundError("No module named 'pytools'", name="pytools"))
    assert "pip install pytools" in str(lacking)
    assert "GLIBCXX" in str(cuda_import.explain_import(ImportError("version `GLIBCXX_3.4.99' not found")))


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA isn't installed")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a stand-in driver with")
def test_a_driver_that_lacks_what_pycuda_calls(tmp_path: Path) -> None:
    """The real import against a libcuda that is there and too old: one sentence, no traceback, no warning."""
    source = "int cuInit(unsigned f) { return 0; }\n"
    source += "int cuDriverGetVersion(int* v) { *v = 11000; return 0; }\n"
    source += "int cuDeviceGetCount(int* n) { *n = 0; return 0; }\n"
    (tmp_path / "old.c").write_text(source)
    library = tmp_path / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([*command, str(tmp_path / "old.c")], check=True)
    program = (
        "from minicnn import doctor\n"
        "s = doctor.look()\n"
        "print(s.driver.is_present, s.driver.cuda_version, s.driver.gpus)\n"
        "print(s.pycuda_failure)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert "True (11, 0) ()" in result.stdout
    assert "older than the CUDA that PyCUDA was built for" in result.stdout, result.stdout
