"""Comparing two records: layers of the same nodes, the verdict, what the terminal says."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import pytest

from minicnn import cli
from minicnn.compare import FASTER, SAME, SLOWER, UNKNOWN, compare
from minicnn.errors import InputError
from minicnn.record import LayerFacts, RunRecord
from minicnn.report.compare import print_comparison
from minicnn.store import Recorder


def layer(name: str, *nodes: str, **facts: object) -> LayerFacts:
    return LayerFacts(name=name, op="Conv", nodes=nodes, **facts)  # type: ignore[arg-type]


def record_of(
    layers: list[LayerFacts],
    times_us: list[float],
    *,
    repetitions: int = 40,
    spread: float = 0.001,
    seed: int = 0,
    path: Path | None = None,
    **attributes: object,
) -> RunRecord:
    rng = np.random.default_rng(seed)
    with Recorder(path, layers, repetitions, attributes) as recorder:
        for rep in range(repetitions):
            times = np.array(times_us) * np.exp(spread * rng.standard_normal(len(layers)))
            recorder.add(rep, time_us=times, plain_us=times.sum(), is_warmup=False)
    return recorder.record


THREE = [layer("a", "na"), layer("b", "nb"), layer("c", "nc")]


def test_the_three_verdicts_and_their_ratios() -> None:
    found = compare(record_of(THREE, [100, 200, 300]), record_of(THREE, [100, 220, 270], seed=1))
    assert [row.verdict for row in found.rows] == [SAME, SLOWER, FASTER]
    assert [round(row.ratio, 2) for row in found.rows] == [1.0, 1.1, 0.9]
    assert found.rows[1].interval.low < 1.1 < found.rows[1].interval.high
    assert found.whole.verdict == FASTER and found.whole.ratio == pytest.approx(590 / 600, abs=0.001)
    assert found.is_slower, "one layer is enough"


@pytest.mark.parametrize(
    "repetitions, spread, reason", [(8, 0.001, "few"), (40, 0.3, "noise")], ids=["few", "noise"]
)
def test_what_cannot_be_told(repetitions: int, spread: float, reason: str) -> None:
    first = record_of(THREE, [100, 200, 300], repetitions=repetitions, spread=spread)
    second = record_of(THREE, [100, 200, 300], repetitions=repetitions, spread=spread, seed=1)
    found = compare(first, second)
    assert {(row.verdict, row.reason) for row in found.rows} == {(UNKNOWN, reason)}
    assert not found.is_slower


def test_a_layer_at_the_floor_gets_no_verdict() -> None:
    first = record_of(THREE, [100, 200, 0.044], spread=0.02, bracket_us=0.04, bracket_spread_us=0.01)
    second = dataclasses.replace(first, time_us=first.time_us * [1, 1, 1.1])
    found = compare(first, second)
    assert (found.rows[2].verdict, found.rows[2].reason) == (UNKNOWN, "at the floor")
    risen = dataclasses.replace(first, time_us=first.time_us * [1, 1, 10])
    assert compare(first, risen).rows[2].verdict == SLOWER, "one of the two stands out from the floor"


def test_a_fused_layer_is_held_against_the_sum_of_what_it_replaced() -> None:
    apart = [layer("conv", "conv"), layer("bn", "bn"), layer("relu", "relu"), layer("pool", "pool")]
    fused = [layer("conv+relu", "conv", "bn", "relu"), layer("pool", "pool")]
    found = compare(record_of(apart, [100, 20, 30, 50]), record_of(fused, [120, 50]))
    assert [(row.before, row.after) for row in found.rows] == [
        (("conv", "bn", "relu"), ("conv+relu",)), (("pool",), ("pool",)),
    ]  # fmt: skip
    assert found.rows[0].before_us == pytest.approx(150, rel=0.01)
    assert found.rows[0].ratio == pytest.approx(0.8, rel=0.01) and found.rows[0].verdict == FASTER


def test_groups_that_overlap_become_one() -> None:
    first = [layer("x", "n1", "n2"), layer("y", "n3")]
    second = [layer("p", "n1"), layer("q", "n2", "n3")]
    found = compare(record_of(first, [10, 20]), record_of(second, [10, 20]))
    assert [(row.before, row.after) for row in found.rows] == [(("x", "y"), ("p", "q"))]


def test_a_conversion_belongs_to_the_layer_it_is_for() -> None:
    plain = [layer("a", "na"), layer("b", "nb")]
    converted = [layer("a", "na"), layer("t@NHWC"), layer("b", "nb"), layer("y@NCHW")]
    found = compare(record_of(plain, [10, 30]), record_of(converted, [10, 5, 20, 4]))
    assert [row.after for row in found.rows] == [("a",), ("t@NHWC", "b", "y@NCHW")]
    assert found.rows[1].after_us == pytest.approx(29, rel=0.01)


def test_a_node_that_one_alone_has_is_listed_without_a_verdict() -> None:
    found = compare(record_of(THREE, [1, 2, 3]), record_of(THREE[:2], [1, 2]))
    assert (found.rows[2].verdict, found.rows[2].reason) == (UNKNOWN, "in one alone")
    assert math.isnan(found.rows[2].ratio)


def test_records_of_different_networks_are_refused() -> None:
    with pytest.raises(InputError, match="no layer in common"):
        compare(record_of(THREE, [1, 2, 3]), record_of([layer("z", "nz")], [1]))


def test_what_else_differs_is_said() -> None:
    first = record_of(THREE, [1, 2, 3], device="a CPU", threads=2)
    second = record_of(THREE, [1, 2, 3], device="a GPU", threads=2, other_load=1.5)
    assert compare(first, second).notes == (
        "different devices: a CPU and a GPU", "b: other processes kept 1.5 processors busy meanwhile",
    )  # fmt: skip


def test_in_pairs_what_disturbed_both_cancels() -> None:
    """The machine's load swings by half, and a layer is 0.5 % slower: only neighbours show it."""
    load = np.exp(0.4 * np.sin(np.arange(60) / 4))[:, None]
    first = record_of(THREE, [100, 200, 300], repetitions=60)
    second = record_of(THREE, [100, 201, 300], repetitions=60, seed=1)
    first, second = (dataclasses.replace(r, time_us=r.time_us * load) for r in (first, second))
    assert [row.verdict for row in compare(first, second).rows] == [UNKNOWN] * 3
    paired = compare(first, second, paired=True)
    assert [row.verdict for row in paired.rows] == [SAME, SAME, SAME]
    assert paired.rows[1].interval.low > 1.003
    slower = dataclasses.replace(second, time_us=second.time_us * [1, 1.02, 1])
    assert [row.verdict for row in compare(first, slower, paired=True).rows] == [SAME, SLOWER, SAME]


def test_the_table_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_of(THREE, [100, 200, 300], path=tmp_path / "a.h5")
    record_of(THREE, [100, 220, 300], path=tmp_path / "b.h5", seed=1)
    assert cli.main(["compare", str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]) == 1
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("b ")).split()
    assert row[:4] == ["b", "200.0", "220.0", "1.100"] and row[-1] == "slower"
    assert "all hold at once in 95% of comparisons" in printed
    assert cli.main(["compare", str(tmp_path / "b.h5"), str(tmp_path / "a.h5")]) == 0
    assert cli.main(["compare", str(tmp_path / "a.h5"), str(tmp_path / "gone.h5")]) == 2


def test_every_line_of_the_table_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    layers = [layer("a/very/long/name/of/a/layer/" * 5, "n1"), layer("b", "n2", "n3")]
    out = io.StringIO()
    record = record_of(layers, [123456.7, 0.1])
    print_comparison(compare(record, dataclasses.replace(record, time_us=record.time_us * 1000)), file=out)
    table = out.getvalue().split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80 and "\u2026 " not in table.split("\n")[0]
