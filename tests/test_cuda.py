"""The CUDA device by itself: compiler, PTX for older drivers, and the whole contract on the simulated GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minicnn import cache, kernels
from minicnn.device import nvcc, prebuilt
from minicnn.errors import BuildError
from simgpu import build

ROOT = Path(__file__).parent.parent
PTX = b"// made by\n.version 9.0\n.target sm_75\n.address_size 64\n\n.visible .entry f()\n{\n\tret;\n}\n"
PTXAS = shutil.which("ptxas")
OPEN = """
from minicnn.device import open_device
from minicnn.errors import DeviceError
try:
    open_device("NAME")
except DeviceError as error:
    print(error)
"""
# name: the device asked for, how many there are, whether the driver is of CUDA 12, what is said
SITUATIONS = {
    "a GPU too many": ("cuda:7", "2", False, "no such GPU; found: cuda:7; accepted: cuda:0, cuda:1"),
    "no GPU": ("cuda", "0", False, "sees no GPU"),
    "an older driver": ("cuda", "1", True, "older than the CUDA that PyCUDA was built for"),
}
needs_gpu_tools = pytest.mark.skipif(
    nvcc.find() is None or importlib.util.find_spec("pycuda") is None,
    reason="nvcc or PyCUDA isn't installed (python tools/build_pycuda.py --install)",
)
needs_nvcc = pytest.mark.skipif(nvcc.find() is None, reason="nvcc is neither on PATH nor in NVIDIA's wheels")


@pytest.mark.parametrize(
    ("driver", "target", "version"),
    [
        ((13, 0), 75, "9.0"),
        ((13, 2), 75, "9.0"),
        ((12, 9), 75, "8.8"),
        ((12, 4), 90, "8.4"),
        ((11, 8), 80, "7.8"),
        ((11, 4), 90, "7.8"),
        ((11, 0), 80, "7.0"),
        ((10, 0), 75, "6.5"),
        ((12, 4), 100, "8.6"),
    ],
)
def test_ptx_is_lowered_no_further_than_needed(driver: tuple[int, int], target: int, version: str) -> None:
    text = PTX.replace(b"sm_75", b"sm_%d" % target)
    assert nvcc.for_driver(text, driver) == text.replace(b"9.0", version.encode())


def test_text_that_is_no_ptx_is_left_alone() -> None:
    assert nvcc.for_driver(b"\x7fELF", (11, 0)) == b"\x7fELF"


def test_ptx_is_never_raised() -> None:
    text = PTX.replace(b"9.0", b"7.0")
    assert nvcc.for_driver(text, (12, 4)) == text


def test_the_architecture_is_the_newest_that_the_gpu_runs() -> None:
    compiler = nvcc.Nvcc(path="nvcc", version="12.0", architectures=(50, 75, 80, 90))
    assert [compiler.architecture_for(c) for c in (75, 79, 89, 121)] == [75, 75, 80, 90]
    with pytest.raises(BuildError, match="compute capability 3.5.*5.0 or newer"):
        compiler.architecture_for(35)


@needs_nvcc
def test_a_prebuilt_kernel_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "prebuilt_folder", lambda: tmp_path)
    monkeypatch.setattr(kernels, "source_folder", lambda: tmp_path)
    for path in [*(ROOT / "cuda").glob("*.cuh"), ROOT / "cuda" / "relu.cu"]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "prebuilt.json").write_text('{"cuda": {"relu.cu": ["SIDE=2"]}}')
    written, with_macro = nvcc.prebuild(tmp_path)
    assert str(ROOT) not in written.read_text() and str(tmp_path) not in written.read_text()
    monkeypatch.setattr(nvcc, "find", lambda: None)
    assert nvcc.ptx("relu.cu", (), 90) == written.read_bytes()
    assert nvcc.ptx("relu.cu", (("SIDE", 2),), 90) == with_macro.read_bytes()
    with pytest.raises(BuildError, match="no prebuilt form"):
        nvcc.ptx("relu.cu", (("TILE", 3),), 90)
    with (tmp_path / "relu.cu").open("a") as file:
        file.write("// changed\n")
    with pytest.raises(BuildError, match="no prebuilt form"):
        nvcc.ptx("relu.cu", (), 90)


@needs_nvcc
def test_what_was_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    first = nvcc.ptx("relu.cu", (), 80)
    monkeypatch.setattr(nvcc, "compile_ptx", lambda *_, **__: pytest.fail("compiled again"))
    assert nvcc.ptx("relu.cu", (), 80) == first


@needs_nvcc
def test_a_kernel_that_does_not_compile_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.cu"
    path.write_text('#include "kernel.cuh"\nKERNEL(wrong)(float* x) { x[0] = nothing; }\n')
    with pytest.raises(BuildError, match=r'wrong.cu\(2\).*"nothing" is undefined'):
        nvcc.ptx(str(path), (), 80)


@needs_gpu_tools
def test_the_contract_on_the_simulated_gpu() -> None:
    """Every check of tools/cuda_contract.py, and three operators' cases, by the real PyCUDA."""
    done = on_simulated_gpu([str(ROOT / "tools" / "cuda_contract.py")], SIMGPU_DEVICES="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed, 0 skipped" in done.stdout, done.stdout


@needs_gpu_tools
def test_a_network_gives_what_the_host_gives() -> None:
    program = """
import numpy as np, minicnn
model = minicnn.load("models/mtcnn_rnet.onnx", shapes={"x": (2, 3, 24, 24)})
x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 24, 24)).astype(np.float32)
host, gpu = (model.plan(device=name).run(x) for name in ("host", "cuda"))
for name in host:
    assert np.abs(host[name] - gpu[name]).max() <= 1e-5 * np.abs(host[name]).max(), name
print(sorted(gpu))
"""
    done = on_simulated_gpu(["-c", program])
    assert done.returncode == 0 and "boxes" in done.stdout, done.stdout + done.stderr


@needs_gpu_tools
def test_a_profiler_sees_the_layers_by_name() -> None:
    """A stand-in for NVTX writes down what a profiler would see; the record says what launches take."""
    program = """
import sys, types, numpy as np
seen = []
sys.modules["nvtx"] = types.SimpleNamespace(push_range=seen.append, pop_range=lambda: seen.append("end"))
import minicnn
from minicnn.describe import layer_facts
model = minicnn.load("models/mtcnn_rnet.onnx", shapes={"x": (1, 3, 24, 24)})
with model.plan(device="cuda") as engine:
    x = np.zeros((1, 3, 24, 24), np.float32)
    del seen[:]
    engine.run(x)
    layers = engine.plan.layers
    assert seen == [word for layer in layers for word in (f"layer/{layer.name}", "end")], seen
    facts = [layer_facts(layer, engine.device) for layer in layers]
    launches = [words for layer in facts for words in layer.resources if words]
    assert launches and all(" registers, " in w and "occupancy" in w and "limited by" in w for w in launches)
    (executable,) = engine._first.segments
    assert (executable.alone({"x": x}, lambda: None)["enqueue_us"] > 0).all()
"""
    done = on_simulated_gpu(["-c", program], NVTX_INJECTION64_PATH="libprofiler.so")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_gpu_tools
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_gpu_that_cannot_be_used_is_one_sentence(name: str) -> None:
    device, count, is_old_driver, sentence = SITUATIONS[name]
    program = OPEN.replace("NAME", device)
    done = on_simulated_gpu(["-c", program], is_old_driver=is_old_driver, SIMGPU_DEVICES=count)
    assert sentence in done.stdout and not done.stderr, done.stdout + done.stderr


RUN_DOCTOR = """
import sys
from minicnn.cli import main
from minicnn.device import cuda_driver, nvcc
CHANGE
sys.exit(main(["doctor"]))
"""
# name: what is changed in the process, settings of the stand-in, what is said of the device
DOCTOR: dict[str, tuple[str, dict[str, str], str]] = {
    "nothing missing": ("", {}, "ok cuda:0: Simulated GPU 0, sm_80"),
    "two GPUs": ("", {"SIMGPU_DEVICES": "2"}, "ok cuda:1: Simulated GPU 1, sm_80"),
    "no GPU": ("", {"SIMGPU_DEVICES": "0"}, "unusable cuda: .*no CUDA-capable device"),
    "no PyCUDA": ("sys.modules['pycuda'] = None", {}, "unusable cuda:0: .*PyCUDA isn't installed"),
    "no toolkit": ("nvcc.candidates = lambda: []", {}, "unusable cuda:0: .*no compiler for its kernels"),
    "an older driver": ("", {"SIMGPU_DRIVER_VERSION": "12040"}, "unusable cuda:0: .*PyCUDA was built for"),
    "no driver": ("cuda_driver.LIBRARY = 'libcuda.so.none'", {}, "missing cuda: no NVIDIA driver"),
}


@needs_gpu_tools
@pytest.mark.parametrize("name", DOCTOR)
def test_doctor_says_what_is_missing_and_the_remedy(name: str) -> None:
    """The whole command, against the stand-in driver: the complaint is one line, the remedy the next."""
    change, settings, sentence = DOCTOR[name]
    program = RUN_DOCTOR.replace("CHANGE", change)
    done = on_simulated_gpu(["-c", program], is_old_driver=name == "an older driver", **settings)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    found = [number for number, line in enumerate(lines) if re.match(sentence, line)]
    assert len(found) == 1 and not done.stderr, done.stdout + done.stderr
    if not sentence.startswith("ok"):
        assert re.search("install|driver|CUDA_VISIBLE_DEVICES", lines[found[0] + 1]), done.stdout


def on_simulated_gpu(
    arguments: list[str], *, is_old_driver: bool = False, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Python in a process whose loader finds the stand-in driver first."""
    folder = build.build(cache.folder("simgpu"), is_old_driver=is_old_driver)
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)} | settings
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


@needs_nvcc
@pytest.mark.skipif(PTXAS is None, reason="ptxas isn't on PATH")
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [75, 80])
def test_lowered_ptx_uses_nothing_newer(architecture: int, tmp_path: Path) -> None:
    """NVIDIA's assembler holds the text to its version number, as an old driver would."""
    assert PTXAS is not None

    def assemble(source: Path) -> str:
        lowered = nvcc.for_driver(nvcc.ptx(source.name, (), architecture), (11, 0))
        text = tmp_path / f"{source.stem}.ptx"
        text.write_bytes(lowered)
        command = [PTXAS, f"-arch=sm_{architecture}", "-O0", str(text), "-o", str(text.with_suffix(".cubin"))]
        return subprocess.run(command, capture_output=True, text=True).stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sources = [p for p in sorted((ROOT / "cuda").glob("*.cu")) if prebuilt.oldest(p.name) <= architecture]
        complaints = pool.map(assemble, sources)
    assert not "".join(complaints)
