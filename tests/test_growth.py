"""Planning grows with the number of nodes, not with its square: lines that Python runs, counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import minicnn
from minicnn.engine import Options
from minicnn.memory import Lifetime, arrange
from tools import bench_growth

PACKAGE = str(Path(minicnn.__file__).parent)


def lines(work: Callable[[], object]) -> int:
    """Lines of the package that `work` runs, every turn of a loop or comprehension among them."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_four_times_the_nodes_take_about_four_times_the_work(tmp_path: Path) -> None:
    def prepare(nodes: int, fuse: bool) -> int:
        path = bench_growth.many_nodes(tmp_path / f"{nodes}.onnx", nodes)
        return lines(lambda: minicnn.load(path).make_plan(options=Options(tuned=False, fuse=fuse)))

    prepare(8, True)  # what is read and imported once
    for fuse in (True, False):
        assert prepare(800, fuse) < 5 * prepare(200, fuse)


def test_placing_buffers_too() -> None:
    def chain(count: int) -> list[Lifetime]:
        return [
            Lifetime(name=str(i), first=i, last=i + 1 + i % 3, nbytes=256 * (1 + i % 7)) for i in range(count)
        ]

    assert lines(lambda: arrange(chain(1600))) < 5 * lines(lambda: arrange(chain(400)))
