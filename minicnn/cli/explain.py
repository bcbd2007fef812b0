"""`explain`: a record in plain sentences."""

from __future__ import annotations

import argparse

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "explain", help="a recorded run in plain sentences: what is slow and why, memory, how sure"
    )
    parser.add_argument("record", metavar="run.h5")
    parser.add_argument(
        "--beside", metavar="other.h5", help="the same model run another way: which variants are faster there"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn import store
    from minicnn.report import explain

    beside = store.read(options.beside) if options.beside else None
    explain.print_explanation(store.read(options.record), beside=beside)
