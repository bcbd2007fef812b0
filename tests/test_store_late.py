"""What a record is told only at the end of a run: flags, numbers of layers, that it ends early."""

import h5py
import numpy as np
import pytest

from minicnn import store
from minicnn.errors import OutputError
from minicnn.store import Recorder, read
from test_store import BUFFERS, FACTS_OF_RUN, LAYERS, REPETITIONS, assert_holds, samples_of, write


@pytest.fixture
def good(tmp_path):
    write(tmp_path / "run.h5")
    return tmp_path / "run.h5"


def test_flags_and_facts_of_layers_can_come_late(tmp_path):
    with Recorder(tmp_path / "run.h5", LAYERS, REPETITIONS, {}) as recorder:
        for rep in range(REPETITIONS):
            recorder.add(rep, **samples_of(rep))
        recorder.flag("is_warmup", np.arange(REPETITIONS) < 5)
        assert read(tmp_path / "run.h5.partial").is_warmup.sum() == 5, "on disk at once"
        recorder.flag("is_warmup", np.arange(REPETITIONS) < 3)
        recorder.set_facts(energy_uj=[1.0, 2.0, 3.0])
        for wrong in ("plain_us", "is_finished"):
            with pytest.raises((TypeError, KeyError)):
                recorder.flag(wrong, np.zeros(REPETITIONS, bool))
        with pytest.raises(TypeError):
            recorder.set_facts(op=["texts could grow"] * 3)
    record = read(tmp_path / "run.h5")
    assert record.is_warmup.tolist() == [True] * 3 + [False] * 5
    assert [layer.energy_uj for layer in record.layers] == [1.0, 2.0, 3.0]


def test_a_run_that_ends_early_has_its_own_repetitions_alone(good, tmp_path):
    with Recorder(good, LAYERS, 500, FACTS_OF_RUN, BUFFERS) as recorder:
        for rep in range(4):
            recorder.add(rep, **samples_of(rep))
        recorder.end_early()
    record = read(good)
    assert_holds(record, 4)
    assert record.notes == () and recorder.record.notes == () and record.buffers == BUFFERS
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    with h5py.File(good) as file:
        assert len(file["rep"]) == 4


def test_a_disk_that_fails_as_a_run_ends_early_keeps_both(good, monkeypatch):
    before = good.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left"):
        with Recorder(good, LAYERS, 500, {}) as recorder:
            recorder.add(0, **samples_of(0))
            recorder.end_early()
            monkeypatch.setattr(store.os, "fsync", fail)
    assert good.read_bytes() == before
    assert_holds(read(good.with_name("run.h5.partial")), 1)
    assert not good.with_name("run.h5.cut").exists()
