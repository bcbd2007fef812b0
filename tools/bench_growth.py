"""How cost grows: time and memory against batch and resolution, and a network of 10,000 nodes.

    python tools/bench_growth.py [--networks resnet50,squeezenet] [--threads N] [--runs N]
                                 [--batches 1,2,4,...] [--sides 64,128,...] [--write docs]
    python tools/bench_growth.py --nodes 10000

Method    Every point in a process of its own: the engine runs once untimed, then --runs times; samples are
          kept. Memory is the process's peak above what it held after its imports. The time per item is what
          should become constant: the table gives each point's over the last one's. Resolution: the same
          network with square pictures of that side, pixels for items; only networks that end in a global
          pooling take all sides. --write makes growth.md, growth.json (all samples) and four pictures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from minicnn import stats  # noqa: E402
from tools import bench  # noqa: E402

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SIDES = (64, 96, 128, 192, 256, 384, 512)
COLOURS = ("#1b6ca8", "#c8553d", "#3c8d40", "#8a5fbf", "#b8860b")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One network at one batch and side. `seconds`: of each run; `nbytes`: peak above the imports."""

    network: str
    batch: int
    side: int
    seconds: tuple[float, ...]
    nbytes: float

    @property
    def median(self) -> float:
        return stats.median(self.seconds)


def many_nodes(path: Path, nodes: int) -> Path:
    """A file with a chain of blocks of four nodes: two convolutions that read the same, Relu, Add."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.full((16, 16, 1, 1), 0.01, np.float32), "w")
    made, x = [], "x"
    for block in range(nodes // 4):
        a, b, c, y = (f"{letter}{block}" for letter in "abcy")
        made += [
            helper.make_node("Conv", [x, "w"], [a]),
            helper.make_node("Relu", [a], [b]),
            helper.make_node("Conv", [x, "w"], [c]),
            helper.make_node("Add", [b, c], [y]),
        ]
        x = y
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 4, 4]) for name in ("x", x)]
    graph = helper.make_graph(made, "many", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def report_nodes(nodes: int) -> None:
    """Prints the seconds that loading and planning take, kernels and uploads not among them."""
    import minicnn
    from minicnn.engine import host_target

    with tempfile.TemporaryDirectory() as folder:
        for count in (16, nodes // 4, nodes):  # the first for what is imported once
            path = many_nodes(Path(folder) / "many.onnx", count)
            target = host_target()
            start, cpu = time.perf_counter(), time.process_time()
            model = minicnn.load(path)
            loaded = time.perf_counter()
            layers = len(model.make_plan(target=target).layers)
            end = time.perf_counter()
            print(
                f"{count:6d} nodes, {layers} layers: load {loaded - start:.2f} s, plan {end - loaded:.2f} s,"
                f" processor time {time.process_time() - cpu:.2f} s"
            )


def child(path: Path, batch: int, side: int, threads: int, runs: int) -> None:
    """In a process of its own: prints bytes and the seconds of each run as JSON."""
    import minicnn
    from minicnn import registry

    registry.table()
    before = bench.resident_peak()
    model = minicnn.load(path)
    (name,) = model.inputs
    shape = (batch, 3, side, side)
    seconds = []
    with model.with_shapes({name: shape}).plan(device="host", threads=threads) as engine:
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        engine.run(x)
        for _ in range(runs):
            start = time.perf_counter()
            engine.run(x)
            seconds.append(time.perf_counter() - start)
    print(json.dumps([bench.resident_peak() - before, seconds]))


def measure(network: str, path: Path, batch: int, side: int, options: argparse.Namespace) -> Point | None:
    """None: the network takes no such picture."""
    words = [str(path), str(batch), str(side)]
    command = [sys.executable, __file__, "--child", *words]
    command += ["--threads", str(options.threads), "--runs", str(options.runs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{network} at {side}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    nbytes, seconds = json.loads(done.stdout)
    return Point(network=network, batch=batch, side=side, seconds=tuple(seconds), nbytes=nbytes)


def with_open_shape(path: Path) -> Path:
    """The same network for pictures of any number and size, its inner types forgotten."""
    import onnx

    model = onnx.load(path)
    for axis in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"axis{axis}"
    del model.graph.value_info[:]
    target = path.with_name(f"open-{path.name}")
    onnx.save(model, target)
    return target


def picture(lines: dict[str, list[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """An SVG with one line a network, both axes logarithmic."""
    width, height, edge = 640, 420, 60
    points = [p for line in lines.values() for p in line]
    low = [min(p[i] for p in points) for i in (0, 1)]
    high = [max(p[i] for p in points) for i in (0, 1)]

    def place(x: float, y: float) -> str:
        across, up = (
            math.log(value / low[i]) / max(math.log(high[i] / low[i]), 1e-9)
            for i, value in enumerate((x, y))
        )
        return f"{edge + across * (width - 2 * edge):.1f},{height - edge - up * (height - 2 * edge):.1f}"

    def label(x: float, y: float, anchor: str, text: str, colour: str = "#333") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{edge},{edge} V{height - edge} H{width - edge}" fill="none" stroke="#333"/>',
        label(width / 2, height - 15, "middle", x_name),
        label(edge, edge - 15, "middle", y_name),
    ]
    for x in sorted({p[0] for p in points}):
        left = float(place(x, low[1]).split(",")[0])
        parts.append(label(left, height - edge + 18, "middle", f"{x:g}"))
    for y in (low[1], high[1]):
        parts.append(label(edge - 6, float(place(low[0], y).split(",")[1]) + 4, "end", f"{y:.3g}"))
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        dots = [place(*p) for p in line]
        parts.append(f'<polyline points="{" ".join(dots)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for across, down in (dot.split(",") for dot in dots):
            parts.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{colour}"/>')
        parts.append(label(edge + 15, edge + 15 * index, "start", name, colour))
    return "\n".join([*parts, "</svg>", ""])


def table(points: list[Point], kind: str) -> list[str]:
    """Time and memory per item against those of the last point: 1 where cost is in proportion."""
    lines = [
        bench.row(
            ["network", kind, "ms", "ms an item, over the last", "MB", "MB a step, over the last step's"]
        ),
        bench.row(["---"] * 6),
    ]
    for network in dict.fromkeys(p.network for p in points):
        own = [p for p in points if p.network == network]
        per_item = [p.median / items(p) for p in own]
        steps = [
            (b.nbytes - a.nbytes) / (items(b) - items(a)) for a, b in zip(own, own[1:], strict=False)
        ] or [math.nan]
        for p, cost, step in zip(own, per_item, [math.nan, *steps], strict=False):
            lines.append(
                bench.row(
                    [
                        network,
                        str(p.batch if kind == "batch" else p.side),
                        f"{1e3 * p.median:.2f}",
                        f"{cost / per_item[-1]:.2f}",
                        f"{p.nbytes / 1e6:.1f}",
                        "" if math.isnan(step) else f"{step / steps[-1]:.2f}",
                    ]
                )
            )
    return lines


def items(point: Point) -> int:
    return point.batch * point.side**2


def write(folder: Path, by_batch: list[Point], by_side: list[Point], command: str, threads: int) -> None:
    stamp = f"`{command}`, {datetime.date.today().isoformat()}, {bench.device_line([threads])}"
    text = ["# How cost grows", "", stamp, ""]
    for points, kind, name in ((by_batch, "batch", "batch"), (by_side, "side", "resolution")):
        for what in ("time", "memory"):
            lines: dict[str, list[tuple[float, float]]] = {}
            for p in points:
                y = 1e3 * p.median if what == "time" else p.nbytes / 1e6
                lines.setdefault(p.network, []).append((getattr(p, kind), y))
            file = f"growth-{name}-{what}.svg"
            (folder / file).write_text(picture(lines, kind, "ms" if what == "time" else "MB"))
            text += [f"![{what} against {name}]({file})", ""]
        text += [*table(points, kind), ""]
    (folder / "growth.md").write_text("\n".join(text))
    samples = {"command": command, "points": [asdict(p) for p in (*by_batch, *by_side)]}
    (folder / "growth.json").write_text(json.dumps(samples, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="how minicnn's cost grows", allow_abbrev=False)
    parser.add_argument("--networks", default="resnet50,squeezenet", help="(%(default)s)")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="(%(default)s)")
    parser.add_argument("--sides", default=",".join(map(str, SIDES)), help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--runs", type=int, default=9, help="at each point (%(default)s)")
    parser.add_argument("--nodes", type=int, help="load and plan a network of so many nodes, no more")
    parser.add_argument("--write", metavar="FOLDER", help="for growth.md, its pictures and its samples")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        path, batch, side = options.child
        child(Path(path), int(batch), int(side), options.threads, options.runs)
        return
    if options.nodes:
        report_nodes(options.nodes)
        return
    batches, sides = ([int(word) for word in words.split(",")] for words in (options.batches, options.sides))
    by_batch: list[Point] = []
    by_side: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        for network, original in bench.models(Path(folder), 1, options.networks.split(",")).items():
            path = with_open_shape(original)
            by_batch += filter(None, (measure(network, path, batch, 224, options) for batch in batches))
            by_side += filter(None, (measure(network, path, 1, side, options) for side in sides))
    for points, kind in ((by_batch, "batch"), (by_side, "side")):
        print("\n".join([*table(points, kind), ""]))
    if options.write:
        command = "python tools/bench_growth.py " + " ".join(sys.argv[1:])
        write(Path(options.write), by_batch, by_side, command.strip(), options.threads)


if __name__ == "__main__":
    main()
