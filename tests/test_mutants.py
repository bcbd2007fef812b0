"""tools/mutants.py: what its rules make of a kernel, a launch and device code; that its proofs still hold."""

from pathlib import Path

import pytest

from tools import mutant_rules, mutants

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


def made(tmp_path: Path, name: str, text: str) -> list[tuple[str, str]]:
    (tmp_path / name).write_text(text)
    source = mutant_rules.Source(tmp_path, tmp_path / name)
    rules = mutant_rules
    of = {"a.cu": rules.of_kernel, "a.py": rules.of_launches, "device.py": rules.of_device}
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
    every = mutant_rules.all_mutants(mutants.ROOT)
    first, second = (mutant_rules.sample(every, 3, seed) for seed in (1, 1))
    assert first == second != mutant_rules.sample(every, 3, 2)
    assert {m.rule for m in first} == set(mutant_rules.RULES)


@pytest.mark.parametrize("proof", mutants.proofs(), ids=lambda p: f"{p['file']}: {p['change']}")
def test_every_proof_is_of_a_mutant_that_there_is(proof: dict[str, str]) -> None:
    there = mutant_rules.all_mutants(mutants.ROOT)
    assert any(mutants.proof_of(m, [proof]) for m in there), "the line has changed"
    assert len(proof["proof"]) > 20


def test_every_kernel_and_launch_has_a_test() -> None:
    places = ("cuda/", "minicnn/ops/")
    files = {m.file for m in mutant_rules.all_mutants(mutants.ROOT) if m.file.startswith(places)}
    assert not [file for file in files if not mutants.tests_of(mutants.ROOT, file)]
