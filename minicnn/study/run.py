"""A study from its first point to its page; interrupted at any moment it goes on where it was."""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from minicnn.calibrate import Calibration, calibrate
from minicnn.device import open_device
from minicnn.device.base import Device
from minicnn.engine import target_of
from minicnn.errors import InputError, OutputError
from minicnn.progress import progress_bar
from minicnn.registry import Target
from minicnn.study import table
from minicnn.study.table import Points, Table
from minicnn.version import VERSION


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a study is to be done. targets: of `whatif`, names or files."""

    effort: str = "default"
    device: str = "auto"
    threads: int | None = None
    targets: tuple[str, ...] = ()


@dataclass
class Bench:
    """What points are measured on."""

    options: Options
    device: Device
    kept: dict[str, Any] = field(default_factory=dict)  # what points share: a study's own

    @cached_property
    def calibration(self) -> Calibration:
        return calibrate(self.device)

    @property
    def target(self) -> Target:
        return target_of(self.device)


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"minicnn.study.{name}")


def study(
    name: str, out: Path, options: Options, *, resume: bool = False, command: str = "", shown: bool = False
) -> Table:
    """Measures what isn't there yet, and writes NAME.h5, its figures and its page into `out`.

    Raises    InputError: `out` holds points and `resume` wasn't asked for, or other points; no matplotlib
              OutputError: `out` can't be written
    """
    _require_matplotlib()
    from minicnn.study import page

    module = module_of(name)
    points = list(module.points(options))
    kept = Points(out / "points", module.COLUMNS)
    if kept.are_there() and not resume:
        raise InputError("the folder holds points of a study", file=kept.folder, accepted="--resume")
    try:
        kept.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError("no folder for the study", file=out, found=error) from None
    rows: dict[int, list[table.Row]] = {}
    missing = []
    for index, point in enumerate(points):
        found = kept.known(index, point)
        if found is None:
            missing.append(index)
        else:
            rows[index] = found
    with _bench(options, bool(missing)) as bench, progress_bar(name, len(missing), shown=shown) as advance:
        for index in missing:
            assert bench is not None
            rows[index] = [points[index] | row for row in module.measure(points[index], bench)]
            kept.keep(index, points[index], rows[index])
            advance()
        described = _described(name, options, command, bench.device if bench else None, out)
    result = table.table_of([row for i in sorted(rows) for row in rows[i]], module.COLUMNS, described)
    table.write(out / f"{name}.h5", result, module.COLUMNS)
    page.write(out, name, module, result)
    return result


@contextmanager
def _bench(options: Options, is_needed: bool) -> Iterator[Bench | None]:
    if not is_needed:
        yield None
        return
    device = open_device(options.device, threads=options.threads)
    try:
        yield Bench(options=options, device=device)
    finally:
        device.close()


def _described(
    name: str, options: Options, command: str, device: Device | None, out: Path
) -> Mapping[str, str]:
    """Of the run that measured last: one that finds all points there leaves it as it was."""
    if device is None and (out / f"{name}.h5").exists():
        return table.read(out / f"{name}.h5").attributes
    info = device.info if device else None
    return {
        "study": name,
        "effort": options.effort,
        "command": command,
        "device": f"{info.name}, {info.architecture}, {info.threads} threads" if info else "",
        "date": datetime.date.today().isoformat(),
        "versions": f"minicnn {VERSION}, Python {platform.python_version()}",
    }


def _require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("studies draw with matplotlib", remedy="pip install 'minicnn-cuda[study]'")
