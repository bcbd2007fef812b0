"""Functions of one number: activations, roots, exponentials, rounding, trigonometry.

Shapes    x -> y of the same shape, any rank, float32 or float16 (computed in float32); Abs, Neg, Sign also of
          integers
Source    ONNX operators of these names
Not here  float64; Relu, Clip and LeakyRelu, which have files of their own
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minicnn import elements
from minicnn.activations import ACTIVATIONS, erf
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Launch
from minicnn.strided import row_steps

ULP = 2.0**-23  # of float32, as a fraction: the most that a unit in the last place is of a number
SMALLEST = 2.0**-149


class Elementwise(Variant):
    name = "elementwise"
    dtypes: tuple[str, ...] | None = elements.FLOATS
    may_overwrite = True

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("same",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        x, operator = problem.x, problem.operator
        kernel = Kernel(file="unary.cu", entry=operator.entry(), defines=elements.defines(x.dtype))
        return row_steps(kernel, x, problem.y, **operator.scalars())


class SignedElementwise(Elementwise):
    """Numbers of any signed type: nothing is computed."""

    dtypes = (*elements.FLOATS, *elements.INTEGERS, "int8", "float64")


@dataclass(frozen=True, kw_only=True)
class _Unary:
    """What all share.

    ULPS    the error bound in units of float32's last place of y (IN_X: of the larger of x and y, where the
            definition itself cancels)
    LEAST   what is lost near zero, where numbers are subnormal
    """

    ULPS: ClassVar[float] = 0
    LEAST: ClassVar[float] = 2 * SMALLEST
    IN_X: ClassVar[bool] = False

    def entry(self) -> str:
        return f"unary_{type(self).__name__.lower()}"

    def scalars(self) -> dict[str, float]:
        """Arguments of the kernel beside x and y."""
        return {}

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x,)

    def variants(self) -> tuple[Variant, ...]:
        return (Elementwise(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost(flops=math.prod(problem.y.shape))

    def compute(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def reference(self, x: np.ndarray) -> np.ndarray:
        exact = x if x.dtype.kind in "iu" else x.astype(np.float64)
        return elements.stored(np.asarray(self.compute(exact)), x.dtype)

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        if not self.ULPS and x.dtype != np.float16:
            return 0.0
        y = np.abs(np.nan_to_num(self.reference(x).astype(np.float64), posinf=0.0, neginf=0.0))
        size = np.maximum(y, np.abs(x.astype(np.float64))) if self.IN_X else y
        own = self.ULPS * ULP * size + self.LEAST
        return own + elements.storage_bound(y, x.dtype)


def _float32(value: float) -> float:
    """As a kernel gets it."""
    return np.float32(value).item()


class _Activation(_Unary):
    """An activation of epilogue.cuh: its definition is in activations.py."""

    def fused_parameters(self) -> tuple[float, float]:
        """alpha and beta of the epilogue that does the same."""
        return 0.0, 0.0

    def compute(self, x: np.ndarray) -> np.ndarray:
        return ACTIVATIONS[type(self).__name__].function(x, *map(_float32, self.fused_parameters()))


class _WithTwo(_Activation):
    """The kernel takes alpha and beta."""

    def scalars(self) -> dict[str, float]:
        alpha, beta = self.fused_parameters()
        return {"alpha": alpha, "beta": beta}


@operator("Sigmoid", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Sigmoid(_Activation):
    ULPS = 3


@operator("HardSigmoid", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class HardSigmoid(_WithTwo):
    ULPS = 1
    IN_X = True
    alpha: float = 0.2
    beta: float = 0.5

    def fused_parameters(self) -> tuple[float, float]:
        return self.alpha, self.beta

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        """A product and a sum rounded, whichever way they are contracted."""
        terms = abs(self.alpha) * np.abs(x.astype(np.float64)) + abs(self.beta)
        own = ULP * np.where(np.isfinite(terms), terms, 0.0)
        return own + elements.storage_bound(np.ones_like(own), x.dtype)


@operator("HardSwish", opsets=(1, None))  # ONNX has it since 14; older graphs get it from patterns.py
@dataclass(frozen=True, kw_only=True)
class HardSwish(_Activation):
    ULPS = 3
    IN_X = True


@operator("Tanh", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Tanh(_Activation):
    ULPS = 4


@operator("Elu", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Elu(_WithTwo):
    ULPS = 4
    alpha: float = 1.0

    def fused_parameters(self) -> tuple[float, float]:
        return self.alpha, 1.0


@operator("Selu", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Selu(_WithTwo):
    ULPS = 4
    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def entry(self) -> str:
        return "unary_elu"

    def fused_parameters(self) -> tuple[float, float]:
        return self.alpha, self.gamma


@operator("Swish", opsets=(1, None))  # ONNX has it since 24; older graphs get it from patterns.py
@dataclass(frozen=True, kw_only=True)
class Swish(_WithTwo):
    """x * sigmoid(alpha * x)."""

    LEAST = 200 * SMALLEST  # x times a subnormal number
    alpha: float = 1.0

    def fused_parameters(self) -> tuple[float, float]:
        return self.alpha, 0.0

    def bound(self, x: np.ndarray) -> np.ndarray | float:
        """Far below zero an error of alpha * x is one of the exponential's, |alpha * x| times as large."""
        y = np.abs(np.nan_to_num(self.reference(x), posinf=0.0))
        below = np.maximum(-self.alpha * np.nan_to_num(x.astype(np.float64), neginf=0.0), 0)
        return ULP * y * (4 + below) + self.LEAST + elements.storage_bound(y, x.dtype)


@operator("Gelu", opsets=(1, None))  # ONNX has it since 20; older graphs get it from patterns.py
@dataclass(frozen=True, kw_only=True)
class Gelu(_Activation):
    ULPS = 2
    IN_X = True
    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(f"approximate {self.approximate}, neither none nor tanh")

    def entry(self) -> str:
        return "unary_gelu_tanh" if self.approximate == "tanh" else "unary_gelu"

    def fused_parameters(self) -> tuple[float, float]:
        return float(self.approximate == "tanh"), 0.0


@operator("Mish", opsets=(1, None))  # ONNX has it since 18; older graphs get it from patterns.py
@dataclass(frozen=True, kw_only=True)
class Mish(_Activation):
    ULPS = 6
    LEAST = 200 * SMALLEST  # x times a subnormal number


@operator("Softplus", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Softplus(_Activation):
    ULPS = 4


@operator("Celu", opsets=(12, None))
@dataclass(frozen=True, kw_only=True)
class Celu(_WithTwo):
    """alpha * (exp(x / alpha) - 1) below zero."""

    ULPS = 5
    alpha: float = 1.0

    def fused_parameters(self) -> tuple[float, float]:
        raise AttributeError("no epilogue does this")

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha, "beta": 0.0}

    def compute(self, x: np.ndarray) -> np.ndarray:
        alpha = _float32(self.alpha)
        return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x) / alpha))


@operator("ThresholdedRelu", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class ThresholdedRelu(_Unary):
    """Numbers up to alpha become 0."""

    alpha: float = 1.0

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha, "beta": 0.0}

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.where(x <= _float32(self.alpha), 0, x)


@operator("Shrink", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Shrink(_Unary):
    """Numbers between -lambd and lambd become 0, the others come `bias` nearer to it."""

    ULPS = 1
    lambd: float = 0.5
    bias: float = 0.0

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.lambd, "beta": self.bias}

    def compute(self, x: np.ndarray) -> np.ndarray:
        limit, bias = _float32(self.lambd), _float32(self.bias)
        return np.where(x < -limit, x + bias, np.where(x > limit, x - bias, np.where(np.isnan(x), x, 0)))


class _Numpy(_Unary):
    """numpy's function of one number."""

    FUNCTION: ClassVar[Any]

    def compute(self, x: np.ndarray) -> np.ndarray:
        return type(self).FUNCTION(x)


class _Signed(_Numpy):
    def variants(self) -> tuple[Variant, ...]:
        return (SignedElementwise(),)


@operator("Abs", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Abs(_Signed):
    FUNCTION = np.abs


@operator("Neg", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Neg(_Signed):
    FUNCTION = np.negative


@operator("Sign", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Sign(_Signed):
    FUNCTION = np.sign


@operator("Erf", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Erf(_Numpy):
    ULPS = 2
    FUNCTION = staticmethod(erf)


@operator("Softsign", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class Softsign(_Unary):
    ULPS = 2

    def compute(self, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.abs(x))


@operator("Sqrt", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Sqrt(_Numpy):
    ULPS = 1
    FUNCTION = np.sqrt


@operator("Exp", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Exp(_Numpy):
    ULPS = 2
    FUNCTION = np.exp


@operator("Log", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Log(_Numpy):
    ULPS = 2
    FUNCTION = np.log


@operator("Reciprocal", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Reciprocal(_Numpy):
    ULPS = 1
    FUNCTION = np.reciprocal


@operator("Floor", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Floor(_Numpy):
    FUNCTION = np.floor


@operator("Ceil", opsets=(6, None))
@dataclass(frozen=True, kw_only=True)
class Ceil(_Numpy):
    FUNCTION = np.ceil


@operator("Round", opsets=(11, None))
@dataclass(frozen=True, kw_only=True)
class Round(_Numpy):
    """Halves go to the even neighbour."""

    FUNCTION = np.rint


@operator("Sin", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Sin(_Numpy):
    ULPS = 2
    FUNCTION = np.sin


@operator("Cos", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Cos(_Numpy):
    ULPS = 2
    FUNCTION = np.cos


@operator("Tan", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Tan(_Numpy):
    ULPS = 4
    FUNCTION = np.tan


@operator("Asin", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Asin(_Numpy):
    ULPS = 3
    FUNCTION = np.arcsin


@operator("Acos", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Acos(_Numpy):
    ULPS = 3
    FUNCTION = np.arccos


@operator("Atan", opsets=(7, None))
@dataclass(frozen=True, kw_only=True)
class Atan(_Numpy):
    ULPS = 2
    FUNCTION = np.arctan


@operator("Sinh", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Sinh(_Numpy):
    ULPS = 3
    FUNCTION = np.sinh


@operator("Cosh", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Cosh(_Numpy):
    ULPS = 3
    FUNCTION = np.cosh


@operator("Asinh", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Asinh(_Numpy):
    ULPS = 4
    FUNCTION = np.arcsinh


@operator("Acosh", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Acosh(_Numpy):
    ULPS = 4
    FUNCTION = np.arccosh


@operator("Atanh", opsets=(9, None))
@dataclass(frozen=True, kw_only=True)
class Atanh(_Numpy):
    ULPS = 3
    FUNCTION = np.arctanh


_IMAGE = (2, 5, 3, 7)
_LONG = (2, 33, 9, 11)  # more elements than a block has threads


def _case(op: Any, low: float, high: float, shape: tuple[int, ...] = _IMAGE, dtype: str = "float32") -> Case:
    return Case(operator=op, shapes=(shape,), ranges={0: (low, high)}, dtype=dtype)


CASES = {
    "sigmoid": _case(Sigmoid(), -9, 9, _LONG),
    "sigmoid, far out": _case(Sigmoid(), -200, 200),
    "sigmoid, a scalar": _case(Sigmoid(), -9, 9, ()),
    "sigmoid, nothing": _case(Sigmoid(), -9, 9, (0, 3)),
    "sigmoid, float16": _case(Sigmoid(), -9, 9, _LONG, "float16"),
    "sigmoid, float16, far out": _case(Sigmoid(), -30, 30, (7,), "float16"),
    "hardsigmoid": _case(HardSigmoid(), -4, 4, _LONG),
    "hardsigmoid, of a mobile network": _case(HardSigmoid(alpha=1 / 6, beta=0.5), -9, 9),
    "hardsigmoid, float16": _case(HardSigmoid(), -4, 4, (3, 10), "float16"),
    "hardswish": _case(HardSwish(), -6, 6, _LONG),
    "hardswish, float16": _case(HardSwish(), -6, 6, (2, 16, 4, 5), "float16"),
    "tanh": _case(Tanh(), -3, 3, _LONG),
    "tanh, near zero": _case(Tanh(), -1e-4, 1e-4),
    "tanh, far out": _case(Tanh(), -200, 200),
    "tanh, float16": _case(Tanh(), -3, 3, (7,), "float16"),
    "elu": _case(Elu(), -4, 4, _LONG),
    "elu, steep": _case(Elu(alpha=2.5), -30, 4),
    "elu, near zero": _case(Elu(), -1e-4, 1e-4),
    "elu, float16": _case(Elu(), -4, 4, (7,), "float16"),
    "selu": _case(Selu(), -4, 4, _LONG),
    "selu, its own": _case(Selu(alpha=2.0, gamma=3.0), -4, 4),
    "celu": _case(Celu(), -4, 4, _LONG),
    "celu, narrow": _case(Celu(alpha=0.3), -4, 4),
    "thresholdedrelu": _case(ThresholdedRelu(), -4, 4, _LONG),
    "thresholdedrelu, at zero": _case(ThresholdedRelu(alpha=0.0), -4, 4),
    "shrink": _case(Shrink(), -2, 2, _LONG),
    "shrink, with a bias": _case(Shrink(lambd=0.7, bias=0.3), -2, 2),
    "swish": _case(Swish(), -9, 9, _LONG),
    "swish, far out": _case(Swish(alpha=1.5), -120, 120),
    "swish, float16": _case(Swish(), -9, 9, (2, 16, 4, 5), "float16"),
    "gelu": _case(Gelu(), -6, 6, _LONG),
    "gelu, with tanh": _case(Gelu(approximate="tanh"), -6, 6, _LONG),
    "gelu, far out": _case(Gelu(), -200, 200),
    "gelu, with tanh, far out": _case(Gelu(approximate="tanh"), -200, 200),
    "gelu, float16": _case(Gelu(), -6, 6, (3, 10), "float16"),
    "mish": _case(Mish(), -9, 9, _LONG),
    "mish, far out": _case(Mish(), -80, 200),
    "softplus": _case(Softplus(), -9, 9, _LONG),
    "softplus, far out": _case(Softplus(), -80, 200),
    "softsign": _case(Softsign(), -9, 9, _LONG),
    "erf": _case(Erf(), -4, 4, _LONG),
    "erf, near zero": _case(Erf(), -1e-3, 1e-3),
    "erf, float16": _case(Erf(), -4, 4, (7,), "float16"),
    "sqrt": _case(Sqrt(), 0, 9, _LONG),
    "sqrt, of negative numbers: NaN": _case(Sqrt(), -1, 1, (7,)),
    "sqrt, float16": _case(Sqrt(), 0, 9, (7,), "float16"),
    "exp": _case(Exp(), -9, 9, _LONG),
    "exp, to both ends": _case(Exp(), -110, 95),
    "exp, float16": _case(Exp(), -9, 13, (7, 9), "float16"),
    "log": _case(Log(), 1e-3, 9, _LONG),
    "log, near one": _case(Log(), 0.99, 1.01),
    "log, of negative numbers: NaN": _case(Log(), -1, 1, (7,)),
    "log, below the normal numbers": _case(Log(), 1e-42, 1e-38, (7,)),
    "abs": _case(Abs(), -9, 9, _LONG),
    "abs, 8-byte integers": _case(Abs(), -9, 9, _IMAGE, "int64"),
    "abs, float16": _case(Abs(), -9, 9, (7,), "float16"),
    "neg": _case(Neg(), -9, 9, _LONG),
    "neg, 8-byte integers": _case(Neg(), -9, 9, _IMAGE, "int64"),
    "neg, 4-byte integers": _case(Neg(), -9, 9, _IMAGE, "int32"),
    "sign": _case(Sign(), -9, 9, _LONG),
    "sign, 8-byte integers": _case(Sign(), -2, 2, (7, 9), "int64"),
    "reciprocal": _case(Reciprocal(), 0.1, 9, _LONG),
    "reciprocal, float16": _case(Reciprocal(), 0.1, 9, (7,), "float16"),
    "floor": _case(Floor(), -9, 9, _LONG),
    "floor, float16": _case(Floor(), -9, 9, (7,), "float16"),
    "ceil": _case(Ceil(), -9, 9, _LONG),
    "round": _case(Round(), -9, 9, _LONG),
    "sin": _case(Sin(), -9, 9, _LONG),
    "sin, far out": _case(Sin(), -1e6, 1e6),
    "cos": _case(Cos(), -9, 9, _LONG),
    "tan": _case(Tan(), -1.5, 1.5),
    "asin": _case(Asin(), -1, 1),
    "acos": _case(Acos(), -1, 1),
    "atan": _case(Atan(), -9, 9),
    "sinh": _case(Sinh(), -9, 9),
    "cosh": _case(Cosh(), -9, 9),
    "asinh": _case(Asinh(), -9, 9),
    "acosh": _case(Acosh(), 1, 9),
    "atanh": _case(Atanh(), -1, 1),
}
