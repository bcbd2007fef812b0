"""Small faults put into kernels and device code by rule, to see whether the tests notice: docs/mutants.md.

    python tools/mutants.py --seed 7                a sample drawn with a new seed; the page gets its figures
    python tools/mutants.py --each 0                every mutant of every rule (hours)
    python tools/mutants.py --only cuda/pad.cu      those of one file, the page left alone
    python tools/mutants.py --again                 survivors of all runs once more, after tests were added
    python tools/mutants.py --page                  the page anew, after proofs were added

Each mutant is one change in a private copy of the tree: tools/mutant_trial.py. What a seed's first run found
stays in tools/mutants_runs.json: tests added for its survivors make its figures no better. A survivor is
equivalent, with a proof in tools/mutants_equivalent.json, or open.

Not here  changes of two places; the simulator, which has tests of its own
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tools.mutant_rules import RULES, Mutant, all_mutants  # noqa: E402
from tools.mutant_trial import UNCHANGED_FAILS, Choice, Verdict, try_all  # noqa: E402

PROOFS = Path(__file__).with_name("mutants_equivalent.json")
RUNS = Path(__file__).with_name("mutants_runs.json")
PAGE = ROOT / "docs" / "mutants.md"
Identity = tuple[str, ...]  # Mutant.identity, as JSON keeps it under IDENTITY's names
IDENTITY = ("file", "scope", "rule", "line", "change")
Run = dict[str, Any]  # see `run_of`


# --- what is kept


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def write(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    path.write_text(json.dumps(list(entries), indent=1, ensure_ascii=False) + "\n")


def identity_of(entry: Mapping[str, str]) -> Identity:
    return tuple(entry[name] for name in IDENTITY)


TESTS, KERNEL_CHECK = "tests", "kernel check"  # who judges a run


def proofs() -> dict[Identity, str]:
    """Why a mutant computes the same."""
    return {identity_of(one): one["proof"] for one in read(PROOFS)}


def run_of(choice: Choice, every: Iterable[Mutant], verdicts: Iterable[Verdict], minutes: float) -> Run:
    """What a run leaves: counts by rule and by who noticed, and the survivors; "since": who notices now."""
    tried = [v for v in verdicts if v.said != UNCHANGED_FAILS]
    left_out = sorted({v.mutant.file for v in verdicts if v.said == UNCHANGED_FAILS})
    there = Counter(m.rule for m in every)
    rules = {
        rule: {"there": there[rule], "tried": Counter(v.by for v in tried if v.mutant.rule == rule)}
        for rule in RULES
    }
    survivors = [
        dict(zip(IDENTITY, v.mutant.identity, strict=True)) | {"since": ""} for v in tried if not v.by
    ]
    return {
        "judge": KERNEL_CHECK if choice.kernel_check else TESTS,
        "seed": choice.seed,
        "each": choice.each,
        "date": datetime.date.today().isoformat(),
        "machine": f"Python {platform.python_version()}, {os.cpu_count()} processors",
        "minutes": round(minutes),
        "left_out": left_out,
        "rules": rules,
        "survivors": survivors,
    }


# --- the page


class Figures:
    """Of one rule of a run, or of all: mutants by what came of them. Equivalent ones are none."""

    def __init__(self, run: Run, rules: Iterable[str], known: Mapping[Identity, str]):
        mine = [(rule, run["rules"][rule]) for rule in rules if rule in run["rules"]]
        survivors = [one for one in run["survivors"] if one["rule"] in dict(mine)]
        by = sum((Counter(numbers["tried"]) for _, numbers in mine), Counter())
        self.there: int = sum(numbers["there"] for _, numbers in mine)
        self.tried, self.none = by.total(), by["none"]
        self.host, self.simgpu = by["host"], by["simgpu"]
        self.equivalent = sum(identity_of(one) in known for one in survivors)
        self.open = by[""] - self.equivalent
        self.since = sum(bool(one["since"]) and identity_of(one) not in known for one in survivors)

    @property
    def caught(self) -> int:
        return self.host + self.simgpu

    @property
    def share(self) -> float | None:
        return self.caught / (self.caught + self.open) if self.caught + self.open else None


def estimate(run: Run, known: Mapping[Identity, str]) -> float:
    """The share of all mutants that would be caught: each rule's in the sample, by how many it makes."""
    figures = [Figures(run, [rule], known) for rule in RULES]
    weighted = [(f.there, f.share) for f in figures if f.share is not None]
    return sum(there * share for there, share in weighted) / sum(there for there, _ in weighted)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def page(runs: list[Run], known: Mapping[Identity, str]) -> str:
    """docs/mutants.md."""
    runs = sorted(runs, key=lambda run: -run["seed"])
    checks = [run for run in runs if run["judge"] == KERNEL_CHECK]
    runs = [run for run in runs if run["judge"] == TESTS]
    lines = [
        "# Mutants",
        "",
        "Faults put in by rule, one at a time; written by tools/mutants.py, not by hand.",
        "",
        "Each row is the first run of a seed, before any test was added for what it found: so many of "
        "the mutants that nobody has looked at do the tests catch. Tried is a sample drawn with the seed, "
        "as many of each rule; a rule that makes no more is tried whole each time. Caught %: of those that "
        "compile and aren't proven equivalent; of all mutants: the same, each rule weighted by how many "
        "mutants it makes. Caught since: survivors that tests added later catch.",
        "",
        "| seed | sample | tried | don't compile | equivalent | caught | open | caught % | of all mutants, % "
        "| caught since | run |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for run in runs:
        f = Figures(run, RULES, known)
        cells = [run["seed"], f"{run['each']} a rule", f.tried, f.none, f.equivalent, f.caught, f.open]
        cells += [percent(f.share), percent(estimate(run, known)), f.since]
        cells.append(f"{run['date']}, {run['machine']}, {run['minutes']} minutes")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", *_by_rule(runs[0], known)] if runs else []
    for run in runs:
        lines += ["", f"## Survivors of seed {run['seed']}", "", *_survivors(run, known)]
    for run in checks:
        lines += ["", f"## `kernel check` alone, seed {run['seed']}", "", *_checked(run, known)]
    return "\n".join([*lines, ""])


def _by_rule(run: Run, known: Mapping[Identity, str]) -> Iterator[str]:
    yield f"## By rule: `python tools/mutants.py --each {run['each']} --seed {run['seed']}`"
    yield ""
    if run["left_out"]:
        yield f"Left out, since their tests failed without any change: {', '.join(run['left_out'])}."
        yield ""
    yield (
        "| rule | a mutant is | there are | tried | don't compile | caught on the host "
        "| caught on the simulated GPU | equivalent | open | caught % |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    rows = [(rule, meaning, [rule]) for rule, meaning in RULES.items()]
    for name, meaning, rules in [*rows, ("all", "", list(RULES))]:
        f = Figures(run, rules, known)
        counts = [f.there, f.tried, f.none, f.host, f.simgpu, f.equivalent, f.open, percent(f.share)]
        yield f"| {' | '.join(map(str, [name, meaning, *counts]))} |"


def _checked(run: Run, known: Mapping[Identity, str]) -> Iterator[str]:
    f = Figures(run, RULES, known)
    yield (
        f"Mutants of our kernels, brought in as a user's would be and judged by `minicnn kernel check` "
        f"(`python tools/mutants.py --kernel-check --each {run['each']} --seed {run['seed']}`): of {f.tried} "
        f"{f.none} don't compile, {f.equivalent} are proven equivalent, {f.caught} are caught, {f.open} not: "
        f"{percent(f.share)} %. The kernels as they are pass without a complaint (tools/own_kernels.py). "
        f"{run['date']}, {run['machine']}, {run['minutes']} minutes. Survivors:"
    )
    yield ""
    yield from _survivors(run, known)


def _survivors(run: Run, known: Mapping[Identity, str]) -> Iterator[str]:
    if not run["survivors"]:
        yield "None."
    for one in run["survivors"]:
        proof = known.get(identity_of(one))
        ending = f"Equivalent: {proof}" if proof else f"Caught since: {one['since']}." if one["since"] else ""
        where = f"{one['file']}, {one['scope']}, {one['rule']}"
        yield f"- {where}: `{one['line']}`: `{one['change']}`. {ending or '**Open.**'}"


# --- the command


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--each", type=int, default=20, metavar="N", help="of a rule; 0: all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies at a time (%(default)s)")
    parser.add_argument("--only", default="", metavar="WORDS", help="that say these words; no page")
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keeps what comes of each mutant")
    parser.add_argument("--again", action="store_true", help="tries the survivors of all runs")
    parser.add_argument("--kernel-check", action="store_true", help="judged by `kernel check` alone")
    parser.add_argument("--page", action="store_true", help="writes the page from what is kept")
    options = parser.parse_args()
    choice = Choice(
        each=options.each, seed=options.seed, only=options.only, kernel_check=options.kernel_check
    )
    runs = read(RUNS)
    if options.list:
        for mutant in choice.of(all_mutants(ROOT)):
            print(mutant)
        return 0
    if options.again:
        again(runs, options.jobs, options.log)
    elif not options.page:
        judge = KERNEL_CHECK if options.kernel_check else TESTS
        is_known = any((run["seed"], run["judge"]) == (options.seed, judge) for run in runs)
        if is_known and not options.only:
            parser.error(f"seed {options.seed} has been run: tests were written for it; take a new one")
        begun = time.monotonic()
        every, verdicts = try_all(choice, options.jobs, options.log)
        if options.only:
            by, known = Counter(v.by for v in verdicts), proofs()
            equivalent = sum(not v.by and v.mutant.identity in known for v in verdicts)
            caught = by["host"] + by["simgpu"]
            lost, none = by[""] - equivalent, by["none"]
            print(f"{caught} caught, {lost} not, {equivalent} equivalent, {none} are none")
            return 0
        run = run_of(choice, every, verdicts, (time.monotonic() - begun) / 60)
        runs = [*read(RUNS), run]  # another may have ended since
    write(RUNS, runs)
    PAGE.write_text(page(runs, proofs()))
    return 0


def again(runs: list[Run], jobs: int, log: Path | None) -> None:
    """Survivors tried on the tree as it is now; a line that is no more keeps its verdict."""
    known = proofs()
    tested = [run for run in runs if run["judge"] == TESTS]
    survivors = [one for run in tested for one in run["survivors"] if identity_of(one) not in known]
    named = frozenset(identity_of(one) for one in survivors)
    if not named:
        return
    _, verdicts = try_all(Choice(named=named), jobs, log)
    by = {v.mutant.identity: v.by for v in verdicts}
    words = {"host": "on the host", "simgpu": "on the simulated GPU"}
    for one in survivors:
        if identity_of(one) in by:
            one["since"] = words.get(by[identity_of(one)], "")


if __name__ == "__main__":
    raise SystemExit(main())
