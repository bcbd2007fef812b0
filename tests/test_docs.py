"""The pages of docs/ that speak of records: generated from the code, and examples that run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from minicnn.record import LayerFacts
from minicnn.schema import SCHEMA
from minicnn.store import Recorder
from tools import make_schema_page

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = re.findall(r"## (\w+)\n\n```python\n(.*?)```", (DOCS / "reading.md").read_text(), re.DOTALL)


def test_the_schema_page_is_up_to_date() -> None:
    assert make_schema_page.PAGE.read_text() == make_schema_page.page(), "python tools/make_schema_page.py"


def test_the_schema_page_lists_everything() -> None:
    lines = make_schema_page.page().splitlines()
    assert sum(line.startswith("| `") for line in lines) == len(SCHEMA)


def test_there_is_an_example_for_each_program() -> None:
    assert [name for name, _ in EXAMPLES] == ["h5py", "xarray", "pandas"]


@pytest.mark.parametrize("program, code", EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_examples_of_the_reading_page_run(
    program: str,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for needed in ("h5netcdf", "xarray") if program == "xarray" else (program,):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    layers = [LayerFacts(name="first", op="Conv", macs=5), LayerFacts(name="second", op="Relu")]
    with Recorder("run.h5", layers, 8, {"device": "a CPU"}) as recorder:
        for rep in range(8):
            times = np.array([20.0, 7.0]) * (9 if rep < 2 else 1)
            recorder.add(
                rep, time_us=times, wall_us=30.0, unattributed_us=0.3, is_warmup=rep < 2
            )
    exec(compile(code, "reading.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"20\.0", printed) and re.search(r"7\.0", printed)
    said = {"h5py": "a CPU us", "xarray": "1.0% of the caller's clock", "pandas": "second"}
    assert said[program] in printed
