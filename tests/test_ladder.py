"""Every rung of cuda/ladder against its definition, on what is at hand; what it takes of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minicnn.device import nvcc, open_device, ptxas
from minicnn.device.base import Device
from minicnn.kernels import source_folder
from tools import ladder

DEVICES = ["host", pytest.param("sim", marks=pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY))]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.name)
def test_a_rung_computes_its_definition(rung: ladder.Rung, device: Device) -> None:
    if rung not in ladder.rungs_of(device):
        pytest.skip("tensor cores are a GPU's")
    for size in ladder.CHECKED:
        ladder.check(rung, size, device)


def test_every_file_is_a_rung() -> None:
    files = {path.name for path in (source_folder() / "ladder").glob("*.cu")}
    assert files == {rung.file for rung in ladder.RUNGS}


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.name)
def test_nothing_spills(rung: ladder.Rung) -> None:
    compiler = nvcc.find()
    assert compiler is not None
    found = ptxas.resources(compiler, f"ladder/{rung.file}", (), ("80", "90", "120"))
    assert found and not any(taken.spill_bytes for taken in found.values())


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.REMEDY)
def test_the_ladder_does_what_it_says() -> None:
    """Relations that the page names, in what the simulated GPU counts."""
    device = open_device("sim")
    try:
        rows = {}
        for rung in ladder.rungs_of(device):
            cells = [cell.replace(",", "").rstrip("%") for cell in ladder.counted(rung, device)]
            rows[rung.name] = dict(zip(ladder.COUNTED, cells, strict=True))
    finally:
        device.close()

    def counts(column: str, *names: str) -> list[float]:
        return [float(rows[name][column]) for name in names]

    moved, issued = "global bytes moved", "instructions of a warp"
    direct, coalesced, tile = counts(moved, "direct", "coalesced", "shared_tile")
    assert direct > 4 * coalesced > 8 * tile
    one, eight, four = counts(issued, "shared_tile", "register_tile", "vectorised")
    assert one > 4 * eight and eight > four
    matrix, implicit, split = counts(moved, "im2col", "implicit_gemm", "split_k")
    assert matrix > 2 * implicit and split > implicit
    scalar, tensor = counts(issued, "implicit_gemm", "tensor_cores")
    assert scalar > 3 * tensor
