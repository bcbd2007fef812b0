"""Activations as numpy defines them, in the precision of x. NaN stays NaN.

`alpha` and `beta` are those of `Epilogue`. Operators and fused layers have their definitions from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(alpha * x + beta, 0), 1)


def gelu(x: Array, approximately: float) -> Array:
    """x times the share of the normal distribution below x, or an approximation of it."""
    if approximately:
        return x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


@dataclass(frozen=True, kw_only=True)
class Activation:
    """function(x, alpha, beta); what it makes of an error in x: at most `slope(alpha, beta)` times as much;
    `ulps`: its own error in float32, in units of the last place of x or y, whichever is the larger."""

    function: Callable[[Array, float, float], Array]
    slope: Callable[[float, float], float] = lambda alpha, beta: 1.0
    ulps: float = 0.0


_ELU = Activation(
    function=lambda x, alpha, beta: beta * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    slope=lambda alpha, beta: abs(beta) * max(1.0, abs(alpha)),
    ulps=4,
)

ACTIVATIONS: Mapping[str, Activation] = {
    "Relu": Activation(function=lambda x, alpha, beta: np.maximum(x, 0)),
    "Clip": Activation(function=lambda x, alpha, beta: np.minimum(np.maximum(x, alpha), beta)),
    "Sigmoid": Activation(function=lambda x, alpha, beta: sigmoid(x), ulps=3),
    "HardSigmoid": Activation(function=hard_sigmoid, slope=lambda alpha, beta: abs(alpha), ulps=2),
    "HardSwish": Activation(
        function=lambda x, alpha, beta: x * hard_sigmoid(x, 1 / 6, 0.5), slope=lambda alpha, beta: 1.5, ulps=3
    ),
    "Tanh": Activation(function=lambda x, alpha, beta: np.tanh(x), ulps=4),
    "Elu": _ELU,
    "Selu": _ELU,
    "Swish": Activation(
        function=lambda x, alpha, beta: x * sigmoid(alpha * x), slope=lambda alpha, beta: 1.1, ulps=4
    ),
    "Gelu": Activation(
        function=lambda x, alpha, beta: gelu(x, alpha), slope=lambda alpha, beta: 1.13, ulps=4
    ),
    "Mish": Activation(
        function=lambda x, alpha, beta: x * np.tanh(softplus(x)), slope=lambda alpha, beta: 1.1, ulps=6
    ),
    "Softplus": Activation(function=lambda x, alpha, beta: softplus(x), ulps=4),
}  # fmt: skip
