"""What is given away: an sdist and a wheel built of it, run outside the checkout without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from test_models import MODELS

ROOT = Path(__file__).parent.parent
DIGIT = MODELS / "mnist-conv" / "model.onnx"
NEEDED = (
    "cuda/relu.cu", "cuda/prebuilt.json", "setup.py", "README.md", "minicnn/study/deepbench.csv",
    "tests/conftest.py", "tests/simgpu/build.py", "models/README.md", "tools/test", "docs/notes.md",
)  # fmt: skip

pytestmark = pytest.mark.slow


def run(
    *words: object, path: str | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if path is None else {"PATH": path}
    return subprocess.run(
        list(map(str, words)), env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from a copy: setuptools leaves its own folders behind."""
    folder = tmp_path_factory.mktemp("packages")
    source = folder / "source"
    others = shutil.ignore_patterns(".*", "*.onnx", "*.egg-info", "__pycache__", "build", "dist", "prebuilt")
    shutil.copytree(ROOT, source, ignore=others)
    done = run(sys.executable, "-m", "build", "--outdir", folder, source)  # the wheel out of the sdist
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_an_sdist_holds_what_building_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(NEEDED) <= names, set(NEEDED) - names


def test_a_wheel_runs_where_there_is_no_compiler(built: Path, tmp_path: Path) -> None:
    """Installed outside the checkout, without its dependencies (they are here): kernels are in it."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name.rpartition("purelib/")[2] for name in archive.namelist()]
    assert any(name.startswith("minicnn/prebuilt/") for name in names)
    assert {"minicnn/cuda/relu.cu", "minicnn/models/build.py", "minicnn/study/deepbench.csv"} <= set(names)
    target = tmp_path / "installed"
    done = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    assert done.returncode == 0, done.stderr[-2000:]
    program = (
        f"import sys; sys.path.insert(0, {str(target)!r}); sys.argv[0] = 'minicnn'; import minicnn; "
        f"assert minicnn.__file__.startswith({str(target)!r}), minicnn.__file__; "
        "from minicnn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    words = [sys.executable, "-P", "-c", program, "infer", DIGIT, "--device", "host", "--repeat", "3"]
    environment = {"MINICNN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        list(map(str, words)), env=environment | {"PATH": str(empty), "HOME": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "layers" in done.stdout
