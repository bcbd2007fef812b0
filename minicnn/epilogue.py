"""What a fused layer does to each sum before it is stored: the definition, and what kernels take for it.

    y = activation(sum + residual)          the bias is part of the sum

`cuda/epilogue.cuh` is the device side. A new activation is a line in CODES, one in activations.ACTIVATIONS
and a branch in the .cuh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import tiling
from minicnn.activations import ACTIVATIONS
from minicnn.graph import Epilogue
from minicnn.kernels import launch
from minicnn.registry import Orders, Problem
from minicnn.step import Kernel, Operand, Step

CODES = {  # as in cuda/epilogue.cuh
    "": 0, "Relu": 1, "Clip": 2, "Sigmoid": 3, "HardSigmoid": 4, "HardSwish": 5, "Tanh": 6, "Elu": 7,
    "Selu": 7, "Swish": 8, "Gelu": 9, "Mish": 10, "Softplus": 11,
}  # fmt: skip
ACTIVATED = tuple(name for name in CODES if name)  # for `operator(fuses=...)`
FUSIBLE = ("Bias", "Residual", *ACTIVATED)
UNIT_ROUNDOFF = 2.0**-24


def activate(epilogue: Epilogue, x: np.ndarray) -> np.ndarray:
    """The activation alone, in the precision of `x`. NaN stays NaN."""
    if not epilogue.activation:
        return x
    # The parameters as a kernel gets them.
    alpha, beta = np.float32(epilogue.alpha).item(), np.float32(epilogue.beta).item()
    return ACTIVATIONS[epilogue.activation].function(x, alpha, beta)


def reference(epilogue: Epilogue, exact: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """The epilogue applied to exact sums, in float64."""
    total = exact if residual is None else exact + residual.astype(np.float64)
    return activate(epilogue, total)


def bound(
    epilogue: Epilogue, exact: np.ndarray, sum_bound: np.ndarray | float, residual: np.ndarray | None
) -> np.ndarray | float:
    """How far a float32 kernel may be from `reference`: additions round, activations have slopes and ulps."""
    if residual is not None:
        sum_bound = sum_bound + 2 * UNIT_ROUNDOFF * (np.abs(exact) + np.abs(residual.astype(np.float64)))
    if not epilogue.activation:
        return sum_bound
    activation = ACTIVATIONS[epilogue.activation]
    total = exact if residual is None else exact + residual.astype(np.float64)
    size = np.maximum(np.abs(total), np.abs(activate(epilogue, total)))
    slope = activation.slope(epilogue.alpha, epilogue.beta)
    return slope * sum_bound + activation.ulps * 2 * UNIT_ROUNDOFF * size


def own_input(problem: Problem, index: int) -> Operand | None:
    """Input `index` of the operator itself: a fused residual (the last) isn't taken for an absent bias."""
    own = problem.inputs[:-1] if problem.epilogue.has_residual else problem.inputs
    return own[index] if index < len(own) else None


def arguments(epilogue: Epilogue) -> dict[str, Any]:
    """The scalars of a kernel that applies `activate` of epilogue.cuh."""
    return {"activation": CODES[epilogue.activation], "alpha": epilogue.alpha, "beta": epilogue.beta}


def orders(problem: Problem, order: str) -> Orders:
    """x, y and a residual in one order; weights and biases as ONNX has them."""
    inputs = [order, *("NCHW" for _ in problem.inputs[1:])]
    if problem.epilogue.has_residual:
        inputs[-1] = order
    return Orders(inputs=tuple(inputs), outputs=(order,))


def row_step(
    problem: Problem,
    *,
    rows: int,
    columns: int,
    bias: Operand | None,
    first_row: int = 0,
    row_strides: tuple[int, int] | None = None,
    bias_scale: float = 1.0,
    bias_strides: tuple[int, int] = (0, 1),
) -> tuple[Step, ...]:
    """The epilogue of rows that a GEMM has written into y, from `first_row` on; () if there is nothing to do.

    row_strides   elements from row to row of y and of the residual; None: their pixel strides
    bias_strides  elements of the bias from row to row and from column to column (0 or 1)
    """
    residual = problem.residual
    if bias is None and residual is None and not problem.epilogue.activation:
        return ()
    y_stride, residual_stride = row_strides or (
        problem.y.pixel_stride,
        residual.pixel_stride if residual else 0,
    )
    return launch(
        Kernel(file="epilogue.cu", entry="epilogue"),
        **tiling.vectors(channels=columns, rows=rows),
        bias=bias.view(first_row * bias_strides[0]) if bias else None,
        residual=residual.view(first_row * residual_stride) if residual else None,
        y=problem.y.view(first_row * y_stride),
        M=rows,
        N=columns,
        y_stride=y_stride,
        residual_stride=residual_stride,
        bias_row_stride=bias_strides[0],
        bias_per_column=bias_strides[1],
        bias_scale=bias_scale,
        **arguments(problem.epilogue),
    )
