"""Reports for other programs: CSV, JSON and traces hold what the record holds, and are whole or not there."""

import csv
import io
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from minicnn import cli, store
from minicnn.errors import InputError, OutputError
from minicnn.record import BufferFacts, LayerFacts, RunRecord
from minicnn.report import export, trace
from minicnn.report.digest import alive, digest, median_repetition, peak_layer
from minicnn.store import Recorder

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"quoted", with commas\nand lines',
    '=HYPERLINK("https://example.org")',
    "$$\\frac{1}{2}$$ &amp; <b>bold</b> <!-- \u2028 \u202e",
    "",
    "層" * 30,
)
LAYERS = (
    LayerFacts(
        name="conv1", op="Conv", nodes=("pad", "conv"), variant="direct", reason="asked for all Conv",
        kernel=("conv<<<1x2x3, 8x1x1>>>",), macs=5 * 10**5, flops=10**6, bytes_min=10**5,
        bytes_moved=3 * 10**5, live_bytes=3000, workspace_bytes=1000, inputs=("x float32 1x3x8x8 NCHW",),
        outputs=("a b float32 1x8x8x8 NHWC",),
    ),
    LayerFacts(
        name="relu1", op="Relu", nodes=("relu",), variant="elementwise", flops=500, bytes_min=4000,
        bytes_moved=4000, live_bytes=4000, inputs=("a b float32 1x8x8x8 NHWC",),
        outputs=("y float32 1x8x8x8 NHWC",),
    ),
    LayerFacts(name="odd", op="Det", nodes=("odd",), variant="onnx", is_fallback=True, live_bytes=512),
)  # fmt: skip
BUFFERS = (
    BufferFacts(name="w", kind="weight", nbytes=800, first=0, last=2),
    BufferFacts(name="x", kind="input", nbytes=768, offset=0, first=0, last=0),
    BufferFacts(name="a b", kind="activation", nbytes=2048, offset=1024, first=0, last=1),
    BufferFacts(name="y", kind="output", nbytes=1952, offset=3072, first=1, last=2),
)


def record_of(layers=LAYERS, repetitions=12, warmup=3, path=None, buffers=BUFFERS, **attributes) -> RunRecord:
    """Layer i takes about 100 * (i + 1) us, just that in the median repetition; warm-up ten times as long."""
    attributes = {
        "device": "a CPU",
        "model_file": "net.onnx",
        "planned_peak_bytes": 5024,
        "live_peak_bytes": 4000,
    } | attributes
    steps = np.arange(1, repetitions - warmup + 1)
    paces = 1 + 0.01 * np.where(steps % 2, -1, 1) * (
        steps // 2
    )  # to and fro: neighbours don't resemble each other
    with Recorder(path, layers, repetitions, attributes, buffers) as recorder:
        for rep in range(repetitions):
            pace = 10.0 if rep < warmup else paces[rep - warmup]
            times = 100.0 * np.arange(1, len(layers) + 1) * pace
            total = times.sum()
            recorder.add(rep, time_us=times, plain_us=total - 1, wall_us=total + 50, is_warmup=rep < warmup)
    return recorder.record


def hostile_record(**attributes) -> RunRecord:
    layers = tuple(
        LayerFacts(name=name, op=name[:20] or "Op", variant=name, reason=name, nodes=(name,), kernel=(name,),
                   inputs=(name,), outputs=(name,), flops=10, bytes_min=10, live_bytes=i + 1)
        for i, name in enumerate(HOSTILE)
    )  # fmt: skip
    buffers = [BufferFacts(name=name, kind=name[:10], nbytes=10, first=0, last=3) for name in HOSTILE]
    texts = {
        "model_file": HOSTILE[0],
        "device": HOSTILE[3],
        "command": HOSTILE[0],
        "energy_source": HOSTILE[3],
    }
    return record_of(layers, buffers=buffers, **texts, **attributes)


def test_a_digest():
    record = record_of()
    found = digest(record)
    assert [layer.time.median for layer in found.layers] == pytest.approx([100, 200, 300])
    assert [layer.share for layer in found.layers] == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    assert [layer.facts.name for layer in found.slowest] == ["odd", "relu1", "conv1"]
    assert found.total.median == pytest.approx(599) and found.wall.median == pytest.approx(650)
    assert record.time_us[median_repetition(record)] == pytest.approx([100, 200, 300])
    assert peak_layer(record) == 1
    assert [b.name for b in alive(record, 1)] == ["a b", "y"], "weights are no part of the arena"


def test_an_empty_record():
    record = record_of(layers=(), repetitions=0, warmup=0, buffers=())
    assert digest(record).layers == () and median_repetition(record) is None and peak_layer(record) is None
    assert json.loads(export.json_text(record))["layers"] == []
    assert export.csv_text(record) == "index,layer\r\n"


def test_csv_has_a_line_a_layer():
    first, second, third = csv.DictReader(io.StringIO(export.csv_text(record_of()), newline=""))
    assert (first["layer"], first["op"], first["nodes"], first["macs"]) == (
        "conv1",
        "Conv",
        "pad; conv",
        "500000",
    )
    assert float(second["time_us_median"]) == pytest.approx(200)
    assert float(second["time_us_low"]) < 200 < float(second["time_us_high"])
    assert (third["is_fallback"], third["gap_us"], third["share_of_roof"]) == ("1", "", ""), (
        "not measured: empty"
    )


def test_csv_of_hostile_names():
    record = hostile_record()
    rows = list(csv.DictReader(io.StringIO(export.csv_text(record), newline="")))
    kept = [name if not name.startswith("=") else f"'{name}" for name in HOSTILE]
    assert [row["layer"] for row in rows] == kept, "no spreadsheet runs a name"


def test_json_holds_all_of_the_record():
    record = record_of()
    found = json.loads(export.json_text(record))
    assert found["attributes"]["model_file"] == "net.onnx"
    assert found["attributes"]["copy_gb_per_s"] is None, "NaN isn't JSON"
    assert found["samples"]["time_us"] == record.time_us.tolist()
    assert found["samples"]["gap_us"][0] == [None] * 3
    assert found["layers"][0]["nodes"] == ["pad", "conv"] and found["layers"][2]["is_fallback"] is True
    assert found["layers"][1]["time_us"]["count"] == 9
    assert found["buffers"][2] == {
        "name": "a b", "kind": "activation", "nbytes": 2048, "offset": 1024, "first": 0, "last": 1
    }  # fmt: skip


def test_json_of_hostile_names():
    assert [layer["layer"] for layer in json.loads(export.json_text(hostile_record()))["layers"]] == list(
        HOSTILE
    )


def check_trace(text: str) -> list[dict]:
    """The parts of the trace event format that are used: every event by its phase, finite numbers alone."""
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} isn't JSON"))
    assert found["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in found["otherData"].values())
    for event in found["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"] and isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert math.isfinite(event["ts"]) and event["ts"] >= 0
        if event["ph"] == "X":
            assert math.isfinite(event["dur"]) and event["dur"] >= 0 and isinstance(event["tid"], int)
        else:
            assert event["ph"] == "C" and all(isinstance(v, int | float) for v in event["args"].values())
    return found["traceEvents"]


def test_a_trace_has_a_slice_a_layer():
    record = record_of()
    events = check_trace(trace.trace_text(record))
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["conv1", "relu1", "odd"]
    assert [event["dur"] for event in slices] == pytest.approx([100, 200, 300])
    assert [event["ts"] for event in slices] == pytest.approx([0, 100, 300])
    assert slices[0]["args"]["nodes"] == ["pad", "conv"]
    counters = [event for event in events if event["ph"] == "C" and event["name"] == "live_bytes"]
    assert [event["args"]["live_bytes"] for event in counters] == [3000, 4000, 512]
    assert [event["ts"] for event in counters] == [event["ts"] for event in slices]


def test_a_trace_of_hostile_names():
    slices = [
        event["name"] for event in check_trace(trace.trace_text(hostile_record())) if event["ph"] == "X"
    ]
    assert slices == [name or "(no name)" for name in HOSTILE]


def test_no_trace_without_times():
    with Recorder(None, LAYERS, 2, {}) as recorder:
        recorder.add(0, plain_us=5.0)
        recorder.add(1, plain_us=6.0)
    with pytest.raises(InputError, match="no layer times"):
        trace.trace_text(recorder.record)


def test_sampled_repetitions_without_layer_times_are_passed_over():
    record = record_of()
    middle = median_repetition(record)
    record.time_us[middle] = math.nan
    assert record.time_us[median_repetition(record)] == pytest.approx([100, 200, 300], rel=0.011)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return Path(record_of(path=tmp_path / "run.h5").path)


def test_the_commands(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    c, t = tmp_path / "run.csv", tmp_path / "run.json"
    assert cli.main(["report", str(stored), "--csv", str(c), "--trace", str(t), "--json"]) == 0
    printed = capsys.readouterr()
    record = store.read(stored)
    assert json.loads(printed.out) == json.loads(export.json_text(record)), "JSON and nothing else on stdout"
    assert str(c) in printed.err and str(t) in printed.err
    assert c.read_bytes().decode() == export.csv_text(record) and t.read_text() == trace.trace_text(record)
    mask = os.umask(0)
    os.umask(mask)
    assert c.stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_slowest_on_request(stored: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["report", str(stored), "--slowest", "1"]) == 0
    printed = capsys.readouterr().out
    assert "the slowest 1 of 3 layers" in printed and "odd" in printed and "relu1" not in printed
    with pytest.raises(SystemExit):
        cli.main(["report", str(stored), "--slowest", "0"])


def test_a_file_that_stands_there_is_replaced_in_one_step(stored: Path, tmp_path: Path):
    place = tmp_path / "run.csv"
    place.write_text("before")
    other = tmp_path / "link"
    other.symlink_to(place)
    export.write(other, "after", store.read(stored))
    assert place.read_text() == "after" and other.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "run.csv", "run.h5"]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nowhere/run.csv", "folder isn't there"),
        (".", "isn't a plain file"),
        ("/dev/null", "isn't a plain file"),
        ("run.h5", "replace the record itself"),
        ("n" * 300, "can't be written"),
    ],
)
def test_refusals(
    place: str,
    sentence: str,
    stored: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(stored.parent)
    before = stored.read_bytes()
    assert cli.main(["report", "run.h5", "--csv", place]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1
    assert stored.read_bytes() == before and [p.name for p in stored.parent.iterdir()] == ["run.h5"]


def test_a_failed_write_leaves_what_was_there(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "run.csv"
    place.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_fill", full)
    with pytest.raises(OutputError, match="No space left"):
        export.write(place, "after", store.read(stored))
    assert place.read_text() == "before" and len(list(tmp_path.iterdir())) == 2
