"""`winograd2_gemm`, `winograd4_gemm`: F(2x2) and F(4x4) as three passes, transforms around a batched GEMM.

For the GPU, where cuBLAS does the products; on the CPU `winograd2` and `winograd4` keep a tile in the cache
through all three.

Source    cuda/winograd_gemm.cu names it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from minicnn import epilogue, tiling
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Extents, extents_of, weights_of
from minicnn.ops.conv_winograd import Winograd, filter_transform
from minicnn.registry import Packing, Problem, Variant
from minicnn.step import Gemm, Kernel, Step, View


@dataclass(frozen=True, kw_only=True)
class WinogradGemm(Winograd):
    """Where it applies, and how errors spread in a tile, is `Winograd`'s."""

    devices: tuple[str, ...] = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"winograd{self.outputs}_gemm"

    @property
    def label(self) -> str:
        return self.name

    def declines(self, problem: Problem) -> str:
        if problem.target.kind == "host":
            return f"on a CPU winograd{self.outputs} keeps its tiles in the cache"
        return super().declines(problem)

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        return (self,)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """U = G w G^T as [product][C][K], in float64, then rounded."""
        K, C = weights_of(problem).shape[:2]
        G = filter_transform(self.outputs)
        transform = np.kron(G, G)
        shape = (self.products, C, K)

        def pack(w: np.ndarray) -> np.ndarray:
            taps = w.reshape(K, C, 9).transpose(2, 1, 0).reshape(9, -1)
            return (transform @ taps).reshape(shape).astype(np.float32)

        return {1: Packing(name=self.name, shape=shape, function=pack)}

    def workspace_bytes(self, problem: Problem) -> int:
        e = extents_of(problem, (3, 3))
        return 4 * self.products * self.tiles(e) * (e.C + e.K)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        e, workspace = extents_of(problem, (3, 3)), problem.workspace
        assert workspace is not None
        tiles = self.tiles(e)
        v, m = workspace.view(), workspace.view(self.products * tiles * e.C)
        product = Gemm(
            m=tiles,
            n=e.K,
            k=e.C,
            a=v,
            b=weights_of(problem).view(),
            c=m,
            lda=e.C,
            ldb=e.K,
            ldc=e.K,
            batch=self.products,
            stride_a=tiles * e.C,
            stride_b=e.C * e.K,
            stride_c=tiles * e.K,
        )
        return (*self._before(problem, e, v), product, *self._behind(problem, e, m))

    def _kernel(self, entry: str) -> Kernel:
        return Kernel(file="winograd_gemm.cu", entry=entry, defines=(("OUTPUTS", self.outputs),))

    def _before(self, problem: Problem, e: Extents, v: View) -> tuple[Step, ...]:
        return launch(
            self._kernel("winograd_input"),
            **tiling.matrix(columns=e.C, rows=self.tiles(e)),
            x=problem.x,
            v=v,
            C=e.C,
            H=e.H,
            W=e.W,
            P=e.P,
            Q=e.Q,
            T=self.tiles(e),
            pad_top=e.vertical.pad_before,
            pad_left=e.horizontal.pad_before,
            x_stride=problem.x.pixel_stride,
        )

    def _behind(self, problem: Problem, e: Extents, m: View) -> tuple[Step, ...]:
        residual = problem.residual
        return launch(
            self._kernel("winograd_output"),
            **tiling.matrix(columns=e.K, rows=self.tiles(e)),
            m=m,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=problem.y,
            K=e.K,
            P=e.P,
            Q=e.Q,
            T=self.tiles(e),
            y_stride=problem.y.pixel_stride,
            residual_stride=residual.pixel_stride if residual else 0,
            **epilogue.arguments(problem.epilogue),
        )
