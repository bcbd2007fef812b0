"""`plan`: what would run, without running it."""

from __future__ import annotations

import argparse

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser("plan", help="layers, variants, steps and memory; needs no device")
    arguments.add_model(parser)
    arguments.add_threads(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn.engine import Options, host_target
    from minicnn.report import lists

    chosen = Options(
        fuse=options.fuse == "all",
        variants=arguments.variants(options),
        precision=options.precision,
        fallback=not options.no_fallback,
        memory_limit=options.memory_limit,
    )
    target = host_target(options.threads)
    lists.print_plan(arguments.load_model(options).make_plan(options=chosen, target=target))
