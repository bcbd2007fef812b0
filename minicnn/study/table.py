"""What a study measured, as rows: HDF5 files that xarray opens, one a point and at last one for all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from minicnn import stats
from minicnn.errors import InputError, OutputError

Row = Mapping[str, Any]
Columns = Mapping[str, tuple[str, str]]  # name -> unit, meaning
SAMPLES = "time_us"
BROKEN = (OSError, KeyError, ValueError, RuntimeError)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a study. `columns`: name -> one value a row; of `time_us` a row of samples, NaN behind them."""

    columns: Mapping[str, np.ndarray]
    attributes: Mapping[str, str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def median_us(self) -> np.ndarray:
        return np.array([stats.median(samples) for samples in self.columns[SAMPLES]])

    def interval(self, row: int) -> stats.Interval:
        return stats.median_interval(stats.measured(self.columns[SAMPLES][row]))

    def where(self, **wanted: object) -> Table:
        """The rows that have these values."""
        kept = np.ones(len(self), bool)
        for name, value in wanted.items():
            kept &= self.columns[name] == value
        return self.select(kept)

    def select(self, kept: np.ndarray) -> Table:
        columns = {name: column[kept] for name, column in self.columns.items()}
        return Table(columns=columns, attributes=self.attributes)

    def groups(self, *names: str) -> list[tuple[tuple[Any, ...], Table]]:
        """Rows with the same values of these columns together, in the order of their first row."""
        keys = list(zip(*(self.columns[name].tolist() for name in names), strict=True))
        return [(key, self.select(np.array([k == key for k in keys], bool))) for key in dict.fromkeys(keys)]


def table_of(rows: Sequence[Row], columns: Columns, attributes: Mapping[str, str]) -> Table:
    """Numbers that a row lacks are NaN, or 0 in a column of whole numbers; texts empty."""
    longest = max((len(row.get(SAMPLES, ())) for row in rows), default=0)
    made: dict[str, np.ndarray] = {}
    for name in columns:
        values = [row.get(name) for row in rows]
        if name == SAMPLES:
            made[name] = np.full((len(rows), max(longest, 1)), np.nan)
            for place, value in enumerate(values):
                made[name][place, : len(value or ())] = value or ()
        elif any(isinstance(value, str) for value in values):
            made[name] = np.array([value or "" for value in values], object)
        elif values and all(isinstance(value, (int, np.integer)) for value in values):
            made[name] = np.array(values, np.int64)
        else:
            made[name] = np.array([np.nan if value is None else value for value in values], float)
    return Table(columns=made, attributes=attributes)


def write(path: Path, table: Table, columns: Columns) -> None:
    """In place only when it is whole. Raises    OutputError"""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(partial, "w") as file:
            file.attrs.update(table.attributes)
            extents = {"row": len(table)}
            if SAMPLES in table.columns:
                extents["sample"] = table[SAMPLES].shape[1]
            for name, extent in extents.items():
                file[name] = np.arange(extent)
                file[name].make_scale(name)
            for name, values in table.columns.items():
                kind = h5py.string_dtype() if values.dtype == object else values.dtype
                dataset = file.create_dataset(name, data=values, dtype=kind)
                unit, meaning = columns[name]
                dataset.attrs.update({"units": unit, "long_name": meaning})
                for axis, dim in enumerate(("row", "sample")[: values.ndim]):
                    dataset.dims[axis].attach_scale(file[dim])
        partial.replace(path)
    except BROKEN as error:
        partial.unlink(missing_ok=True)
        raise OutputError("the study can't be written", file=path, found=error) from None


def read(path: Path) -> Table:
    """Raises    InputError: no file of `write`"""
    try:
        with h5py.File(path) as file:
            names = [name for name in file if name not in ("row", "sample")]
            columns = {
                name: file[name].asstr()[:] if h5py.check_string_dtype(file[name].dtype) else file[name][:]
                for name in names
            }
            attributes = {name: str(value) for name, value in file.attrs.items()}
    except BROKEN as error:
        raise InputError("no results of a study", file=path, found=error) from None
    return Table(columns=columns, attributes=attributes)


def rows_of(table: Table) -> list[Row]:
    """What `table_of` was given."""
    found: list[Row] = []
    for place in range(len(table)):
        row: dict[str, Any] = {
            name: values[place] for name, values in table.columns.items() if name != SAMPLES
        }
        if SAMPLES in table.columns:
            row[SAMPLES] = stats.measured(table[SAMPLES][place]).tolist()
        found.append(row)
    return found


class Points:
    """The points of a study that were measured, a file each in a folder; each written whole or not at all."""

    def __init__(self, folder: Path, columns: Columns):
        self.folder, self.columns = folder, columns

    def path(self, index: int) -> Path:
        return self.folder / f"{index:04d}.h5"

    def keep(self, index: int, point: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Raises    OutputError"""
        table = table_of(rows, self.columns, {"point": json.dumps(point, sort_keys=True)})
        write(self.path(index), table, self.columns)

    def known(self, index: int, point: Mapping[str, Any]) -> list[Row] | None:
        """The rows of a point; None: it wasn't measured, or not whole. Raises    InputError: another point"""
        if not self.path(index).exists():
            return None
        table = read(self.path(index))
        if json.loads(table.attributes.get("point", "null")) != json.loads(json.dumps(point)):
            raise InputError(
                "the folder holds other points", file=self.path(index),
                expected=json.dumps(point), found=table.attributes.get("point"),
                remedy="another --out, or the options it was begun with",
            )  # fmt: skip
        return rows_of(table)

    def are_there(self) -> bool:
        return any(self.folder.glob("*.h5"))


def geometric_mean(values: Iterable[float]) -> float:
    found = [value for value in values if value > 0]
    return float(np.exp(np.mean(np.log(found)))) if found else float("nan")


def best_rows(table: Table, key: Callable[[Table], np.ndarray], *names: str) -> list[tuple[Any, int]]:
    """For each group its values and the number of its row (in the group) with the least key."""
    return [(values, int(np.nanargmin(key(group)))) for values, group in table.groups(*names)]
