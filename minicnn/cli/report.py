"""`report`: a record as a table, a page or a file."""

from __future__ import annotations

import argparse
import sys

from minicnn.cli import arguments


def add(commands: arguments.Commands) -> None:
    parser = commands.add_parser(
        "report", help="a recorded run as a table, a page with pictures, or files for other programs"
    )
    parser.add_argument("record", metavar="run.h5")
    parser.add_argument("--html", metavar="FILE", help="a page with pictures; needs no network")
    parser.add_argument("--trace", metavar="FILE", help="one repetition for Perfetto or chrome://tracing")
    parser.add_argument("--csv", metavar="FILE", help="a line a layer")
    parser.add_argument("--json", action="store_true", help="all of the record, on the standard output")
    parser.add_argument(
        "--slowest", type=arguments.positive, metavar="N",
        help="of the table the N slowest layers alone, slowest first",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """The table, unless something else was asked for. Files are named on stderr: stdout may be JSON."""
    from minicnn import store
    from minicnn.report import export, html, lists, table, trace

    record = store.read(options.record)
    makers = {"csv": export.csv_text, "trace": trace.trace_text, "html": html.html_text}
    asked = {name: path for name in makers if (path := getattr(options, name)) is not None}
    for name, path in asked.items():
        print(f"wrote {export.write(path, makers[name](record), record)}", file=sys.stderr)
    if options.json:
        print(export.json_text(record))
    elif not asked and any(layer.is_checked for layer in record.layers):
        lists.print_check(record.layers)
    elif not asked:
        table.print_record(record, slowest=options.slowest)
