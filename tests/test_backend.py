"""ONNX's backend suite through onnx's own runner: every case is native, or there is a reason why not.

Some 2,000 cases in half a minute; what becomes of a single one: python tests/backend.py NAME
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

import backend
from minicnn import registry

OTHER_TYPE = re.compile(r" is \w+, not \w+|to type \d+, none of")  # how kernels refuse a type


def test_every_case_is_native_or_expected_not_to_be() -> None:
    found = list(backend.outcomes())
    assert len(found) > 1000
    used: set[tuple[str, str]] = set()
    surprises = [str(outcome) for outcome in found if not is_expected(outcome, used)]
    lines = {(status, key) for status, keys in backend.expected().items() for key in keys}
    assert not surprises, "\n".join(surprises)
    assert used == lines, f"tests/backend.toml has lines that nothing needs: {lines - used}"


def is_expected(outcome: backend.Outcome, used: set[tuple[str, str]]) -> bool:
    """Whether the case is native or explained; the lines that explain it are added to `used`."""
    if outcome.status in (backend.NATIVE, backend.CONSTANTS):
        return True
    if outcome.status == backend.FALLBACK and all(explains_itself(op, why) for op, why in outcome.blamed):
        return True
    found = backend.explanations(outcome)
    used.update((outcome.status, key) for key in found)
    return bool(found)


def explains_itself(op: str, reason: str) -> bool:
    """A layer fell back for want of a kernel, or because the kernels are for another type."""
    return ("", op) not in registry.table() or bool(OTHER_TYPE.search(reason))


def outcome(status: str, *blamed: tuple[str, str]) -> backend.Outcome:
    return backend.Outcome(
        name="test_relu", kind="node", op="Relu", opset=14, dtypes=("float32",), status=status, blamed=blamed
    )


@pytest.mark.parametrize(
    "status, blamed, expected",
    [
        (backend.NATIVE, [], True),
        (backend.FALLBACK, [("Relu", "direct: x is float64, not float32")], True),
        (backend.FALLBACK, [("LSTM", "no kernel of ours for this operator")], True),
        (backend.FALLBACK, [("Relu", "too wide")], False),
        (backend.FALLBACK, [("LSTM", "no kernel of ours for this operator"), ("Relu", "too wide")], False),
        (backend.REFUSED, [], False),
        (backend.FAILED, [], False),
    ],
)
def test_surprises_are_seen(status: str, blamed: Iterable[tuple[str, str]], expected: bool) -> None:
    assert is_expected(outcome(status, *blamed), set()) == expected


def test_a_wrong_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's comparison really happens, for the case as it is and with constants."""
    right = backend.minicnn.Model.plan

    class Wrong:
        def __init__(self, engine: backend.minicnn.Engine):
            self.engine = engine
            self.layers = engine.layers

        def __enter__(self) -> Wrong:
            return self

        def __exit__(self, *_: object) -> None:
            self.engine.close()

        def run(self, x: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: y + 1 for name, y in self.engine.run(x).items()}

    monkeypatch.setattr(backend.minicnn.Model, "plan", lambda self, **options: Wrong(right(self, **options)))
    for name in ("test_relu", "test_unsqueeze_axis_0"):
        assert backend.outcome(backend.cases()[name]).status == backend.FAILED
