"""Runs on disk: one self-describing HDF5 file a run, readable whenever the writer was killed.

HDF5 lays the file out in memory, complete and NaN-filled; it is written as `FILE.partial`, and from then on
samples are overwritten in place by plain writes: no chunk is allocated, no index grows, so the file can be
opened at every moment. (Writing through HDF5, a failing disk ended the process: HDF5 2.0 crashes in closing
the file.) A repetition counts once `is_finished` is set, after its samples. At the end `FILE.partial` becomes
`FILE`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from minicnn.errors import InputError, OutputError
from minicnn.record import BufferFacts, LayerFacts, RunRecord
from minicnn.schema import ATTRIBUTES, FACTS, FORMAT, SAMPLES, SCHEMA, SCHEMA_VERSION, Quantity

CHUNK_BYTES = 64 * 1024
PACKED_AT_MOST = 1000  # samples a byte, in a record that another tool compressed
HDF5_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, MemoryError)


_BUFFER_FIELDS = {"buffer": "name", "buffer_kind": "kind", "buffer_bytes": "nbytes"} | {
    f"buffer_{name}": name for name in ("offset", "first", "last")
}
_LAYER_FIELDS = {"layer": "name"} | {name: name for name in FACTS}  # dataset -> field of LayerFacts
_BLANK: dict[str, Any] = {
    "float64": math.nan, "int64": 0, "bool": False, "text": "", "texts": (), "mapping": {},
}


class Recorder:
    """Takes a run's samples, one repetition at a time, and keeps each on disk as soon as it is there.

        with Recorder("run.h5", layers, 50, {"device": "NVIDIA H200"}) as recorder:
            recorder.add(0, time_us=..., plain_us=..., wall_us=..., is_warmup=True)
        record = recorder.record

    path         None: in memory alone
    attributes   by the names in ATTRIBUTES; the others keep RunRecord's defaults
    Raises       OutputError: the folder or the right to write is missing, the disk is full, another run is
                 recording there, or what stands there is no record.

    A record that stands there stays as it is until this one is complete; an unfinished run stays as
    `FILE.partial`, unless none of its repetitions finished.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        layers: Sequence[LayerFacts],
        repetitions: int,
        attributes: Mapping[str, Any],
        buffers: Sequence[BufferFacts] = (),
    ):
        unknown = set(attributes) - set(ATTRIBUTES)
        if unknown:
            raise TypeError(f"unknown attributes {sorted(unknown)}; known are {sorted(ATTRIBUTES)}")
        self.layers = tuple(layers)
        self.buffers = tuple(buffers)
        self.repetitions = repetitions
        self.path = None if path is None else Path(os.path.realpath(path))
        self.partial = None if self.path is None else self.path.with_name(self.path.name + ".partial")
        self._attributes = dict(attributes)
        self._finished = np.zeros(repetitions, bool)
        extents = {"rep": repetitions, "layer": len(self.layers)}
        self._samples = {
            q.name: np.full([extents[d] for d in q.dims], _BLANK[q.dtype], q.dtype) for q in SAMPLES.values()
        }
        self._rows: dict[str, _Rows] = {}
        self._descriptor: int | None = None
        self._is_stored = False
        self._is_cut = False

    @property
    def record(self) -> RunRecord:
        """What has been recorded so far, repetitions that didn't finish left out."""
        place = self.path if self._is_stored else self.partial
        facts = (self.layers, self.buffers, self._samples, self._attributes)
        return _record(*facts, self._finished, str(place or ""))

    def __enter__(self) -> Recorder:
        if self.path is None or self.partial is None:
            return self
        _refuse_to_replace(self.path)
        image, self._rows = self._image()
        try:
            self._descriptor = _claim(self.partial)
            os.ftruncate(self._descriptor, 0)
            _write(self._descriptor, image, 0)
        except OSError as error:
            self._abandon()
            raise _output_error(self.path, error) from None
        return self

    def add(self, rep: int, **samples: Any) -> None:
        """Stores one repetition, counted from 0: scalars, or one value a layer; names as in SAMPLES."""
        unknown = set(samples) - set(SAMPLES)
        if unknown:
            raise TypeError(f"unknown samples {sorted(unknown)}; known are {sorted(SAMPLES)}")
        if not 0 <= rep < self.repetitions or self._finished[rep]:
            raise ValueError(f"repetition {rep} is beyond {self.repetitions}, or was added before")
        for name, value in samples.items():
            row = np.asarray(value)
            expected = self._samples[name].shape[1:]
            if row.shape != expected:
                raise ValueError(f"{name} of a repetition has shape {row.shape}, expected {expected}")
            self._samples[name][rep] = row
        if self._descriptor is not None:
            try:
                for name in samples:
                    _write(self._descriptor, self._samples[name][rep].tobytes(), self._rows[name].offset(rep))
                _write(self._descriptor, b"\1", self._rows["is_finished"].offset(rep))
            except OSError as error:
                raise _output_error(self.partial, error) from None
        self._finished[rep] = True

    def set(self, **attributes: float) -> None:
        """Attributes known after the repetitions alone, stored at the end. Numbers: a text could grow."""
        for name, value in attributes.items():
            if name not in ATTRIBUTES or ATTRIBUTES[name].dtype not in ("float64", "int64"):
                raise TypeError(f"{name} is no number that a record holds")
            self._attributes[name] = value

    def flag(self, name: str, is_so: np.ndarray) -> None:
        """A flag of the repetitions so far that only later ones tell: is_warmup, is_outlier."""
        if SAMPLES[name].dtype != "bool":
            raise TypeError(f"{name} is no flag")
        stored = self._samples[name][: len(is_so)]
        changed = np.flatnonzero(stored != is_so)
        stored[:] = is_so
        if self._descriptor is not None:
            try:
                for rep in changed:
                    _write(self._descriptor, stored[rep].tobytes(), self._rows[name].offset(int(rep)))
            except OSError as error:
                raise _output_error(self.partial, error) from None

    def set_facts(self, **columns: Sequence[float]) -> None:
        """Numbers of the layers that are known after the repetitions alone, stored at the end."""
        for name, column in columns.items():
            if name not in FACTS or FACTS[name].dtype not in ("float64", "int64"):
                raise TypeError(f"{name} is no number of a layer")
            pairs = zip(self.layers, column, strict=True)
            changed: list[LayerFacts] = []
            for facts, value in pairs:
                field: dict[str, Any] = {name: value}
                changed.append(dataclasses.replace(facts, **field))
            self.layers = tuple(changed)

    def end_early(self) -> None:
        """No more repetitions: the record will have the finished ones alone."""
        self._is_cut = True
        kept = np.flatnonzero(self._finished)
        self._samples = {name: values[kept] for name, values in self._samples.items()}
        self._finished = self._finished[kept]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor is None or self.path is None or self.partial is None:
            return
        if error is not None:
            self._abandon()
            return
        try:
            if self._is_cut:
                self._replace_by_cut(self.path)
            else:
                # The same layout, so that only the numbers that were `set` differ: to die here harms nothing.
                _write(self._descriptor, self._image()[0], 0)
                os.fsync(self._descriptor)
                os.replace(self.partial, self.path)
        except OSError as failure:
            self._abandon()
            raise _output_error(self.path, failure) from None
        self._is_stored = True
        os.close(self._descriptor)
        self._descriptor = None

    def _replace_by_cut(self, path: Path) -> None:
        """Fewer rows are another layout, so another file, and only then is FILE.partial given up."""
        cut = path.with_name(path.name + ".cut")
        try:
            descriptor = os.open(cut, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _write(descriptor, self._image()[0], 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(cut, path)
        except OSError:
            cut.unlink(missing_ok=True)
            raise
        path.with_name(path.name + ".partial").unlink(missing_ok=True)

    def _image(self) -> tuple[bytes, dict[str, _Rows]]:
        samples = self._samples | {"is_finished": self._finished}
        return _image(self.layers, self.buffers, samples, self._attributes)

    def _abandon(self) -> None:
        """Leaves FILE.partial for whoever wants its finished repetitions; one without any is removed."""
        if self._descriptor is not None:
            if not self._finished.any() and self.partial is not None:
                self.partial.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _refuse_to_replace(path: Path) -> None:
    """A slip of the finger must not cost a model, a picture or a device file."""
    if not path.parent.is_dir():
        raise OutputError("the record's folder isn't there", file=path, expected=f"the folder {path.parent}")
    if path.is_dir():
        raise OutputError("the record's place is a folder", file=path, expected="the name of a file")
    if path.exists() and not (path.is_file() and path.stat().st_size == 0):
        try:
            with _open(path) as file:
                is_ours = file.attrs.get("format") == FORMAT
        except HDF5_ERRORS:
            is_ours = False
        if not is_ours:
            raise OutputError("the record's place is taken by another file", file=path, remedy="another name")


def _claim(partial: Path) -> int:
    """Opens FILE.partial and locks it for as long as we live; what a killed run left there is taken over."""
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another run may have ended in between: then what was opened is its record, under its last name.
        is_free = partial.exists() and os.path.samestat(os.fstat(descriptor), partial.stat())
    except BlockingIOError:
        is_free = False
    except OSError:
        is_free = True  # a file system without locks
    if not is_free:
        os.close(descriptor)
        raise OutputError("another run is recording there", file=partial, remedy="another name")
    return descriptor


def _write(descriptor: int, content: bytes, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)


def _output_error(path: Path | None, error: OSError) -> OutputError:
    return OutputError("the record can't be written", file=path, found=error.strerror or error)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Where in the file the repetitions of one dataset lie: `height` rows of `nbytes` bytes in each chunk."""

    chunk_offsets: tuple[int, ...]
    height: int
    nbytes: int

    def offset(self, rep: int) -> int:
        if not self.nbytes:
            return 0
        return self.chunk_offsets[rep // self.height] + rep % self.height * self.nbytes


def _image(
    layers: tuple[LayerFacts, ...],
    buffers: tuple[BufferFacts, ...],
    samples: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
) -> tuple[bytes, dict[str, _Rows]]:
    """The whole file as bytes, and where in it the samples lie.

    The same layers, extents and texts give the same layout, whatever the samples. The file format is HDF5's
    default, the one that its oldest readers know.
    """
    repetitions = len(samples["is_warmup"])
    columns: dict[str, Any] = dict(samples)
    columns["rep"] = np.arange(repetitions)
    columns |= {name: [getattr(facts, field) for facts in layers] for name, field in _LAYER_FIELDS.items()}
    columns |= {name: [getattr(b, field) for b in buffers] for name, field in _BUFFER_FIELDS.items()}
    defaults = {f.name: f.default for f in dataclasses.fields(RunRecord) if f.name in ATTRIBUTES}
    defaults = {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
    constants = {"format": FORMAT, "schema_version": SCHEMA_VERSION} | defaults | dict(attributes)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for quantity in SCHEMA:
            if not quantity.dims:
                value = constants.get(quantity.name, _BLANK[quantity.dtype])
                file.attrs.create(quantity.name, _encode(quantity, value), dtype=_stored_dtype(quantity))
            else:
                _create_dataset(file, quantity, columns[quantity.name])
        file.flush()
        rows = {name: _rows(file[name]) for name in samples}
    return buffer.getvalue(), rows


def _rows(dataset: h5py.Dataset) -> _Rows:
    count = dataset.id.get_num_chunks() if dataset.chunks else 0
    chunks = [dataset.id.get_chunk_info(i) for i in range(count)]
    return _Rows(
        chunk_offsets=tuple(c.byte_offset for c in sorted(chunks, key=lambda c: c.chunk_offset)),
        height=dataset.chunks[0] if dataset.chunks else 1,
        nbytes=dataset.dtype.itemsize * dataset[0:1].size,
    )


def _create_dataset(file: h5py.File, quantity: Quantity, column: Any) -> None:
    if quantity.dtype in ("text", "texts"):
        values = np.array([_encode(quantity, value) for value in column], dtype=object)
    else:
        values = np.asarray(column, dtype=_stored_dtype(quantity))
    chunks: tuple[int, ...] | None = None  # an extent of 0 can't be chunked
    if values.size:
        row_bytes = max(values[0:1].size * 8, 1)
        chunks = (min(max(CHUNK_BYTES // row_bytes, 1), len(values)), *values.shape[1:])
    fill = math.nan if quantity.dtype == "float64" else None
    dataset = file.create_dataset(
        quantity.name, data=values, dtype=_stored_dtype(quantity), chunks=chunks, fillvalue=fill
    )
    dataset.attrs["units"] = quantity.unit
    dataset.attrs["long_name"] = quantity.long_name
    if quantity.dtype == "bool":
        dataset.attrs["dtype"] = "bool"  # xarray's way to say it
    if quantity.name in quantity.dims:
        dataset.make_scale(quantity.name)
    else:
        for axis, dim in enumerate(quantity.dims):
            dataset.dims[axis].attach_scale(file[dim])


def _stored_dtype(quantity: Quantity) -> Any:
    if quantity.dtype in ("text", "texts", "mapping"):
        return h5py.string_dtype("utf-8")
    return np.dtype(np.int8 if quantity.dtype == "bool" else quantity.dtype)


def _encode(quantity: Quantity, value: Any) -> Any:
    if quantity.dtype in ("texts", "mapping"):
        value = json.dumps(dict(value) if quantity.dtype == "mapping" else list(value), ensure_ascii=False)
    if isinstance(value, str):
        # HDF5 ends a text at the first NUL; a file name that isn't UTF-8 comes as lone surrogates
        return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def read(path: str | os.PathLike[str]) -> RunRecord:
    """A stored run, or what there is of one in a `.partial`, even while it is being recorded.

    Raises    InputError: no such file, not HDF5, damaged, not a record of minicnn, or of a newer minicnn
    """
    place = Path(path)
    if not place.exists():
        partial = place.with_name(place.name + ".partial")
        remedy = f"{partial} holds a run that didn't finish" if partial.exists() else None
        raise InputError("there is no such record", file=place, remedy=remedy)
    try:
        with _open(place) as file:
            return _read(file, place)
    except PermissionError:
        raise InputError("the record can't be read", file=place, found="no permission") from None
    except (*HDF5_ERRORS, UnicodeError) as error:
        is_hdf5 = place.is_file() and h5py.is_hdf5(place)
        sentence = "the record is damaged" if is_hdf5 else "not an HDF5 file"
        found = str(error).split("\n")[0]
        raise InputError(sentence, file=place, expected="a record of minicnn", found=found) from None


def _open(path: Path) -> h5py.File:
    """To read, without a lock, so that a run can be looked at while it is recorded."""
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError("a folder" if path.is_dir() else "not a file")
    return h5py.File(path, "r", locking=False)


def _read(file: h5py.File, place: Path) -> RunRecord:
    if file.attrs.get("format") != FORMAT:
        expected = f"the attribute format = {FORMAT!r}"
        raise InputError("an HDF5 file, but no record of minicnn", file=place, expected=expected)
    version = int(file.attrs["schema_version"])
    if version > SCHEMA_VERSION:
        found, accepted = f"schema {version}", f"up to {SCHEMA_VERSION}"
        raise InputError("a record of a newer minicnn", file=place, found=found, accepted=accepted)
    extents = {dim: len(file[dim]) if dim in file else 0 for dim in ("rep", "layer", "buffer")}
    if extents["rep"] * extents["layer"] > PACKED_AT_MOST * place.stat().st_size:
        raise ValueError("more samples than the file can hold")
    columns = {q.name: _load(file, q, tuple(extents[d] for d in q.dims)) for q in SCHEMA if q.dims}
    layers = tuple(
        LayerFacts(**{field: columns[name][i] for name, field in _LAYER_FIELDS.items()})
        for i in range(extents["layer"])
    )
    buffers = tuple(
        BufferFacts(**{field: columns[name][i] for name, field in _BUFFER_FIELDS.items()})
        for i in range(extents["buffer"])
    )
    attributes = {name: _decode(q, file.attrs[name]) for name, q in ATTRIBUTES.items() if name in file.attrs}
    samples = {name: columns[name] for name in SAMPLES}
    return _record(layers, buffers, samples, attributes, columns["is_finished"], str(place))


def _load(file: h5py.File, quantity: Quantity, shape: tuple[int, ...]) -> Any:
    """One dataset, blank where an older minicnn didn't write it. Numbers of a layer come as Python's own."""
    if quantity.name not in file:
        blank = _BLANK[quantity.dtype]
        return np.full(shape, blank, quantity.dtype) if "rep" in quantity.dims else [blank] * shape[0]
    dataset = file[quantity.name]
    if dataset.shape != shape:
        raise ValueError(f"{quantity.name} has shape {dataset.shape}, expected {shape}")
    if "rep" not in quantity.dims:
        stored = dataset.asstr()[()] if quantity.dtype in ("text", "texts") else dataset[()]
        return [_decode(quantity, value) for value in stored.tolist()]
    return dataset[()].astype(quantity.dtype)


def _decode(quantity: Quantity, stored: Any) -> Any:
    if quantity.dtype == "texts":
        return tuple(json.loads(stored))
    if quantity.dtype == "mapping":
        return dict(json.loads(stored))
    if quantity.dtype == "float64":
        return math.nan if stored != stored else float(stored)  # one NaN for all, so that facts compare equal
    return {"text": str, "bool": bool, "int64": int}[quantity.dtype](stored)


def _record(
    layers: tuple[LayerFacts, ...],
    buffers: tuple[BufferFacts, ...],
    samples: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    finished: np.ndarray,
    path: str,
) -> RunRecord:
    notes: tuple[str, ...] = ()
    if not finished.all():
        notes = (f"{finished.sum()} of {len(finished)} repetitions finished; the others are left out",)
    kept: dict[str, Any] = {name: values[finished] for name, values in samples.items()}
    return RunRecord(layers=layers, buffers=buffers, **kept, **attributes, path=path, notes=notes)
