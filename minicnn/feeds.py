"""What a model is given on the command line, and what is printed of its answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from minicnn import image
from minicnn.answers import Answer
from minicnn.engine import Model
from minicnn.errors import InputError

SEED = 0  # of random inputs
DECODERS = 4  # threads that decode pictures: the library lets go of the interpreter's lock meanwhile


def pairs(texts: Sequence[str], flag: str, example: str) -> dict[str, str]:
    """{name: value} of texts "name=value". Raises    InputError"""
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise InputError(f"{flag} can't be read", found=text, expected=example)
        pairs[name] = value
    return pairs


class Feeds:
    """What the model is given, in turn: batches of pictures, the arrays of --input, or random ones."""

    def __init__(self, model: Model, options: argparse.Namespace):
        self.model = model
        self.batch = options.batch or 1
        self.pictures = list(_pictures(options.image))
        self.is_random = not options.image and not options.input
        self.arrays = {
            name: _load_array(name, path)
            for name, path in pairs(options.input, "--input", "NAME=FILE.npy").items()
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
        """(names of the pictures, inputs) in turn. Threads decode pictures, a batch ahead of its use."""
        if self.pictures:
            (name,) = self.model.inputs
            for group, pixels in self._decoded():
                yield [str(p) for p in group], {name: np.concatenate(pixels)}
        elif self.arrays:
            yield [], self.arrays
        else:
            yield [], random_inputs(self.model)

    def _decoded(self) -> Iterator[tuple[list[Path], list[np.ndarray]]]:
        starts = range(0, len(self.pictures), self.batch)
        groups = [self.pictures[start : start + self.batch] for start in starts]
        pool = ThreadPoolExecutor(DECODERS)
        try:
            ahead = [pool.submit(self._pixels, p) for p in groups[0]]
            for group, following in zip(groups, [*groups[1:], []], strict=True):
                pixels = [future.result() for future in ahead]
                ahead = [pool.submit(self._pixels, p) for p in following]
                yield group, pixels
        finally:
            pool.shutdown(cancel_futures=True)

    def answers(self, names: list[str], outputs: dict[str, np.ndarray]) -> list[Answer]:
        """The five best classes of a classifier for each picture, or for the one input that isn't a picture;
        [] where the model is none."""
        output = self.answer.output or next(iter(outputs))
        if output not in outputs:
            raise InputError(
                "the sidecar names an output the model hasn't", found=output, accepted=list(outputs)
            )
        if not (self.answer.task == "classification" or self.labels):
            return []
        scores = outputs[output]
        count = len(names) or (len(scores) if scores.ndim else 1)
        found = []
        for index, name in zip(range(count), names or [""] * count, strict=True):
            best = image.top_k(scores[index : index + 1], kind=self.answer.scores, labels=self.labels)
            found += [
                Answer(
                    picture=name,
                    rank=rank,
                    index=one.index,
                    name=one.name or "",
                    score=one.score,
                    probability=one.probability,
                )
                for rank, one in enumerate(best, start=1)
            ]
        return found

    def print_answer(
        self, names: list[str], outputs: dict[str, np.ndarray], answers: Sequence[Answer]
    ) -> None:
        """The answers; where there are none, each output's shape and range."""
        source = "answer:" + (" (of seeded random input)" if self.is_random else "")
        for one in answers:
            if one.rank == 1:
                print(f"{one.picture}:" if one.picture else source)
            chance = f"{one.score:12.5g}" if one.probability is None else f"{one.probability:8.4f}"
            print(f"  {one.index:5d}  {chance}  {one.name}".rstrip())
        for name in [] if answers else names or [""]:
            print(f"{name}:" if name else source)
            for key, value in outputs.items():
                print(f"  {key}: {value.dtype} {'x'.join(map(str, value.shape))}{_range(value)}")


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
