"""Mutants tried one at a time in a private copy of the tree: tools/mutants.py.

The tests of the operators that use the changed file run on the host device first; what passes there runs once
more on the simulated GPU. Device code runs there alone. A change that doesn't compile is none.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path

from minicnn import cache
from tools.mutant_rules import SCOPE, Mutant, all_mutants, sample

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("minicnn", "cuda", "tests", "tools", "models", "pyproject.toml")
SECONDS = 90  # a test that takes longer hangs: an endless loop, which is noticed
NO_VARIANT = 2  # tools/own_kernels.py: nobody launches a kernel of this file
SLOWDOWN = 4  # but a test may take so many times what it takes unchanged: other work on the machine
FILES_OF_A_HEADER = 8  # test files that are tried for a header which many kernels include
UNCHANGED_FAILS = "its tests fail without any change"
PYTEST = ("-m", "pytest", "-xq", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
DEVICE_TESTS = (
    ("tools/cuda_contract.py", "--operators", "Relu"),
    (*PYTEST, "tests/test_cuda_device.py"),
    (*PYTEST, "tests/test_cuda.py", "-k", "not contract and not network and not profiler and not lowered"),
    (*PYTEST, "tests/test_doctor.py"),
)
Command = tuple[str, tuple[str, ...]]  # "host" or "simgpu", arguments of Python


# --- which tests


@once
def tests_of(root: Path, file: str, function: str = "") -> tuple[str, ...]:
    """Test files of the operators that use this file, through whichever modules.

    function  of the file: only tests of what calls it, a kernel by its name, a header's also through others
    """
    if file.startswith("tests/simgpu/"):
        return ("tests/test_sim_kernels.py", "tests/test_sim_faults.py", "tests/test_simgpu.py")
    if file.endswith(".cuh"):
        found = [test for kernel in _kernels_of(root, file, function) for test in tests_of(root, kernel)]
        return tuple(dict.fromkeys(found))[:FILES_OF_A_HEADER]
    modules = {p: p.read_text() for p in [*root.glob("minicnn/ops/*.py"), *root.glob("minicnn/*.py")]}
    if file.endswith(".cu"):
        stem = Path(file).stem
        reached = {p for p, text in modules.items() if re.search(rf"[\"']{stem}(\.cu)?[\"']", text)}
        if function:
            naming = {p for p, text in modules.items() if re.search(rf"[\"']{function}[\"']", text)}
            reached = reached & naming or reached
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
    return tuple(dict.fromkeys(takers))


def _operators(root: Path) -> list[Path]:
    """And the modules that several of them share."""
    shared = (root / f"minicnn/{name}.py" for name in ("pooling", "normalization", "reduction", "product"))
    return [*root.glob("minicnn/ops/*.py"), *(path for path in shared if path.is_file())]


def _kernels_of(root: Path, header: str, function: str) -> list[str]:
    """Kernel files that include the header and name the function, or one of a header that names it."""
    texts = {p.name: p.read_text() for p in sorted((root / "cuda").glob("*.cu*"))}
    headers, names = {Path(header).name}, {function} - {""}
    while True:
        more = {n for n, text in texts.items() if n.endswith(".cuh") and _includes(text, headers)} - headers
        calls = {caller for n in headers | more for caller in _callers(texts[n], names)} - names
        if not more and not calls:
            break
        headers, names = headers | more, names | calls
    kernels = [n for n, text in texts.items() if n.endswith(".cu") and _includes(text, headers)]
    naming = [n for n in kernels if any(re.search(rf"\b{name}\b", texts[n]) for name in names)]
    return [f"cuda/{n}" for n in naming or kernels]


def _includes(text: str, headers: Iterable[str]) -> bool:
    return any(f'"{name}"' in text for name in headers)


def _callers(text: str, names: Iterable[str]) -> set[str]:
    """Functions of a source file whose body names one of `names`."""
    places = list(SCOPE.finditer(text))
    ends = [p.start() for p in places[1:]] + [len(text)]
    pattern = re.compile("|".join(rf"\b{name}\b" for name in names) or "(?!)")
    return {
        next(filter(None, place.groups()))
        for place, end in zip(places, ends, strict=False)
        if pattern.search(text, place.end(), end)
    }


# --- running


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`by`: "host", "simgpu", "" where nobody noticed, "none" where it didn't compile or has no test."""

    mutant: Mutant
    by: str
    said: str = ""


class Workshop:
    """A private copy of the tree in which one mutant at a time is tried.

    source        another workshop to be like, where the tree itself may have changed since
    kernel_check  `kernel check` judges, in the place of the tests
    """

    def __init__(self, folder: Path, source: Workshop | None = None, *, kernel_check: bool = False):
        self.kernel_check: bool = source.kernel_check if source else kernel_check
        tree = source.root if source else ROOT
        builds = source.builds if source else cache.wanted_folder()
        self.root: Path = folder / "tree"
        self.builds: Path = folder / "cache"
        self.root.mkdir(parents=True)
        for name in COPIED:
            if (tree / name).is_dir():
                no_builds = shutil.ignore_patterns("__pycache__", "prebuilt")
                shutil.copytree(tree / name, self.root / name, ignore=no_builds)
            else:
                shutil.copy(tree / name, self.root)
        # What is built here must not reach the user's cache, whose half-written files are of no use here.
        unfinished = shutil.ignore_patterns("wheels", ".*")
        shutil.copytree(builds, self.builds, ignore=unfinished)
        self.environment = os.environ | {"MINICNN_CACHE": str(self.builds), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)
        self._unchanged: dict[Command, tuple[bool, float]] = source._unchanged if source else {}

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
        commands = self.commands(mutant)
        if not commands:
            return Verdict(mutant=mutant, by="none", said="no test takes this file")
        for command in commands:
            code, said = self._changed(mutant, command, SECONDS)
            if not code or (code == NO_VARIANT and self.kernel_check and len(commands) > 1):
                continue
            if re.search(r"the kernel doesn't compile|did not compile|SyntaxError", said):
                return Verdict(mutant=mutant, by="none", said="doesn't compile")
            passes, seconds = self._of_unchanged(command)
            if not passes:
                return Verdict(mutant=mutant, by="none", said=UNCHANGED_FAILS)
            if code == 124 and seconds * SLOWDOWN > SECONDS:
                code, said = self._changed(mutant, command, seconds * SLOWDOWN)
            if code:
                return Verdict(mutant=mutant, by=command[0], said=said[-600:])
        return Verdict(mutant=mutant, by="")

    def _changed(self, mutant: Mutant, command: Command, seconds: float) -> tuple[int, str]:
        path = self.root / mutant.file
        original = path.read_text()
        found = " ".join(original[mutant.start : mutant.end].split())
        assert found == mutant.before, f"{mutant} isn't of this tree: {found}"
        path.write_text(original[: mutant.start] + mutant.after + original[mutant.end :])
        try:
            return self.run(command, seconds)
        finally:
            path.write_text(original)

    def _of_unchanged(self, command: Command) -> tuple[bool, float]:
        """Whether a command passes, and the seconds it takes: asked only where a mutant made it fail."""
        if command not in self._unchanged:
            begun = time.monotonic()
            code, said = self.run(command, SECONDS * SLOWDOWN)
            self._unchanged[command] = code == 0, time.monotonic() - begun
            if code:
                print(f"fails unchanged: {command}\n{said[-1500:]}", file=sys.stderr, flush=True)
        return self._unchanged[command]

    def commands(self, mutant: Mutant) -> list[Command]:
        """Where and what to run, until one fails."""
        file = mutant.file
        if self.kernel_check:
            kernels = _kernels_of(self.root, file, mutant.scope) if file.endswith(".cuh") else [file]
            return [("host", ("tools/own_kernels.py", Path(kernel).name)) for kernel in kernels]
        if file == "tools/cuda_contract.cu" or file.startswith("minicnn/device/"):
            return [("simgpu", arguments) for arguments in DEVICE_TESTS]
        tests = tests_of(self.root, file, mutant.scope if file.startswith("cuda/") else "")
        on_host: list[Command] = [("host", (*PYTEST, test)) for test in tests]
        if file.startswith("tests/simgpu/"):
            return on_host
        takers = [test for test in tests if "harness.grid" in (self.root / test).read_text()]
        return on_host + [("simgpu", (*PYTEST, "--device", "cuda", test)) for test in takers]

    def run(self, command: Command, seconds: float) -> tuple[int, str]:
        where, arguments = command
        environment = self.environment
        if where == "simgpu":
            environment = environment | {"LD_LIBRARY_PATH": self.driver(), "SIMGPU_DEVICES": "2"}
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what a test has started
            process.communicate()
            return 124, "no end"
        return process.returncode, said


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which mutants to try: of those that say `only`, at most `each` of a rule (0: all), drawn with the seed.

    named         instead: by Mutant.identity
    kernel_check  those in kernels alone, judged by `kernel check`
    """

    each: int = 0
    seed: int = 0
    only: str = ""
    named: frozenset[tuple[str, ...]] = frozenset()
    kernel_check: bool = False

    def of(self, every: list[Mutant]) -> list[Mutant]:
        if self.named:
            return [m for m in every if m.identity in self.named]
        mutants = [m for m in every if m.file.startswith("cuda/")] if self.kernel_check else every
        return sample([m for m in mutants if self.only in str(m)], self.each, self.seed)


def try_all(choice: Choice, jobs: int, log: Path | None) -> tuple[list[Mutant], list[Verdict]]:
    """All mutants that there are in the tree as it is now, and what came of the chosen ones."""
    with tempfile.TemporaryDirectory() as name:
        first = Workshop(Path(name) / "0", kernel_check=choice.kernel_check)
        every = all_mutants(first.root)
        mutants = choice.of(every)
        shops = [first, *(Workshop(Path(name) / str(index), first) for index in range(1, jobs))]
        rest = iter(mutants)

        def work(shop: Workshop) -> list[Verdict]:
            verdicts = []
            for mutant in rest:
                begun = time.monotonic()
                verdict = shop.judge(mutant)
                verdicts.append(verdict)
                word = verdict.by or "SURVIVED"
                print(f"{word:8} {time.monotonic() - begun:5.1f} s {mutant}", flush=True)
                if log:
                    with log.open("a") as file:
                        print(json.dumps(asdict(verdict)), file=file)
            return verdicts

        with ThreadPoolExecutor(jobs) as pool:
            found = [verdict for part in pool.map(work, shops) for verdict in part]
    order = {m: index for index, m in enumerate(mutants)}
    return every, sorted(found, key=lambda v: order[v.mutant])
