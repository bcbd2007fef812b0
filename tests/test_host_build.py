"""Kernel libraries: built once, kept, rebuilt when damaged, prebuilt; and the cache folder they lie in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import minicnn
from host_cases import KERNELS, PATHS
from minicnn import cache, kernels
from minicnn.device import host_build, prebuilt
from minicnn.engine import Options
from minicnn.errors import BuildError
from minicnn.registry import Target
from minicnn.step import Launch
from tools import bench

# Loads a kernel in a fresh process with a compiler that leaves a line whenever it is called.
BUILD_ONE = """
import host_cases as t
device = t.HostDevice(threads=1)
case = t.GOOD["reverse"]()
t.assert_right(case, t.run(device, "reverse", case))
"""


@pytest.fixture
def logging_compiler(tmp_path, monkeypatch):
    """$CXX as a script that notes its calls in a file, an empty cache, and nothing prebuilt."""
    real = host_build.find_compiler().command[0]
    script, log = tmp_path / "c++", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho call >> {log}\nexec {real} "$@" -O0\n')  # -O0: sooner done
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    return log


def start_build() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUILD_ONE], env=os.environ | PATHS)


def calls(log: Path) -> int:
    return len(log.read_text().split())


def test_second_process_compiles_nothing_and_corrupt_entries_are_rebuilt(logging_compiler):
    assert start_build().wait(120) == 0
    first = calls(logging_compiler)
    assert first >= 1
    assert start_build().wait(120) == 0
    assert calls(logging_compiler) == first
    (entry,) = (cache.folder("host")).glob("good-*.so")
    content = entry.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:100] + b"x" + content[101:]):
        before = calls(logging_compiler)
        entry.write_bytes(damaged)
        assert start_build().wait(120) == 0
        assert calls(logging_compiler) == before + 1
        assert entry.read_bytes()[-40:] == content[-40:]


def test_two_processes_build_once(logging_compiler):
    processes = [start_build(), start_build()]
    assert [process.wait(120) for process in processes] == [0, 0]
    once = calls(logging_compiler)
    shutil.rmtree(cache.folder("host"))
    assert start_build().wait(120) == 0
    assert calls(logging_compiler) == 2 * once


def test_missing_compiler_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library = host_build.kernel_library(str(KERNELS / "good.cu"), (), host_build.cpu_level())
    with pytest.raises(BuildError) as caught:
        host_build.build([library])
    assert (
        "C++ compiler" in str(caught.value)
        and "apt install g++" in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_compile_error_names_file_and_line():
    library = host_build.kernel_library(str(KERNELS / "broken.cu"), (), host_build.cpu_level())
    with pytest.raises(BuildError, match=r"broken\.cu:5.*undeclared"):
        host_build.build([library])


def test_macros_make_libraries_of_their_own():
    level = host_build.cpu_level()
    file = str(KERNELS / "good.cu")
    keys = {
        host_build.kernel_library(file, defines, level).key
        for defines in ((), (("TILE", 8),), (("TILE", 16),))
    }
    assert len(keys) == 3


def test_prebuilt_libraries_need_no_compiler(tmp_path, monkeypatch):
    sources = tmp_path / "cuda"
    sources.mkdir()
    for path in kernels.source_folder().iterdir():
        if path.suffix != ".cu" and path.is_file():
            shutil.copy(path, sources)
    shutil.copy(KERNELS / "good.cu", sources)
    monkeypatch.setattr("minicnn.kernels.source_folder", lambda: sources)
    monkeypatch.setattr(host_build, "source_folder", lambda: sources)
    monkeypatch.setattr(host_build, "prebuilt_folder", lambda: tmp_path / "prebuilt")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    level = host_build.cpu_level()
    (sources / "prebuilt.json").write_text(json.dumps({level: {"good.cu": ["SIDE=2 EDGE=1"]}}))
    written = host_build.prebuild(tmp_path / "prebuilt", [level])
    assert [path.name.split("-")[0] for path in written] == ["runtime", "good", "good"]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    macros = (("SIDE", 2), ("EDGE", 1))
    forms = [host_build.kernel_library("good.cu", defines, level) for defines in ((), macros)]
    wanted = [host_build.runtime_library(level), *forms]
    assert sorted(host_build.build(wanted).values()) == sorted(written)
    (sources / "good.cu").write_text((KERNELS / "good.cu").read_text() + "\n")
    with pytest.raises(BuildError):
        host_build.build([host_build.kernel_library("good.cu", (), level)])


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "resnet50", "efficientnet_lite0"])
def test_plans_of_common_networks_need_nothing_that_is_not_prebuilt(name, tmp_path):
    """tools/make_prebuilt.py makes the list anew."""
    (path,) = bench.models(tmp_path, 1, [name]).values()
    model = minicnn.load(path)
    for level in host_build.levels():
        for threads in (1, 2, 16):
            target = Target(kind="host", architecture=level, threads=threads)
            plan = model.make_plan(target=target, options=Options(tuned=False))
            steps = [step for layer in plan.layers for step in layer.steps if isinstance(step, Launch)]
            assert {(s.kernel.file, s.kernel.defines) for s in steps} <= set(prebuilt.modules(level))


@pytest.mark.parametrize("level", host_build.levels())
def test_every_level_compiles(level):
    host_build.build(
        [host_build.runtime_library(level), host_build.kernel_library(str(KERNELS / "good.cu"), (), level)]
    )


def test_cache_folder_is_private(tmp_path, monkeypatch):
    monkeypatch.delenv("MINICNN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = cache.folder("host")
    assert folder == tmp_path / "xdg" / "minicnn" / "host"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine"


def test_cache_falls_back_where_home_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "file" / "below"))
    folder = cache.folder("host")
    assert folder.is_dir() and not folder.is_relative_to(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_write_atomically_keeps_what_was_there_when_it_fails(tmp_path):
    path = tmp_path / "file"
    cache.write_atomically(path, b"good")

    def fail(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise ValueError

    with pytest.raises(ValueError):
        cache.write_atomically(path, fail)
    assert path.read_bytes() == b"good"
    assert list(tmp_path.iterdir()) == [path]
