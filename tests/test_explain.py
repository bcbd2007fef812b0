"""A run in sentences: each follows from the record, and what isn't there is said to be not measured."""

import dataclasses
import io
import math
from pathlib import Path

import pytest

from minicnn import cli
from minicnn.record import LayerFacts
from minicnn.report.explain import explain, print_explanation
from test_export import BUFFERS, HOSTILE, LAYERS, hostile_record, record_of

ROOFS = {"copy_gb_per_s": 10.0, "fma_gflop_per_s": 100.0}


def said(record, title: str) -> str:
    return "\n".join(next((part.sentences for part in explain(record) if part.title == title), ()))


def test_the_slowest_layers_and_their_share():
    text = said(record_of(), "time")
    assert "The 3 layers take 599.0 us (" in text
    assert "Slowest: odd (Det, fallback), 50.0% of the layers' time, 300.0 us (" in text
    assert "Then: relu1 (Relu, elementwise), 33.3%" in text
    assert "Half of the layers' time is spent in 1 of 3" in text
    assert "By operator: Det 50.0%, Relu 33.3%, Conv 16.7%." in text
    assert "overlap" not in text and "varies much" not in text


def test_an_order_that_is_not_sure():
    record = record_of()
    record.time_us[:, 1] = record.time_us[:, 2] * 0.999
    assert "isn't sure: their intervals overlap" in said(record, "time")


def test_layers_that_vary_much():
    record = record_of()
    record.plain_us[:] *= 2
    assert "varies much" in said(record, "time")


def one_layer(**facts):
    return (LayerFacts(name="one", op="Conv", variant="tiled", **facts),)


@pytest.mark.parametrize(
    ("flops", "bytes_min", "expected"),
    [
        (
            8 * 10**6,
            10**5,
            "is bound by arithmetic: it reaches 80.0 GFLOP/s and 1.0 GB/s, 80% of the nearer roof",
        ),
        (10**5, 9 * 10**5, "is bound by memory: it reaches 1.0 GFLOP/s and 9.0 GB/s, 90% of the nearer roof"),
        (10**6, 10**4, "nearer to the roof of arithmetic, but far from it: it reaches 10.0 GFLOP/s"),
        (2 * 10**7, 10**5, "beyond what arithmetic gives, so its variant takes fewer operations"),
        (10**5, 2 * 10**6, "beyond what memory gives, so its data came out of caches"),
        (0, 0, "has no compulsory traffic"),
    ],
)
def test_what_bounds_a_layer(flops: int, bytes_min: int, expected: str):
    record = record_of(one_layer(flops=flops, bytes_min=bytes_min, bytes_moved=bytes_min), **ROOFS)
    assert expected in said(record, "bound")


@pytest.mark.parametrize(
    ("flops", "words"),
    [
        (4000, "40 operations for each byte that has to move, many"),
        (100, "1.0 operations"),
        (0, "no operations"),
    ],
)
def test_what_bounds_a_layer_without_roofs(flops: int, words: str):
    text = said(record_of(one_layer(flops=flops, bytes_min=100)), "bound")
    assert words in text and "the roofs weren't measured" in text


def test_a_fallback_is_bound_by_no_roof():
    assert "odd ran through onnx's evaluator" in said(record_of(**ROOFS), "bound")


def test_who_holds_the_memory():
    text = said(record_of(), "memory")
    assert "The peak, 3.91 KiB, is at relu1 (Relu), layer 2 of 3." in text
    assert "Alive there: a b (activation of conv1, 2.00 KiB), y (output of relu1, 1.91 KiB)." in text
    assert "1.00 KiB more than that" in text


def test_what_would_help():
    text = said(record_of(**ROOFS), "what would help")
    assert "A kernel for Det: 1 layer runs through the evaluator on the CPU, 50.0%" in text
    assert (
        "1 layer runs by the plain rung, 16.7% of the layers' time: conv1 (why: asked for all Conv)" in text
    )
    assert "Fusion: 1 layer runs as operators of their own" in text and "relu1" in text
    assert "Less traffic: 1 layer runs moving at least twice the compulsory bytes" in text
    assert "most conv1, 3.0 times" in text
    assert "At its roof relu1 would take 0.4 us: 33.3% of the layers' time" in text


def test_an_activation_behind_something_read_twice_is_no_lost_fusion():
    again = dataclasses.replace(LAYERS[2], inputs=LAYERS[1].inputs)
    assert "Fusion" not in said(record_of((*LAYERS[:2], again)), "what would help")


@pytest.mark.parametrize(
    "op, writer, is_said",
    [
        ("Add", "Conv", True),
        ("Add", "Gemm", False),
        ("Relu", "Gemm", True),
        ("BatchNormalization", "Conv", True),
        ("Mul", "Conv", False),
    ],
)
def test_what_a_layer_may_take_along(op: str, writer: str, is_said: bool):
    first, second = dataclasses.replace(LAYERS[0], op=writer), dataclasses.replace(LAYERS[1], op=op)
    assert ("Fusion: 1 layer" in said(record_of((first, second)), "what would help")) == is_said


def test_variants_that_nobody_timed():
    rules = ("last of 3 rungs that apply", "measured: tiled, 5 us, the fastest", "the only one that applies")
    layers = tuple(
        dataclasses.replace(LAYERS[0], name=f"conv{i}", reason=reason) for i, reason in enumerate(rules)
    )
    text = said(record_of(layers), "what would help")
    assert "Timing the others: 1 layer runs by the variant that a rule prefers" in text and ": conv0." in text


@pytest.mark.parametrize(
    "bytes_min, roofs, is_said",
    [(10**5, {"copy_gb_per_s": 0.01, "fma_gflop_per_s": 1e9}, True),
     (10**5, {"copy_gb_per_s": 1e9, "fma_gflop_per_s": 0.01}, False),
     (5000, {"copy_gb_per_s": 0.01, "fma_gflop_per_s": 1e9}, False),
     (10**5, {}, False), (10**6, {}, True)],
    ids=["weights from memory", "arithmetic", "few weights", "no roofs, many operations", "no roofs, few"],
)  # fmt: skip
def test_a_larger_batch(bytes_min: int, roofs: dict, is_said: bool):
    """conv1's input and output have 2,816 bytes; it computes 10^6 operations."""
    record = record_of((dataclasses.replace(LAYERS[0], bytes_min=bytes_min),), **roofs)
    assert ("A larger batch: 1 layer" in said(record, "what would help")) == is_said


def test_a_variant_known_to_be_faster():
    slow = record_of(repetitions=40, warmup=0)
    fast = record_of((dataclasses.replace(LAYERS[0], variant="tiled", fingerprint="b"), *LAYERS[1:]), 40, 0)
    fast.time_us[:, 0] /= 2
    text = {part.title: part.sentences for part in explain(slow, beside=fast)}["what would help"]
    assert "A variant known to be faster: conv1 by tiled takes 0.5 of its time, in the other record." in text
    text = {part.title: part.sentences for part in explain(fast, beside=slow)}["what would help"]
    assert "No layer is known to be faster as it was run in the other record." in text


def test_a_long_layer_that_varies_is_not_called_short():
    record = record_of(bracket_us=0.1, bracket_spread_us=0.01)
    record.time_us[::2, 2] *= 9
    assert "it varies by more than it lasts" in said(record, "time")
    assert "(it varies by more than it lasts): odd." in said(record, "how sure")
    short = record_of(bracket_us=100.0, bracket_spread_us=5.0)
    assert "(too short to be told from the floor of measuring): conv1." in said(short, "how sure")


def test_conversions():
    layer = LayerFacts(name="x@NHWC", op="Convert", variant="strided_copy")
    assert "One layout throughout: 1 layer runs only to convert layouts" in said(
        record_of((layer,)), "what would help"
    )


def test_how_sure():
    text = said(record_of(closure_residual=0.02, closure_residual_low=0.01, closure_residual_high=0.03,
                          profiling_overhead=0.001, other_load=1.5), "how sure")  # fmt: skip
    assert "medians of 9 repetitions; 3 of warm-up" in text
    assert "within 3.0% either way" in text
    assert "Of the caller's clock 2.0% (1.0% to 3.0%) is claimed by no layer" in text
    assert "changes a run by +0.1%." in text
    assert "Other processes kept 1.5 processors busy meanwhile." in text
    assert "Too few repetitions" in said(record_of(repetitions=4, warmup=1), "how sure")


def test_errors_of_a_check():
    checked = dataclasses.replace(LAYERS[0], is_checked=True, check_of_bound=0.4)
    assert "nearest to it is conv1, 0.40 of it" in said(record_of((checked, *LAYERS[1:])), "errors")
    for wrong in (7.5, math.nan):
        bad = dataclasses.replace(LAYERS[1], is_checked=True, check_of_bound=wrong)
        assert "1 of them are beyond what rounding explains: relu1" in said(
            record_of((checked, bad)), "errors"
        )


def test_what_was_not_measured():
    text = said(record_of(), "not measured")
    for missing in ("floor", "roofs", "--gaps", "--contexts", "Energy", "Errors", "grew by"):
        assert missing in text
    full = record_of(
        bracket_us=0.1, allocated_peak_bytes=1.0, energy_source="no counter is readable", **ROOFS
    )
    full.gap_us[:] = 1.0
    full.alone_warm_us[:] = 1.0
    text = said(full, "not measured")
    assert (
        text == "Energy (no counter is readable).\nErrors of the layers' results: this record holds no check."
    )


def test_a_record_without_anything():
    text = {part.title: part.sentences for part in explain(record_of((), 0, 0, buffers=()))}
    assert text["time"] == ("No layer was timed.",) and text["bound"] == ("Not measured.",)


def test_hostile_names_do_no_harm():
    buffer = io.StringIO()
    print_explanation(hostile_record(), file=buffer)
    printed = buffer.getvalue()
    assert "\x1b" not in printed and "\u202e" not in printed and "\u2028" not in printed
    assert HOSTILE[3][:12] in printed, "markup is text"
    assert max(map(len, printed.splitlines())) <= 100


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = record_of(path=tmp_path / "run.h5", buffers=BUFFERS).path
    assert cli.main(["explain", path]) == 0
    assert "Slowest: odd" in capsys.readouterr().out
    assert cli.main(["explain", path, "--beside", path]) == 0
    assert "No layer is known to be faster as it was run in run.h5." in capsys.readouterr().out
    assert cli.main(["explain", str(tmp_path / "none.h5")]) == 2
