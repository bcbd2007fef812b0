"""docs/operators.md: what runs natively, what falls back, what is refused or fails, operator by operator.

    python tools/make_operator_table.py                  runs ONNX's backend suite, rewrites the page
    python tools/make_operator_table.py --onnxruntime    counts onnxruntime the same way, beside

What is generated stands between `<!-- operators -->` and `<!-- end -->`. A minute on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

import backend
from backend import CONSTANTS, FAILED, FALLBACK, NATIVE, REFUSED, STATUSES, Outcome
from tools.make_readme import fill

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
LONGEST_REASON = 150
# What convolutional networks are made of, quantised ones, detection tails and recurrent parts left out.
CNN_OPERATORS = frozenset(
    "Abs Add ArgMax AveragePool BatchNormalization Cast Ceil Celu Clip Concat Constant ConstantOfShape Conv "
    "ConvTranspose DepthToSpace Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather Gelu Gemm "
    "GlobalAveragePool GlobalMaxPool Greater GridSample GroupNormalization HardSigmoid HardSwish Identity "
    "InstanceNormalization LRN LayerNormalization LeakyRelu Less Log LogSoftmax LpNormalization LpPool "
    "MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mul Neg PRelu Pad Pow Reciprocal ReduceL2 "
    "ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize Selu Sigmoid Slice Softmax Softplus "
    "Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tanh ThresholdedRelu Tile Transpose Unsqueeze "
    "Upsample Where".split()
)


def is_of_cnn(outcome: Outcome) -> bool:
    """The node cases of those operators, functions written out into others left out."""
    return outcome.kind == "node" and outcome.op in CNN_OPERATORS and "_expanded" not in outcome.name


def counts(outcomes: Iterable[Outcome]) -> list[str]:
    """One cell for each status."""
    number = Counter(outcome.status for outcome in outcomes)
    return [str(number[status] or "") for status in STATUSES]


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    return [row(heads), row(["---"] * len(heads)), *map(row, rows)]


def groups(outcomes: Iterable[Outcome], key: Callable[[Outcome], Any]) -> dict[Any, list[Outcome]]:
    found: dict[Any, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(key(outcome), []).append(outcome)
    return dict(sorted(found.items()))


def reasons(outcomes: Iterable[Outcome]) -> str:
    """Why those that aren't native aren't, each reason once."""
    found = dict.fromkeys(short(outcome) for outcome in outcomes if outcome.status not in (NATIVE, CONSTANTS))
    text = "; ".join(found)
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3].rstrip()}..."


def short(outcome: Outcome) -> str:
    """Why in a few words: those of tests/backend.toml, or the layer's without the names that only it has."""
    for why in backend.explanations(outcome).values():
        return why
    if outcome.status == FALLBACK:
        if all(why == "no kernel of ours for this operator" for _, why in outcome.blamed):
            others = sorted({op for op, _ in outcome.blamed} - {outcome.op})
            return "no kernel of ours" + (f" for {', '.join(others)}" if others else "")
        types = sorted({dtype for dtype in outcome.dtypes if dtype != "float32"})
        if types and all(" is " in why and ", not " in why for _, why in outcome.blamed):
            return ", ".join(types)
    return outcome.reason.removeprefix("UnsupportedError: ").split("; file:")[0].split("; node:")[0]


def generated(outcomes: Sequence[Outcome], onnxruntime_fails: set[str] | None) -> str:
    """The part between the markers."""
    device = backend.host().info
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnx", "numpy"))
    heads = [NATIVE, "native once constant", FALLBACK, REFUSED, FAILED]
    lines = [
        f"`{' '.join(['python', 'tools/make_operator_table.py', *sys.argv[1:]])}` on "
        f"{datetime.date.today().isoformat()}: host device ({device.name}, {device.architecture}), "
        f"Python {platform.python_version()}, {packages}.",
        "",
        *table(
            ["cases", "all", *heads],
            [[kind, len(part), *counts(part)] for kind, part in groups(outcomes, family).items()],
        ),
        "",
        *summary([outcome for outcome in outcomes if is_of_cnn(outcome)], onnxruntime_fails),
        "",
        "## Failed",
        "",
        *table(
            ["case", "operator", "opset", "what happened"],
            ([o.name, o.op, o.opset, short(o)[:LONGEST_REASON]] for o in outcomes if o.status == FAILED),
        ),
        "",
        "## Operator by operator",
        "",
        "Node cases; those that write a function out into other operators count under the function's name.",
        "The opset is the first with the meaning that the cases test.",
        "",
    ]
    nodes = groups((o for o in outcomes if o.kind == "node"), lambda o: (o.op, o.opset))
    lines += table(
        ["operator", "opset", *heads, "why not native"],
        ([op, opset, *counts(part), reasons(part)] for (op, opset), part in nodes.items()),
    )
    return "\n".join(lines)


def family(outcome: Outcome) -> str:
    is_expanded = "_expanded" in outcome.name
    return f"{outcome.kind}, functions written out" if is_expanded else outcome.kind


def summary(of_cnn: Sequence[Outcome], onnxruntime_fails: set[str] | None) -> list[str]:
    """The operators of convolutional networks: ours, and if asked for onnxruntime's."""
    number = Counter(outcome.status for outcome in of_cnn)
    wrong = number[REFUSED] + number[FAILED]
    lines = [
        f"Of the {len(of_cnn)} node cases of {len(CNN_OPERATORS)} operators that convolutional networks are "
        f"made of, {number[NATIVE] + number[CONSTANTS]} run natively, {number[FALLBACK]} fall back, and "
        f"{wrong} don't run: {number[REFUSED]} refused, {number[FAILED]} failed."
    ]
    if onnxruntime_fails is not None:
        fails = [outcome for outcome in of_cnn if outcome.name in onnxruntime_fails]
        casts = sum(outcome.op == "Cast" for outcome in fails)
        lines.append(
            f"onnxruntime {version('onnxruntime')} doesn't run {len(fails)} of them, {casts} of those "
            "Cast (to and from types that its Python binding has no arrays for)."
        )
    listed = [f"{o.name} ({short(o)[:LONGEST_REASON]})" for o in of_cnn if o.status in (REFUSED, FAILED)]
    return [*lines, "", *(f"- {line}" for line in listed)]


def onnxruntime_failures() -> set[str]:
    """The node cases whose model onnxruntime refuses, or whose outputs come out different."""
    import onnxruntime
    from onnx import TensorProto, numpy_helper
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

    def array(value: Any) -> Any:
        if isinstance(value, TensorProto):
            return numpy_helper.to_array(value)
        return np.asarray(value) if isinstance(value, np.generic) else value

    onnxruntime.set_default_logger_severity(4)
    failures = set()
    for case in load_model_tests(kind="node"):
        assert case.model is not None and case.data_sets is not None
        try:
            session = onnxruntime.InferenceSession(
                case.model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            names = [value.name for value in session.get_inputs()]
            for inputs, expected in case.data_sets:
                outputs = session.run(None, dict(zip(names, map(array, inputs), strict=True)))
                Runner.assert_similar_outputs([array(e) for e in expected], outputs, case.rtol, case.atol)
        except Exception:  # its errors are of many types; what counts is that it has one
            failures.add(case.name)
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fill docs/operators.md from ONNX's backend suite.")
    parser.add_argument("--onnxruntime", action="store_true", help="count onnxruntime the same way")
    args = parser.parse_args(arguments)
    outcomes = list(backend.outcomes())
    failures = onnxruntime_failures() if args.onnxruntime else None
    PAGE.write_text(fill(PAGE.read_text(), "operators", generated(outcomes, failures)))
    print(f"{PAGE}: {len(outcomes)} cases, {dict(Counter(outcome.status for outcome in outcomes))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
