"""Small faults put into kernels and device code by rule, to see whether the tests notice: docs/mutants.md.

    python tools/mutants.py                         a seeded sample, the table
    python tools/mutants.py --each 0                every mutant of every rule (hours)
    python tools/mutants.py --only cuda/pad.cu      those of one file, the table left alone
    python tools/mutants.py --from FILE             the table anew from what --log FILE kept

Each mutant is one change in a private copy of the tree. The tests of the operators that use the file run on
the host device first; what passes there runs once more on the simulated GPU. Device code runs there alone. A
change that doesn't compile is none. A survivor is equivalent, with a proof in tools/mutants_equivalent.json,
or open.

Not here  changes of two places; the simulator, which has tests of its own
"""

from __future__ import annotations

import argparse
import ast
import bisect
import datetime
import json
import os
import platform
import random
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

from minicnn import cache, kernels  # noqa: E402
from minicnn.errors import MinicnnError  # noqa: E402

PROOFS = Path(__file__).with_name("mutants_equivalent.json")
TABLE = ROOT / "docs" / "mutants.md"
COPIED = ("minicnn", "cuda", "tests", "tools", "models", "pyproject.toml")
SECONDS = 90  # a test that takes longer hangs: an endless loop, which is noticed
FILES_OF_A_HEADER = 5  # test files that are tried for a header which many kernels include

RULES = {
    "barrier": "a barrier of a block or warp left out, or the first step of a warp's exchange",
    "copy wait": "a wait for asynchronous copies (cp.async) left out",
    "stream wait": "a synchronisation, an event's record or the choice of the GPU left out",
    "bound": "one comparison of a bounds check taken for granted; a refusal left out",
    "swap": "two neighbouring arguments of a launch, of one type, exchanged",
    "pad": "a pad one too large",
    "stride": "a stride one too large",
    "tail": "the last one left out or one too many: loops, bounds, rounded-up divisions",
}

KERNELS = ("cuda/*.cu", "cuda/*.cuh", "tools/cuda_contract.cu")
# Few kernels wait for others or for copies: those of the simulator's tests do, so two rules go over them too.
# Kernels that exist to be wrong aren't made more so.
WAITING_KERNELS = ("tests/simgpu/kernels/*.cu",)
LEFT_OUT = ("tests/simgpu/kernels/faults.cu",)
LAUNCHES = ("minicnn/ops/*.py", "minicnn/*.py")
DEVICE_CODE = ("minicnn/device/cuda*.py",)
DEVICE_TESTS = (
    ["tools/cuda_contract.py", "--operators", "Relu"],
    ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "tests/test_cuda.py", "-k", "not contract"],
    ["-m", "pytest", "-xq", "-p", "no:cacheprovider", "tests/test_doctor.py"],
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SIGNATURE = re.compile(r"^KERNEL\(\w+\)\s*\([^)]*\)|^[\w_ <>:*&]+\w\([^;{}]*\)\s*\{", re.MULTILINE)
_BARRIER = re.compile(r"__sync(?:threads|warp)\([^)]*\);|asm volatile\(\"(?:bar|barrier)\.sync[^;]*;")
_EXCHANGE = re.compile(r"\bdistance = 16\b")
_COPY_WAIT = re.compile(
    r"asm volatile\(\"cp\.async\.wait_[^;]*;\"[^;]*;|\bcp_async_wait\w*(?:<\d+>)?\([^)]*\);"
)
_IF = re.compile(r"\bif \(")
_FOR = re.compile(r"\bfor \([^;()]*;\s*(\w+ < [^;]+);")
_COMPARISON = re.compile(r"\s*[\w.\[\]]+(?: [+*-] \w+)* (<|>=|>|<=) [\w .+*/()-]+\s*")
_PAD = re.compile(r"\bpad_\w+\b")
_STRIDE = re.compile(r"\b\w*stride\w*\b|\b[xy]_step\b|\b[xyab][0-3]\b")
_WAITS = re.compile(r"synchronize|event_record|\._select\(\)|\.sync\(\)|\._land\(|set_context")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`file` with the text from `start` to `end` replaced by `after`."""

    file: str
    rule: str
    start: int
    end: int
    line: int
    before: str
    after: str
    text: str  # the whole line as it was, to know the mutant again when lines have moved

    @property
    def change(self) -> str:
        return f"{self.before} -> {' '.join(self.after.split())}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, {self.rule}: {self.change}"


class Source:
    """A file's text, and mutants of it by place."""

    def __init__(self, root: Path, path: Path):
        self.file = str(path.relative_to(root))
        self.text = path.read_text()
        self.starts = [0, *(m.end() for m in re.finditer("\n", self.text))]

    def mutant(self, rule: str, start: int, end: int, after: str) -> Mutant:
        line = bisect.bisect_right(self.starts, start)
        whole = self.text[self.starts[line - 1] :].partition("\n")[0].strip()
        return Mutant(
            file=self.file,
            rule=rule,
            start=start,
            end=end,
            line=line,
            before=" ".join(self.text[start:end].split()),
            after=after,
            text=whole,
        )

    def offset(self, line: int, column: int) -> int:
        """Of ast's place: columns count UTF-8 bytes."""
        start = self.starts[line - 1]
        encoded = self.text[start:].partition("\n")[0].encode()
        return start + len(encoded[:column].decode())


# --- rules for kernels


def of_waits(source: Source) -> Iterator[Mutant]:
    """Barriers and waits of a .cu or .cuh file."""
    bare = _without_comments(source)
    for rule, pattern in (("barrier", _BARRIER), ("copy wait", _COPY_WAIT)):
        for found in pattern.finditer(bare):
            yield source.mutant(rule, found.start(), found.end(), ";")


def of_kernel(source: Source) -> Iterator[Mutant]:
    """Barriers, waits, bounds, pads, strides, tails of a .cu or .cuh file."""
    yield from of_waits(source)
    bare = _without_comments(source)
    for found in _EXCHANGE.finditer(bare):
        yield source.mutant("barrier", found.start(), found.end(), "distance = 8")
    for found in _IF.finditer(bare):
        yield from _of_condition(source, bare, found.end())
    for found in _FOR.finditer(bare):
        name, _, limit = found[1].partition(" < ")
        yield source.mutant("tail", found.start(1), found.end(1), f"{name} + 1 < {limit}")
    body = _SIGNATURE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), bare)
    for rule, pattern in (("pad", _PAD), ("stride", _STRIDE)):
        for found in pattern.finditer(body):
            before, behind = body[: found.start()], body[found.end() :]
            is_declared = re.search(r"(\bint|\bfloat|#\w+[^\n]*)\s*[*&]?$", before)
            if not is_declared and not re.match(r"\s*=[^=]|\(", behind):
                yield source.mutant(rule, found.start(), found.end(), f"({found.group()} + 1)")


def _without_comments(source: Source) -> str:
    """The text with blanks for comments, so that places stay."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source.text)


def _of_condition(source: Source, bare: str, start: int) -> Iterator[Mutant]:
    """Each comparison of an `if`: without effect, and off by one."""
    end = _closing(bare, start)
    leaves = re.match(r"\s*(return|continue|break)", bare[end + 1 :]) is not None
    place = start
    for part in re.split(r"(\|\||&&)", bare[start:end]):
        found = _COMPARISON.fullmatch(part)
        if found:
            inner = place + len(part) - len(part.lstrip())
            outer = place + len(part.rstrip())
            is_one_of_many = "||" in bare[start:end] or leaves
            yield source.mutant("bound", inner, outer, "false" if is_one_of_many else "true")
            other = {"<": "<=", "<=": "<", ">=": ">", ">": ">="}[found[1]]
            yield source.mutant("tail", place + found.start(1), place + found.end(1), other)
        place += len(part)


def _closing(text: str, start: int) -> int:
    """Where the bracket that was opened before `start` closes."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text)


# --- rules for Python


def of_launches(source: Source) -> Iterator[Mutant]:
    """Exchanged arguments, pads and strides one too large, divisions rounded down."""
    types = parameter_types()
    for node in ast.walk(ast.parse(source.text)):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(k.arg, k.value) for k in node.keywords if k.arg]
            if isinstance(node.func, ast.Name) and node.func.id == "ceil_div":
                above, below = (_segment(source, a) for a in node.args)
                yield source.mutant("tail", *_span(source, node), f"(({above}) // ({below}))")
        elif isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            pairs = [(str(k.value), value) for k, value in keys if isinstance(k, ast.Constant)]
        known = [(name, value) for name, value in pairs if name in types]
        if len(known) < 3:
            continue  # no launch's arguments
        for (name, value), (other, second) in zip(known, known[1:], strict=False):
            left, right = _segment(source, value), _segment(source, second)
            if types[name] == types[other] and left != right:
                start, end = _span(source, value)[0], _span(source, second)[1]
                between = source.text[_span(source, value)[1] : _span(source, second)[0]]
                yield source.mutant("swap", start, end, right + between + left)
        for name, value in known:
            rule = "pad" if _PAD.fullmatch(name) else "stride" if _STRIDE.fullmatch(name) else ""
            if rule:
                yield source.mutant(rule, *_span(source, value), f"({_segment(source, value)}) + 1")


def of_device(source: Source) -> Iterator[Mutant]:
    """Waits and refusals left out."""
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _WAITS.search(_segment(source, node)):
                yield source.mutant("stream wait", *_span(source, node), "pass")
        elif isinstance(node, ast.If) and any(isinstance(child, ast.Raise) for child in node.body):
            yield source.mutant("bound", *_span(source, node.test), "False")


def _span(source: Source, node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return source.offset(node.lineno, node.col_offset), source.offset(node.end_lineno, node.end_col_offset)


def _segment(source: Source, node: ast.expr | ast.stmt) -> str:
    start, end = _span(source, node)
    return source.text[start:end]


@once
def parameter_types() -> dict[str, str]:
    """Name -> type code, for parameters that have one type in all kernels."""
    found: dict[str, set[str]] = {}
    for path in sorted(kernels.source_folder().glob("*.cu")):
        try:
            entries = kernels.entries(path.name)
        except MinicnnError:
            continue
        for parameters in entries.values():
            for parameter in parameters:
                found.setdefault(parameter.name, set()).add(parameter.code)
    return {name: codes.pop() for name, codes in found.items() if len(codes) == 1}


def all_mutants(root: Path) -> list[Mutant]:
    found: list[Mutant] = []
    places = (
        (KERNELS, of_kernel),
        (WAITING_KERNELS, of_waits),
        (LAUNCHES, of_launches),
        (DEVICE_CODE, of_device),
    )
    for patterns, rules in places:
        for path in [p for pattern in patterns for p in sorted(root.glob(pattern))]:
            if str(path.relative_to(root)) not in LEFT_OUT:
                found += rules(Source(root, path))
    return found


def sample(mutants: list[Mutant], each: int, seed: int) -> list[Mutant]:
    """At most `each` of every rule (0: all), drawn with the seed."""
    chosen: list[Mutant] = []
    for rule in RULES:
        of_rule = [m for m in mutants if m.rule == rule]
        draw = random.Random(f"{seed} {rule}")
        drawn = draw.sample(of_rule, min(each or len(of_rule), len(of_rule)))
        chosen += sorted(drawn, key=lambda m: (m.file, m.start))
    return chosen


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
        return on_host + [("simgpu", [*pytest, "--device", "cuda", test]) for test in tests]

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
        if (one["file"], one["rule"], one["line"]) == (mutant.file, mutant.rule, mutant.text):
            if one["change"] in ("any", mutant.change):
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
        lines.append(f"- {mutant.file}, {mutant.rule}: `{mutant.text}`: `{mutant.change}`. {ending}")
    return "\n".join([*lines, "" if survivors else "None.\n"])


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
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="the table from such a log")
    options = parser.parse_args()
    if options.source:
        return from_log(options.source)
    every = all_mutants(ROOT)
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
    *kept, facts = (json.loads(line) for line in path.read_text().splitlines())
    verdicts = [Verdict(**{**one, "mutant": Mutant(**one["mutant"])}) for one in kept]
    TABLE.write_text(table(verdicts, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
