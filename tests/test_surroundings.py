"""Machines as they are: killed half-way, disks full, folders that can't be written, locales and names."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minicnn import store
from test_models import MODELS

ROOT = Path(__file__).parent.parent
DIGIT = MODELS / "mnist-conv" / "model.onnx"


def infer(
    model: Path, folder: Path, *more: object, limit: int | None = None, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """`minicnn infer` in a process of its own. limit: bytes of a file that may be written"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | changes
    environment = {name: value for name, value in environment.items() if value is not None}
    words = [sys.executable, "-B", "-m", "minicnn", "infer", str(model), "--device", "host", *map(str, more)]
    before: Callable[[], None] | None = None
    if limit is not None:
        import resource

        def before() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        words, env=environment, capture_output=True, text=True, preexec_fn=before, cwd=folder
    )


def test_killed_in_the_middle_of_a_record(tmp_path: Path) -> None:
    record = tmp_path / "run.h5"
    infer(DIGIT, tmp_path, "--repeat", "3", "--record", record)
    whole = record.read_bytes()
    words = [sys.executable, "-m", "minicnn", "infer", str(DIGIT), "--device", "host", "--repeat", "50000"]
    process = subprocess.Popen(
        [*words, "--record", str(record)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    partial = tmp_path / "run.h5.partial"
    while not partial.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert record.read_bytes() == whole, "what stood there is lost"
    assert len(store.read(str(partial)).is_warmup) > 0
    assert (
        infer(DIGIT, tmp_path, "--repeat", "3", "--record", record).returncode == 0
    )  # and the next run goes on


def test_a_full_disk(tmp_path: Path) -> None:
    """As a limit on what may be written: one sentence, nothing half-written, what stood there stays."""
    record = tmp_path / "run.h5"
    infer(DIGIT, tmp_path, "--repeat", "3", "--record", record)
    whole = record.read_bytes()
    done = infer(DIGIT, tmp_path, "--repeat", "3", "--record", record, limit=1000)
    assert done.returncode == 2 and "run.h5" in done.stderr and "Traceback" not in done.stderr
    assert record.read_bytes() == whole
    done = infer(DIGIT, tmp_path, "--output", tmp_path / "y.npz", limit=10)
    assert done.returncode == 2 and "y.npz" in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.h5"]


@pytest.mark.parametrize("home", ["/proc", None])
def test_a_home_that_is_not_there_or_not_to_be_written(home: str | None, tmp_path: Path) -> None:
    """/proc: nobody makes folders there, not even root."""
    done = infer(DIGIT, tmp_path, HOME=home, XDG_CACHE_HOME=None, MINICNN_CACHE=None)
    assert done.returncode == 0, done.stderr
    assert "layers" in done.stdout


def test_no_folder_for_anything(tmp_path: Path) -> None:
    """Neither a home nor temporary files: it runs all the same, or says in one sentence what is missing."""
    done = infer(
        DIGIT, tmp_path, HOME="/proc", TMPDIR="/proc", TMP="/proc", TEMP="/proc", MINICNN_CACHE="/proc/none"
    )
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or len(done.stderr.strip().splitlines()) == 1


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    done = infer(DIGIT, tmp_path, "--record", "/proc/run.h5")
    assert done.returncode == 2 and "/proc/run.h5" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "tr_TR.UTF-8", "xx_YY"])
def test_locales(locale: str, tmp_path: Path) -> None:
    record = tmp_path / "lauf – Ω.h5"
    done = infer(
        DIGIT, tmp_path, "--record", record, "--repeat", "3", LC_ALL=locale, LANG=locale, PYTHONUTF8=None
    )
    assert done.returncode == 0, done.stderr
    assert store.read(str(record)).layers


@pytest.mark.parametrize("name", ["with spaces", "ünïcödé 模型", 'a\'quote "both"', "-dash", "new\nline"])
def test_names_of_folders_and_files(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    model = folder / f"{name}.onnx"
    shutil.copy(DIGIT, model)
    record = folder / f"{name}.h5"
    done = infer(model, folder, "--record", record, "--repeat", "3", "--output", folder / f"{name}.npz")
    assert done.returncode == 0, done.stderr
    assert store.read(str(record)).layers and (folder / f"{name}.npz").stat().st_size
