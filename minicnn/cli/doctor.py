"""`doctor`: what is here, and how to get what is missing."""

from __future__ import annotations

import argparse

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "doctor", help="devices, compilers, libraries, caches; and how to get what is missing"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn import doctor
    from minicnn.report import lists

    lists.print_rows(doctor.examine())
