"""`igemm`, `igemm_tf32`, `igemm_half`: a convolution as one product on a GPU's tensor cores (implicit GEMM).

`igemm` stays within float32's bound and is chosen by itself; `igemm_tf32` only where `--precision tf32`
allows it; `igemm_half` is for float16 tensors (tensor_cores.py says what each may lose).

Source    cuda/conv_igemm.cu names it
Not here  fewer than 4 terms: `igemm`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minicnn import epilogue
from minicnn.geometry import ceil_div
from minicnn.ops.conv_variants import Convolution, Extents, extents_of, weights_of
from minicnn.ops.tensor_cores import FEWEST_TERMS, TF32_ROUNDOFF, Sums, TensorCores, Work, copy_bytes
from minicnn.registry import Packing, Problem, Variant
from minicnn.step import Step
from minicnn.window import window_arguments

FEWEST_FILTERS = 8  # of a group: a tensor core's product is as wide


@dataclass(frozen=True, kw_only=True)
class ImplicitGemm(TensorCores, Convolution):  # type: ignore[misc, override]
    """Its forms differ in `tile` and `parts`."""

    def suits(self, problem: Problem) -> str:
        sums = self._sums(problem, _extents(problem))
        if sums.channels == sums.filters == 1 and sums.groups > 1:
            return "one filter a channel: there is no sum for a tensor core"
        if self.products == 3 and sums.taps * sums.channels < FEWEST_TERMS:
            return f"sums of fewer than {FEWEST_TERMS} products show what two TF32 numbers leave out"
        return self.refuses(problem, sums)

    def declines(self, problem: Problem) -> str:
        filters = problem.y.shape[1] // problem.operator.group
        if filters < FEWEST_FILTERS and problem.operator.group > 1:
            return f"a group has {filters} filters, fewer than {FEWEST_FILTERS}"
        return ""

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        sums = self._sums(problem, _extents(problem))
        return tuple(replace(self, tile=t, parts=p) for t, p in self.forms(problem.target, sums))

    def bound(self, operator: Any, *arrays: Any) -> Any:
        own = super().bound(operator, *arrays)
        if self.name != "igemm_tf32":
            return own
        return own + 2 * TF32_ROUNDOFF * (1 + TF32_ROUNDOFF) * operator.magnitude(*arrays[:2])

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """Filters one behind the other, [R][S][channels] and zeros; a shape that still tells R and S."""
        e = _extents(problem)
        sums = self._sums(problem, e)
        shape = (e.R, e.S, ceil_div(sums.weights, sums.taps))

        def pack(w: np.ndarray) -> np.ndarray:
            filters = w.reshape(e.K, sums.channels, sums.taps).transpose(0, 2, 1)
            packed = self.rounded(sums.packed(filters))
            return np.pad(packed, (0, math.prod(shape) - packed.size)).reshape(shape)

        packings = {1: Packing(name=self.name, shape=shape, function=pack, dtype=self.dtype)}
        if self.dtype != "float32" and epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(name=self.name, shape=(e.K,), function=lambda b: b)
        return packings

    def workspace_bytes(self, problem: Problem) -> int:
        return self._work(problem, _extents(problem)).partial_bytes

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """A counter for each tile of sums that is cut into parts; a launch leaves them as they were."""
        counters = self._work(problem, _extents(problem)).counters
        return (np.zeros(counters, np.uint32),) if counters else ()

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        w, residual = weights_of(problem), problem.residual
        e = extents_of(problem, w.shape[:2])
        return self.launches(
            problem,
            self._work(problem, e),
            weights=w.view(),
            y=problem.y.view(),
            residual=residual.view() if residual else None,
            window=window_arguments(e.windows),
            y_pixels=(e.P * e.Q, e.Q, 1),
        )

    def _sums(self, problem: Problem, e: Extents) -> Sums:
        groups = problem.operator.group
        return Sums(
            pixels=e.N * e.P * e.Q,
            groups=groups,
            filters=e.K // groups,
            channels=e.C // groups,
            taps=e.R * e.S,
            dtype=self.dtype,
        )

    def _work(self, problem: Problem, e: Extents) -> Work:
        sums = self._sums(problem, e)
        return self.work(problem.target, sums, copy_bytes(problem.x, sums))


def _extents(problem: Problem) -> Extents:
    return extents_of(problem, weights_of(problem).shape[2:])


IMPLICIT_GEMMS = (
    ImplicitGemm(products=1, dtype="float16"),
    ImplicitGemm(),
    ImplicitGemm(products=1),
)
