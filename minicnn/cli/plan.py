"""`plan`: what would run, without running it."""

from __future__ import annotations

import argparse

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser("plan", help="layers, variants, steps and memory; needs no device")
    arguments.add_model(parser)
    arguments.add_threads(parser)
    parser.add_argument(
        "--target", metavar="MACHINE|FILE.toml",
        help="the plan for h200, a100, rtx4090, tx1 or deap, and how long it is predicted to take there",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn.engine import Options, host_target
    from minicnn.predict import machine_of, predict
    from minicnn.report import lists

    chosen = Options(
        fuse=options.fuse == "all",
        variants=arguments.variants(options),
        precision=options.precision,
        fallback=not options.no_fallback,
        memory_limit=options.memory_limit,
    )
    machine = machine_of(options.target) if options.target else None
    target = machine.target if machine else host_target(options.threads)
    plan = arguments.load_model(options).make_plan(options=chosen, target=target)
    if machine:
        lists.print_predictions(predict(plan, machine), machine)
    else:
        lists.print_plan(plan)
