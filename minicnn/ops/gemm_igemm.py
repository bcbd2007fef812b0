"""`igemm_half`: a fully connected layer of halves on tensor cores, as a convolution of one-pixel images.

Source    cuda/conv_igemm.cu names it
Not here  matrices computed at run time, a bias for each row: refused by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minicnn import epilogue
from minicnn.ops.tensor_cores import Sums, TensorCores, Work, copy_bytes
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Step

_ONE_PIXEL = {
    **{name: 1 for name in ("H", "W", "R", "S", "P", "Q")},
    **{name: 1 for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")},
    **{name: 0 for name in ("pad_top", "pad_left")},
}


@dataclass(frozen=True, kw_only=True)
class FullyConnected(TensorCores, Variant):  # type: ignore[misc, override]
    """alpha and beta go into the packed weights and bias."""

    products: int = 1
    dtype: str = "float16"

    def applies(self, problem: Problem) -> str:
        gemm, b, bias = problem.operator, problem.inputs[1], epilogue.own_input(problem, 2)
        if b is None or not b.is_constant:
            return "b is computed at run time"
        if gemm.transA and min(problem.x.shape) > 1:
            return "a is transposed"
        if bias is not None and len(bias.shape) == 2 and bias.shape[0] > 1:
            return "the bias isn't the same for all rows"
        if math.frexp(gemm.alpha)[0] != 0.5:
            return f"alpha {gemm.alpha:g} would round the weights once more"
        return self.refuses(problem, self._sums(problem))

    def orders(self, problem: Problem) -> Orders:
        own = epilogue.orders(problem, "any")
        return Orders(inputs=("any", "NCHW", *own.inputs[2:]), outputs=("any",))

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        forms = self.forms(problem.target, self._sums(problem))
        return tuple(replace(self, tile=t, parts=p) for t, p in forms)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        gemm, sums = problem.operator, self._sums(problem)

        def pack(b: np.ndarray) -> np.ndarray:
            filters = b if gemm.transB else b.T
            scaled = (gemm.alpha * filters.astype(np.float32)).astype(self.dtype)
            return sums.packed(scaled[:, np.newaxis]).reshape(sums.filters, sums.terms)

        def pack_bias(c: np.ndarray) -> np.ndarray:
            scaled = gemm.beta * c.astype(np.float32)
            return np.broadcast_to(scaled.reshape(-1), (sums.filters,))

        shape = (sums.filters, sums.terms)
        packings = {1: Packing(name=self.name, shape=shape, function=pack, dtype=self.dtype)}
        if epilogue.own_input(problem, 2) is not None:
            packings[2] = Packing(name=self.name, shape=(sums.filters,), function=pack_bias)
        return packings

    def workspace_bytes(self, problem: Problem) -> int:
        return self._work(problem).partial_bytes

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """A counter for each tile of sums that is cut into parts; a launch leaves them as they were."""
        counters = self._work(problem).counters
        return (np.zeros(counters, np.uint32),) if counters else ()

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        w, residual = problem.inputs[1], problem.residual
        assert w is not None
        return self.launches(
            problem,
            self._work(problem),
            weights=w.view(),
            y=problem.y.view(),
            residual=residual.view() if residual else None,
            window=_ONE_PIXEL,
            y_pixels=(1, 1, 1),
        )

    def _sums(self, problem: Problem) -> Sums:
        rows, filters = problem.y.shape
        return Sums(
            pixels=rows,
            groups=1,
            filters=filters,
            channels=problem.x.shape[0 if problem.operator.transA else 1],
            taps=1,
            dtype=self.dtype,
        )

    def _work(self, problem: Problem) -> Work:
        sums = self._sums(problem)
        return self.work(problem.target, sums, copy_bytes(problem.x, sums))
