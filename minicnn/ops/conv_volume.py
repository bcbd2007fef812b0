"""Convolution of volumes: the textbook's loops with a depth.

Source    volume.cu names its own
Not here  anything faster
"""

from __future__ import annotations

import numpy as np

from minicnn import epilogue, tiling
from minicnn.geometry import Window
from minicnn.kernels import launch
from minicnn.registry import Orders, Problem, Variant
from minicnn.step import Kernel, Step
from minicnn.window import taps, volume_arguments


class Volume(Variant):
    """An output a thread, over N,C,D,H,W. Weights as ONNX has them."""

    name = "volume"

    def applies(self, problem: Problem) -> str:
        return "" if len(problem.x.shape) == 5 else "x is no volume"

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NCHW")

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        x, w = problem.x, problem.inputs[1]
        assert w is not None
        N, K, O, P, Q = problem.y.shape  # noqa: E741
        return launch(
            Kernel(file="volume.cu", entry="conv_volume"),
            **tiling.planes(columns=Q, rows=P, planes=N * K * O),
            x=x,
            w=w,
            bias=epilogue.own_input(problem, 2),
            residual=problem.residual,
            y=problem.y,
            C=x.shape[1],
            K=K,
            groups=problem.operator.group,
            **volume_arguments(problem.operator.windows(x.shape[2:], w.shape[2:])),
            **epilogue.arguments(problem.epilogue),
        )


def reference(x: np.ndarray, w: np.ndarray, windows: tuple[Window, ...], groups: int) -> np.ndarray:
    """The definition in float64, without bias."""
    N, (K, C_group) = x.shape[0], w.shape[:2]
    filters = w.astype(np.float64).reshape(groups, K // groups, C_group, -1)
    y = np.zeros((N, groups, K // groups, *(one.out for one in windows)))
    for number, (tap, is_inside) in enumerate(taps(x.astype(np.float64), windows)):
        seen = np.where(is_inside, tap, 0.0).reshape(N, groups, C_group, *y.shape[3:])
        y += np.einsum("ngc...,gkc->ngk...", seen, filters[..., number], optimize=True)
    return y.reshape(N, K, *y.shape[3:])
