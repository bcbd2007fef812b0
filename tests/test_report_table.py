"""The terminal's table: right numbers, lines that fit, names that can do no harm."""

import dataclasses
import io
import sys

import numpy as np
import pytest
from rich.cells import cell_len

from minicnn.record import LayerFacts, RunRecord
from minicnn.report import table
from minicnn.store import Recorder

MIB = 2**20
LAYERS = (
    LayerFacts(
        name="conv1", op="Conv", variant="im2col", macs=10**9, flops=2 * 10**9, live_bytes=3 * MIB,
        workspace_bytes=MIB,
    ),
    LayerFacts(name="odd", op="NonMaxSuppression", variant="onnx", is_fallback=True, live_bytes=512),
    LayerFacts(name="relu1", op="Relu", variant="elementwise", flops=10**6, live_bytes=2 * MIB),
)  # fmt: skip
LONG = (
    "efficientnet-lite0/model/blocks_3/depthwise_conv2d/Conv2D_quant_FoldedBatchNormalization",
    "層" * 60,
    "[bold red]not markup[/bold red]",
    "\x1b[2Jwipes the screen\nand breaks lines\t\u202e",
    "",
    "x" * 500,
)


def record_of(layers=LAYERS, repetitions=9, warmup=2, path=None, **attributes) -> RunRecord:
    """Layer i takes 100 * (i + 1) us; warm-up ten times that."""
    machine = {"device": "a CPU", "device_kind": "host", "threads": 2}
    attributes = machine | {"weights_bytes": 5 * MIB} | attributes
    with Recorder(path, layers, repetitions, attributes) as recorder:
        for rep in range(repetitions):
            times = 100.0 * np.arange(1, len(layers) + 1) * (10 if rep < warmup else 1)
            total = times.sum()
            recorder.add(rep, time_us=times, plain_us=total - 1, wall_us=total + 50, is_warmup=rep < warmup)
    return recorder.record


def line_of(printed: str, start: str) -> list[str]:
    return next(line for line in printed.splitlines() if line.startswith(start)).split()


def test_the_numbers_of_a_layer():
    printed = table.text(record_of(repetitions=9, warmup=5))
    titles = ["layer", "op", "variant", "us", "share", "MACs", "GFLOP/s", "live", "work"]
    assert line_of(printed, "layer") == titles
    assert line_of(printed, "conv1") == (
        ["conv1", "Conv", "im2col", "100.0", "16.7%", "1.00G", "20,000", "3.00", "MiB", "1.00", "MiB"]
    )
    assert line_of(printed, "odd")[2:] == ["fallback", "200.0", "33.3%", "-", "-", "512", "B", "-"]
    assert line_of(printed, "relu1")[3:7] == ["300.0", "50.0%", "-", "3.33"]


def test_the_foot():
    record = record_of(
        path=None, live_peak_bytes=4 * MIB, planned_peak_bytes=5 * MIB, touched_peak_bytes=5.0 * MIB,
        allocated_peak_bytes=12.0 * MIB, inputs_bytes=1024, outputs_bytes=4000, activations_bytes=100 * MIB,
        device_architecture="x86-64-v3",
    )  # fmt: skip
    record = dataclasses.replace(record, path="/data/run.h5", notes=("3 of 9 finished",))
    foot = table.text(record).split("\n\n")[1]
    assert foot.splitlines() == [
        "layers    3, together 600.0 us [600.0 to 600.0]",
        "run       599.0 us [599.0 to 599.0] on the device",
        "          650.0 us [650.0 to 650.0] from upload to download",
        "work      1.00G MACs, 3,341 GFLOP/s",
        "times     medians of 7 repetitions, 2 of warm-up apart, [95 % interval]",
        "fallback  1 of 3 layers ran through onnx's evaluator on the CPU",
        "device    a CPU, x86-64-v3, 2 threads, fp32",
        "memory    largest live sum 4.00 MiB, planned peak 5.00 MiB (1.25x)",
        "          touched 5.00 MiB, grown by 12.0 MiB, 2.00 MiB beyond plan and weights",
        "          weights 5.00 MiB, inputs 1.00 KiB, outputs 3.91 KiB",
        "          if nothing shared: activations 100 MiB, workspaces -",
        "note      3 of 9 finished",
        "record    /data/run.h5",
    ]


def test_the_slowest_alone_and_first():
    record = record_of()
    printed = table.text(record, slowest=2)
    assert [line.split()[0] for line in printed.split("\n\n")[0].splitlines()[2:]] == ["relu1", "odd"]
    assert "shown     the slowest 2 of 3 layers, 83.3% of their time" in printed.splitlines()
    assert printed.split("\n\n")[1].endswith(table.text(record).split("\n\n")[1]), "the foot is the run's"
    record.time_us[:] = np.nan
    assert "the slowest 0 of 3 layers, - of their time" in table.text(record, slowest=10)


def test_one_repetition_claims_no_interval():
    printed = table.text(record_of(repetitions=1, warmup=0))
    assert "medians of 1 repetition\n" in printed and "[" not in printed


def test_what_was_not_measured_shows_as_a_dash():
    with Recorder(None, LAYERS, 1, {}) as recorder:
        recorder.add(0)
    printed = table.text(recorder.record)
    assert line_of(printed, "conv1")[3:7] == ["-", "-", "1.00G", "-"]
    assert "nan" not in printed and "inf" not in printed
    assert "fallback" not in table.text(record_of(layers=LAYERS[:1]))


@pytest.mark.parametrize("layers", [(), LAYERS[:1]])
def test_few_layers(layers):
    assert f"layers    {len(layers)}, together" in table.text(record_of(layers=layers))


@pytest.mark.parametrize("width", [10, 60, 80, 93, 100, 300])
def test_every_line_fits_and_stays_one_line(width):
    layers = [
        LayerFacts(
            name=name, op="FusedConvolutionWithEverything" * i, variant="winograd4", flops=1,
            macs=10 ** (3 * i), live_bytes=1000**i, workspace_bytes=1023,
        )
        for i, name in enumerate(LONG)
    ]  # fmt: skip
    record = record_of(layers=layers, device="A processor with a very long name at 3.40 GHz " * 3)
    lines = table.text(record, width=width).splitlines()
    limit = min(max(width, table.NARROWEST), table.WIDEST)
    assert max(cell_len(line) for line in lines) <= limit
    assert lines[2 + len(layers)] == "", "a layer is one line"
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    ends = {cell_len(line) for line in lines[2 : 2 + len(layers)]}
    assert len(ends) == 1, "numbers are aligned on the right"


def test_columns_go_before_names_are_cut_to_nothing():
    layers = [
        LayerFacts(name=LONG[0], op="Conv", variant="depthwise", macs=10**9, flops=10**9, workspace_bytes=MIB)
    ]
    record = record_of(layers=layers)
    wide, narrow = table.text(record, width=100), table.text(record, width=60)
    assert "GFLOP/s  " in wide and "work" in line_of(wide, "layer")
    assert line_of(narrow, "layer") == ["layer", "op", "variant", "us", "share", "live"]
    assert cell_len(line_of(wide, "eff")[0]) >= 22


def test_names_that_end_with_their_operator_stay_apart_when_cut():
    names = [f"/_blocks.{i}/_{part}_conv/Conv" for i in (1, 11) for part in ("pointwise", "depthwise")]
    work = {"macs": 10**7, "flops": 10**7, "live_bytes": 3 * MIB, "workspace_bytes": MIB}
    layers = [LayerFacts(name=name, op="Conv", variant="depthwise", **work) for name in names]
    record = record_of(layers=[*layers, LayerFacts(name="pool", op="GlobalAveragePool")])
    for width in (80, 100):
        shown = [line.split()[0] for line in table.text(record, width=width).splitlines()[2:6]]
        assert len(set(shown)) == 4, width


@pytest.mark.parametrize(
    "name, width, expected",
    [
        ("short", 5, "short"),
        ("abcdefgh", 5, "ab\u2026gh"),
        ("abcdefgh", 6, "abc\u2026gh"),
        ("abcdefgh", 1, "\u2026"),
        ("層層層層", 5, "層\u2026層"),
        ("層層層層", 6, "層 \u2026層"),
    ],
)
def test_both_ends_of_a_long_name_stay(name, width, expected):
    assert table.shorten(name, width) == expected


@pytest.mark.parametrize(
    "printed, expected",
    [
        (table.count(999), "999"),
        (table.count(1000), "1.00k"),
        (table.count(118_000_000), "118M"),
        (table.count(999_999), "1,000k"),
        (table.size(1023), "1023 B"),
        (table.size(1.5 * MIB), "1.50 MiB"),
        (table.size(-2048.0), "-2.00 KiB"),
        (table.time(0.04), "0.0"),
        (table.time(1234.56), "1,234.6"),
        (table.time(123456.7), "123,457"),
        (table.gflop_per_s(10**6, 0.0), "-"),
    ],
)
def test_numbers_as_they_are_written(printed, expected):
    assert printed == expected


def test_no_terminal_no_colour_and_80_columns(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", None)  # rich asks every standard stream for a terminal's width
    out = io.StringIO()
    table.print_record(record_of(), file=out)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue() == table.text(record_of(), width=80)


def test_a_fallback_is_coloured_on_a_terminal():
    printed = table.text(record_of(), is_colored=True)
    assert "\x1b[33mfallback" in printed and "\x1b[33mim2col" not in printed


def test_an_output_that_knows_ascii_alone():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    table.print_record(record_of(layers=[LayerFacts(name=LONG[0], op="é")]), file=out)
    out.flush()
    assert b"~" in raw.getvalue() and b"----" in raw.getvalue()
