"""Operators on the CPU: minicnn against onnxruntime, one node at a time, grouped by family.

    python tools/bench_operators.py [--threads N] [--rounds N] [--families pooling,resampling]
                                    [--write docs/operators-speed.md]

Method    Models of one node each, of the size such a node has in networks; engines in turn, as in
          tools/bench.py. Of minicnn the node's own layers count, between their events; of onnxruntime the
          call. What minicnn pays for a call (a copy of the input and of the output, a conversion of layouts
          at both ends) is left out: in a network it isn't paid between layers.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import minicnn  # noqa: E402
from minicnn import stats  # noqa: E402
from tools import bench  # noqa: E402
from tools.make_readme import fill  # noqa: E402

OPSET = 18
WORTH_A_REASON = 5.0
WHY = f"why, above {WORTH_A_REASON:.0f}"
IMAGE = (1, 64, 56, 56)
WIDE = (1, 256, 56, 56)
TOKENS = (1, 196, 384)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One node: its first input is the network's, of shape `x`; `constants` are the others, in order."""

    op: str
    x: tuple[int, ...] = IMAGE
    constants: Sequence[np.ndarray | None] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{f', {self.label}' if self.label else ''}"


def _weights(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return values / np.float32(np.prod(shape[1:]) ** 0.5)


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


_SAME = {"pads": [1, 1, 1, 1]}
_PADS = _integers(0, 0, 3, 3, 0, 0, 3, 3)
_WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
_SIZES = np.array([1, 1, 2, 2], np.float32)
# Why an operator is slower than onnxruntime by more than WORTH_A_REASON, found by looking; by Sample.name.
REASONS = {
    "Max, a number a channel": "two choices an element in four forms of strides: GCC makes no vectors",
    "Tile": "word by word; onnxruntime copies whole blocks",
    "Expand": "word by word; onnxruntime copies whole blocks",
    "CumSum": "a thread a line, one addition after the other; onnxruntime adds rows",
}

FAMILIES: dict[str, tuple[Sample, ...]] = {
    "convolution": (
        Sample(op="Conv", constants=[_weights(64, 64, 3, 3)], attributes=_SAME, label="3x3"),
        Sample(op="Conv", x=WIDE, constants=[_weights(64, 256, 1, 1)], label="1x1"),
        Sample(
            op="Conv",
            constants=[_weights(64, 1, 3, 3)],
            attributes={"pads": [1, 1, 1, 1], "group": 64},
            label="depthwise",
        ),
        Sample(
            op="Conv",
            x=(1, 3, 224, 224),
            constants=[_weights(64, 3, 7, 7)],
            attributes={"pads": [3, 3, 3, 3], "strides": [2, 2]},
            label="7x7 of an image",
        ),
        Sample(
            op="Conv",
            constants=[_weights(64, 64, 3, 3)],
            attributes={"pads": [2, 2, 2, 2], "dilations": [2, 2]},
            label="dilated",
        ),
        Sample(op="Conv", x=(1, 64, 4096), constants=[_weights(64, 64, 9)], label="1-D"),
        Sample(op="Conv", x=(1, 16, 16, 32, 32), constants=[_weights(16, 16, 3, 3, 3)], label="3-D"),
        Sample(op="ConvTranspose", constants=[_weights(64, 32, 2, 2)], attributes={"strides": [2, 2]}),
    ),
    "products": (
        Sample(
            op="Gemm", x=(1, 2048), constants=[_weights(1000, 2048)], attributes={"transB": 1}, label="a row"
        ),
        Sample(op="MatMul", x=TOKENS, constants=[_weights(384, 384)]),
    ),
    "pooling": (
        Sample(op="MaxPool", attributes=_WINDOW),
        Sample(op="AveragePool", attributes=_WINDOW),
        Sample(op="LpPool", attributes=_WINDOW),
        Sample(op="GlobalAveragePool", x=WIDE),
        Sample(op="GlobalMaxPool", x=WIDE),
    ),
    "activations": tuple(
        Sample(op=op, x=WIDE)
        for op in (
            "Relu Sigmoid HardSigmoid HardSwish Tanh Elu Selu Celu LeakyRelu ThresholdedRelu Erf Mish"
            " Softplus Softsign"
        ).split()
    ),
    "elementwise": (
        *(Sample(op=op, x=WIDE) for op in "Abs Neg Exp Floor Ceil Reciprocal".split()),
        *(
            Sample(op=op, x=WIDE, constants=[_weights(1, 256, 1, 1)], label="a number a channel")
            for op in ("Add", "Sub", "Mul", "Max")
        ),
        Sample(op="PRelu", x=WIDE, constants=[_weights(256, 1, 1)]),
        Sample(op="Clip", x=WIDE, constants=[np.array(0, np.float32), np.array(6, np.float32)]),
    ),
    "normalisation": (
        Sample(op="BatchNormalization", x=WIDE, constants=[_ones(256)] * 4),
        Sample(op="InstanceNormalization", constants=[_ones(64)] * 2),
        Sample(op="LayerNormalization", x=TOKENS, constants=[_ones(384)] * 2),
        Sample(op="LRN", attributes={"size": 5}),
        Sample(op="LpNormalization", x=TOKENS),
        Sample(op="MeanVarianceNormalization"),
        Sample(op="Softmax", x=(1, 12, 196, 196)),
        Sample(op="LogSoftmax", x=(64, 1000)),
    ),
    "reductions": (
        Sample(op="ReduceMean", x=WIDE, constants=[_integers(2, 3)], label="of pixels"),
        Sample(op="ReduceMean", x=TOKENS, constants=[_integers(2)], label="of channels last"),
        Sample(op="ReduceMax", x=WIDE, constants=[_integers(1)], label="of channels"),
        Sample(op="ReduceL2", x=TOKENS, constants=[_integers(2)]),
        Sample(op="ArgMax", x=(1, 21, 128, 128), attributes={"axis": 1}),
        Sample(op="CumSum", x=TOKENS, constants=[np.array(1)]),
    ),
    "rearranging": (
        Sample(op="Transpose", attributes={"perm": [0, 2, 3, 1]}),
        Sample(op="Concat", constants=[_weights(*IMAGE)], attributes={"axis": 1}),
        Sample(op="Split", x=WIDE, attributes={"axis": 1, "num_outputs": 2}, outputs=2),
        Sample(op="Slice", x=WIDE, constants=[_integers(8), _integers(48), _integers(2)]),
        Sample(op="Pad", constants=[_PADS]),
        Sample(op="Pad", constants=[_PADS], attributes={"mode": "reflect"}, label="reflect"),
        Sample(op="Expand", x=(1, 256, 1, 1), constants=[_integers(1, 256, 56, 56)]),
        Sample(op="Tile", x=IMAGE, constants=[_integers(1, 1, 2, 2)]),
        Sample(op="Gather", x=TOKENS, constants=[np.arange(0, 196, 2)], attributes={"axis": 1}),
        Sample(op="DepthToSpace", attributes={"blocksize": 2}),
        Sample(op="SpaceToDepth", attributes={"blocksize": 2}),
        Sample(op="Cast", x=WIDE, attributes={"to": 10}, label="to float16"),
        Sample(op="Where", x=WIDE),
    ),
    "resampling": (
        Sample(op="Resize", constants=[None, _SIZES], label="nearest"),
        Sample(op="Resize", constants=[None, _SIZES], attributes={"mode": "linear"}, label="linear"),
        Sample(op="Resize", constants=[None, _SIZES], attributes={"mode": "cubic"}, label="cubic"),
        Sample(
            op="GridSample",
            constants=[np.random.default_rng(1).uniform(-1, 1, (1, 56, 56, 2)).astype(np.float32)],
        ),
    ),
}


def model(sample: Sample) -> Any:
    """The ONNX model of one node."""
    from onnx import TensorProto, helper, numpy_helper

    if sample.op == "Where":
        mask = np.random.default_rng(2).uniform(size=sample.x) < 0.5
        inputs, constants = ["mask", "x", "zero"], {"mask": mask, "zero": np.float32(0)}
    else:
        names = ["" if c is None else f"c{i}" for i, c in enumerate(sample.constants)]
        inputs = ["x", *names]
        constants = {n: c for n, c in zip(names, sample.constants, strict=True) if c is not None}
    outputs = [f"y{i}" for i in range(sample.outputs)]
    node = helper.make_node(sample.op, inputs, outputs, **sample.attributes)
    graph = helper.make_graph(
        [node],
        sample.op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sample.x)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Medians of both, and of the rounds' ratios."""

    family: str
    name: str
    variant: str
    ours_us: float
    theirs_us: float
    ratio: float


def compare(family: str, sample: Sample, folder: Path, threads: int, rounds: int) -> Result:
    """Raises    SystemExit: outputs differ"""
    import onnx

    path = folder / "model.onnx"
    onnx.save(model(sample), path)
    with minicnn.load(path).plan(device="host", threads=threads) as engine:
        x = {"x": np.random.default_rng(0).standard_normal(sample.x, dtype=np.float32)}
        session = bench.open_session(path, threads)
        agree(sample, list(engine.run(x).values()), session.run(None, x))
        own = np.array([layer.op != "Convert" for layer in engine.layers])

        def ours() -> float:
            return float(engine.timed_run(x, profiled=True)[1].layer_us[own].sum())

        def theirs() -> float:
            start = time.perf_counter()
            session.run(None, x)
            return 1e6 * (time.perf_counter() - start)

        pairs = [(turn(ours), turn(theirs)) for _ in range(rounds)]
        (layer, *_) = [layer for layer in engine.layers if layer.op != "Convert"]
    return Result(
        family=family,
        name=sample.name,
        variant="fallback" if layer.is_fallback else layer.variant,
        ours_us=stats.median([a for a, _ in pairs]),
        theirs_us=stats.median([b for _, b in pairs]),
        ratio=stats.median([a / b for a, b in pairs]),
    )


def turn(run: Callable[[], float]) -> float:
    """Median us of what fits into a turn, after a pause and a run that doesn't count."""
    time.sleep(bench.PAUSE_S)
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < bench.FEWEST_RUNS or time.perf_counter() - start < bench.TURN_S:
        times.append(run())
    return stats.median(times)


def agree(sample: Sample, found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> None:
    for y, expected in zip(found, exact, strict=True):
        difference = np.abs(y.astype(np.float64) - expected.astype(np.float64)).max()
        if not difference <= 1e-3 * np.abs(expected.astype(np.float64)).max():
            raise SystemExit(f"{sample.name}: outputs differ by {difference:.1e}")


def table(found: Sequence[Result]) -> list[str]:
    head = ["family", "operator", "variant", "minicnn, us", "onnxruntime, us", "ratio", WHY]
    lines = [bench.row(head), bench.row(["---"] * len(head))]
    for family in dict.fromkeys(result.family for result in found):
        own = [result for result in found if result.family == family]
        for r in own:
            reason = REASONS.get(r.name, "not known") if r.ratio > WORTH_A_REASON else ""
            times = [f"{r.ours_us:,.0f}", f"{r.theirs_us:,.0f}", f"{r.ratio:.2f}"]
            lines.append(bench.row([family, r.name, r.variant, *times, reason]))
        mean = bench.geometric_mean([r.ratio for r in own])
        lines.append(bench.row([f"**{family}**", "geometric mean", "", "", "", f"**{mean:.2f}**", ""]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--families", default=",".join(FAMILIES), help="(default: all)")
    parser.add_argument("--write", metavar="FILE", help="put the table into its part `operators`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for family in options.families.split(","):
            for sample in FAMILIES[family]:
                found.append(compare(family, sample, Path(folder), options.threads, options.rounds))
                print(family, sample.name, f"{found[-1].ratio:.2f}", file=sys.stderr, flush=True)
    command = f"python tools/bench_operators.py {' '.join(sys.argv[1:])}".strip()
    day = datetime.date.today().isoformat()
    made = f"`{command}`, {day}, {bench.device_line([options.threads])}"
    text = "\n".join([made, "", *table(found)])
    print(text)
    if options.write:
        path = Path(options.write)
        path.write_text(fill(path.read_text(), "operators", text))


if __name__ == "__main__":
    main()
