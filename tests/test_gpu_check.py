"""tools/gpu_check.py, rehearsed under the real PyCUDA on a simulated GPU: killed, gone on with; its table."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import cache
from minicnn.device import nvcc
from simgpu import build
from tools import gpu_check

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "gpu_check.py"
LAST_BEFORE_THE_KILL = "ceilings/launch"
TIMES = ("_us", "gb_per_s", "tflop_per_s", "captured_over_plain")
STAND_IN = """
import json, os, sys, time
out = os.fdopen(int(sys.argv[sys.argv.index("--report") + 1]), "w", buffering=1)
for step in sys.argv[sys.argv.index("--records") + 2:]:
    print(json.dumps({"begin": step}), file=out)
    if step == "crash":
        print("a last word", file=sys.stderr, flush=True)
        os._exit(7)
    if step == "hang":
        time.sleep(100)
    print(json.dumps({"end": step, "result": {"passed": 1}}), file=out)
    if step == "last":
        break
"""
needs_gpu_tools = pytest.mark.skipif(
    nvcc.find() is None or importlib.util.find_spec("pycuda") is None,
    reason="nvcc or PyCUDA isn't installed (python tools/build_pycuda.py --install)",
)


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    """gpu_check in a process whose loader finds the stand-in driver first."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(build.build(cache.folder("simgpu")))}
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--rehearsal", "--minutes", "4", *more]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "gpu_check.json").read_text())
    return content


@needs_gpu_tools
def test_killed_half_way_and_gone_on_with(tmp_path: Path) -> None:
    """All of stage A in small: what was done before the kill stays, the rest follows, no time is told."""
    out, wheels = tmp_path / "out", tmp_path / "wheels"
    _wheel(wheels)
    first = start(out, "--wheels", str(wheels))
    wait_until_done(first, out, LAST_BEFORE_THE_KILL)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = read(out)
    done_before = {name for name, step in before["steps"].items() if step["state"] == "done"}
    assert LAST_BEFORE_THE_KILL in done_before and set(gpu_check.REHEARSED) - done_before
    second = start(out, "--wheels", str(wheels), "--resume")
    said, _ = second.communicate(timeout=200)
    after = read(out)
    assert second.returncode == 0, said
    assert "wheels_failed" not in after, after["wheels_failed"]
    assert {n: after["steps"][n] for n in done_before} == {n: before["steps"][n] for n in done_before}
    assert set(after["steps"]) == set(gpu_check.steps_of_a(gpu_check.Report(out), True))
    assert {step["state"] for step in after["steps"].values()} == {"done"}
    kernels = [step["result"] for name, step in after["steps"].items() if name.startswith("kernels/")]
    assert len(kernels) == 3 and all(k["passed"] >= k["cases"] > 0 == k["failed"] for k in kernels)
    machine = after["machine"]
    assert machine["is_simulated"] and machine["versions"]["pycuda"] and machine["clocks"]
    told = list(_times(after["steps"]))
    assert len(told) > 10 and all(value is None for _, value in told), told
    (network,) = (step["result"] for name, step in after["steps"].items() if name.startswith("networks/"))
    assert network["layers"] > 20 and not network["graph_failure"]
    assert "PyTorch" in network["peer"]["left_out"]
    assert network["record"] == "squeezenet-b1-fp32.h5" and not list(out.rglob("*.h5")), "simulated: not kept"
    with pytest.raises(ValueError, match="no figures"):
        gpu_check.readme_part(after, "x.json")


@needs_gpu_tools
def test_told_to_end_it_says_so(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_until_done(process, tmp_path, "machine")
    process.terminate()
    process.communicate(timeout=30)
    assert read(tmp_path)["interrupted"] and read(tmp_path)["steps"]["machine"]["state"] == "done"


def wait_until_done(process: subprocess.Popen[str], out: Path, step: str) -> None:
    """Reads the file all the while: it must be whole whenever it is there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "gpu_check.json").is_file() and step in read(out).get("steps", {}):
            return
        time.sleep(0.02)
    raise AssertionError(f"{step} was never done")


def _wheel(folder: Path) -> None:
    """The smallest package that pip installs."""
    folder.mkdir()
    info = "carried-1.0.dist-info"
    with zipfile.ZipFile(folder / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def _times(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if key.endswith(TIMES):
            yield key, value
        elif isinstance(value, dict):
            yield from _times(value)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gpu_check.Runner:
    """One whose steps are those of STAND_IN."""
    script = tmp_path / "steps.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(gpu_check, "STEPS", script)
    monkeypatch.setattr(gpu_check, "STEP_SECONDS", 0.7)
    return gpu_check.Runner(gpu_check.Report(tmp_path / "gpu_check.json"), site=tmp_path, is_rehearsal=False)


def test_a_step_that_crashes_or_hangs_takes_nothing_with_it(runner: gpu_check.Runner) -> None:
    runner.run(["a", "crash", "b", "hang", "last", "c"], time.monotonic() + 60)
    states = {name: step["state"] for name, step in read(runner.report.path.parent)["steps"].items()}
    ended_well = dict.fromkeys(("a", "b", "last", "c"), "done")
    assert states == ended_well | {"crash": "failed", "hang": "failed"}
    assert "ended with 7\na last word" in runner.report.steps["crash"]["why"]
    assert "no end" in runner.report.steps["hang"]["why"]
    assert runner.report.undone(["a", "crash", "hang", "never"]) == ["crash", "hang", "never"]


def test_when_the_time_is_over_the_step_is_cut_short(runner: gpu_check.Runner) -> None:
    runner.run(["a", "hang", "b"], time.monotonic() + 0.5)
    states = {name: step["state"] for name, step in runner.report.steps.items()}
    assert states == {"a": "done", "hang": "cut short"}


def test_an_old_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "gpu_check.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "--resume" in done.stderr
    assert (tmp_path / "gpu_check.json").read_text() == "{}"


def test_every_network_comes_in_every_batch_and_precision() -> None:
    steps = gpu_check.steps_of_b()
    assert len(steps) == len(set(steps)) == len(gpu_check.NETWORKS) * 3 * 3
    assert steps.index("networks/vgg19/32/fp32") < steps.index("networks/squeezenet/1/tf32")


def test_the_table_holds_what_was_measured() -> None:
    """Numbers made up for this test; no GPU."""
    one = {"median": 1.0, "low": None, "high": None, "count": 20}
    machine = {"device": "A GPU", "architecture": "sm_90", "is_simulated": False}
    network = {"network": "resnet50", "batch": 8, "precision": "fp32", "plain_us": one | {"median": 1234.5}}
    network |= {"captured_us": one | {"median": 1000.0}, "eager_us": one}
    network |= {"captured_over_plain": {"median": 0.81}}
    content = {
        "started": "2000-01-02T03:04:05",
        "commands": ["python tools/gpu_check.py"],
        "commit": "abc",
        "is_rehearsal": False,
        "machine": machine | {"versions": {"minicnn": "1.0", "driver": "580"}},
        "steps": {
            "ceilings/copy": {"state": "done", "result": {"copy_gb_per_s": 4321.0}},
            "networks/resnet50/8/fp32": {"state": "done", "result": network | {"peer": {"our_error": 1e-6}}},
            "networks/vgg19/8/fp32": {"state": "failed", "why": "no memory"},
        },
    }
    part = gpu_check.readme_part(content, "tools/results/x.json")
    assert "2000-01-02: A GPU (sm_90), driver 580" in part and "4,321 GB/s" in part
    assert "| resnet50 | 8 | fp32 | 1,234.5 | 1,000.0 | 1.0 | 0.81 | 1.0e-06 | - |" in part
    assert "vgg19" not in part and "vgg19/8/fp32: no memory" in gpu_check.summary(content)


def test_the_peer_computes_what_onnxruntime_does() -> None:
    """Every network of the check in small; without PyTorch there is no peer."""
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the peer's networks aren't run")
    import onnxruntime

    from models import build as models
    from tools.torch_peer import Peer

    for name in gpu_check.NETWORKS:
        model = models.build(name, image_size=64, width=0.25, batch=2)
        x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 64, 64)).astype(np.float32)
        (exact,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        peer = Peer(model, device="cpu", dtype=torch.float64, channels_last=True)
        found = peer.run(peer.tensor(x)).numpy()
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max(), name
