"""Records on disk: what goes in comes out, whoever opens them, and whenever the writer dies."""

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from minicnn import store
from minicnn.errors import InputError, OutputError
from minicnn.record import BufferFacts, LayerFacts, RunRecord
from minicnn.store import ATTRIBUTES, FACTS, SAMPLES, SCHEMA, Recorder, read

REPETITIONS = 8
LAYERS = (
    LayerFacts(
        name="conv1", op="Conv", nodes=("conv1", "relu1"), variant="im2col", reason="static model",
        kernel=("im2col<<<4x1x1, 256x1x1>>>", "gemm 64x49x27"), macs=2**40, flops=2**41, bytes_min=10,
        bytes_moved=20, live_bytes=30, workspace_bytes=40, fingerprint="abc", inputs=("x float32 1x3x7x7",),
        outputs=("y",),
    ),
    LayerFacts(name="große/Schicht 層\n\"2\"", op="NonMax", variant="fallback", is_fallback=True),
    LayerFacts(name="nul\0inside", op=""),
)  # fmt: skip
BUFFERS = (
    BufferFacts(name="x", kind="input", nbytes=588, offset=0, first=0, last=0),
    BufferFacts(name="y", kind="output", nbytes=64, offset=768, first=1, last=2),
)
FACTS_OF_RUN = {
    "model_file": "models/net.onnx", "model_sha256": "0" * 64, "command": "python -m minicnn infer 'a b'",
    "started": "2026-01-01T00:00:00+00:00", "precision": "tf32", "input_types": {"x": "float32 1x3x7x7"},
    "device": "a CPU", "device_kind": "host", "device_architecture": "v3", "device_memory_bytes": 2**37,
    "threads": 2, "versions": {"numpy": np.__version__, "minicnn": "0"}, "clocks": {"sm_mhz": 1980.0},
    "seeds": {"x": 7},
    "live_peak_bytes": 1, "planned_peak_bytes": 2, "touched_peak_bytes": 3.0, "allocated_peak_bytes": 4.0,
    "weights_bytes": 5, "inputs_bytes": 6, "outputs_bytes": 7, "activations_bytes": 8, "workspaces_bytes": 9,
    "closure_residual": 0.01, "profiling_overhead": 0.02,
}  # fmt: skip


def samples_of(rep: int, layers: int = len(LAYERS)) -> dict[str, object]:
    """A value of its own for every sample of every repetition."""
    values: dict[str, object] = {"is_warmup": rep < 2}
    for index, (name, quantity) in enumerate(sorted(SAMPLES.items())):
        if quantity.dtype == "float64":
            value = 1000.0 * rep + index
            values[name] = value + np.arange(layers) / 16 if "layer" in quantity.dims else value
    return values


def write(path, finished: int = REPETITIONS, attributes=FACTS_OF_RUN) -> RunRecord:
    with Recorder(path, LAYERS, REPETITIONS, attributes, BUFFERS) as recorder:
        for rep in range(finished):
            recorder.add(rep, **samples_of(rep))
    return recorder.record


def assert_holds(record: RunRecord, repetitions: int) -> None:
    assert record.repetitions == repetitions
    for rep in range(repetitions):
        for name, value in samples_of(rep).items():
            found = getattr(record, name)[rep]
            np.testing.assert_array_equal(found, value, err_msg=f"{name} of repetition {rep}")


@pytest.fixture
def good(tmp_path) -> Path:
    write(tmp_path / "run.h5")
    return tmp_path / "run.h5"


# ---- what goes in comes out


def test_schema_and_dataclasses_name_the_same_things():
    own = {"layers", "buffers", "path", "notes"}
    assert {f.name for f in dataclasses.fields(RunRecord)} - own == set(ATTRIBUTES) | set(SAMPLES)
    assert {f.name for f in dataclasses.fields(LayerFacts)} - {"name"} == set(FACTS)
    assert len({q.name for q in SCHEMA}) == len(SCHEMA)
    assert all(q.long_name for q in SCHEMA)


def test_everything_comes_back(good):
    record = read(good)
    assert_holds(record, REPETITIONS)
    assert record.layers[:2] == LAYERS[:2]
    assert record.layers[2].name == "nul\\0inside"  # HDF5's texts end at a NUL: it is spelled out
    assert {name: getattr(record, name) for name in FACTS_OF_RUN} == FACTS_OF_RUN
    assert record.buffers == BUFFERS
    assert record.path == str(good) and record.notes == ()


def test_the_recorder_gives_the_record_that_the_file_holds(tmp_path):
    written = write(tmp_path / "run.h5", finished=5)
    stored = read(tmp_path / "run.h5")
    assert str(written) == str(stored)
    for name in SAMPLES:
        np.testing.assert_array_equal(getattr(written, name), getattr(stored, name))


def test_without_a_path_all_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = write(None)
    assert_holds(record, REPETITIONS)
    assert record.path == "" and not list(tmp_path.iterdir())


def test_what_nobody_gives_keeps_its_default(tmp_path):
    write(tmp_path / "run.h5", attributes={})
    record = read(tmp_path / "run.h5")
    assert record.precision == "fp32" and record.threads == 1 and record.versions == {}
    assert np.isnan(record.closure_residual) and np.isnan(record.touched_peak_bytes)


def test_a_file_name_that_is_no_unicode_is_spelled_out(tmp_path):
    attributes = {"model_file": os.fsdecode(b"\xff.onnx"), "input_types": {"\udcff": "x"}}
    write(tmp_path / "run.h5", attributes=attributes)
    record = read(tmp_path / "run.h5")
    assert record.model_file == "\\udcff.onnx" and record.input_types == {"\udcff": "x"}


def test_numbers_known_late_are_set_in_place(tmp_path):
    with Recorder(tmp_path / "run.h5", LAYERS, 1, {}) as recorder:
        recorder.add(0, **samples_of(0))
        recorder.set(allocated_peak_bytes=12, planned_peak_bytes=11)
        with pytest.raises(TypeError):
            recorder.set(device="texts can't be overwritten in place")
    record = read(tmp_path / "run.h5")
    assert (record.allocated_peak_bytes, record.planned_peak_bytes) == (12.0, 11)


@pytest.mark.parametrize("layers, repetitions", [(0, 3), (1, 1), (3, 0), (700, 40), (2, 20_000)])
def test_extents_that_are_odd(tmp_path, layers, repetitions):
    facts = [LayerFacts(name=str(i), op="Relu") for i in range(layers)]
    with Recorder(tmp_path / "run.h5", facts, repetitions, {}) as recorder:
        for rep in range(min(repetitions, 40)):
            recorder.add(rep, **samples_of(rep, layers))
    record = read(tmp_path / "run.h5")
    assert record.time_us.shape == (min(repetitions, 40), layers)
    for rep in range(record.repetitions):
        np.testing.assert_array_equal(record.time_us[rep], samples_of(rep, layers)["time_us"])


def test_wrong_use_is_an_error_of_the_programmer():
    with pytest.raises(TypeError, match="unknown attributes"):
        Recorder(None, LAYERS, 1, {"devise": "x"})
    recorder = Recorder(None, LAYERS, 2, {})
    with pytest.raises(TypeError, match="unknown samples"):
        recorder.add(0, tiem_us=1.0)
    with pytest.raises(ValueError, match="shape"):
        recorder.add(0, time_us=1.0)
    recorder.add(0, plain_us=1.0)
    for rep in (0, 2, -1):
        with pytest.raises(ValueError, match=f"repetition {rep}"):
            recorder.add(rep, plain_us=1.0)


# ---- other programs open it with no help


def test_h5py_finds_scales_units_and_long_names(good):
    with h5py.File(good) as file:
        for quantity in SCHEMA:
            if not quantity.dims:
                assert quantity.name in file.attrs
                continue
            dataset = file[quantity.name]
            assert dataset.attrs["units"] == quantity.unit
            assert dataset.attrs["long_name"] == quantity.long_name
            assert dataset.dtype.names is None, "no compound types"
            if quantity.name in quantity.dims:
                assert dataset.is_scale
            else:
                assert [axis[0].name.strip("/") for axis in dataset.dims] == list(quantity.dims)
            if quantity.dtype == "float64":
                assert np.isnan(dataset.fillvalue)
        assert file["time_us"].chunks is not None and file["time_us"].compression is None
        assert file["layer"].asstr()[1] == LAYERS[1].name


@pytest.mark.parametrize("finished", [REPETITIONS, 3])
def test_xarray_opens_it(tmp_path, finished):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    write(tmp_path / "run.h5", finished=finished)
    with xarray.open_dataset(tmp_path / "run.h5", engine="h5netcdf") as data:
        assert data.time_us.dims == ("rep", "layer") and data.time_us.dtype == np.float64
        assert data.time_us.attrs["units"] == "us"
        assert data.time_us.sel(rep=2, layer="conv1").item() == samples_of(2)["time_us"][0]
        assert data.is_warmup.dtype == bool and data.is_warmup.values.tolist() == [True, True] + [False] * 6
        assert data.is_finished.values.sum() == finished
        assert data.op.values.tolist() == [facts.op for facts in LAYERS]
        assert data.attrs["device"] == "a CPU" and data.attrs["schema_version"] == 1
        assert data.time_us.isnull().any(dim="layer").values.sum() == REPETITIONS - finished


# ---- the writer dies


def test_a_run_is_visible_as_partial_until_it_is_complete(tmp_path):
    with Recorder(tmp_path / "run.h5", LAYERS, REPETITIONS, {}) as recorder:
        for rep in range(3):
            recorder.add(rep, **samples_of(rep))
        record = read(tmp_path / "run.h5.partial")
        assert_holds(record, 3)
        assert record.notes == ("3 of 8 repetitions finished; the others are left out",)
        with pytest.raises(InputError, match="run.h5.partial holds a run that didn't finish"):
            read(tmp_path / "run.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


@pytest.mark.parametrize("finished", [0, 3])
def test_an_exception_leaves_the_good_record_and_what_was_finished(good, finished):
    before = good.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        with Recorder(good, LAYERS, REPETITIONS, {}) as recorder:
            for rep in range(finished):
                recorder.add(rep, **samples_of(rep))
            raise KeyboardInterrupt
    assert good.read_bytes() == before
    partial = good.with_name("run.h5.partial")
    assert partial.exists() == (finished > 0)
    if finished:
        assert_holds(read(partial), finished)


@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_random_moments_every_finished_repetition_is_there(good, kills):
    """The child says through a pipe what it has finished: that must be in the file."""
    before, partial = good.read_bytes(), good.with_name("run.h5.partial")
    rng = random.Random(5)
    repetitions, seen_inside = 400, 0
    for kill in range(kills):
        partial.unlink(missing_ok=True)
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                with Recorder(good, LAYERS, repetitions, {}) as recorder:
                    for rep in range(repetitions):
                        recorder.add(rep, **samples_of(rep))
                        os.write(sending, b".")
                    time.sleep(60)  # never reaches the end by itself
            os._exit(1)
        os.close(sending)
        said, wanted = 0, rng.randrange(repetitions)
        while said < wanted:
            said += len(os.read(receiving, 1))
        time.sleep(rng.uniform(0, 0.001))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(receiving, 4096):
            said += len(more)
        os.close(receiving)
        assert good.read_bytes() == before, f"kill {kill}"
        if said:
            record = read(partial)
            assert record.repetitions in (said, said + 1), f"kill {kill}"
            assert_holds(record, record.repetitions)
            seen_inside += record.repetitions < repetitions
    assert seen_inside >= kills / 2, "the kills were to fall into the repetitions"


def test_the_last_write_changes_only_the_numbers_that_were_set(tmp_path):
    """It goes over a file that is complete already: wherever a kill cuts it, the file stays readable."""
    with Recorder(tmp_path / "run.h5", LAYERS, REPETITIONS, FACTS_OF_RUN) as recorder:
        for rep in range(REPETITIONS - 1):
            recorder.add(rep, **samples_of(rep))
        recorder.set(closure_residual=0.5)
        before = np.frombuffer((tmp_path / "run.h5.partial").read_bytes(), np.uint8)
    after = np.frombuffer((tmp_path / "run.h5").read_bytes(), np.uint8)
    changed = np.flatnonzero(before != after)
    assert before.size == after.size and 1 <= changed.size and np.ptp(changed) < 8


def test_a_dead_run_is_taken_over_and_a_living_one_is_not_touched(tmp_path):
    (tmp_path / "run.h5.partial").write_bytes(b"left by a killed run" * 100_000)
    with Recorder(tmp_path / "run.h5", LAYERS, REPETITIONS, {}) as living:
        living.add(0, **samples_of(0))
        with pytest.raises(OutputError, match="another run is recording there"):
            write(tmp_path / "run.h5")
        for rep in range(1, REPETITIONS):
            living.add(rep, **samples_of(rep))
    assert_holds(read(tmp_path / "run.h5"), REPETITIONS)
    assert (tmp_path / "run.h5").stat().st_size < 1_000_000, "nothing of the dead run is left"


def test_a_run_that_ends_while_another_begins_keeps_its_record(tmp_path, monkeypatch):
    """The second opens FILE.partial, the first renames that very file to FILE: it must not be emptied now."""
    first = Recorder(tmp_path / "run.h5", LAYERS, REPETITIONS, {})
    first.__enter__()
    for rep in range(REPETITIONS):
        first.add(rep, **samples_of(rep))
    lock = store.fcntl.flock

    def end_the_first(descriptor: int, operation: int) -> None:
        first.__exit__(None, None, None)
        lock(descriptor, operation)

    monkeypatch.setattr(store.fcntl, "flock", end_the_first)
    with pytest.raises(OutputError, match="another run is recording there"):
        write(tmp_path / "run.h5")
    assert_holds(read(tmp_path / "run.h5"), REPETITIONS)


# ---- places that can't be written


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 KiB, where root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount a small disk; the size limit of the next test stands in for it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_disk_full_is_one_error_and_leaves_nothing(small_disk):
    good = small_disk / "run.h5"
    write(good)
    before = good.read_bytes()
    (small_disk / "filler").write_bytes(bytes(80 * 1024))
    with pytest.raises(OutputError) as caught:
        write(good)
    assert caught.value.facts["found"] == "No space left on device"
    assert good.read_bytes() == before
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "run.h5"]


def run_child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    prelude = "import resource, sys\nfrom test_store import *\n"
    search = os.pathsep.join([str(Path(store.__file__).parents[1]), str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_no_room_for_the_file_at_all(good):
    before = good.read_bytes()
    script = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        write(sys.argv[1])
    except OutputError as error:
        print(error)
    """
    child = run_child(script, good)
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.strip() == f"the record can't be written; file: {good}; found: File too large"
    assert good.read_bytes() == before and not good.with_name("run.h5.partial").exists()


def test_a_write_that_fails_half_way_is_one_error_too(good):
    """A quota, or a disk that fails: HDF5 must not add a page of its own when the process ends."""
    before = good.read_bytes()
    script = """
    try:
        with Recorder(sys.argv[1], LAYERS, REPETITIONS, {}) as recorder:
            recorder.add(0, **samples_of(0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            recorder.add(1, **samples_of(1))
    except OutputError as error:
        print(error)
    """
    child = run_child(script, good)
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.count("\n") == 1 and "File too large" in child.stdout
    assert good.read_bytes() == before
    assert_holds(read(good.with_name("run.h5.partial")), 1)


def test_a_folder_that_may_not_be_written():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(OutputError, match="Permission denied"):
                write(Path(folder) / "run.h5")
        finally:
            if is_root:
                os.seteuid(0)
        assert not os.listdir(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OutputError, match="folder isn't there") as caught:
        write(tmp_path / "no" / "run.h5")
    assert str(tmp_path / "no") in str(caught.value)


def test_a_place_that_is_a_folder(tmp_path):
    with pytest.raises(OutputError, match="is a folder"):
        write(tmp_path)


@pytest.mark.parametrize("content", [b"ONNX", b"\x89HDF\r\n\x1a\n" + bytes(99)], ids=["model", "HDF5"])
def test_what_is_no_record_is_not_replaced(tmp_path, content):
    place = tmp_path / "model.onnx"
    place.write_bytes(content)
    with pytest.raises(OutputError, match="taken by another file"):
        write(place)
    assert place.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_somebody_elses_hdf5_file_is_not_replaced(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = [1, 2, 3]
    with pytest.raises(OutputError, match="taken by another file"):
        write(tmp_path / "data.h5")
    with pytest.raises(OutputError, match="taken by another file"):
        write("/dev/null")


def test_an_empty_file_and_a_link_are_fine(tmp_path):
    (tmp_path / "empty.h5").touch()
    write(tmp_path / "empty.h5")
    (tmp_path / "link.h5").symlink_to("empty.h5")
    write(tmp_path / "link.h5", finished=4)
    assert (tmp_path / "link.h5").is_symlink()
    assert read(tmp_path / "empty.h5").repetitions == 4


# ---- files that aren't records


def test_files_that_are_not_records(tmp_path):
    (tmp_path / "text.h5").write_text("time_us,layer\n")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["time_us"] = [1.0]
    os.mkfifo(tmp_path / "pipe")
    for name, words in [
        ("none.h5", "there is no such record"),
        ("text.h5", "not an HDF5 file"),
        ("other.h5", "no record of minicnn"),
        ("pipe", "not a file"),
        (".", "a folder"),
    ]:
        with pytest.raises(InputError, match=words) as caught:
            read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_a_newer_schema_is_refused_and_an_older_one_is_read(good):
    with h5py.File(good, "r+") as file:
        del file["enqueue_us"], file["reason"], file.attrs["clocks"]
    record = read(good)
    assert np.isnan(record.enqueue_us).all() and record.layers[0].reason == "" and record.clocks == {}
    with h5py.File(good, "r+") as file:
        file.attrs["schema_version"] = store.SCHEMA_VERSION + 1
    with pytest.raises(InputError, match="newer minicnn; file: .*; found: schema 2; accepted: up to 1"):
        read(good)


def test_truncated_at_any_length_it_is_one_error(good, tmp_path):
    content = good.read_bytes()
    for length in [0, 1, 7, 8, 100, *range(1000, len(content), 3001), len(content) - 1]:
        (tmp_path / "cut.h5").write_bytes(content[:length])
        with pytest.raises(InputError):
            read(tmp_path / "cut.h5")


def test_shapes_that_contradict_each_other(good):
    with h5py.File(good, "r+") as file:
        del file["plain_us"]
        file["plain_us"] = np.zeros(REPETITIONS + 1)
    with pytest.raises(InputError, match="damaged.*plain_us has shape"):
        read(good)


def test_records_are_the_same_bytes_for_the_same_run(tmp_path):
    write(tmp_path / "a.h5")
    write(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
