"""The command line: a module for each command, with its arguments and its `run`. Prints; decides nothing."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from minicnn.cli import compare, doctor, explain, infer, kernel, plan, report, study, tune
from minicnn.errors import MinicnnError
from minicnn.version import VERSION

INTERRUPTED = 130
INSIST_S = 2.0  # longer than closing a record takes
COMMANDS = (infer, plan, report, explain, compare, tune, kernel, study, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. 2: a refusal, said in one sentence on stderr; 1 (compare) and
    3 (--require-closure): what was held against something didn't pass."""
    options = _parser().parse_args(arguments)
    try:
        with _insisting_interrupts():
            return int(options.run(options) or 0)
    except MinicnnError as error:
        print(f"minicnn: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextmanager
def _insisting_interrupts() -> Iterator[None]:
    """Ctrl-C's exception is lost where it meets a destructor, as one of h5py: it comes again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, INSIST_S)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minicnn",
        description="CNN inference in pure CUDA that measures itself.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"minicnn {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser
