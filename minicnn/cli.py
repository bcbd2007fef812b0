"""The command line: `python -m minicnn infer MODEL`, `plan`, `report`, `doctor`. Prints; decides nothing."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minicnn.errors import ClosureError, InputError, MinicnnError, OutputError
from minicnn.version import VERSION

if TYPE_CHECKING:
    from minicnn.engine import Engine, Model

SEED = 0  # of random inputs
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. 2: a refusal, said in one sentence on stderr."""
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
    infer.add_argument("--device", default="auto", help="auto (default), host, cuda, cuda:N")
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
        "--threads", type=_positive, metavar="N", help="of the host device it is for (default: all processors)"
    )
    plan.set_defaults(run=_plan)

    report = commands.add_parser("report", help="the table of a recorded run")
    report.add_argument("record", metavar="run.h5")
    report.set_defaults(run=_report)

    tune = commands.add_parser("tune", help="time the variants of every distinct layer, keep the winners")
    _model_arguments(tune)
    tune.add_argument("--device", default="auto", help="auto (default), host, cuda, cuda:N")
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


def _pairs(texts: Sequence[str], flag: str, example: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise InputError(f"{flag} can't be read", found=text, expected=example)
        pairs[name] = value
    return pairs


def _load(options: argparse.Namespace) -> Model:
    from minicnn.engine import load

    shapes = {}
    for name, text in _pairs(options.shape, "--shape", "NAME=1,3,224,224").items():
        try:
            shapes[name] = tuple(int(part) for part in text.replace("x", ",").split(","))
        except ValueError:
            raise InputError(
                "--shape can't be read", found=f"{name}={text}", expected="NAME=1,3,224,224"
            ) from None
    return load(options.model, shapes, batch=options.batch)


def _variants(options: argparse.Namespace) -> dict[str, str]:
    return _pairs(options.variant, "--variant", "conv=im2col or NODE=direct")


def _infer(options: argparse.Namespace) -> None:
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
        feeds = _Feeds(_load(options), options)
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
        if options.check:
            _print_check(engine, first)
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
            command=f"python -m minicnn {shlex.join(sys.argv[1:])}",
            seed=SEED if feeds.is_random else None,
            progress=True,
        )
    table.print_record(record)
    if options.require_closure is not None and not abs(record.closure_residual) <= options.require_closure:
        raise ClosureError(
            "the layers' times don't close with the caller's clock",
            expected=f"at most {options.require_closure:.1%} of it unattributed",
            found=f"{record.closure_residual:.1%}",
        )


class _Feeds:
    """What the model is given, in turn: batches of pictures, the arrays of --input, or seeded random numbers."""

    def __init__(self, model: Model, options: argparse.Namespace):
        from minicnn import image

        self.model = model
        self.batch = options.batch or 1
        self.pictures = list(_pictures(options.image))
        self.is_random = not options.image and not options.input
        self.arrays = {
            name: _load_array(name, path)
            for name, path in _pairs(options.input, "--input", "NAME=FILE.npy").items()
        }
        try:
            self.preprocess, self.answer = image.find_preprocess(
                options.model,
                model.graph.metadata,
                mean=options.mean,
                std=options.std,
                resize=options.resize,
                crop=options.crop,
                channels=options.channels,
            )
        except InputError as error:
            if self.pictures:
                raise
            # A JSON file of that name may be anybody's: without pictures it is only good for labels.
            print(f"minicnn: not used: {error}", file=sys.stderr)
            self.preprocess, self.answer = image.Preprocess(), image.AnswerFormat()
        self.labels = image.load_labels(options.labels) if options.labels else self.answer.labels
        if self.pictures and len(model.inputs) != 1:
            raise InputError(
                "pictures are for models with one input", file=options.model, found=list(model.inputs)
            )
        self.model = model.with_shapes(self._open_shapes())

    def _open_shapes(self) -> dict[str, tuple[int, ...]]:
        """What pictures and arrays say about dimensions that the file leaves open."""
        if self.pictures:
            (name,) = self.model.inputs
            group = min(self.batch, len(self.pictures))
            return {name: (group, *self._pixels(self.pictures[0]).shape[1:])}
        return {name: a.shape for name, a in self.arrays.items() if name in self.model.inputs}

    def _pixels(self, path: Path) -> np.ndarray:
        (known,) = self.model.inputs.values()
        return self.preprocess.apply(path, known.shape or ())

    def __iter__(self) -> Iterator[tuple[list[str], dict[str, np.ndarray]]]:
        if self.pictures:
            (name,) = self.model.inputs
            for start in range(0, len(self.pictures), self.batch):
                group = self.pictures[start : start + self.batch]
                yield [str(p) for p in group], {name: np.concatenate([self._pixels(p) for p in group])}
        elif self.arrays:
            yield [], self.arrays
        else:
            yield [], random_inputs(self.model)

    def print_answer(self, names: list[str], outputs: dict[str, np.ndarray]) -> None:
        """The five best classes of a classifier for each picture; else each output's shape and range."""
        from minicnn import image

        output = self.answer.output or next(iter(outputs))
        if output not in outputs:
            raise InputError(
                "the sidecar names an output the model hasn't", found=output, accepted=list(outputs)
            )
        scores = outputs[output]
        ranked = self.answer.task == "classification" or bool(self.labels)
        for index, name in enumerate(names or [""] * (len(scores) if ranked and scores.ndim else 1)):
            print(f"{name}:" if name else "answer:" + (" (of seeded random input)" if self.is_random else ""))
            if not ranked:
                for key, value in outputs.items():
                    print(f"  {key}: {value.dtype} {'x'.join(map(str, value.shape))}{_range(value)}")
                continue
            for best in image.top_k(scores[index : index + 1], kind=self.answer.scores, labels=self.labels):
                chance = f"{best.score:12.5g}" if best.probability is None else f"{best.probability:8.4f}"
                print(f"  {best.index:5d}  {chance}  {best.name or ''}".rstrip())
            if names and index + 1 == len(names):
                break


def _range(value: np.ndarray) -> str:
    return f", {value.min():.6g} to {value.max():.6g}" if value.size and value.dtype.kind in "fiu" else ""


def random_inputs(model: Model) -> dict[str, np.ndarray]:
    """Seeded numbers for every input: floats in [-1, 1], small whole numbers, booleans.

    Raises    ShapeError: a dimension is left open
    """
    graph = model.resolve()
    rng = np.random.default_rng(SEED)
    inputs = {}
    for name in graph.inputs:
        known = graph.types[name]
        if known.dtype == "bool" or known.dtype.startswith(("int", "uint")):
            inputs[name] = rng.integers(0, 2, known.extents).astype(known.dtype)
        else:
            inputs[name] = rng.uniform(-1, 1, known.extents).astype(known.dtype)
    return inputs


def _pictures(places: Sequence[str]) -> Iterator[Path]:
    """The files named, and those of known picture types in the folders named, by name."""
    types = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
    for place in map(Path, places):
        if not place.is_dir():
            yield place
            continue
        found = sorted(p for p in place.iterdir() if p.suffix.lower() in types)
        if not found:
            raise InputError("the folder holds no pictures", file=place, accepted=", ".join(sorted(types)))
        yield from found


def _load_array(name: str, path: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            "the array can't be read", file=path, tensor=name, found=error, expected="a .npy file"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError("the file holds several arrays", file=path, tensor=name, expected="a .npy file")
    return array


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


def _print_check(engine: Engine, inputs: dict[str, np.ndarray]) -> None:
    from minicnn.check import check
    from minicnn.report import lists

    results = check(engine, inputs)
    lists.print_check(results)
    wrong = [r for r in results if not r.is_within]
    if wrong:
        raise MinicnnError(
            f"{len(wrong)} of {len(results)} layers are beyond their error bound", node=wrong[0].layer
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
    from minicnn import store
    from minicnn.report import table

    table.print_record(store.read(options.record))


def _doctor(options: argparse.Namespace) -> None:
    from minicnn import doctor
    from minicnn.report import lists

    lists.print_rows(doctor.examine())
