"""The command line: a module for each command, with its arguments and its `run`. Prints; decides nothing."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from minicnn.cli import compare, doctor, explain, infer, kernel, plan, report, tune
from minicnn.errors import MinicnnError
from minicnn.version import VERSION

INTERRUPTED = 130
COMMANDS = (infer, plan, report, explain, compare, tune, kernel, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. 2: a refusal, said in one sentence on stderr; 1 (compare) and
    3 (--require-closure): what was held against something didn't pass."""
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
    for command in COMMANDS:
        command.add(commands)
    return parser
