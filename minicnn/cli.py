"""The command line: `python -m minicnn infer MODEL`, `plan`, `report`, `doctor`. Prints; decides nothing."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minicnn.errors import ClosureError, InputError, MinicnnError, OutputError
from minicnn.version import VERSION

if TYPE_CHECKING:
    from minicnn.engine import Engine, Model

INTERRUPTED = 130
PAIRED_REPEAT = 50  # of --against, where --repeat doesn't say


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. 2: a refusal, said in one sentence on stderr; 1 (compare) and
    3 (--require-closure): what was held against something didn't pass."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except MinicnnError as error:
        print(f"minicnn: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minicnn",
        description="CNN inference in pure CUDA that measures itself.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"minicnn {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    infer = commands.add_parser(
        "infer", help="run a model, print the answer and where its time and memory go"
    )
    _model_arguments(infer)
    infer.add_argument(
        "--image", nargs="+", metavar="FILE|DIR", default=[], help="pictures, or folders of them"
    )
    infer.add_argument(
        "--input", nargs="+", action="extend", metavar="NAME=FILE.npy", default=[], help="arrays"
    )
    infer.add_argument("--output", metavar="FILE.npz", help="write the outputs there")
    for flag, what in (
        ("mean", "subtracted from pixels of 0..255: one number, or one a channel"),
        ("std", "pixels are divided by it after that"),
        ("resize", "short side, or HxW, or none"),
        ("crop", "side, or HxW, about the centre, or none"),
        ("channels", "rgb, bgr or gray"),
    ):
        infer.add_argument(f"--{flag}", help=f"{what} (default: what MODEL.json or the model file says)")
    infer.add_argument("--labels", metavar="FILE", help="class names: JSON, or a name a line")
    infer.add_argument("--device", default="auto", help="auto (default), host, cuda, cuda:N, sim")
    infer.add_argument(
        "--threads", type=_positive, metavar="N", help="of the host device (default: all processors)"
    )
    infer.add_argument(
        "--repeat",
        type=_positive,
        metavar="N",
        help="timed repetitions (default: until the median is known to 1 %%, or 5 seconds)",
    )
    infer.add_argument("--seconds", type=_seconds, metavar="S", help="measure no longer than that")
    infer.add_argument(
        "--sampling", action="store_true", help="profile a run now and then alone: costs less than 1 %%"
    )
    infer.add_argument("--gaps", action="store_true", help="idle time between layers too, by more events")
    infer.add_argument(
        "--contexts", action="store_true", help="each layer alone too, with warm and with emptied caches"
    )
    infer.add_argument("--energy", action="store_true", help="each layer's energy too, where readable")
    infer.add_argument(
        "--against",
        nargs="+",
        metavar="OP|NODE=NAME",
        help="runs other variants in turn with these, and compares; a second record beside",
    )
    infer.add_argument(
        "--require-closure",
        type=_share,
        metavar="2%",
        help="exit with 3 if more of the caller's clock than that is claimed by nobody, or by two",
    )
    infer.add_argument(
        "--record", metavar="FILE.h5", help="the record (default: MODEL.h5 in the current folder)"
    )
    infer.add_argument(
        "--check", action="store_true", help="no times: every layer against its float64 definition"
    )
    infer.add_argument(
        "--dump", nargs="+", metavar="TENSOR", default=[], help="intermediate tensors for --output"
    )
    infer.set_defaults(run=_infer)

    plan = commands.add_parser("plan", help="layers, variants, steps and memory; needs no device")
    _model_arguments(plan)
    plan.add_argument(
        "--threads", type=_positive, metavar="N", help="of the host device it is for (default: all)"
    )
    plan.set_defaults(run=_plan)

    report = commands.add_parser(
        "report", help="a recorded run as a table, a page with pictures, or files for other programs"
    )
    report.add_argument("record", metavar="run.h5")
    report.add_argument("--html", metavar="FILE", help="a page with pictures; needs no network")
    report.add_argument("--trace", metavar="FILE", help="one repetition for Perfetto or chrome://tracing")
    report.add_argument("--csv", metavar="FILE", help="a line a layer")
    report.add_argument("--json", action="store_true", help="all of the record, on the standard output")
    report.set_defaults(run=_report)

    explain = commands.add_parser(
        "explain", help="a recorded run in plain sentences: what is slow and why, memory, how sure"
    )
    explain.add_argument("record", metavar="run.h5")
    explain.set_defaults(run=_explain)

    compare = commands.add_parser(
        "compare", help="two recorded runs, layer by layer: same, faster, slower, can't tell"
    )
    compare.add_argument("before", metavar="a.h5")
    compare.add_argument("after", metavar="b.h5")
    compare.set_defaults(run=_compare)

    tune = commands.add_parser("tune", help="time the variants of every distinct layer, keep the winners")
    _model_arguments(tune)
    tune.add_argument("--device", default="auto", help="auto (default), host, cuda, cuda:N, sim")
    tune.add_argument("--threads", type=_positive, metavar="N", help="of the host device (default: all)")
    tune.set_defaults(run=_tune)

    doctor = commands.add_parser(
        "doctor", help="devices, compilers, libraries, caches; and how to get what is missing"
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--batch", type=_positive, metavar="N", help="first dimension of every input")
    parser.add_argument(
        "--shape", nargs="+", action="extend", metavar="NAME=1,3,224,224", default=[], help="of an input"
    )
    parser.add_argument(
        "--variant",
        nargs="+",
        action="extend",
        metavar="OP|NODE=NAME",
        default=[],
        help="conv=im2col for all convolutions where it applies; NODE=direct for one node",
    )
    parser.add_argument("--precision", choices=("fp32",), default="fp32", help="(%(default)s)")
    parser.add_argument(
        "--fuse", choices=("all", "none"), default="all", help="none: a layer for every ONNX node"
    )
    parser.add_argument(
        "--no-fallback", action="store_true", help="refuse operators without a kernel of ours"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


_seconds.__name__ = "number above 0"
_share.__name__ = "share such as 2%"  # argparse names the types in its messages


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


_positive.__name__ = "whole number above 0"  # argparse names the type in its message


def _load(options: argparse.Namespace) -> Model:
    from minicnn.engine import load
    from minicnn.feeds import pairs

    shapes = {}
    for name, text in pairs(options.shape, "--shape", "NAME=1,3,224,224").items():
        try:
            shapes[name] = tuple(int(part) for part in text.replace("x", ",").split(","))
        except ValueError:
            raise InputError(
                "--shape can't be read", found=f"{name}={text}", expected="NAME=1,3,224,224"
            ) from None
    return load(options.model, shapes, batch=options.batch)


def _variants(options: argparse.Namespace) -> dict[str, str]:
    from minicnn.feeds import pairs

    return pairs(options.variant, "--variant", "conv=im2col or NODE=direct")


def _infer(options: argparse.Namespace) -> None:
    from minicnn.feeds import SEED, Feeds
    from minicnn.progress import status
    from minicnn.report import table

    record_path = Path(options.record or f"{Path(options.model).stem or 'run'}.h5")
    if options.image and options.input:
        raise InputError(
            "--image and --input both say what the model is to be given", accepted="one of the two"
        )
    if options.dump and not options.output:
        raise InputError("--dump needs --output FILE.npz to write the tensors to")
    if options.output and not Path(options.output).absolute().parent.is_dir():
        raise OutputError("the output's folder isn't there", file=options.output)
    with status("loading"):
        feeds = Feeds(_load(options), options)
    with status("planning and building"):
        engine = feeds.model.plan(
            device=options.device,
            threads=options.threads,
            fuse=options.fuse == "all",
            variants=_variants(options),
            precision=options.precision,
            fallback=not options.no_fallback,
        )
    with engine:
        saved: dict[str, list[np.ndarray]] = {}
        first = None
        for names, inputs in feeds:
            first = inputs if first is None else first
            outputs = engine.run(inputs)
            feeds.print_answer(names, outputs)
            if options.output:
                outputs = outputs | (engine.tensors(inputs, options.dump) if options.dump else {})
                for name, value in outputs.items():
                    saved.setdefault(name, []).append(value)
        assert first is not None
        if options.output:
            _save(
                Path(options.output),
                {
                    name: np.concatenate(values) if len(values) > 1 else values[0]
                    for name, values in saved.items()
                },
            )
        command = f"python -m minicnn {shlex.join(sys.argv[1:])}"
        seed = SEED if feeds.is_random else None
        if options.check:
            _check(engine, first, Path(options.record) if options.record else None, command, seed)
            return
        if options.against:
            _infer_against(engine, first, options, record_path, command, seed)
            return
        record = engine.profile(
            first,
            repeat=options.repeat,
            seconds=options.seconds,
            sampling=options.sampling,
            gaps=options.gaps,
            contexts=options.contexts,
            energy=options.energy,
            record=record_path,
            command=command,
            seed=seed,
            progress=True,
        )
    table.print_record(record)
    if options.require_closure is not None and not abs(record.closure_residual) <= options.require_closure:
        raise ClosureError(
            "the layers' times don't close with the caller's clock",
            expected=f"at most {options.require_closure:.1%} of it unattributed",
            found=f"{record.closure_residual:.1%}",
        )


def _infer_against(
    engine: Engine,
    inputs: dict[str, np.ndarray],
    options: argparse.Namespace,
    path: Path,
    command: str,
    seed: int | None,
) -> None:
    from minicnn.compare import compare
    from minicnn.feeds import pairs
    from minicnn.report import table
    from minicnn.report.compare import print_comparison

    other_variants = _variants(options) | pairs(options.against, "--against", "conv=im2col or NODE=direct")
    with engine.model.plan(
        device=engine.device,
        fuse=options.fuse == "all",
        variants=other_variants,
        precision=options.precision,
        fallback=not options.no_fallback,
    ) as other:
        first, second = engine.profile_against(
            other,
            inputs,
            repeat=options.repeat or PAIRED_REPEAT,
            records=(path, path.with_suffix(".against.h5")),
            command=command,
            seed=seed,
            progress=True,
        )
    table.print_record(first)
    print()
    print_comparison(compare(first, second, paired=True))
    print(f"record    {second.path}")


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """The outputs as .npz, in place only when they are all there."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for flags
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError("the outputs can't be written", file=path, found=error.strerror or error) from None


def _check(
    engine: Engine, inputs: dict[str, np.ndarray], path: Path | None, command: str, seed: int | None
) -> None:
    from minicnn import check
    from minicnn.report import lists

    layers = check.check(engine, inputs)
    lists.print_check(layers)
    if path is not None:
        record = check.store(engine, inputs, layers, path=path, command=command, seed=seed)
        print(f"record    {record.path}")
    wrong = [layer for layer in layers if layer.is_wrong]
    if wrong:
        raise MinicnnError(
            f"{len(wrong)} of {len(layers)} layers are beyond their error bound", node=wrong[0].name
        )


def _plan(options: argparse.Namespace) -> None:
    from minicnn.engine import Options, host_target
    from minicnn.report import lists

    chosen = Options(
        fuse=options.fuse == "all",
        variants=_variants(options),
        precision=options.precision,
        fallback=not options.no_fallback,
    )
    target = host_target(options.threads)
    lists.print_plan(_load(options).make_plan(options=chosen, target=target))


def _tune(options: argparse.Namespace) -> None:
    from minicnn import choose
    from minicnn.device import open_device
    from minicnn.engine import Options, target_of
    from minicnn.report import lists
    from minicnn.tune import tune

    model = _load(options)
    device = open_device(options.device, threads=options.threads)
    try:
        chosen = Options(fuse=options.fuse == "all", precision=options.precision)
        target = target_of(device)
        plan = model.make_plan(options=chosen, target=target)
        races = []
        for race in tune(plan, device):
            races.append(race)
            lists.print_race(race)
    finally:
        device.close()
    if races:
        print(f"kept in {choose.save_measured(target, {race.key: race.winner for race in races})}")


def _report(options: argparse.Namespace) -> None:
    """The table, unless something else was asked for. Files are named on stderr: stdout may be JSON."""
    from minicnn import store
    from minicnn.report import export, html, lists, table, trace

    record = store.read(options.record)
    makers = {"csv": export.csv_text, "trace": trace.trace_text, "html": html.html_text}
    asked = {name: path for name in makers if (path := getattr(options, name)) is not None}
    for name, path in asked.items():
        print(f"wrote {export.write(path, makers[name](record), record)}", file=sys.stderr)
    if options.json:
        print(export.json_text(record))
    elif not asked and any(layer.is_checked for layer in record.layers):
        lists.print_check(record.layers)
    elif not asked:
        table.print_record(record)


def _explain(options: argparse.Namespace) -> None:
    from minicnn import store
    from minicnn.report import explain

    explain.print_explanation(store.read(options.record))


def _compare(options: argparse.Namespace) -> int:
    """1 where b is slower in a layer or as a whole, for scripts; else 0."""
    from minicnn import store
    from minicnn.compare import compare
    from minicnn.report.compare import print_comparison

    comparison = compare(store.read(options.before), store.read(options.after))
    print_comparison(comparison)
    return int(comparison.is_slower)


def _doctor(options: argparse.Namespace) -> None:
    from minicnn import doctor
    from minicnn.report import lists

    lists.print_rows(doctor.examine())
