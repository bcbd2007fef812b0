"""What wears out: memory and handles over many runs, threads and processes that share, interrupts."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import harness
import minicnn
from minicnn import store
from minicnn.errors import DeviceError, MinicnnError
from test_models import MODELS

ROOT = Path(__file__).parent.parent
DIGIT = MODELS / "mnist-conv" / "model.onnx"
on_every_device = pytest.mark.parametrize("device", harness.DEVICES)


def picture(seed: int = 0) -> np.ndarray:
    with minicnn.load(DIGIT).plan(device="host", threads=1) as engine:
        (x,) = engine.plan.inputs
    return np.random.default_rng(seed).uniform(-1, 1, x.shape).astype(x.dtype)


def held() -> dict[str, int]:
    """What this process holds: KiB in memory, open files, threads."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "kib": int(status["VmRSS"].split()[0]),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


def grown(runs: int, device: str = "host") -> dict[str, int]:
    """How much more is held after so many runs than after the first tenth of them."""
    x = picture()
    with minicnn.load(DIGIT).plan(device=harness.open_device(device)) as engine:
        first = engine.run(x)
        for index in range(runs):
            if index == runs // 10:
                before = held()
            found = engine.run(x)
        after = held()
    assert all(np.array_equal(found[name], first[name]) for name in first)
    return {name: after[name] - before[name] for name in before}


@on_every_device
def test_runs_leave_nothing_behind(device: str) -> None:
    more = grown(10_000 if device == "host" else 20, device)
    assert more["files"] <= 0 and more["threads"] <= 0
    assert more["kib"] < (1024 if device == "host" else 16 * 1024)


@on_every_device
def test_engines_leave_nothing_behind(device: str) -> None:
    """Made, run and closed again and again on one device."""
    x, opened = picture(), harness.open_device(device)
    turns = 100 if device == "host" else 6

    def turn() -> None:
        with minicnn.load(DIGIT).plan(device=opened) as engine:
            engine.run(x)

    for _ in range(turns // 2):
        turn()
    before = held()
    for _ in range(turns):
        turn()
    after = held()
    assert after["files"] <= before["files"] and after["threads"] <= before["threads"]
    assert after["kib"] - before["kib"] < (4 if device == "host" else 32) * 1024


@on_every_device
def test_threads_that_share_an_engine_get_their_own_answers(device: str) -> None:
    pictures = [picture(seed) for seed in range(4)]
    with minicnn.load(DIGIT).plan(device=harness.open_device(device)) as engine:
        expected = [next(iter(engine.run(x).values())) for x in pictures]
        wrong: list[int] = []

        def work(index: int) -> None:
            for _ in range(50 if device == "host" else 2):
                (found,) = engine.run(pictures[index]).values()
                if not np.array_equal(found, expected[index]):
                    wrong.append(index)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_forked_process_is_told_to_open_its_own() -> None:
    x = picture()
    with minicnn.load(DIGIT).plan(device="host", threads=2) as engine:
        expected = next(iter(engine.run(x).values()))
        context = multiprocessing.get_context("fork")
        answers = context.Queue()

        def child() -> None:
            try:
                engine.run(x)
            except DeviceError as error:
                answers.put(str(error))
            with minicnn.load(DIGIT).plan(device="host", threads=2) as own:
                answers.put(next(iter(own.run(x).values())))

        process = context.Process(target=child)
        process.start()
        said, found = answers.get(timeout=60), answers.get(timeout=60)
        process.join(20)
        assert process.exitcode == 0 and "after the fork" in said
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(next(iter(engine.run(x).values())), expected)


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "minicnn", "infer", str(DIGIT), "--device", "host", *more]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


def test_two_processes_build_one_cache_and_record_into_one_folder(tmp_path: Path) -> None:
    shared = environment(MINICNN_CACHE=str(tmp_path / "cache"))
    started = [
        subprocess.Popen(
            command("--repeat", "3", "--record", str(tmp_path / f"{name}.h5")),
            env=shared, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert all(len(store.read(str(tmp_path / f"{name}.h5")).layers) > 3 for name in ("a", "b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5", "cache"]


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupt_at_any_moment(seed: int, tmp_path: Path) -> None:
    """Exit code 130, or 0 where it came too late; a record is there whole, as FILE.partial, or not at all."""
    record = tmp_path / "run.h5"
    process = subprocess.Popen(
        command("--repeat", "20000", "--record", str(record)),
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait = random.Random(seed).uniform(0.0, 1.0)
    if seed % 2:
        while not list(tmp_path.glob("run.h5*")) and process.poll() is None:
            time.sleep(0.01)
    else:
        wait *= 2
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (130, 0, -signal.SIGINT), said  # -SIGINT: before Python was there to hear it
    there = list(tmp_path.glob("run.h5*"))
    for path in there:
        assert path.name in ("run.h5", "run.h5.partial")
        assert len(store.read(str(path)).is_warmup) > 0
    assert there or not seed % 2


def test_a_refused_input_leaves_the_engine_as_it_was() -> None:
    with minicnn.load(DIGIT).plan(device="host") as engine:
        with pytest.raises(MinicnnError):
            engine.run(np.zeros((7, 7), np.float32))
        assert engine.run(picture())

