"""`study`: a question of the literature, measured here."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from minicnn.cli import arguments
from minicnn.errors import InputError
from minicnn.study import EFFORTS, NAMES


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "study", help="a question of the literature, measured, drawn and said in words"
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="HDF5, figures and a page")
    parser.add_argument("--resume", action="store_true", help="go on with what stands in DIR")
    effort = parser.add_mutually_exclusive_group()
    for name in EFFORTS:
        if name != "default":
            effort.add_argument(
                f"--{name}", dest="effort", action="store_const", const=name, default="default"
            )
    parser.add_argument("--target", nargs="+", default=[], metavar="DEVICE|FILE.toml", help="of whatif")
    arguments.add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn.study.run import Options, module_of, study

    if options.target and options.name != "whatif":
        raise InputError("--target is for the study whatif", found=options.name)
    effort = "" if options.effort == "default" else f" --{options.effort}"
    targets = "".join(f" {shlex.quote(t)}" for t in options.target)
    command = f"minicnn study {options.name}{effort}" + (f" --target{targets}" if targets else "")
    asked = Options(
        effort=options.effort, device=options.device, threads=options.threads, targets=tuple(options.target)
    )
    table = study(options.name, options.out, asked, resume=options.resume, command=command, shown=True)
    for sentence in module_of(options.name).words(table):
        print(sentence)
    print(f"page      {options.out / options.name}.html")
