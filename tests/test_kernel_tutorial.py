"""docs/kernels-of-your-own.md word for word, and what `kernel check` says of kernels that aren't right."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from minicnn import store
from minicnn.device import nvcc
from minicnn.errors import BuildError, CheckError
from minicnn.lab import runner, scaffold
from test_models import MODELS

ROOT = Path(__file__).parent.parent
DIGIT = MODELS / "mnist-conv" / "model.onnx"
PAGE = ROOT / "docs" / "kernels-of-your-own.md"


def minicnn(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minicnn", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("minicnn ") for line in lines)
    return [line.replace("$MODEL", str(DIGIT)).split()[1:] for line in lines]


def code_lines(folder: Path) -> int:
    """Of the user's: Python without comments and docstrings, and the .cu file likewise."""
    with (folder / "my_relu.py").open("rb") as file:
        kinds = (tokenize.COMMENT, tokenize.STRING, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING)
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type not in kinds and t.string.strip()]
    own = {t.start[0] for t in tokens}
    source = (folder / "my_relu.cu").read_text().splitlines()
    return len(own) + sum(bool(line.strip()) and not line.strip().startswith("//") for line in source)


def test_the_tutorial_word_for_word(tmp_path: Path) -> None:
    said = {}
    for words in commands():
        done = minicnn(*words, folder=tmp_path)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        said[words[1] if words[0] == "kernel" else words[0]] = done.stdout
    assert list(said) == ["new", "check", "infer", "bench"]
    assert code_lines(tmp_path) < 20
    assert "right  host: " in said["check"] and "WRONG" not in said["check"]
    assert ("simulated GPU" in said["check"]) == (nvcc.find() is not None)
    assert "my_relu" in said["infer"] and "Convert" in said["infer"]  # what another order of memory costs
    assert re.search(r"my_relu +[\d,.]+ ", said["bench"])
    assert re.search("faster|slower|same|can't tell", said["bench"])
    record = store.read(str(tmp_path / "run.h5"))
    own = [layer for layer in record.layers if layer.variant == "my_relu"]
    assert own and all("my_relu.cu " in source for layer in own for source in layer.sources)
    assert record.kernel_sources == {"my_relu.cu": (tmp_path / "my_relu.cu").read_text()}


FAULTS = {  # what is changed in my_relu.cu: what is said of it
    "a comparison turned round": ("value < 0", "value > 0", "the first at .*expected .* found"),
    "an element too many": ("if (i >= N)", "if (i > N)", r"bytes written outside the output"),
    "a wild address": ("x[i]", "x[i + 100000000]", r"SIGSEGV"),
    "a loop that never ends": ("float v", "while (blockIdx.x == 0) y[i] += 1; float v", "no answer within"),
    "no C++": ("float value", "flot value", r"my_relu.cu:9; found: .*flot"),
    "a NaN made a number": ("value < 0 ? 0.0f : value", "value > 0 ? value : 0.0f", "NaN: 1 of .*a NaN in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(fault: str, tmp_path: Path) -> None:
    scaffold.write("my_relu", "Relu", tmp_path)
    before, after, sentence = FAULTS[fault]
    path = tmp_path / "my_relu.cu"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    case = "more elements than a block has threads" if "NaN" not in fault else "one dense row"
    patience = 3 if "loop" in fault else 60
    host = runner.Trial(name="host", device="host")
    (outcome,) = runner.check(tmp_path / "my_relu.py", "my_relu", host, case=case, patience_s=patience)
    assert outcome.state == "wrong" and outcome.case == case
    assert re.search(sentence, outcome.text), outcome.text


def test_one_character_changed_is_noticed(tmp_path: Path) -> None:
    scaffold.write("my_relu", "Relu", tmp_path)
    path = tmp_path / "my_relu.cu"
    path.write_text(path.read_text().replace("value < 0", "value > 0"))
    case = "one dense row"
    done = minicnn("kernel", "check", "my_relu.py", "--device", "host", "--case", case, folder=tmp_path)
    assert done.returncode == 1 and "my_relu isn't right" in done.stderr, done.stdout + done.stderr
    (wrong, *_) = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    assert re.search(r"the first at \(0, 0, 0, \d+\): expected .* found", wrong), wrong
    assert f"--case '{case}'" in done.stdout


@pytest.mark.parametrize(
    "change, sentence",
    [
        (("x[i]", "x[i + 100000000]"), r"layer \S+, variant my_relu: the process died of SIGSEGV"),
        (("float v", "while (blockIdx.x == 0) y[i] += 1; float v"), "variant my_relu: no answer within 10 s"),
        (("float v", "flot v"), r"my_relu\.cu:9; found: .*flot"),
    ],
    ids=["a wild address", "a loop that never ends", "no C++"],
)
def test_a_bench_dies_apart(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    scaffold.write("my_relu", "Relu", tmp_path)
    path = tmp_path / "my_relu.cu"
    path.write_text(path.read_text().replace(*change))
    file = tmp_path / "my_relu.py"
    patience = 10 if "10 s" in sentence else 60
    with pytest.raises((CheckError, BuildError), match=sentence):
        list(runner.bench(file, "my_relu", model=str(DIGIT), device="host", patience_s=patience))


def test_watching_checks_and_times_after_each_change(tmp_path: Path) -> None:
    scaffold.write("my_relu", "Relu", tmp_path)
    path = tmp_path / "my_relu.cu"
    words = ["kernel", "bench", "my_relu.py", "--model", str(DIGIT), "--device", "host", "--watch"]
    watch = subprocess.Popen(
        [sys.executable, "-u", "-m", "minicnn", *words], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        first = _until_waiting(watch)
        assert "WRONG" not in first and re.search("faster|slower|same|can't tell", first)
        path.write_text(path.read_text().replace("value < 0", "value > 0"))
        assert "isn't right" in _until_waiting(watch)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 130
    finally:
        watch.kill()
        watch.communicate()


def _until_waiting(watch: subprocess.Popen[str]) -> str:
    assert watch.stdout is not None
    said = []
    for line in watch.stdout:
        if line.startswith("waiting"):
            return "".join(said)
        said.append(line)
    raise AssertionError(f"it ended: {said}")


def test_a_sanitizer_names_the_line(tmp_path: Path) -> None:
    scaffold.write("my_relu", "Relu", tmp_path)
    trials = [t for t in runner.trials(["host"]) if t.check and "address" in t.check.sanitizers]
    if not trials:
        pytest.skip("the compiler has no address sanitizer")
    path = tmp_path / "my_relu.cu"
    path.write_text(path.read_text().replace("x[i]", "x[i + 100000000]"))
    (outcome,) = runner.check(tmp_path / "my_relu.py", "my_relu", trials[0], case="rank 1")
    assert outcome.state == "wrong" and "AddressSanitizer" in outcome.text and "my_relu.cu:9" in outcome.text


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
@pytest.mark.parametrize("op", scaffold.operators())
def test_every_scaffold_is_right(op: str, tmp_path: Path) -> None:
    scaffold.write("mine", op, tmp_path)
    file = tmp_path / "mine.py"
    host, sim = runner.Trial(name="host", device="host"), runner.Trial(name="sim", device="sim")
    outcomes = list(runner.check(file, "mine", host, model=str(DIGIT)))
    assert {o.state for o in outcomes} <= {"right", "skipped"}, outcomes
    right = [o.case for o in outcomes if o.state == "right"]
    assert len(right) > 5
    (outcome,) = runner.check(file, "mine", sim, case=right[0])  # all of them take a minute
    assert outcome.state == "right", outcome


BRINGS_NOTHING = {
    "x = 1": "enters no variant",
    "import nothing_of_this_name": "fails; file: .*own.py:1; found: ModuleNotFoundError",
    "def f(:": "fails; file: .*own.py:1; found: SyntaxError",
    "@variant('Nothing')\nclass V(Variant): name = 'v'": "no operator of this",
    "@variant('Conv')\nclass V(Variant): name = 'direct'": "a name of its own",
}


@pytest.mark.parametrize("text", BRINGS_NOTHING)
def test_a_file_that_brings_nothing_in_is_refused(text: str, tmp_path: Path) -> None:
    imports = "from minicnn.lab import Variant, variant\n" if "@variant" in text else ""
    (tmp_path / "own.py").write_text(f"{imports}{text}\n")
    done = minicnn("plan", DIGIT, "--kernel", "own.py", folder=tmp_path)
    assert done.returncode == 2 and re.search(BRINGS_NOTHING[text], done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_names_that_are_taken_or_none_are_refused(tmp_path: Path) -> None:
    assert minicnn("kernel", "new", "x", "--op", "Relu", folder=tmp_path).returncode == 0
    again = minicnn("kernel", "new", "x", "--op", "Conv", folder=tmp_path)
    assert again.returncode == 2 and "a file of this name already" in again.stderr
    for name, op in (("Xy", "Relu"), ("x-y", "Relu"), ("for", "Relu"), ("y", "Nothing")):
        assert minicnn("kernel", "new", name, "--op", op, folder=tmp_path).returncode == 2
