"""Every kernel file compiles for the GPUs it is meant for, from the same source that the host device runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

CUDA = Path(__file__).parent.parent / "cuda"
NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="nvcc isn't on PATH")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", sorted(CUDA.glob("*.cu")), ids=lambda p: p.name)
def test_kernel_compiles(source: Path, architecture: str, tmp_path: Path) -> None:
    assert NVCC is not None
    command = [
        NVCC,
        "-std=c++17",
        f"-arch={architecture}",
        "-cubin",
        "-I",
        str(CUDA),
        "-Werror",
        "all-warnings",
    ]
    result = subprocess.run(
        [*command, str(source), "-o", str(tmp_path / "kernel.cubin")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
