"""`tune`: the variants of each distinct layer, timed."""

from __future__ import annotations

import argparse

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser("tune", help="time the variants of every distinct layer, keep the winners")
    arguments.add_model(parser)
    arguments.add_device(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from minicnn import choose
    from minicnn.device import open_device
    from minicnn.engine import Options, target_of
    from minicnn.report import lists
    from minicnn.tune import tune

    model = arguments.load_model(options)
    device = open_device(options.device, threads=options.threads)
    try:
        chosen = Options(fuse=options.fuse == "all", precision=options.precision)
        target = target_of(device)
        plan = model.make_plan(options=chosen, target=target)
        races = []
        for race in tune(plan, device):
            races.append(race)
            lists.print_race(race)
    finally:
        device.close()
    if races:
        print(f"kept in {choose.save_measured(target, {race.key: race.winner for race in races})}")
