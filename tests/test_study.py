"""Studies: run to the end on the host, go on where they were interrupted, and see what is wrong."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from minicnn.cli import main
from minicnn.device import open_device
from minicnn.errors import InputError
from minicnn.registry import Variant
from minicnn.study import NAMES, chooser, convolutions, energy, run, table
from minicnn.study.convolutions import Effort
from minicnn.study.run import Bench, Options
from tools import make_studies

ROOT = Path(__file__).parent.parent
QUICK = Options(effort="quick", device="host", threads=1)
POINT = {
    "N": 2, "C": 32, "H": 9, "W": 8, "K": 48, "R": 3, "S": 3,
    "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1,
}  # fmt: skip


def command(name: str, out: Path, *more: str) -> list[str]:
    words = ["study", name, "--quick", "--device", "host", "--threads", "1", "--out", str(out)]
    return [sys.executable, "-m", "minicnn", *words, *more]


@pytest.mark.parametrize("name", NAMES)
def test_every_study_runs_to_the_end(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(name, out)[3:]) == 0
    said = capsys.readouterr().out
    module = run.module_of(name)
    with xarray.open_dataset(out / f"{name}.h5", engine="h5netcdf") as data:
        assert set(data.data_vars) == set(module.COLUMNS)
        assert data.attrs["study"] == name and data.attrs["device"]
        for column, (unit, meaning) in module.COLUMNS.items():
            assert data[column].attrs["units"] == unit and data[column].attrs["long_name"] == meaning
    pictures = sorted(path.stem for path in out.glob("*.svg"))
    assert pictures and pictures == sorted(path.stem for path in out.glob("*.png"))
    text = (out / f"{name}.html").read_text()
    assert text.count("<svg") == len(pictures) and html.escape(module.TITLE) in text
    assert not re.search(r"(src|href)=.https?:|@import|<script", text)
    for sentence in module.words(table.read(out / f"{name}.h5")):
        assert sentence in said


def inodes(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (out / "points").glob("*.h5")}


@pytest.mark.parametrize("kill, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_interrupted_study_goes_on(kill: signal.Signals, code: int, tmp_path: Path) -> None:
    """The same points, none measured twice: files of finished points stay the same files."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command("li2016", tmp_path), env=environment, stderr=subprocess.DEVNULL)
    while len(before := inodes(tmp_path)) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(kill)
    assert process.wait(20) == code
    before = inodes(tmp_path)
    points = run.module_of("li2016").points(QUICK)
    assert 2 <= len(before) < len(points) and not (tmp_path / "li2016.h5").exists()
    refused = subprocess.run(command("li2016", tmp_path), env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    subprocess.run(command("li2016", tmp_path, "--resume"), env=environment, check=True, capture_output=True)
    after = inodes(tmp_path)
    assert len(after) == len(points) and {name: after[name] for name in before} == before
    whole = table.read(tmp_path / "li2016.h5")
    assert {key for key, _ in whole.groups("axis", "N", "H", "K", "R", "stride_h")} == {
        (p["axis"], p["N"], p["H"], p["K"], p["R"], p["stride_h"]) for p in points
    }


def test_resuming_a_finished_study_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run.study("chooser", tmp_path, QUICK)
    monkeypatch.setattr(chooser, "measure", lambda *_: pytest.fail("measured again"))
    again = run.study("chooser", tmp_path, QUICK, resume=True)
    assert again.attributes == first.attributes and len(again) == len(first)


def test_another_study_s_points_are_refused(tmp_path: Path) -> None:
    points = table.Points(tmp_path / "points", convolutions.COLUMNS)
    points.folder.mkdir()
    points.keep(0, {"N": 7}, [POINT | {"variant": "tiled"}])
    with pytest.raises(InputError, match="other points"):
        run.study("chooser", tmp_path, QUICK, resume=True)


def test_a_damaged_point_is_named(tmp_path: Path) -> None:
    points = table.Points(tmp_path, convolutions.COLUMNS)
    points.path(0).write_bytes(b"nothing")
    with pytest.raises(InputError, match="0000.h5"):
        points.known(0, POINT)


def test_rows_come_back(tmp_path: Path) -> None:
    columns = {"name": ("", ""), "count": ("", ""), "share": ("", ""), "time_us": ("us", "")}
    rows = [
        {"name": "a", "count": 3, "share": 0.5, "time_us": [1.0, 2.0]},
        {"name": "β", "count": 4, "time_us": []},
    ]
    made = table.table_of(rows, columns, {"study": "x"})
    table.write(tmp_path / "x.h5", made, columns)
    found = table.read(tmp_path / "x.h5")
    assert found["name"].tolist() == ["a", "β"] and found["count"].dtype == np.int64
    assert np.isnan(found["share"][1]) and found["time_us"].shape == (2, 2)
    assert [row["time_us"] for row in table.rows_of(found)] == [[1.0, 2.0], []]
    assert len(found.where(name="a")) == 1 and not list(tmp_path.glob(".*"))


@pytest.fixture
def bench() -> Any:
    device = open_device("host", threads=1)
    yield Bench(options=QUICK, device=device)
    device.close()


def test_every_variant_is_measured_and_held_to_its_bound(bench: Bench) -> None:
    rows = convolutions.measure(POINT, bench, Effort(budget_s=0.01))
    names = {row["variant"] for row in rows}
    assert {"direct", "im2col", "tiled", "winograd2", "winograd4", "fft", "onnxruntime"} <= names
    own = [row for row in rows if row["variant"] != "onnxruntime" and row["variant"] != "PyTorch"]
    assert all(0 < row["error_of_bound"] <= 1 for row in own)
    assert all(row["time_us"] and min(row["time_us"]) > 0 for row in rows)
    assert sum(row["is_chosen"] for row in rows) == 1
    work = 2 * 2 * 48 * 9 * 8 * 32 * 9 / 1e3
    assert own[0]["gflop_per_s"] == pytest.approx(work / np.median(own[0]["time_us"]))


def test_a_wrong_result_is_beyond_its_bound(bench: Bench) -> None:
    problem, x = convolutions.problem_of(POINT, bench.target)
    truth = convolutions._Truth(problem, x)
    right = truth.exact.astype(np.float32)
    assert truth.errors(right, Variant())["error_of_bound"] <= 1
    right[0, 3, 2, 2] += 1e-3
    assert truth.errors(right, Variant())["error_of_bound"] > 1


def test_a_model_that_fits_predicts_the_network_left_out() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for index in range(6):
        flops, moved, launches = (int(n) for n in rng.integers(10**6, 10**9, 3))
        time_us = 2e-5 * flops + 3e-4 * moved + 1e-3 * launches
        rows.append(
            {"network": f"n{index}", "macs": flops // 2, "flops": flops, "bytes": moved, "launches": launches,
             "time_us": [time_us], "energy_uj": float("nan")}
        )  # fmt: skip
    found = energy.errors(table.table_of(rows, energy.COLUMNS, {}), "time")
    assert found["FLOPs, bytes, launches"] < 1e-9 < found["MACs"]
    assert energy.errors(table.table_of(rows, energy.COLUMNS, {}), "energy") == {}


def test_without_matplotlib_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="matplotlib"):
        run.study("chooser", tmp_path, QUICK)
    assert not list(tmp_path.iterdir())


def test_the_page_is_what_is_kept() -> None:
    assert make_studies.PAGE.read_text() == make_studies.page()


def test_every_kept_result_is_within_its_bound() -> None:
    """DeepBench and convnet-benchmarks: every problem, by every variant that applies."""
    for name, problems in (("deepbench", 103), ("convnet", 5)):
        found = table.read(make_studies.RESULTS / name / f"{name}.h5")
        assert len(found.groups("problem" if name == "deepbench" else "layer")) == problems
        bounds = found["error_of_bound"][~np.isnan(found["error_of_bound"])]
        assert len(bounds) > 2 * problems and (bounds <= 1).all()
