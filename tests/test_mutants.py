"""tools/mutants.py: what its rules make of a kernel, a launch and device code; that its proofs still hold."""

from functools import cache
from pathlib import Path

import pytest

from tools import mutant_rules, mutant_trial, mutants
from tools.mutant_trial import Choice, Verdict

KERNEL = """// pad_top stays in a comment
KERNEL(f)(const float* x, float* y, int n, int pad_top, int x_stride) {
    int i = threadIdx.x;
    if (i >= n) return;
    __syncthreads();
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    for (int r = 0; r < n; ++r) {
        if (r - pad_top >= 0 && r < n) y[i * x_stride] += x[r];
    }
}
"""
LAUNCH = """
launch(kernel, grid=tiling(ceil_div(n, 4)), x=x, y=y, N=N, C=C, pad_top=top)
dict_of = {"H": h, "W": w, "stride_h": s}
"""
DEVICE = """
def sync(self):
    self._select()
    if broken:
        raise ValueError
    self._stream.synchronize()
    other(self)
"""


@cache
def every_mutant() -> list[mutant_rules.Mutant]:
    return mutant_rules.all_mutants(mutants.ROOT)


def made(tmp_path: Path, name: str, text: str) -> list[tuple[str, str]]:
    (tmp_path / name).write_text(text)
    source = mutant_rules.Source(tmp_path, tmp_path / name)
    rules = mutant_rules
    types = rules.parameter_types(mutants.ROOT)
    of = {
        "a.cu": rules.of_kernel,
        "a.py": lambda source: rules.of_launches(source, types),
        "device.py": rules.of_device,
    }
    found = list(of[name](source))
    for mutant in found:
        assert text[mutant.start : mutant.end] != mutant.after
    return [(m.rule, m.change) for m in found]


def test_a_kernel_is_changed_in_every_way(tmp_path: Path) -> None:
    wait = 'asm volatile("cp.async.wait_group 0;" ::: "memory");'
    assert set(made(tmp_path, "a.cu", KERNEL)) == {
        ("barrier", "__syncthreads(); -> ;"),
        ("copy wait", f"{wait} -> ;"),
        ("bound", "i >= n -> false"),
        ("bound", "r - pad_top >= 0 -> true"),
        ("bound", "r < n -> true"),
        ("tail", "i >= n -> i > n"),
        ("tail", "r - pad_top >= 0 -> r - pad_top > 0"),
        ("tail", "r < n -> r <= n"),
        ("tail", "r < n -> r + 1 < n"),
        ("pad", "pad_top -> (pad_top + 1)"),
        ("stride", "x_stride -> (x_stride + 1)"),
    }


def test_arguments_of_one_type_are_exchanged(tmp_path: Path) -> None:
    assert set(made(tmp_path, "a.py", LAUNCH)) == {
        ("tail", "ceil_div(n, 4) -> ((n) // (4))"),
        ("swap", "x, y=y -> y, y=x"),
        ("swap", "N, C=C -> C, C=N"),
        ("swap", "C, pad_top=top -> top, pad_top=C"),
        ("pad", "top -> (top) + 1"),
        ("swap", 'h, "W": w -> w, "W": h'),
        ("swap", 'w, "stride_h": s -> s, "stride_h": w'),
        ("stride", "s -> (s) + 1"),
    }


def test_device_code_waits_no_more(tmp_path: Path) -> None:
    assert set(made(tmp_path, "device.py", DEVICE)) == {
        ("stream wait", "self._select() -> pass"),
        ("stream wait", "self._stream.synchronize() -> pass"),
        ("bound", "broken -> False"),
    }


def test_a_sample_is_the_same_each_time() -> None:
    every = every_mutant()
    first, second = (mutant_rules.sample(every, 3, seed) for seed in (1, 1))
    assert first == second != mutant_rules.sample(every, 3, 2)
    assert {m.rule for m in first} == set(mutant_rules.RULES)


@pytest.mark.parametrize("proof", mutants.read(mutants.PROOFS), ids=lambda p: f"{p['file']}: {p['change']}")
def test_every_proof_is_of_a_mutant_that_there_is(proof: dict[str, str]) -> None:
    assert mutants.identity_of(proof) in {m.identity for m in every_mutant()}, "the line has changed"
    assert len(proof["proof"]) > 20


def test_every_kernel_and_launch_has_a_test() -> None:
    places = ("cuda/", "minicnn/ops/")
    files = {m.file for m in every_mutant() if m.file.startswith(places)}
    assert not [file for file in files if not mutant_trial.tests_of(mutants.ROOT, file)]


def test_a_header_is_tested_by_the_kernels_that_call_its_function() -> None:
    def of(function: str) -> tuple[str, ...]:
        return mutant_trial.tests_of(mutants.ROOT, "cuda/kernel.cuh", function)

    assert "tests/test_softmax.py" in of("warp_sum") and "tests/test_averagepool.py" not in of("warp_sum")
    assert mutant_trial.tests_of(mutants.ROOT, "cuda/tile.cuh", "add_taps") == ("tests/test_conv.py",)


def test_mutants_that_look_alike_are_told_apart() -> None:
    known = [m.identity for m in every_mutant()]
    assert len(set(known)) == len(known)


def a_mutant(rule: str, line: int) -> mutant_rules.Mutant:
    return mutant_rules.Mutant(
        file="cuda/f.cu", rule=rule, start=0, end=1, line=line, before="a", after="b", text=f"line {line}"
    )


def a_run() -> mutants.Run:
    """Of 30 pads and 10 tails, four and two tried: one doesn't compile, two of them survive."""
    by = {"pad": ("host", "simgpu", "", "none"), "tail": ("host", "")}
    verdicts = [
        Verdict(mutant=a_mutant(rule, line), by=one)
        for rule, ways in by.items()
        for line, one in enumerate(ways)
    ]
    every = [a_mutant("pad", line) for line in range(30)] + [a_mutant("tail", line) for line in range(10)]
    return mutants.run_of(Choice(each=4, seed=3), every, verdicts, 1.0)


def test_equivalent_mutants_are_none() -> None:
    run = a_run()
    pad, tail = run["survivors"]
    every = mutants.Figures(run, mutants.RULES, {})
    assert (every.there, every.tried, every.none, every.caught, every.open) == (40, 6, 1, 3, 2)
    assert mutants.estimate(run, {}) == pytest.approx((30 * 2 / 3 + 10 * 1 / 2) / 40)
    proven = mutants.Figures(run, mutants.RULES, {mutants.identity_of(pad): "proof"})
    assert (proven.equivalent, proven.open, proven.share) == (1, 1, 0.75)
    assert mutants.identity_of(tail) not in mutants.proofs()


def test_tests_added_later_make_no_figure_better() -> None:
    run = a_run()
    before = mutants.Figures(run, mutants.RULES, {}).share
    run["survivors"][0]["since"] = "on the host"
    figures = mutants.Figures(run, mutants.RULES, {})
    assert figures.share == before and figures.since == 1
    text = mutants.page([run], {})
    assert "Caught since: on the host" in text and text.count("**Open.**") == 1


def test_the_page_is_what_is_kept() -> None:
    assert mutants.PAGE.read_text() == mutants.page(mutants.read(mutants.RUNS), mutants.proofs())
