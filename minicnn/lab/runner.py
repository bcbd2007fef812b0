"""`kernel check` and `kernel bench` in processes apart, for check on every device at hand.

A kernel that faults, loops for ever or trips a sanitizer ends its process and nothing else; the case it was
at is known, since each is announced before it begins.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from minicnn import errors
from minicnn.device import nvcc
from minicnn.device.host_build import Check, sanitizer_environment
from minicnn.errors import CheckError, MinicnnError
from minicnn.lab.race import Bout, bout_of

FAULT_LINE = re.compile(r"(\S+\.cuh?):(\d+)")
VERDICT = re.compile(r"(?:ERROR: |WARNING: )?(\w+Sanitizer: [^\n(]+)|runtime error: ([^\n]+)")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One way to run a kernel. check: a build of the host device that looks for faults."""

    name: str
    device: str
    check: Check | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a case ended. state: right, wrong, skipped (text says why)"""

    trial: str
    case: str
    state: str
    text: str = ""
    runs: int = 0


def trials(wanted: Sequence[str] = ()) -> list[Trial]:
    """All that this machine can do, or those whose device is wanted: host, sim, cuda."""
    found = [Trial(name="host", device="host")]
    found += [
        Trial(name=f"host, threads {order}", device="host", check=Check(order=order))
        for order in ("reverse", "random")
    ]
    for sanitize in ("address,undefined", "thread"):
        if _has_sanitizer(sanitize):
            found.append(Trial(name=f"host, {sanitize}", device="host", check=Check(sanitize=sanitize)))
    if nvcc.find() is not None:
        found.append(Trial(name="simulated GPU", device="sim"))
    if importlib.util.find_spec("pycuda") is not None and _has_gpu():
        found.append(Trial(name="GPU", device="cuda"))
    return [trial for trial in found if not wanted or trial.device in wanted]


def _has_sanitizer(sanitize: str) -> bool:
    try:
        libraries = sanitizer_environment(Check(sanitize=sanitize)).get("LD_PRELOAD", "")
    except (MinicnnError, OSError, subprocess.SubprocessError):
        return False
    return os.path.isabs(libraries)


def _has_gpu() -> bool:
    from minicnn.device.cuda_driver import facts

    return bool(facts().gpus)


def check(
    file: str | Path, variant: str, trial: Trial, *, model: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None, case: str = "",
    patience_s: float = 30.0,
) -> Iterator[Outcome]:  # fmt: skip
    """Outcomes as they come. patience_s: without a word for so long, the process is stopped."""
    job: dict[str, Any] = {
        "task": "check", "file": str(file), "variant": variant, "device": trial.device, "model": str(model),
        "shapes": _lists(shapes), "batch": batch, "case": case,
        "check": None if trial.check is None else asdict(trial.check),
    }  # fmt: skip
    for words in _heard(job, trial.check, patience_s):
        if words["state"] != "begun":
            known = {key: words[key] for key in ("case", "state", "text", "runs") if key in words}
            yield Outcome(trial=trial.name, **known)


def bench(
    file: str | Path, variant: str, *, model: str, device: str = "auto", threads: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None, counters: bool = False,
    patience_s: float = 30.0,
) -> Iterator[Bout]:  # fmt: skip
    """A bout for each distinct layer of the model that the variant can do, as they are done.

    Raises    CheckError: a kernel faulted or didn't end; whatever opening the device or the model may raise
    """
    job = {
        "task": "bench", "file": str(file), "variant": variant, "device": device, "threads": threads,
        "model": str(model), "shapes": _lists(shapes), "batch": batch, "counters": counters,
    }  # fmt: skip
    for words in _heard(job, None, patience_s):
        if words["state"] == "wrong":
            raise CheckError(f"{words['case']}: {words['text']}", file=file)
        if words["state"] == "bout":
            yield bout_of(words["bout"])


def _lists(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def _heard(job: Mapping[str, Any], check: Check | None, patience_s: float) -> Iterator[dict[str, Any]]:
    """What a worker says of its job; at last, where its process had to be stopped or died, that.

    Raises    MinicnnError: what the worker was refused before its first case
    """
    environment = dict(os.environ)
    if check is not None:
        environment |= sanitizer_environment(check)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "minicnn.lab.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(job))
        begun = ""
        try:
            for words in _lines(process.stdout, patience_s):
                if words is None:
                    yield _wrong(begun, _stopped(patience_s))
                    return
                if words["state"] == "refused":
                    raise getattr(errors, words["kind"])(words["sentence"], **words["facts"])
                begun = words["case"] if words["state"] == "begun" else ""
                yield words
        finally:
            process.kill()
            process.wait()
        if begun or process.returncode not in (0, -signal.SIGKILL):
            said.seek(0)
            yield _wrong(begun, _died(process.returncode, said.read()))


def _lines(stream: IO[str], patience_s: float) -> Iterator[dict[str, Any] | None]:
    """What the worker says, line by line; None, once, where it says nothing for too long."""
    descriptor = stream.fileno()
    os.set_blocking(descriptor, False)
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        last = time.monotonic()
        while True:
            if not selector.select(max(0.0, last + patience_s - time.monotonic())):
                yield None
                return
            part = os.read(descriptor, 1 << 16)
            if not part:
                return
            last = time.monotonic()
            *whole, pending = (pending + part).split(b"\n")
            for line in whole:
                if line.startswith(b"{"):
                    yield json.loads(line)


def _wrong(case: str, text: str) -> dict[str, Any]:
    return {"state": "wrong", "case": case or "(before the first case)", "text": text}


def _stopped(patience_s: float) -> str:
    return f"no answer within {patience_s:g} s: does every loop end, do all threads reach each barrier?"


def _died(status: int, said: str) -> str:
    """What a sanitizer or the system said, with the first line of a kernel in it."""
    verdict, line = VERDICT.search(said), FAULT_LINE.search(said)
    if verdict is not None:
        text = (verdict[1] or f"undefined behaviour: {verdict[2]}").strip()
    elif status < 0:
        text = f"the process died of {signal.Signals(-status).name}"
    else:
        text = said.strip().splitlines()[-1] if said.strip() else f"the process ended with {status}"
    return text if line is None else f"{text}, at {line[1]}:{line[2]}"
