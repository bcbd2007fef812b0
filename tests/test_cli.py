"""The command line as a user meets it: answers, tables, files, and one sentence for what can't be."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from minicnn import cli, store
from minicnn.errors import InputError
from onnx_models import saved, small, tensor
from test_models import MODELS

ROOT = Path(__file__).parent.parent
DIGIT = MODELS / "mnist-conv" / "model.onnx"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def picture(path: Path, *, size: tuple[int, int] = (28, 28)) -> Path:
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(path)
    return path


def small_model(path: Path, *, shape: list[int | str], op: str = "Relu", domain: str = "") -> Path:
    node = helper.make_node(op, ["x"], ["y"], name="only", domain=domain)
    graph = helper.make_graph(
        [node],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_infer_prints_the_answer_the_table_and_where_the_record_is(run: Run, tmp_path: Path) -> None:
    model = MODELS / "efficientnet_lite0.onnx"
    code, out, err = run("infer", model, "--image", MODELS / "cat.jpg", "--device", "host", "--repeat", 2)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == f"{MODELS / 'cat.jpg'}:"
    assert lines[1].split()[0] == "282"
    assert "a cat" in lines[1]
    assert "depth" in out and "tiled" in out  # the table may cut the middle of a long name
    assert out.rstrip().endswith(str(tmp_path / "efficientnet_lite0.h5"))
    record = store.read(tmp_path / "efficientnet_lite0.h5")
    assert sum(f.macs for f in record.layers) == 385_187_552
    assert np.isfinite(record.time_us).all() and np.isfinite(record.plain_us).all()
    assert len({n for f in record.layers for n in f.nodes}) == sum(len(f.nodes) for f in record.layers)

    code, again, _ = run("report", "efficientnet_lite0.h5")
    assert code == 0
    assert again.splitlines()[:-1] == lines[lines.index(again.splitlines()[0]) : -1]


def test_infer_of_random_numbers_is_seeded(run: Run) -> None:
    first, second = (
        run("infer", DIGIT, "--device", "host", "--repeat", 1, "--output", f"{i}.npz") for i in "ab"
    )
    assert first[0] == second[0] == 0
    assert "seeded random input" in first[1]
    np.testing.assert_array_equal(np.load("a.npz")["Plus214_Output_0"], np.load("b.npz")["Plus214_Output_0"])


def test_infer_takes_arrays_and_a_folder_of_pictures(run: Run, tmp_path: Path) -> None:
    x = np.random.default_rng(1).uniform(0, 255, (1, 1, 28, 28)).astype(np.float32)
    np.save("x.npy", x)
    code, out, err = run("infer", DIGIT, "--input", "Input3=x.npy", "--device", "host", "--repeat", 1)
    assert code == 0, err
    assert "answer:" in out

    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in "ab":
        picture(folder / f"{name}.png")
    code, out, err = run(
        "infer", DIGIT, "--image", folder, "--device", "host", "--repeat", 1, "--output", "y.npz"
    )
    assert code == 0, err
    assert out.index("a.png:") < out.index("b.png:")
    assert np.load("y.npz")["Plus214_Output_0"].shape == (2, 10)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """Any number of small pictures to four classes with names."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    path = saved(small(nodes=nodes, initializer=[tensor("w", 4, 3, 3, 3)]), tmp_path)
    pixels = {"resize": [8, 8], "channels": "rgb", "mean": [127, 127, 127], "std": [64, 64, 64]}
    sidecar = pixels | {"task": "classification", "labels": ["a", "b", "c", "d"]}
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_folder_becomes_a_table_of_answers(run: Run, classifier: Path, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(5):
        pixels = np.random.default_rng(seed).integers(0, 256, (9, 11, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    arguments = ("--image", folder, "--device", "host", "--repeat", 1, "--batch", 2)
    code, out, err = run("infer", classifier, *arguments, "--output", f"y{suffix}")
    assert code == 0, err
    assert "5 pictures, " in out and "a second" in out and "0.png:" not in out
    table = pd.read_csv("y.csv") if suffix == ".csv" else pd.read_parquet("y.parquet")
    assert list(table.columns) == ["picture", "rank", "index", "name", "score", "probability"]
    assert [Path(p).name for p in table.picture[table["rank"] == 1]] == [f"{seed}.png" for seed in range(5)]
    code, _, err = run("infer", classifier, *arguments, "--output", "y.npz")
    assert code == 0, err
    scores = np.load("y.npz")["y"]
    assert scores.shape == (5, 4)
    for (_, rows), exact in zip(table.groupby("picture", sort=True), scores, strict=True):
        assert list(rows["index"]) == list(np.argsort(-exact)) and list(rows["rank"]) == [1, 2, 3, 4]
        np.testing.assert_allclose(rows.score, np.sort(exact)[::-1], rtol=1e-6)
        assert list(rows.name) == ["abcd"[i] for i in np.argsort(-exact)]


def test_tables_hold_the_answers_of_classifiers_alone(run: Run, tmp_path: Path) -> None:
    arguments = (saved(small(), tmp_path), "--batch", 1, "--device", "host", "--repeat", 1)
    code, _, err = run("infer", *arguments, "--output", "y.csv")
    assert code == 2 and "classifier" in err
    code, _, err = run("infer", *arguments, "--output", "y.txt")
    assert code == 2 and ".npz, .csv, .parquet" in err
    assert not list(tmp_path.glob("y.*"))


def test_dump_keeps_an_intermediate_tensor(run: Run) -> None:
    arguments = ("--device", "host", "--fuse", "none", "--repeat", 1, "--output", "y.npz")
    code, _, err = run("infer", DIGIT, *arguments, "--dump", "Pooling66_Output_0")
    assert code == 0, err
    assert np.load("y.npz")["Pooling66_Output_0"].shape == (1, 8, 14, 14)
    code, _, err = run("infer", DIGIT, *arguments, "--dump", "nowhere")
    assert code == 2 and "no layer writes this tensor" in err


def test_check_prints_errors_and_no_times(run: Run, tmp_path: Path) -> None:
    code, out, err = run("infer", DIGIT, "--device", "host", "--check")
    assert code == 0, err
    assert "0 beyond their bound" in out
    assert " us" not in out
    assert not list(tmp_path.glob("*.h5"))


def test_plan_needs_neither_gpu_nor_compiler() -> None:
    environment = {**os.environ, "PATH": "/nonexistent", "CXX": ""}
    command = [sys.executable, "-m", "minicnn", "plan", str(DIGIT), "--variant", "conv=direct"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "conv_direct" in done.stdout and "asked for all Conv" in done.stdout


def test_report_needs_neither_onnx_nor_pycuda(run: Run, tmp_path: Path) -> None:
    assert run("infer", DIGIT, "--device", "host", "--repeat", 1)[0] == 0
    program = (
        "import sys; sys.modules['onnx'] = sys.modules['pycuda'] = None\n"
        "from minicnn.cli import main; sys.exit(main(['report', 'model.h5']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "Convolution28" in done.stdout


def test_doctor_and_version(run: Run) -> None:
    code, out, _ = run("doctor")
    assert code == 0 and "host" in out and "caches" in out
    done = subprocess.run(
        [sys.executable, "-m", "minicnn", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.startswith("minicnn ")


BAD: dict[str, tuple[list[str], str]] = {
    "no such file": (["infer", "gone.onnx"], "no such file"),
    "a folder": (["infer", "."], "not a file"),
    "not ONNX": (["infer", "text.onnx"], "not an ONNX model"),
    "wrong input name": (["infer", str(DIGIT), "--input", "x=one.npy"], "other names"),
    "wrong input shape": (["infer", str(DIGIT), "--input", "Input3=one.npy"], "shape"),
    "wrong input type": (["infer", str(DIGIT), "--input", "Input3=words.npy"], "can't be read"),
    "complex input": (["infer", str(DIGIT), "--input", "Input3=complex.npy"], "wrong type"),
    "no such array": (["infer", str(DIGIT), "--input", "Input3=gone.npy"], "can't be read"),
    "unknown operator": (["infer", "foreign.onnx", "--no-fallback"], "no such operator"),
    "an operator that may not fall back": (["infer", "det.onnx", "--no-fallback"], "no kernel of ours"),
    "unknown operator with fallback": (["infer", "foreign.onnx"], "Foreign"),
    "open dimension": (["infer", "open.onnx"], "--batch"),
    "not a picture": (["infer", str(DIGIT), "--image", "text.onnx"], "isn't a picture"),
    "nothing says how": (["infer", "open.onnx", "--image", "p.png"], "nothing says how"),
    "no such variant": (["infer", str(DIGIT), "--variant", "Convolution28=fastest"], "no such variant"),
    "variant of nothing": (["infer", str(DIGIT), "--variant", "lstm=fast"], "names neither"),
    "a variant that doesn't apply": (
        ["infer", str(DIGIT), "--variant", "Convolution28=depthwise"],
        "doesn't apply",
    ),
    "shape garbled": (["plan", "open.onnx", "--shape", "x=1,two"], "--shape can't be read"),
    "output folder missing": (["infer", str(DIGIT), "--output", "gone/y.npz"], "folder isn't there"),
    "record folder missing": (["infer", str(DIGIT), "--record", "gone/y.h5"], "folder isn't there"),
    "record over a model": (["infer", str(DIGIT), "--record", "open.onnx"], "taken by another file"),
    "no such device": (["infer", str(DIGIT), "--device", "tpu"], "no such device"),
    "not a record": (["report", "text.onnx"], "not an HDF5 file"),
    "no such record": (["report", "gone.h5"], "no such record"),
}


@pytest.mark.parametrize("arguments, sentence", BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_sentence(arguments: list[str], sentence: str, run: Run, tmp_path: Path) -> None:
    Path("text.onnx").write_text("just words, no model")
    small_model(Path("open.onnx"), shape=["N", 3, 8, 8])
    small_model(Path("foreign.onnx"), shape=[1, 3], op="Foreign", domain="elsewhere")
    small_model(Path("det.onnx"), shape=[3, 3], op="Det")
    np.save("one.npy", np.zeros(1, np.float32))
    np.save("complex.npy", np.zeros((1, 1, 28, 28), np.complex64))
    np.save("words.npy", np.array(["a", None], dtype=object))
    picture(Path("p.png"))
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    code, out, err = run(
        *arguments, *(["--device", "host"] if arguments[0] == "infer" and "--device" not in arguments else [])
    )
    assert code == 2
    assert sentence in err
    assert err.startswith("minicnn: ") and err.count("\n") == 1, "one sentence, no traceback"
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before, "nothing half-written, nothing lost"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_model(share: float, run: Run) -> None:
    whole = DIGIT.read_bytes()
    Path("cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    code, _, err = run("infer", "cut.onnx", "--device", "host")
    assert code == 2 and "cut.onnx" in err and err.count("\n") == 1


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="needs the right to mount a file system"
)
def test_full_disk(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True
    ).returncode:
        pytest.skip("mounting isn't allowed here")
    try:
        (small / "filler").write_bytes(b"x" * 60_000)
        for flag, name in (("--record", "run.h5"), ("--output", "y.npz")):
            model = MODELS / "mtcnn_rnet.onnx"
            shape = ("--shape", "x=512,3,24,24") if flag == "--output" else ("--batch", 1)
            code, _, err = run("infer", model, "--device", "host", *shape, flag, small / name)
            assert code == 2 and "can't be written" in err and err.count("\n") == 1
            assert [p.name for p in small.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def finished_repetitions(partial: Path) -> int:
    """0 also while the record is being laid out."""
    try:
        return store.read(partial).repetitions
    except InputError:
        return 0


def test_a_killed_run_leaves_its_repetitions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minicnn", "infer", str(DIGIT), "--device", "host", "--repeat", "100000"]
    process = subprocess.Popen(
        [*command, "--record", str(tmp_path / "run.h5")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    partial = tmp_path / "run.h5.partial"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and finished_repetitions(partial) < 4:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    record = store.read(partial)
    assert record.repetitions > 3
    assert np.isfinite(record.time_us).all()
    assert not (tmp_path / "run.h5").exists()


def test_interrupt_exits_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minicnn", "infer", str(DIGIT), "--device", "host", "--repeat", "100000"]
    process = subprocess.Popen(
        [*command, "--record", str(tmp_path / "run.h5")], cwd=ROOT, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "run.h5.partial").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_run_plans_once_more_for_another_batch(tmp_path: Path) -> None:
    import minicnn

    path = small_model(tmp_path / "open.onnx", shape=["N", 3, 8, 8])
    rng = np.random.default_rng(0)
    with minicnn.load(path, {"x": (1, 3, 8, 8)}).plan(device="host") as engine:
        for N in (1, 5, 2, 5, 1):
            x = rng.uniform(-1, 1, (N, 3, 8, 8)).astype(np.float32)
            np.testing.assert_array_equal(engine.run(x)["y"], np.maximum(x, 0))


def test_shapes_known_only_at_run_time_cut_the_plan(tmp_path: Path) -> None:
    """NonZero's output has as many columns as there are nonzeros: what follows is planned then."""
    import minicnn

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["where"]),
        helper.make_node("Cast", ["where"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "two"], ["doubled"]),
        helper.make_node("Relu", ["doubled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 7])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "r")],
        [numpy_helper.from_array(np.float32(2), "two")],
    )
    path = tmp_path / "late.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    rng = np.random.default_rng(0)
    with minicnn.load(path).plan(device="host") as engine:
        assert engine.plan.rest is not None
        for seed_share in (0.2, 0.9, 0.2):
            x = (rng.uniform(size=(2, 7)) < seed_share).astype(np.float32)
            outputs = engine.run(x)
            np.testing.assert_array_equal(outputs["y"], 2.0 * np.array(np.nonzero(x)))
            np.testing.assert_array_equal(outputs["r"], x)
        record = engine.profile(x, repeat=2)
    assert any(f.is_fallback for f in record.layers) and record.layers[-1].op == "Relu"


def test_memory_is_given_back(tmp_path: Path) -> None:
    """A hundred engines in one process take no more than one, give or take the allocator's habits."""
    import minicnn

    model = minicnn.load(MODELS / "mtcnn_rnet.onnx", {"x": (16, 3, 24, 24)})
    for count in range(60):
        with model.plan(device="host") as engine:
            engine.run(np.zeros((16, 3, 24, 24), np.float32))
        if count == 19:
            settled = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - settled
    assert grown_kib < 8 * 1024, f"40 engines more took {grown_kib} KiB more"
