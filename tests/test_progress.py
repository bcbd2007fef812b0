"""Progress: nothing for short work, a line that goes away on a terminal, rare plain lines elsewhere."""

import io
import sys
import threading
import time

import pytest

from minicnn import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_as_stderr(monkeypatch) -> Terminal:
    """No fixture: between a test's setup and the test pytest puts its own stderr back."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    return stderr


def test_short_work_shows_nothing(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    with progress.status("loading"):
        pass
    with progress.progress_bar("profiling", 3) as advance:
        for _ in range(3):
            advance()
    assert terminal.getvalue() == ""


def test_work_over_half_a_second_shows_and_is_wiped(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    with progress.status("loading [b]x[/b]"):
        time.sleep(0.8)
    shown = terminal.getvalue()
    assert "loading [b]x[/b]" in shown
    assert shown.rstrip().endswith("\x1b[2K"), "the line is erased at the end"


def test_a_bar_counts_and_is_drawn_by_advance_alone(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    monkeypatch.setattr(progress._Terminal, "patience_s", 0.05)
    with progress.progress_bar("profiling", 20) as advance:
        time.sleep(0.3)
        first = terminal.getvalue()
        time.sleep(0.3)
        assert terminal.getvalue() == first, "nothing is drawn while work is being timed"
        for _ in range(20):
            advance()
    assert " 0/20" in first and " 1/20" in terminal.getvalue()


def test_elsewhere_only_long_work_says_so(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.progress_bar("profiling", 2) as advance:
        time.sleep(0.6)
        advance()
    assert stderr.getvalue() == ""
    monkeypatch.setattr(progress._Plain, "patience_s", 0.05)
    monkeypatch.setattr(progress._Plain, "every_s", 0.0)
    with progress.progress_bar("profiling", 2) as advance:
        time.sleep(0.3)
        advance()
    with progress.status("building"):
        time.sleep(0.3)
    assert stderr.getvalue() == "profiling: 0 of 2\nprofiling: 1 of 2\nbuilding ...\n"


def test_an_exception_passes_and_stops_it(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    with pytest.raises(KeyError):
        with progress.status("loading"):
            raise KeyError
    time.sleep(0.1)
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert terminal.getvalue() == ""


def test_hidden_where_nobody_wants_it(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    monkeypatch.setattr(progress._Terminal, "patience_s", 0.0)
    with progress.progress_bar("profiling", 1, shown=False) as advance:
        time.sleep(0.1)
        advance()
    assert terminal.getvalue() == ""
