"""`kernel new`, `kernel check`, `kernel bench`: kernels of one's own."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from minicnn.cli import arguments
from minicnn.errors import CheckError, InputError, MinicnnError

if TYPE_CHECKING:
    from minicnn.lab.files import BroughtIn

WATCH_S = 0.5
PATIENCE_S = 30.0


def add(commands: arguments.Commands) -> None:
    kernel = commands.add_parser("kernel", help="write, check and time kernels of your own")
    verbs = kernel.add_subparsers(metavar="VERB", required=True)

    new = verbs.add_parser("new", help="a kernel and its variant that run as they are, to be changed")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--op", required=True, metavar="OP", help="Relu, Conv, MaxPool, Gemm")
    new.set_defaults(run=run_new)

    check = verbs.add_parser("check", help="hold it against the definition, on every device at hand")
    check.add_argument("file", metavar="FILE.py")
    check.add_argument("--model", metavar="MODEL.onnx", help="its layers' shapes too")
    arguments.add_shapes(check)
    check.add_argument("--case", metavar="NAME", default="", help="that one alone")
    check.add_argument("--device", nargs="+", default=[], metavar="DEVICE", help="host, sim, cuda (all)")
    check.add_argument("--patience", type=arguments.seconds, default=PATIENCE_S, metavar="S",
                       help="seconds without an answer before a kernel is stopped (%(default)s)")  # fmt: skip
    check.set_defaults(run=run_check)

    bench = verbs.add_parser("bench", help="time it in turn with minicnn's own, on a model's layers")
    bench.add_argument("file", metavar="FILE.py")
    bench.add_argument("--model", required=True, metavar="MODEL.onnx")
    arguments.add_shapes(bench)
    arguments.add_device(bench)
    bench.add_argument("--counters", action="store_true", help="what the simulated GPU counts of it")
    bench.add_argument("--watch", action="store_true", help="check and time again whenever the files change")
    bench.set_defaults(run=run_bench)


def run_new(options: argparse.Namespace) -> None:
    from minicnn.lab import scaffold

    python, source = scaffold.write(options.name, options.op, Path.cwd())
    print(f"wrote {source.name} (the kernel) and {python.name} (how it is launched)")
    print(f"check it: minicnn kernel check {python.name}")
    use = f"--kernel {python.name} --variant {options.op.lower()}={options.name}"
    print(f"use it:   minicnn infer MODEL.onnx {use}")


def run_check(options: argparse.Namespace) -> None:
    for found in _brought_in(options.file):
        _check(options, found)


def _check(options: argparse.Namespace, found: BroughtIn) -> None:
    """Prints each trial's outcome; raises where anything was wrong."""
    from minicnn.lab import runner

    wrong = 0
    for trial in runner.trials(options.device):
        states: Counter[str] = Counter()
        runs = 0
        for outcome in runner.check(
            options.file, found.variant.name, trial, model=options.model or "",
            shapes=arguments.shapes(options), batch=options.batch, case=options.case,
            patience_s=options.patience,
        ):  # fmt: skip
            states[outcome.state] += 1
            runs += outcome.runs
            if outcome.state == "wrong" and states["wrong"] == 1:
                print(f"WRONG  {trial.name}: case '{outcome.case}': {outcome.text}")
                model = f" --model {options.model}" if options.model else ""
                again = f"{options.file}{model} --device {trial.device} --case '{outcome.case}'"
                print(f"       again: minicnn kernel check {again}")
        if options.case and not states:
            raise InputError("no such case", found=options.case, operator=found.op)
        skipped = f", {states['skipped']} not for it" if states["skipped"] else ""
        verdict = "right" if not states["wrong"] else f"{states['wrong']} WRONG"
        print(f"{verdict:6s} {trial.name}: {states['right']} cases in {runs} runs{skipped}", flush=True)
        wrong += states["wrong"]
    if wrong:
        raise CheckError(f"{found.variant.name} isn't right: {wrong} cases", file=options.file)


def run_bench(options: argparse.Namespace) -> None:
    if not options.watch:
        _bench(options)
        return
    checked = vars(options) | {"case": "", "patience": PATIENCE_S, "device": []}
    seen: dict[str, float] = {}
    while True:
        files = Path(options.file).resolve().parent.glob("*.[cp][uy]*")
        now = {str(p): p.stat().st_mtime for p in files}
        if now != seen:
            seen = now
            try:
                for found in _brought_in(options.file):
                    _check(argparse.Namespace(**checked), found)
                _bench(options)
            except MinicnnError as error:
                print(error)
            print("waiting for changes; Ctrl-C ends")
        time.sleep(WATCH_S)


def _bench(options: argparse.Namespace) -> None:
    from minicnn.lab import runner
    from minicnn.report import lists

    for found in _brought_in(options.file):
        count = 0
        for bout in runner.bench(
            options.file, found.variant.name, model=options.model, device=options.device,
            threads=options.threads, shapes=arguments.shapes(options), batch=options.batch,
            counters=options.counters, patience_s=PATIENCE_S,
        ):  # fmt: skip
            count += 1
            lists.print_bout(bout)
        if not count:
            sentence = "the model has no layer that this kernel can do"
            raise InputError(sentence, file=options.model, operator=found.op)


def _brought_in(file: str) -> list[BroughtIn]:
    from minicnn.lab.files import bring_in

    return bring_in(file)
