"""QLinearConv, ConvInteger: convolution of 8-bit integers, summed exactly in 32 bits.

Shapes    x (N, C, H, W), w (K, C/group, R, S) -> y (N, K, P, Q); 1-D: H = R = P = 1
          QLinearConv: scales and zero points of x, w, y beside them, those of w () or (K); bias (K) int32
Source    ONNX operators of these names
Not here  3-D windows, a zero point for each input channel: refused by name
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minicnn import tiling
from minicnn.elements import CODES
from minicnn.errors import ShapeError, UnsupportedError
from minicnn.graph import TensorType
from minicnn.kernels import launch
from minicnn.ops.qlinearconv_tiled import Depthwise, Dp4a, Tiled
from minicnn.ops.quantizelinear import BYTES, saturated
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Kernel, Operand, Step
from minicnn.window import Windowed, taps, two_axes, window_arguments


@dataclass(frozen=True, kw_only=True)
class _IntegerConv(Windowed):
    group: int = 1

    def sums(self, x: TensorType, w: TensorType) -> tuple[int, ...]:
        """The output's shape.

        Raises    ShapeError, UnsupportedError (3-D, other types)
        """
        if x.dtype not in BYTES or w.dtype not in BYTES:
            raise UnsupportedError("integers of other types", found=f"{x.dtype}, {w.dtype}", accepted=BYTES)
        if len(x.extents) not in (3, 4) or len(x.extents) != len(w.extents):
            raise UnsupportedError("these axes", found=f"{x.extents}, {w.extents}", accepted="1-D and 2-D")
        N, C, *spatial = x.extents
        K, C_group, *kernel = w.extents
        if self.group < 1 or C != C_group * self.group or K % self.group:
            raise ShapeError("channels don't fit the groups", found=w.extents, expected=f"{C} / {self.group}")
        if self.kernel_shape and self.kernel_shape != tuple(kernel):
            raise ShapeError(
                "kernel_shape isn't the weights'", expected=tuple(kernel), found=self.kernel_shape
            )
        return (N, K, *(one.out for one in self.windows(tuple(spatial), tuple(kernel))))

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(),)

    def cost(self, problem: Problem) -> Cost:
        w = self.operands(problem)["w"]
        assert w is not None
        macs = math.prod(problem.y.shape) * math.prod(w.shape[1:])
        return Cost(macs=macs, flops=2 * macs)

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        """A problem's inputs by the names of the .cu file; None where the operator has none."""
        raise NotImplementedError

    def exact(
        self, x: np.ndarray, x_zero: np.ndarray | int, w: np.ndarray, w_zero: np.ndarray | int
    ) -> np.ndarray:
        """The sums, in 64 bits."""
        K = len(w)
        image = x.astype(np.int64) - np.asarray(x_zero, np.int64).reshape(())
        zeros = np.asarray(w_zero, np.int64).reshape(-1, *[1] * (w.ndim - 1))
        filters = (w.astype(np.int64) - zeros).reshape(self.group, K // self.group, w.shape[1], -1)
        shape = (len(x), K, *(one.out for one in self.windows(x.shape[2:], w.shape[2:])))
        y = np.zeros((len(x), self.group, K // self.group, math.prod(shape[2:])), np.int64)
        for place, (seen, is_inside) in enumerate(taps(image, self.windows(x.shape[2:], w.shape[2:]))):
            tap = np.where(is_inside, seen, 0).reshape(len(x), self.group, w.shape[1], -1)
            y += np.einsum("ngcp,gkc->ngkp", tap, filters[..., place])
        return y.reshape(shape)

    def bound(self, *arrays: np.ndarray) -> float:
        return 0.0


class Direct(Variant):
    name = "direct"
    dtypes = ("float32", "int32", *BYTES)

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("NCHW",), outputs=("NCHW",))

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        operands, y = problem.operator.operands(problem), problem.y
        x, w = operands["x"], operands["w"]
        assert x is not None and w is not None
        windows = two_axes(problem.operator.windows(x.shape[2:], w.shape[2:]))
        extents = window_arguments(windows)
        N, K = y.shape[:2]
        kernel = Kernel(file="qlinearconv.cu", entry="qlinearconv", defines=macros(x, w, y))
        return launch(
            kernel, **tiling.planes(columns=extents["Q"], rows=extents["P"], planes=N * K), **operands, y=y,
            w_scale_step=step(operands["w_scale"]), w_zero_step=step(operands["w_zero"]),
            C=x.shape[1], K=K, groups=problem.operator.group, **extents,
        )  # fmt: skip


def macros(x: Operand, w: Operand, y: Operand) -> tuple[tuple[str, int], ...]:
    """Types of a kernel over 8-bit factors, as cuda/quantized.cuh knows them."""
    return (("ELEMENT", CODES[x.dtype]), ("WEIGHT", CODES[w.dtype]), ("RESULT", CODES[y.dtype]))


def step(values: Operand | None) -> int:
    """Elements from one channel's scale or zero point to the next one's."""
    return int(values is not None and math.prod(values.shape) > 1)


def requantised(
    sums: np.ndarray, x_scale: np.ndarray, w_scale: np.ndarray, y_scale: np.ndarray, y_zero: np.ndarray
) -> np.ndarray:
    """As a kernel's and onnxruntime's: the sum and the multiplier are float32, and so is their product."""
    multiplier = np.float32(x_scale) * w_scale.astype(np.float32) / np.float32(y_scale)
    scaled = np.rint(sums.astype(np.float32) * multiplier)
    return saturated(scaled.astype(np.float64) + float(y_zero.reshape(())), y_zero.dtype)


def check_scales(columns: int, *values: TensorType) -> None:
    """Raises    ShapeError: of the weights: neither one for all nor one for each column (output channel)"""
    for found in values:
        if found.extents not in ((), (1,), (columns,)):
            expected = f"(), (1,) or ({columns},)"
            raise ShapeError("scales or zero points that don't fit", expected=expected, found=found.extents)


@operator("QLinearConv", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class QLinearConv(_IntegerConv):
    def infer(
        self, x: TensorType, x_scale: TensorType, x_zero: TensorType, w: TensorType, w_scale: TensorType,
        w_zero: TensorType, y_scale: TensorType, y_zero: TensorType, bias: TensorType | None = None,
    ) -> tuple[TensorType, ...]:  # fmt: skip
        """Raises    ShapeError, UnsupportedError"""
        shape = self.sums(x, w)
        check_scales(shape[1], w_scale, w_zero)
        check_scales(1, x_scale, x_zero, y_scale, y_zero)
        if bias is not None and bias.extents != (shape[1],):
            raise ShapeError("a bias is one number for each output channel", found=bias.extents)
        if y_zero.dtype not in BYTES:
            raise UnsupportedError("integers of other types", found=y_zero.dtype, accepted=BYTES)
        return (TensorType(dtype=y_zero.dtype, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Direct(), Tiled(), Dp4a(), Depthwise())

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        names = ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias")
        return {name: problem.input(i) for i, name in enumerate(names)}

    def reference(
        self, x: np.ndarray, x_scale: np.ndarray, x_zero: np.ndarray, w: np.ndarray, w_scale: np.ndarray,
        w_zero: np.ndarray, y_scale: np.ndarray, y_zero: np.ndarray, bias: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        along = (-1, *[1] * (x.ndim - 2))
        sums = self.exact(x, x_zero, w, w_zero) + (0 if bias is None else bias.reshape(along))
        return requantised(sums, x_scale.reshape(()), w_scale.reshape(along), y_scale.reshape(()), y_zero)


@operator("ConvInteger", opsets=(10, None))
@dataclass(frozen=True, kw_only=True)
class ConvInteger(_IntegerConv):
    def infer(
        self, x: TensorType, w: TensorType, x_zero: TensorType | None = None, w_zero: TensorType | None = None
    ) -> tuple[TensorType, ...]:
        """Raises    ShapeError, UnsupportedError"""
        shape = self.sums(x, w)
        check_scales(shape[1], *([w_zero] if w_zero else []))
        check_scales(1, *([x_zero] if x_zero else []))
        return (TensorType(dtype="int32", shape=shape),)

    def operands(self, problem: Problem) -> dict[str, Operand | None]:
        absent = dict.fromkeys(("x_scale", "w_scale", "y_scale", "y_zero", "bias"))
        given = {name: problem.input(i) for i, name in enumerate(("x", "w", "x_zero", "w_zero"))}
        return absent | given

    def reference(
        self, x: np.ndarray, w: np.ndarray, x_zero: np.ndarray | None = None, w_zero: np.ndarray | None = None
    ) -> np.ndarray:
        x_zeros, w_zeros = (0 if zero is None else zero for zero in (x_zero, w_zero))
        return self.exact(x, x_zeros, w, w_zeros).astype(np.int32)


_KNOWN = tuple(range(1, 9))


def _case(
    conv: QLinearConv, x: tuple[int, ...], w: tuple[int, ...], *, types: str = "uint8 int8 uint8",
    per_channel: bool = False, bias: bool = True, w_zero: int = 0, constants: tuple[int, ...] = _KNOWN,
    one_zero: bool = False,
) -> Case:  # fmt: skip
    x_type, w_type, y_type = types.split()
    own = (w[0],) if per_channel else ()
    shapes = (x, (), (), w, own, () if one_zero else own, (), (), (w[0],) if bias else None)
    dtypes = {0: x_type, 2: x_type, 3: w_type, 5: w_type, 7: y_type, 8: "int32"}
    full = {"uint8": (0.0, 255.0), "int8": (-128.0, 127.0)}
    ranges = {0: full[x_type], 1: (0.01, 0.02), 2: (1.0, 9.0), 3: full[w_type], 4: (0.004, 0.01),
              5: (w_zero, w_zero), 6: (0.05, 0.1), 7: (1.0, 9.0), 8: (-2000.0, 2000.0)}  # fmt: skip
    return Case(operator=conv, shapes=shapes, constants=constants, dtypes=dtypes, ranges=ranges)


_ZEROS = {2: (3, 3), 3: (5, 5)}

CASES = {
    "unsigned by signed": _case(QLinearConv(), (2, 5, 9, 7), (6, 5, 3, 3)),
    "a scale for each filter": _case(
        QLinearConv(pads=(0, 1, 2, 3)), (1, 5, 7, 6), (9, 5, 3, 4), per_channel=True
    ),
    "unsigned weights with a zero point": _case(
        QLinearConv(pads=(1, 1, 1, 1)), (1, 4, 6, 7), (3, 4, 3, 3), types="uint8 uint8 uint8", w_zero=130
    ),
    "all signed, no bias": _case(
        QLinearConv(), (1, 16, 5, 6), (8, 16, 1, 1), types="int8 int8 int8", bias=False
    ),
    "strides and dilations differ": _case(
        QLinearConv(strides=(2, 3), dilations=(2, 1), pads=(2, 1, 0, 1)), (1, 3, 11, 13), (4, 3, 3, 2)
    ),
    "groups": _case(QLinearConv(group=3, pads=(1, 1, 1, 1)), (2, 6, 5, 4), (9, 2, 3, 3), per_channel=True),
    "depthwise": _case(
        QLinearConv(group=7, strides=(2, 2), pads=(1, 1, 1, 1)), (1, 7, 9, 8), (7, 1, 3, 3), per_channel=True
    ),
    "scales at run time": _case(
        QLinearConv(strides=(1, 2)), (2, 5, 9, 7), (6, 5, 3, 2), per_channel=True, constants=(3, 8)
    ),
    "scales for all filters, one zero point": _case(
        QLinearConv(), (1, 4, 6, 7), (3, 4, 3, 3), per_channel=True, one_zero=True, constants=(3, 8)
    ),
    "unsigned weights about their middle": _case(
        QLinearConv(strides=(2, 1), dilations=(1, 2), pads=(1, 2, 0, 1)), (2, 13, 7, 9), (50, 13, 3, 2),
        types="uint8 uint8 uint8", w_zero=128, per_channel=True,
    ),
    "more filters than a tile": _case(QLinearConv(), (1, 6, 4, 15), (70, 6, 1, 1), types="int8 int8 int8"),
    "depthwise, all axes different": _case(
        QLinearConv(group=40, strides=(1, 3), dilations=(3, 2), pads=(0, 4, 1, 3)), (1, 40, 11, 62),
        (40, 1, 2, 5), types="uint8 uint8 uint8", w_zero=7, per_channel=True,
    ),
    "1-D": _case(QLinearConv(auto_pad="SAME_UPPER", strides=(2,)), (1, 3, 17), (4, 3, 5)),
    "sums, zero points": Case(
        operator=ConvInteger(pads=(1, 0, 1, 2)), shapes=((2, 3, 6, 7), (4, 3, 3, 3), (), ()), dtype="uint8",
        ranges={0: (0, 255), 1: (0, 255), **_ZEROS},
    ),
    "sums, no zero points": Case(
        operator=ConvInteger(group=2), shapes=((1, 4, 6, 7), (4, 2, 2, 3)), dtype="uint8",
        ranges={0: (0, 255)},
    ),
}  # fmt: skip
