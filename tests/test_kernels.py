"""Launches as data: arguments by the kernel's own names, grids that are split, requests that are refused."""

import pytest

from minicnn import kernels
from minicnn.errors import BuildError, UnsupportedError
from minicnn.geometry import INT32_MAX
from minicnn.step import Kernel, Operand

RELU = Kernel(file="relu.cu", entry="relu")
X = Operand(name="x", dtype="float32", shape=(2, 3))
Y = Operand(name="y", dtype="float32", shape=(2, 3))


def values(kernel: Kernel) -> dict[str, object]:
    """An argument for every parameter that a caller gives."""
    own = (p for p in kernels.entries(kernel.file)[kernel.entry] if p.name not in ("y_first", "z_first"))
    return {p.name: 1 if p.code != "P" else Y if p.is_written else X for p in own}


def test_a_pointer_to_const_is_read_and_the_other_written() -> None:
    (step,) = kernels.launch(RELU, grid=(1, 1, 1), block=(32, 1, 1), **values(RELU))
    assert step.reads == (X.view(),)
    assert step.writes == (Y.view(),)
    assert len(step.format) == len(step.arguments)


def test_arguments_are_held_against_the_file() -> None:
    good = values(RELU)
    with pytest.raises(TypeError, match="missing.*'x'"):
        kernels.launch(RELU, grid=(1, 1, 1), block=(32, 1, 1), **{k: v for k, v in good.items() if k != "x"})
    with pytest.raises(TypeError, match="unknown.*'colour'"):
        kernels.launch(RELU, grid=(1, 1, 1), block=(32, 1, 1), **good, colour=3)
    with pytest.raises(TypeError, match="x can't be"):
        kernels.launch(RELU, grid=(1, 1, 1), block=(32, 1, 1), **good | {"x": 1.5})
    with pytest.raises(BuildError, match="no such entry"):
        kernels.launch(Kernel(file="relu.cu", entry="elu"), grid=(1, 1, 1), block=(32, 1, 1), **good)


def test_an_integer_beyond_32_bits_is_refused() -> None:
    whole = next(
        p.name for p in kernels.entries("relu.cu")["relu"] if p.code == "i" and not p.name.endswith("first")
    )
    with pytest.raises(UnsupportedError, match="32 bits"):
        kernels.launch(RELU, grid=(1, 1, 1), block=(32, 1, 1), **values(RELU) | {whole: INT32_MAX + 1})


def test_a_large_grid_is_split_where_the_kernel_consents() -> None:
    copy = Kernel(file="strided_copy.cu", entry="copy_words")
    steps = kernels.launch(copy, grid=(1, 1, 150_000), block=(32, 1, 1), **values(copy))
    assert [s.grid[2] for s in steps] == [65_535, 65_535, 18_930]
    assert [dict(s.arguments)["z_first"] for s in steps] == [0, 65_535, 131_070]


def test_a_grid_without_blocks_is_no_work() -> None:
    assert kernels.launch(RELU, grid=(0, 1, 1), block=(32, 1, 1), **values(RELU)) == ()


def test_the_hash_covers_what_a_file_includes() -> None:
    names = [p.name for p in kernels.included_files("conv_direct.cu")]
    assert names[0] == "conv_direct.cu"
    assert {"kernel.cuh", "epilogue.cuh"} <= set(names)
    assert kernels.source_hash("relu.cu") != kernels.source_hash("clip.cu")
