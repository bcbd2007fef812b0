"""DepthToSpace, SpaceToDepth: channels laid out as square blocks of pixels, and back.

Shapes    x (N, C*b*b, H, W) <-> y (N, C, H*b, W*b), b the blocksize; any type
Source    ONNX operators DepthToSpace, SpaceToDepth (mode CRD since opset 11 and 28); Shi et al. 2016
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from minicnn.errors import ShapeError
from minicnn.geometry import Shape
from minicnn.graph import TensorType
from minicnn.registry import Case, Cost, Orders, Problem, Variant, operator
from minicnn.step import Launch, Operand
from minicnn.strided import move_steps

MODES = ("DCR", "CRD")  # which comes first in the deep channel: the block's place, or the shallow channel


class Copy(Variant):
    """One strided copy, whatever the two orders in memory."""

    name = "copy"
    dtypes = None

    def orders(self, problem: Problem) -> Orders:
        return Orders(inputs=("any",), outputs=("any",))

    def steps(self, problem: Problem) -> tuple[Launch, ...]:
        operator, x, y = problem.operator, problem.x, problem.y
        deep, wide = (x, y) if operator.is_spreading else (y, x)
        strides = {deep.name: operator.deep_strides(deep), wide.name: operator.wide_strides(wide)}
        N, C, H, W = deep.shape
        b = operator.blocksize
        extents = (N, b, b, C // (b * b), H, W)
        return move_steps(extents, x, strides[x.name], y, strides[y.name])


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    blocksize: int
    mode: str = "DCR"
    is_spreading = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode}, none of {', '.join(MODES)}")

    def deep_strides(self, deep: Operand) -> tuple[int, ...]:
        """Along N, the block's rows and columns, shallow channels, H, W of the tensor with many channels."""
        n, c, h, w = deep.strides
        b, shallow = self.blocksize, deep.shape[1] // self.blocksize**2
        row, column, channel = (b * shallow, shallow, 1) if self.mode == "DCR" else (b, 1, b * b)
        return (n, row * c, column * c, channel * c, h, w)

    def wide_strides(self, wide: Operand) -> tuple[int, ...]:
        """The same of the tensor with the many pixels."""
        n, c, h, w = wide.strides
        return (n, h, w, c, h * self.blocksize, w * self.blocksize)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        """Raises    ShapeError"""
        b = self.blocksize
        if len(x.extents) != 4 or b < 1:
            raise ShapeError(
                "an image and a blocksize", expected="x (N, C, H, W), 1 or more", found=f"{x.extents}, {b}"
            )
        N, C, H, W = x.extents
        divided = (C,) if self.is_spreading else (H, W)
        blocks = b * b if self.is_spreading else b
        if any(extent % blocks for extent in divided):
            raise ShapeError(
                "not a whole number of blocks", found=x.extents, expected=f"multiples of {blocks}"
            )
        shape: Shape = (N, C // blocks, H * b, W * b) if self.is_spreading else (N, C * b * b, H // b, W // b)
        return (replace(x, shape=shape),)

    def variants(self) -> tuple[Variant, ...]:
        return (Copy(),)

    def cost(self, problem: Problem) -> Cost:
        return Cost()

    def bound(self, x: np.ndarray) -> float:
        return 0.0


@operator("DepthToSpace", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class DepthToSpace(_Blocks):
    def reference(self, x: np.ndarray) -> np.ndarray:
        (N, C, H, W), b = x.shape, self.blocksize
        if self.mode == "DCR":
            blocks = x.reshape(N, b, b, C // (b * b), H, W).transpose(0, 3, 4, 1, 5, 2)
        else:
            blocks = x.reshape(N, C // (b * b), b, b, H, W).transpose(0, 1, 4, 2, 5, 3)
        return blocks.reshape(N, C // (b * b), H * b, W * b)


@operator("SpaceToDepth", opsets=(1, None))
@dataclass(frozen=True, kw_only=True)
class SpaceToDepth(_Blocks):
    is_spreading = False

    def reference(self, x: np.ndarray) -> np.ndarray:
        (N, C, H, W), b = x.shape, self.blocksize
        axes = (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        blocks = x.reshape(N, C, H // b, b, W // b, b).transpose(axes)
        return blocks.reshape(N, C * b * b, H // b, W // b)


CASES = {
    "spread, the block first": Case(operator=DepthToSpace(blocksize=2), shapes=((2, 20, 3, 5),)),
    "spread, the channel first": Case(
        operator=DepthToSpace(blocksize=2, mode="CRD"), shapes=((2, 20, 3, 5),)
    ),
    "spread, blocks of three, one channel": Case(
        operator=DepthToSpace(blocksize=3, mode="CRD"), shapes=((1, 9, 11, 7),)
    ),
    "spread, channels fill their padding": Case(operator=DepthToSpace(blocksize=2), shapes=((1, 64, 3, 5),)),
    "spread, blocks of one": Case(operator=DepthToSpace(blocksize=1), shapes=((2, 5, 3, 7),)),
    "gathered": Case(operator=SpaceToDepth(blocksize=2), shapes=((2, 5, 4, 6),)),
    "gathered, the channel first": Case(
        operator=SpaceToDepth(blocksize=2, mode="CRD"), shapes=((2, 5, 4, 6),)
    ),
    "gathered, an image into patches": Case(operator=SpaceToDepth(blocksize=4), shapes=((1, 3, 8, 12),)),
}
