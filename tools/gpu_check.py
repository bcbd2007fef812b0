"""Everything that only a GPU can tell, as soon as there is one: right or wrong, and how fast beside PyTorch.

    python tools/gpu_check.py --wheels DIR --out DIR --minutes 12       both stages, 12 minutes at most
    python tools/gpu_check.py --wheels DIR --out DIR --minutes 12 --resume      what was left undone
    python tools/gpu_check.py --readme                                  tools/results/*.json into the README

For a machine with an NVIDIA GPU, CUDA 13 (nvcc), Python 3.12, numpy and PyTorch, without a network: what else
is needed lies as wheels in a folder. To fill it where there is a network:

    python tools/build_pycuda.py --into DIR         under Python 3.12
    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \\
        --platform manylinux2014_x86_64 -d DIR Mako MarkupSafe platformdirs pytools siphash24 h5py Pillow \\
        typing_extensions rich markdown-it-py mdurl Pygments pytest iniconfig pluggy packaging onnx \\
        ml_dtypes protobuf

Stage A ends within 4 minutes: ceilings, every kernel against its definition, three networks beside PyTorch.
Stage B goes on with what A left undone and then by worth: ten networks, batch 1, 8 and 32, each precision.
Steps run in processes of their own, so that one that hangs or crashes takes nothing with it, and
DIR/gpu_check.json is written anew after each: cut short anywhere, it holds what there was. No setting of the
GPU is touched.

Not here  the steps themselves (gpu_steps.py), the PyTorch networks (torch_peer.py), tables of tuned variants
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tools" / "results"
STEPS = Path(__file__).with_name("gpu_steps.py")
FORMAT = 1
STAGE_A_SECONDS = 240
STEP_SECONDS = 120  # a step that takes longer hangs
DONE = ("done", "left out")  # what --resume doesn't try again
NETWORKS = (  # by worth: the classics whose figures people know come first
    "squeezenet",
    "resnet50",
    "mobilenet_v2",
    "vgg16",
    "googlenet",
    "densenet121",
    "alexnet",
    "resnet18",
    "efficientnet_lite0",
    "vgg19",
)
STAGE_A_NETWORKS = 3
CEILINGS = ("ceilings/copy", "ceilings/gemm", "ceilings/launch")
# Part -> the share of stage A after which the next part begins; what is left undone, B does.
SHARES = {"machine": 0.15, "ceilings": 0.3, "kernels": 0.65, "networks": 1.0}
# Operators whose kernels most of a network's time goes to: before the others.
FIRST = ("Conv", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Add")
# A rehearsal goes the same ways on a simulated GPU: few operators, few cases, a tiny network.
REHEARSED = ("kernels/Conv", "kernels/MaxPool", "kernels/Relu", "networks/squeezenet/1/fp32")


class Interrupted(Exception):
    """The process was told to end."""


@dataclass
class Report:
    """The one JSON file. Whatever happens, the file is whole: it is written beside and moved into place."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.content.setdefault("steps", {})
        return found

    def set(self, step: str, state: str, **facts: object) -> None:
        self.steps[step] = {"state": state, "ended": now(), **facts}
        self.write()

    def write(self) -> None:
        self.content["updated"] = now()
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".part", delete=False) as file:
            json.dump(self.content, file, indent=1)
        os.replace(file.name, self.path)

    def undone(self, steps: Iterable[str]) -> list[str]:
        return [step for step in steps if self.steps.get(step, {}).get("state") not in DONE]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str:
    """Which sources these are, as far as git knows."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def install(wheels: Path, target: Path) -> str:
    """Puts the carried wheels where no other Python sees them; why not, where that fails."""
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    if not found:
        return ""
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *found]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip()[-1000:] if done.returncode else ""


class Runner:
    """Runs steps in processes and writes down what they say, until a time."""

    def __init__(self, report: Report, *, site: Path, is_rehearsal: bool):
        self.report, self.is_rehearsal = report, is_rehearsal
        folders = [str(site), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        self.log = report.path.with_suffix(".log")
        self.records = report.path.parent / "records"
        self.records.mkdir(exist_ok=True)

    def run(self, steps: list[str], until: float) -> None:
        """All of them in one process; when that dies or hangs, those behind in the next."""
        left = list(steps)
        while left and time.monotonic() < until:
            ran = self._in_one_process(left, until)
            left = left[ran:]

    def _in_one_process(self, steps: list[str], until: float) -> int:
        """How many steps are over, the last one perhaps because its process had to be ended."""
        reader, writer = os.pipe()
        arguments = ["--report", str(writer), "--records", str(self.records)]
        arguments += ["--rehearsal"] if self.is_rehearsal else []
        with self.log.open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                [sys.executable, str(STEPS), *arguments, *steps],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
            )
        os.close(writer)
        over, is_underway = 0, False
        begun = time.monotonic()
        try:
            for line in self._lines(reader, until):
                told = json.loads(line)
                is_underway = "begin" in told
                if is_underway:
                    begun = time.monotonic()
                    print(f"{now()} {told['begin']}", flush=True)
                else:
                    self._note(told, time.monotonic() - begun)
                    over += 1
        except TimeoutError:
            process.kill()
            if time.monotonic() < until:
                self.report.set(steps[over], "failed", why=f"no end after {STEP_SECONDS} s")
            else:
                self.report.set(steps[over], "cut short", why="the stage's time was over")
            return over + 1
        finally:
            os.close(reader)
            if process.poll() is None and over < len(steps):
                process.kill()
            process.wait()
        if is_underway or not over:  # or it never got as far as a step
            self.report.set(steps[over], "failed", why=self._last_words(start, process.returncode))
            over += 1
        return over

    def _lines(self, reader: int, until: float) -> Iterator[str]:
        """Whole lines as they come, until the other end is closed.

        Raises    TimeoutError: nothing came for as long as a step may take, or the time is over
        """
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            while True:
                if not selector.select(max(min(until - time.monotonic(), STEP_SECONDS), 0)):
                    raise TimeoutError
                part = os.read(reader, 1 << 16)
                if not part:
                    return
                *lines, buffer = (buffer + part).split(b"\n")
                yield from (line.decode() for line in lines)

    def _note(self, told: dict[str, Any], seconds: float) -> None:
        facts = {key: told[key] for key in ("result",) if key in told}
        state = "done"
        for key, name in (("failed", "failed"), ("left_out", "left out")):
            if key in told:
                state, facts["why"] = name, told[key]
        if state == "done" and told["end"] == "machine":
            self.report.content["machine"] = told["result"]
        self.report.set(told["end"], state, seconds=round(seconds, 3), **facts)

    def _last_words(self, start: int, code: int) -> str:
        with self.log.open("rb") as log:
            log.seek(start)
            said = log.read().decode(errors="replace").strip().splitlines()
        return "\n".join([f"its process ended with {code}", *said[-12:]])


def stage_a(runner: Runner, begun: float, until: float) -> None:
    """Each part until its share of the stage is over, the machine first: the others are named by it."""
    report = runner.report
    for part, share in SHARES.items():
        steps = report.undone(s for s in steps_of_a(report, runner.is_rehearsal) if s.split("/")[0] == part)
        runner.run(steps, min(until, begun + share * STAGE_A_SECONDS))
        if part == "machine" and report.steps["machine"]["state"] != "done":
            return


def steps_of_a(report: Report, is_rehearsal: bool) -> list[str]:
    if is_rehearsal:
        return ["machine", *CEILINGS, *REHEARSED]
    known = report.content.get("machine", {}).get("operators", [])
    operators = sorted(known, key=lambda op: (FIRST.index(op) if op in FIRST else len(FIRST), op))
    networks = [f"networks/{name}/1/fp32" for name in NETWORKS[:STAGE_A_NETWORKS]]
    return ["machine", *CEILINGS, *(f"kernels/{op}" for op in operators), *networks]


def steps_of_b() -> list[str]:
    """By worth: each precision at batch 1 is worth more than larger batches of the next."""
    return [
        f"networks/{name}/{batch}/{precision}"
        for precision in ("fp32", "tf32", "fp16")
        for batch in (1, 8, 32)
        for name in NETWORKS
    ]


def check(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    until = begun + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(options.out / "gpu_check.json")
    if report.path.is_file():
        if not options.resume:
            print(f"{report.path} is there: --resume goes on with it", file=sys.stderr)
            return 2
        report.content = json.loads(report.path.read_text())
    report.content |= {"format": FORMAT, "commit": commit(), "is_rehearsal": options.rehearsal}
    report.content.setdefault("started", now())
    command = " ".join(["python", "tools/gpu_check.py", *sys.argv[1:]])
    report.content.setdefault("commands", []).append(command)
    report.write()
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory() as site:
        if failure := install(options.wheels, Path(site)) if options.wheels else "":
            report.content["wheels_failed"] = failure
        runner = Runner(report, site=Path(site), is_rehearsal=options.rehearsal)
        try:
            stage_a(runner, begun, min(until, begun + STAGE_A_SECONDS))
            if not options.rehearsal and report.steps["machine"]["state"] == "done":
                runner.run(report.undone([*steps_of_a(report, False), *steps_of_b()]), until)
        except (Interrupted, KeyboardInterrupt):
            report.content["interrupted"] = now()
            report.write()
    print(summary(report.content))
    return 0 if all(s["state"] in DONE and not _failed(s) for s in report.steps.values()) else 1


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted


def _failed(step: dict[str, Any]) -> int:
    """How many cases of a kernel were wrong."""
    return int(step.get("result", {}).get("failed", 0))


def summary(content: dict[str, Any]) -> str:
    """What came of it in a few lines, each step that didn't end well with its reason."""
    steps = content.get("steps", {})
    lines = []
    for name, step in steps.items():
        if step["state"] != "done":
            lines.append(f"{step['state']:9} {name}: {step.get('why', '').splitlines()[0][:300]}")
        for failure in step.get("result", {}).get("failures", []):
            lines.append(f"wrong     {name}, {failure['case']}, {failure['variant']}: {failure['why'][:300]}")
    done = sum(step["state"] == "done" for step in steps.values())
    cases = sum(step.get("result", {}).get("passed", 0) for step in steps.values())
    wrong = sum(_failed(step) for step in steps.values())
    lines.append(f"{done} of {len(steps)} steps done; kernels: {cases} cases right, {wrong} wrong")
    return "\n".join(lines)


# --- the README's table


def readme_part(content: dict[str, Any], path: str) -> str:
    """A table of the networks, and the ceilings it is to be read with.

    Raises    ValueError: a rehearsal or a simulated GPU: nothing was timed
    """
    machine = content.get("machine", {})
    if content.get("is_rehearsal") or machine.get("is_simulated", True):
        raise ValueError(f"{path}: a rehearsal's times are no figures")
    versions = machine["versions"]
    driver, cuda = (versions.get(name, "unknown") for name in ("driver", "cuda"))
    lines = [
        f"`{content['commands'][0]}`, {content['started'][:10]}: "
        f"{machine['device']} ({machine['architecture']}), driver {driver}, CUDA {cuda}, "
        f"PyTorch {versions.get('torch', 'none')}, minicnn {versions['minicnn']} at {content['commit']}; "
        f"the whole in {path}.",
        "",
        *_ceilings(content["steps"]),
        "",
        "| network | batch | precision | minicnn us | PyTorch, CUDA graph us | PyTorch, eager us "
        "| CUDA graph / minicnn | error, minicnn | error, PyTorch |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, step in content["steps"].items():
        if name.startswith("networks/") and step["state"] == "done":
            lines.append(_row(step["result"]))
    legend = "Times: medians between two device events, transfers apart. Errors: over the largest output."
    return "\n".join([*lines, "", legend])


def _ceilings(steps: dict[str, Any]) -> list[str]:
    found = {name: steps[name]["result"] for name in CEILINGS if steps.get(name, {}).get("state") == "done"}
    lines = []
    if copy := found.get("ceilings/copy"):
        lines.append(f"Copy {copy['copy_gb_per_s']:,.0f} GB/s (read and written).")
    if gemm := found.get("ceilings/gemm"):
        known = [p for p in ("fp32", "tf32", "fp16") if "tflop_per_s" in gemm[p]]
        rates = [f"{p} {gemm[p]['tflop_per_s']:,.1f}" for p in known]
        lines.append(f"cuBLAS, n = {gemm['n']}, TFLOP/s: {', '.join(rates)}.")
    if launch := found.get("ceilings/launch"):
        names = ("event_pair_us", "null_kernel_us", "graph_node_us")
        told = [f"{n.removesuffix('_us').replace('_', ' ')} {launch[n]['median']:.2f} us" for n in names]
        lines.append(f"{', '.join(told)}.")
    return lines


def _row(result: dict[str, Any]) -> str:
    def median(kind: str) -> str:
        told = result.get(f"{kind}_us")
        return f"{told['median']:,.1f}" if told else "-"

    ratio, peer = result.get("captured_over_plain"), result.get("peer", {})
    cells = [
        result["network"],
        str(result["batch"]),
        result["precision"],
        *(median(kind) for kind in ("plain", "captured", "eager")),
        f"{ratio['median']:.2f}" if ratio else "-",
        *(f"{peer[key]:.1e}" if key in peer else "-" for key in ("our_error", "their_error")),
    ]
    return f"| {' | '.join(cells)} |"


def write_readme() -> int:
    """The newest JSON of tools/results into the README's part `gpu`; without one there is nothing to say."""
    sys.path.insert(0, str(ROOT))
    from tools.make_readme import fill

    found = {path: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    if not found:
        print("tools/results holds no JSON: no GPU has been measured")
        return 0
    path = max(found, key=lambda p: str(found[p]["started"]))
    readme = ROOT / "README.md"
    text = fill(readme.read_text(), "gpu", readme_part(found[path], str(path.relative_to(ROOT))))
    readme.write_text(text)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels that this machine lacks")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the JSON and the records go")
    parser.add_argument("--minutes", type=float, default=12.0, metavar="N", help="for all (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the JSON that is there")
    parser.add_argument("--rehearsal", action="store_true", help="tiny, without times, on a simulated GPU")
    parser.add_argument("--readme", action="store_true", help="fill the README's table, measure nothing")
    options = parser.parse_args()
    if options.readme:
        return write_readme()
    if options.out is None:
        parser.error("--out is needed")
    return check(options)


if __name__ == "__main__":
    raise SystemExit(main())
