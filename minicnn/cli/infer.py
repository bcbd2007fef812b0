"""`infer`: a model is run, answers, and is measured."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minicnn.cli import arguments
from minicnn.errors import ClosureError, InputError, MinicnnError

if TYPE_CHECKING:
    from minicnn.answers import AnswerFile
    from minicnn.engine import Engine
    from minicnn.feeds import Feeds

PAIRED_REPEAT = 50  # of --against, where --repeat doesn't say


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "infer", help="run a model, print the answer and where its time and memory go"
    )
    arguments.add_model(parser)
    parser.add_argument(
        "--image", nargs="+", metavar="FILE|DIR", default=[], help="pictures, or folders of them"
    )
    parser.add_argument(
        "--input", nargs="+", action="extend", metavar="NAME=FILE.npy", default=[], help="arrays"
    )
    parser.add_argument("--output", metavar="FILE", help="outputs: .npz; answers to pictures: .csv, .parquet")
    for flag, what in (
        ("mean", "subtracted from pixels of 0..255: one number, or one a channel"),
        ("std", "pixels are divided by it after that"),
        ("resize", "short side, or HxW, or none"),
        ("crop", "side, or HxW, about the centre, or none"),
        ("channels", "rgb, bgr or gray"),
    ):
        parser.add_argument(f"--{flag}", help=f"{what} (default: what MODEL.json or the model file says)")
    parser.add_argument("--labels", metavar="FILE", help="class names: JSON, or a name a line")
    arguments.add_device(parser)
    parser.add_argument(
        "--repeat",
        type=arguments.positive,
        metavar="N",
        help="timed repetitions (default: until the median is known to 1 %%, or 5 seconds)",
    )
    parser.add_argument("--seconds", type=arguments.seconds, metavar="S", help="measure no longer than that")
    parser.add_argument(
        "--sampling", action="store_true", help="profile a run now and then alone: costs less than 1 %%"
    )
    parser.add_argument("--gaps", action="store_true", help="idle time between layers too, by more events")
    parser.add_argument(
        "--contexts", action="store_true", help="each layer alone too, with warm and with emptied caches"
    )
    parser.add_argument("--energy", action="store_true", help="each layer's energy too, where readable")
    parser.add_argument(
        "--against",
        nargs="+",
        metavar="OP|NODE=NAME",
        help="runs other variants in turn with these, and compares; a second record beside",
    )
    parser.add_argument(
        "--require-closure",
        type=arguments.share,
        metavar="2%",
        help="exit with 3 if more of the caller's clock than that is claimed by nobody, or by two",
    )
    parser.add_argument(
        "--record", metavar="FILE.h5", help="the record (default: MODEL.h5 in the current folder)"
    )
    parser.add_argument(
        "--check", action="store_true", help="no times: every layer against its float64 definition"
    )
    parser.add_argument(
        "--dump", nargs="+", metavar="TENSOR", default=[], help="intermediate tensors for --output"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn.answers import AnswerFile
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
    file = AnswerFile(options.output) if options.output else None
    with status("loading"):
        feeds = Feeds(arguments.load_model(options), options)
    with status("planning and building"):
        engine = feeds.model.plan(
            device=options.device,
            threads=options.threads,
            fuse=options.fuse == "all",
            variants=arguments.variants(options),
            precision=options.precision,
            fallback=not options.no_fallback,
            memory_limit=options.memory_limit,
        )
    with engine:
        first = _answer(engine, feeds, file, options.dump)
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


def _answer(
    engine: Engine, feeds: Feeds, file: AnswerFile | None, dump: list[str]
) -> dict[str, np.ndarray]:
    """Runs all inputs in turn, prints or writes what the model says of them; the first inputs."""
    from minicnn.progress import progress_bar

    first: dict[str, np.ndarray] = {}
    count = len(feeds.pictures)
    start = time.perf_counter()
    with progress_bar("pictures", count, shown=file is not None and file.is_table) as advance:
        for names, inputs in feeds:
            first = first or inputs
            outputs = engine.run(inputs)
            answers = feeds.answers(names, outputs)
            if file is None or not file.is_table:
                feeds.print_answer(names, outputs, answers)
            if file is not None:
                file.add(outputs | (engine.tensors(inputs, dump) if dump else {}), answers)
            for _ in names:
                advance()
    passed = time.perf_counter() - start
    if file is not None:
        file.close()
    if count > feeds.batch:
        print(f"{count} pictures, {count / passed:.1f} a second, decoding included")
    return first


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

    against = pairs(options.against, "--against", "conv=im2col or NODE=direct")
    with engine.model.plan(
        device=engine.device,
        fuse=options.fuse == "all",
        variants=arguments.variants(options) | against,
        precision=options.precision,
        fallback=not options.no_fallback,
        memory_limit=options.memory_limit,
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
