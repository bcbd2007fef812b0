"""`kernel check` alone on minicnn's own kernels: would it have noticed? For tools/mutants.py --kernel-check.

    python tools/own_kernels.py relu.cu          every variant that launches a kernel of this file

Each variant is brought in as a user's file would be, under the name own_NAME. Exit code 0: right everywhere;
1: wrong somewhere; 2: no variant launches a kernel of this file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from minicnn.kernels import included_files  # noqa: E402
from minicnn.lab import runner  # noqa: E402
from minicnn.lab.arrangements import arrangements, lay_out  # noqa: E402
from minicnn.lab.checking import arrays_of, cases, problem_of_case, refusal  # noqa: E402
from minicnn.registry import Orders, Packing, Problem, Variant, table, variants_of  # noqa: E402
from minicnn.step import Launch, Step  # noqa: E402

USERS_FILE = """
import sys
sys.path.insert(0, {root!r})
from minicnn.lab import variant
from tools.own_kernels import Own

@variant({op!r})
class Mine(Own):
    name = {own!r}
    op = {op!r}
    inner = {name!r}
    may_overwrite = {may_overwrite!r}
    devices = {devices!r}
"""


class Own(Variant):
    """Says what a built-in variant says, under another name."""

    op = ""
    inner = ""
    dtypes = None

    def applies(self, problem: Problem) -> str:
        found = [v for v in problem.operator.variants() if v.name == self.inner]
        return refusal(found[0], problem) if found else "this operator hasn't got it"

    def spread(self, errors: np.ndarray) -> np.ndarray:
        instances = (v for case in cases(self.op).values() for v in case.operator.variants())
        return next(v for v in instances if v.name == self.inner).spread(errors)

    def bound(self, operator: Any, *arrays: np.ndarray | None) -> Any:
        found: Variant = next(v for v in operator.variants() if v.name == self.inner)
        return found.bound(operator, *arrays)

    def orders(self, problem: Problem) -> Orders:
        return self._of(problem).orders(problem)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        return self._of(problem).packings(problem)

    def workspace_bytes(self, problem: Problem) -> int:
        return self._of(problem).workspace_bytes(problem)

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        return self._of(problem).tables(problem)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        return self._of(problem).steps(problem)

    def _of(self, problem: Problem) -> Variant:
        found: Variant = next(v for v in problem.operator.variants() if v.name == self.inner)
        return found


def users_of(file: str) -> Iterator[tuple[str, Variant]]:
    """(operator, variant) of those that launch a kernel of this file, each once."""
    for domain, op in table():
        done = set()
        for case in cases(op).values() if not domain else ():
            arrays = arrays_of(case)
            problem = problem_of_case(case, arrays)
            for variant in variants_of(case.operator):
                if variant.name in done or variant.is_view or refusal(variant, problem):
                    continue
                laid_out, _ = lay_out(variant, problem, next(arrangements(problem, variant)), arrays)
                launched = {s.kernel.file for s in variant.steps(laid_out) if isinstance(s, Launch)}
                if any(path.name == file for kernel in launched for path in included_files(kernel)):
                    done.add(variant.name)
                    yield op, variant


def main() -> int:
    users = list(users_of(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.py"
        for op, variant in users:
            own = f"own_{variant.name}"
            facts = {"may_overwrite": variant.may_overwrite, "devices": variant.devices}
            path.write_text(USERS_FILE.format(root=str(ROOT), op=op, own=own, name=variant.name, **facts))
            for trial in runner.trials():
                for outcome in runner.check(path, own, trial):
                    if outcome.state == "wrong":
                        print(f"{op}, {variant.name}, {trial.name}, case '{outcome.case}': {outcome.text}")
                        return 1
                print(f"{op}, {variant.name}, {trial.name}: right", flush=True)
    return 0 if users else 2


if __name__ == "__main__":
    sys.exit(main())
