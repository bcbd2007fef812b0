"""Small faults put into kernels and device code by rule, to see whether the tests notice: docs/mutants.md.

    python tools/mutants.py                         a seeded sample, the table
    python tools/mutants.py --each 0                every mutant of every rule (hours)
    python tools/mutants.py --only cuda/pad.cu      those of one file, the table left alone
    python tools/mutants.py --from FILE             the table anew from what --log FILE kept
    python tools/mutants.py --again FILE            its survivors once more, after tests were added

Each mutant is one change in a private copy of the tree. The tests of the operators that use the file run on
the host device first; what passes there runs once more on the simulated GPU. Device code runs there alone. A
change that doesn't compile is none. A survivor is equivalent, with a proof in tools/mutants_equivalent.json,
or open.

Not here  changes of two places; the simulator, which has tests of its own
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from minicnn import cache  # noqa: E402
from tools.mutant_rules import RULES, Mutant, all_mutants, identity, sample  # noqa: E402

PROOFS = Path(__file__).with_name("mutants_equivalent.json")
TABLE = ROOT / "docs" / "mutants.md"
COPIED = ("minicnn", "cuda", "tests", "tools", "models", "pyproject.toml")
SECONDS = 90  # a test that takes longer hangs: an endless loop, which is noticed
FILES_OF_A_HEADER = 5  # test files that are tried for a header which many kernels include
DEVICE_TESTS = (
    ["tools/cuda_contract.py", "--operators", "Relu"],
    ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "tests/test_cuda_device.py"],
    ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "tests/test_cuda.py", "-k", "not contract"],
    ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "tests/test_doctor.py"],
)


# --- which tests


@once
def tests_of(root: Path, file: str) -> tuple[str, ...]:
    """Test files of the operators that use this file, through whichever modules."""
    if file.startswith("tests/simgpu/"):
        return ("tests/test_sim_kernels.py", "tests/test_sim_faults.py", "tests/test_simgpu.py")
    if file.endswith(".cuh"):
        name = f'"{Path(file).name}"'
        includers = [p for p in sorted((root / "cuda").glob("*.cu")) if name in p.read_text()]
        found = [test for path in includers for test in tests_of(root, f"cuda/{path.name}")]
        return tuple(dict.fromkeys(found))[:FILES_OF_A_HEADER]
    modules = {p: p.read_text() for p in [*root.glob("minicnn/ops/*.py"), *root.glob("minicnn/*.py")]}
    if file.endswith(".cu"):
        stem = Path(file).stem
        reached = {p for p, text in modules.items() if re.search(rf"[\"']{stem}(\.cu)?[\"']", text)}
    else:
        reached = {root / file}
    grown = set(reached)
    while grown:  # up to the operators, through helpers that only pass arguments on
        names = "|".join(re.escape(p.stem) for p in grown)
        words = rf"^from minicnn[\w.]* import .*\b({names})\b|^from minicnn[\w.]*\.({names}) import"
        pattern = re.compile(words, re.MULTILINE)
        grown = {p for p in _operators(root) if p not in reached and pattern.search(modules[p])}
        reached |= grown
    stems = {p.stem for p in reached}
    tests = [f"tests/test_{stem}.py" for stem in sorted(stems) if (root / f"tests/test_{stem}.py").is_file()]
    takers = [t for t in tests if "harness.grid" in (root / t).read_text()]
    for path in sorted((root / "tests").glob("test_*.py")):
        text = path.read_text()
        named = any(re.search(rf"minicnn\.ops\.{stem}\b", text) for stem in stems)
        if named and "harness.grid" in text:
            takers.append(f"tests/{path.name}")
    if not takers:  # no operator's: tests that name the module that launches it
        names = "|".join(re.escape(stem) for stem in stems)
        pattern = re.compile(rf"from minicnn(?:\.({names}) import| import .*\b({names})\b)")
        there = sorted((root / "tests").glob("test_*.py"))
        takers = [f"tests/{p.name}" for p in there if pattern.search(p.read_text())]
    return tuple(dict.fromkeys(takers))[:FILES_OF_A_HEADER]


def _operators(root: Path) -> list[Path]:
    """And the modules that several of them share."""
    shared = (root / f"minicnn/{name}.py" for name in ("pooling", "normalization", "reduction", "product"))
    return [*root.glob("minicnn/ops/*.py"), *(path for path in shared if path.is_file())]


# --- running


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`by`: "host", "simgpu", "" where nobody noticed, "none" where it didn't compile or has no test."""

    mutant: Mutant
    by: str
    said: str = ""


class Workshop:
    """A private copy of the tree in which one mutant at a time is tried."""

    def __init__(self, folder: Path):
        self.root = folder / "tree"
        self.root.mkdir(parents=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                no_builds = shutil.ignore_patterns("__pycache__", "prebuilt")
                shutil.copytree(source, self.root / name, ignore=no_builds)
            else:
                shutil.copy(source, self.root)
        kept = folder / "cache"  # what is built here must not reach the user's
        shutil.copytree(cache.wanted_folder(), kept, ignore=shutil.ignore_patterns("wheels"))
        self.environment = os.environ | {"MINICNN_CACHE": str(kept), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)

    @once  # noqa: B019
    def driver(self) -> str:
        """The folder of the stand-in driver."""
        program = "import build, sys; from minicnn import cache; print(build.build(cache.folder('simgpu')))"
        paths = os.pathsep.join(map(str, (self.root, self.root / "tests", self.root / "tests" / "simgpu")))
        environment = self.environment | {"PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def judge(self, mutant: Mutant) -> Verdict:
        path = self.root / mutant.file
        original = path.read_text()
        path.write_text(original[: mutant.start] + mutant.after + original[mutant.end :])
        try:
            return self._judge(mutant)
        finally:
            path.write_text(original)

    def _judge(self, mutant: Mutant) -> Verdict:
        commands = self.commands(mutant.file)
        if not commands:
            return Verdict(mutant=mutant, by="none", said="no test takes this file")
        for where, arguments in commands:
            code, said = self.run(where, arguments)
            if re.search(r"the kernel doesn't compile|did not compile|SyntaxError", said):
                return Verdict(mutant=mutant, by="none", said="doesn't compile")
            if code:
                return Verdict(mutant=mutant, by=where, said=said[-600:])
        return Verdict(mutant=mutant, by="")

    def commands(self, file: str) -> list[tuple[str, list[str]]]:
        """Where and what to run, until one fails."""
        if file == "tools/cuda_contract.cu" or file.startswith("minicnn/device/"):
            return [("simgpu", arguments) for arguments in DEVICE_TESTS]
        tests = list(tests_of(self.root, file))
        pytest = ["-m", "pytest", "-xq", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
        if file.startswith("tests/simgpu/"):
            return [("host", [*pytest, test]) for test in tests]
        on_host = [("host", [*pytest, test]) for test in tests]
        takers = [test for test in tests if "harness.grid" in (self.root / test).read_text()]
        return on_host + [("simgpu", [*pytest, "--device", "cuda", test]) for test in takers]

    def run(self, where: str, arguments: list[str]) -> tuple[int, str]:
        environment = self.environment
        if where == "simgpu":
            environment = environment | {"LD_LIBRARY_PATH": self.driver(), "SIMGPU_DEVICES": "2"}
        command = [sys.executable, *arguments]
        try:
            done = subprocess.run(
                command, env=environment, cwd=self.root, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return 124, "no end"
        return done.returncode, done.stdout + done.stderr


# --- what came of it


def proofs() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(PROOFS.read_text())
    return found


def proof_of(mutant: Mutant, known: Iterable[dict[str, str]]) -> str:
    """Why it computes the same, "" where nobody has proven that."""
    for one in known:
        if tuple(one[name] for name in ("file", "scope", "rule", "line", "change")) == identity(mutant):
            return one["proof"]
    return ""


def table(verdicts: list[Verdict], facts: Mapping[str, Any]) -> str:
    """docs/mutants.md."""
    known = proofs()
    survivors = [v for v in verdicts if not v.by]
    proven = [v for v in survivors if proof_of(v.mutant, known)]
    lines = [
        "# Mutants",
        "",
        "Faults put in by rule, one at a time; written by tools/mutants.py, not by hand.",
        "",
        f"`{facts['command']}`, {facts['date']}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, {facts['seconds'] / 60:.0f} minutes. Tried is a sample drawn with the "
        "seed. Caught %: of those that compile and aren't proven equivalent.",
        "",
        *_notes(verdicts, facts),
        "| rule | a mutant is | there are | tried | don't compile | caught on the host "
        "| caught on the simulated GPU | equivalent | open | caught % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [*RULES, "all"]
    for rule in rows:
        mine = [v for v in verdicts if rule in (v.mutant.rule, "all")]
        by = Counter(v.by for v in mine)
        equal = sum(v.mutant.rule == rule or rule == "all" for v in proven)
        caught, lost = by["host"] + by["simgpu"], by[""] - equal
        share = f"{100 * caught / (caught + lost):.1f}" if caught + lost else "-"
        there = sum(facts["there"].values()) if rule == "all" else facts["there"].get(rule, 0)
        counts = [there, len(mine), by["none"], by["host"], by["simgpu"], equal, lost]
        cells = [rule, RULES.get(rule, ""), *counts, share]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Survivors", ""]
    for verdict in survivors:
        mutant = verdict.mutant
        proof = proof_of(mutant, known)
        ending = f"Equivalent: {proof}" if proof else "**Open.**"
        place = f"{mutant.file}, {mutant.scope}, {mutant.rule}"
        lines.append(f"- {place}: `{mutant.text}`: `{mutant.change}`. {ending}")
    return "\n".join([*lines, "" if survivors else "None.\n"])


def _notes(verdicts: list[Verdict], facts: Mapping[str, Any]) -> Iterator[str]:
    """What the percentages are to be read with."""
    if "caught_first" in facts:
        counted = sum(v.by != "none" and not (not v.by and proof_of(v.mutant, proofs())) for v in verdicts)
        share = 100 * facts["caught_first"] / counted
        yield (
            f"At first {facts['caught_first']} of them were caught, {share:.1f} %; tests were added, and the "
            "survivors tried again: of mutants drawn anew fewer may be caught than the table says."
        )
        yield ""
    if facts.get("left_out"):
        yield f"Left out, since their tests failed without any change: {', '.join(facts['left_out'])}."
        yield ""


def baseline(workshop: Workshop, mutants: list[Mutant]) -> list[str]:
    """Files whose tests fail without any change: nothing can be said of their mutants."""
    passed: dict[tuple[str, ...], bool] = {}
    bad = []
    for file in dict.fromkeys(m.file for m in mutants):
        for where, arguments in workshop.commands(file):
            key = (where, *arguments)
            if key not in passed:
                code, said = workshop.run(where, arguments)
                passed[key] = code == 0
                if code:
                    print(f"fails unchanged: {' '.join(key)}\n{said[-1500:]}", file=sys.stderr, flush=True)
            if not passed[key]:
                bad.append(file)
    return bad


def try_all(mutants: list[Mutant], jobs: int, log: Path | None) -> list[Verdict]:
    with tempfile.TemporaryDirectory() as name:
        shops = [Workshop(Path(name) / str(index)) for index in range(jobs)]
        bad = baseline(shops[0], mutants)
        good = [m for m in mutants if m.file not in bad]
        if bad:
            print(f"left out, their tests fail unchanged: {', '.join(sorted(set(bad)))}", file=sys.stderr)

        def work(index: int) -> list[Verdict]:
            verdicts = []
            for mutant in good[index::jobs]:
                begun = time.monotonic()
                verdict = shops[index].judge(mutant)
                verdicts.append(verdict)
                print(f"{verdict.by or 'SURVIVED':8} {time.monotonic() - begun:5.1f} s {mutant}", flush=True)
                if log:
                    with log.open("a") as file:
                        print(json.dumps(asdict(verdict)), file=file)
            return verdicts

        with ThreadPoolExecutor(jobs) as pool:
            found = [verdict for part in pool.map(work, range(jobs)) for verdict in part]
    order = {m: index for index, m in enumerate(mutants)}
    return sorted(found, key=lambda v: order[v.mutant])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--each", type=int, default=30, metavar="N", help="of a rule; 0: all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies at a time (%(default)s)")
    parser.add_argument("--only", metavar="WORDS", help="mutants whose description has these words; no table")
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keeps what comes of each mutant")
    parser.add_argument("--again", type=Path, metavar="FILE", help="tries the survivors of such a log")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="the table from such a log")
    options = parser.parse_args()
    if options.source:
        return from_log(options.source)
    every = all_mutants(ROOT)
    if options.again:
        return again(options.again, every, options.jobs)
    chosen = [m for m in every if options.only in str(m)] if options.only else every
    chosen = sample(chosen, options.each, options.seed)
    if options.list:
        for mutant in chosen:
            print(mutant, *tests_of(ROOT, mutant.file))
        print(Counter(m.rule for m in every))
        return 0
    begun = time.monotonic()
    verdicts = try_all(chosen, options.jobs, options.log)
    facts = {
        "command": f"python tools/mutants.py --each {options.each} --seed {options.seed}",
        "date": datetime.date.today().isoformat(),
        "seconds": time.monotonic() - begun,
        "there": Counter(m.rule for m in every),
        "left_out": sorted({m.file for m in chosen} - {v.mutant.file for v in verdicts}),
    }
    if options.log:
        with options.log.open("a") as file:
            print(json.dumps(facts), file=file)
    if options.only:
        print(table(verdicts, facts))
    else:
        TABLE.write_text(table(verdicts, facts))
    return 0


def from_log(path: Path) -> int:
    """The table, with the proofs that there are now."""
    TABLE.write_text(table(*read_log(path)))
    return 0


def read_log(path: Path) -> tuple[list[Verdict], dict[str, Any]]:
    *kept, facts = (json.loads(line) for line in path.read_text().splitlines())
    return [Verdict(**{**one, "mutant": Mutant(**one["mutant"])}) for one in kept], facts


def again(path: Path, every: list[Mutant], jobs: int) -> int:
    """Survivors tried on the tree as it is now; a line that is no more keeps its verdict."""
    verdicts, facts = read_log(path)
    survivors = {identity(v.mutant) for v in verdicts if not v.by and not proof_of(v.mutant, proofs())}
    chosen = {identity(m): m for m in every if identity(m) in survivors}
    facts.setdefault("caught_first", sum(v.by in ("host", "simgpu") for v in verdicts))
    fresh = {identity(v.mutant): v for v in try_all(list(chosen.values()), jobs, None)}
    verdicts = [v if v.by else fresh.get(identity(v.mutant), v) for v in verdicts]
    lines = [json.dumps(asdict(v)) for v in verdicts]
    path.write_text("\n".join([*lines, json.dumps(facts)]) + "\n")
    return from_log(path)


if __name__ == "__main__":
    raise SystemExit(main())
