"""Signs of life on stderr for work that takes long; nothing at all for work that doesn't.

On a terminal one line appears after half a second and is wiped at the end. Elsewhere (a file, a pipe, CI) a
plain line appears after ten seconds, and another every half minute at most.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class _Sink(Protocol):
    """Where progress shows. `patience_s` before the first drawing, `every_s` between two."""

    patience_s: float
    every_s: float

    def draw(self, done: int) -> None: ...

    def end(self) -> None: ...


class _Terminal:
    patience_s = 0.5
    every_s = 0.1

    def __init__(self, title: str, total: int | None):
        # Imported before the work begins: an import in the middle of it would show in its times.
        from rich import progress
        from rich.console import Console

        counted = (progress.BarColumn(), progress.MofNCompleteColumn()) if total is not None else ()
        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            *counted,
            progress.TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            auto_refresh=total is None,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(title, total=total)

    def draw(self, done: int) -> None:
        self._progress.start()
        self._progress.update(self._task, completed=done, refresh=True)

    def end(self) -> None:
        self._progress.stop()


class _Plain:
    patience_s = 10.0
    every_s = 30.0

    def __init__(self, title: str, total: int | None):
        self._title, self._total = title, total

    def draw(self, done: int) -> None:
        counted = f": {done} of {self._total}" if self._total is not None else " ..."
        print(f"{self._title}{counted}", file=sys.stderr, flush=True)

    def end(self) -> None:
        pass


@contextmanager
def status(title: str) -> Iterator[None]:
    """A spinner beside `title` for work of unknown length. A thread turns it: not for timed work."""
    with progress_bar(title, None):
        yield


@contextmanager
def progress_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """A bar for `total` pieces of work; call what it yields after each.

    Fit for timed work: but for one first drawing it is drawn by that call alone, between two pieces.
    """
    if not shown:
        yield lambda: None
        return
    sink: _Sink = (_Terminal if sys.stderr.isatty() else _Plain)(title, total)
    lock = threading.Lock()
    done, is_over, drawn = 0, False, 0.0  # drawn: when; 0 before the first time

    def draw() -> None:
        nonlocal drawn
        with lock:
            if not is_over:
                drawn = time.monotonic()
                sink.draw(done)

    def advance() -> None:
        nonlocal done
        done += 1
        if drawn and time.monotonic() - drawn >= sink.every_s:
            draw()

    first = threading.Timer(sink.patience_s, draw)
    first.daemon = True
    first.start()
    try:
        yield advance
    finally:
        first.cancel()
        with lock:
            is_over = True
            if drawn:
                sink.end()
