"""`compare`: two records, layer by layer."""

from __future__ import annotations

import argparse
import sys

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "compare", help="two recorded runs, layer by layer: same, faster, slower, can't tell"
    )
    parser.add_argument("before", metavar="a.h5")
    parser.add_argument("after", metavar="b.h5")
    parser.add_argument("--html", metavar="FILE", help="a page with pictures; needs no network")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """1 where b is slower in a layer or as a whole, for scripts; else 0."""
    from minicnn import store
    from minicnn.compare import compare
    from minicnn.report import export
    from minicnn.report.compare import html_text, print_comparison

    before, after = store.read(options.before), store.read(options.after)
    comparison = compare(before, after)
    if options.html is None:
        print_comparison(comparison)
    else:
        page = html_text(comparison, before, after)
        print(f"wrote {export.write(options.html, page, before, after)}", file=sys.stderr)
    return int(comparison.is_slower)
