"""What a network said of its inputs, as files: arrays as .npz, a classifier's answers as .csv or .parquet."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

import numpy as np

from minicnn.errors import InputError, OutputError

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One of the best classes of one picture; rank from 1. probability None: the scores are no such thing."""

    picture: str
    rank: int
    index: int
    name: str
    score: float
    probability: float | None


class AnswerFile:
    """A file of answers, in place only once it is closed with all of them.

    path      .npz: every output, batches joined; .csv or .parquet: a line for each `Answer`
    Raises    OutputError: the folder isn't there, or a library that writes it; InputError: another suffix
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.is_table = self.path.suffix in TABLES
        if not self.path.absolute().parent.is_dir():
            raise OutputError("the output's folder isn't there", file=self.path)
        if not self.is_table and self.path.suffix != ".npz":
            accepted = ", ".join((".npz", *TABLES))
            raise InputError("an output of unknown kind", file=self.path, accepted=accepted)
        if self.path.suffix == ".parquet":
            _parquet(self.path)
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._answers: list[Answer] = []

    def add(self, outputs: Mapping[str, np.ndarray], answers: Sequence[Answer]) -> None:
        if self.is_table:
            if not answers:
                raise InputError(
                    "only a classifier's answers to pictures make a table", file=self.path, remedy=".npz"
                )
            self._answers += answers
            return
        for name, value in outputs.items():
            self._arrays.setdefault(name, []).append(value)

    def close(self) -> None:
        writers: dict[str, Callable[[IO[bytes]], None]] = {
            ".npz": self._write_arrays,
            ".csv": self._write_csv,
            ".parquet": self._write_parquet,
        }
        partial = self.path.with_name(self.path.name + ".partial")
        try:
            with open(partial, "wb") as file:
                writers[self.path.suffix](file)
            os.replace(partial, self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise OutputError(
                "the outputs can't be written", file=self.path, found=error.strerror or error
            ) from None

    def _write_arrays(self, file: IO[bytes]) -> None:
        joined = {
            name: np.concatenate(values) if len(values) > 1 else values[0]
            for name, values in self._arrays.items()
        }
        np.savez(file, **joined)  # type: ignore[arg-type]  # numpy's stub takes the names for flags

    def _write_csv(self, file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(Answer)])
        writer.writeheader()
        writer.writerows(asdict(answer) for answer in self._answers)
        text.flush()
        text.detach()

    def _write_parquet(self, file: IO[bytes]) -> None:
        pyarrow, parquet = _parquet(self.path)
        table = pyarrow.Table.from_pylist([asdict(answer) for answer in self._answers])
        parquet.write_table(table, file)


def _parquet(path: Path):  # type: ignore[no-untyped-def]  # modules
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        sentence, remedy = "Parquet files are written by pyarrow, which isn't here", "`pip install pyarrow`"
        raise OutputError(sentence, file=path, remedy=remedy) from None
    return pyarrow, parquet
