"""Work as data: what a device is asked to do, naming the memory it reads and writes. No device is imported
here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from minicnn.geometry import PLAIN, Layout, Shape


@dataclass(frozen=True, kw_only=True)
class View:
    """A place in memory: `byte_offset` bytes into the tensor (or workspace) of that name."""

    tensor: str
    byte_offset: int = 0

    def __str__(self) -> str:
        return f"{self.tensor}+{self.byte_offset}" if self.byte_offset else self.tensor


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor as a step sees it: logical shape (N, C, ...), dtype, and how it lies in memory.

    `value` is there for constants alone, so that a variant can look at weights while planning.
    """

    name: str
    dtype: str
    shape: Shape
    layout: Layout = PLAIN
    value: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def is_constant(self) -> bool:
        return self.value is not None

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def elements(self) -> int:
        """Elements of memory, channel padding included; of a slice, up to its last pixel's last channel."""
        return self.layout.elements(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each logical axis."""
        return self.layout.strides(self.shape)

    @property
    def pixel_stride(self) -> int:
        """NHWC: elements from one pixel to the next."""
        return self.layout.pixel_stride(self.shape)

    @property
    def channels_padded(self) -> int:
        """NHWC: channels a kernel may read and write at a pixel."""
        return self.layout.channels_padded(self.shape)

    def view(self, elements: int = 0) -> View:
        """Where element `elements` (counted in memory) of this tensor lies."""
        return View(tensor=self.name, byte_offset=(self.layout.start(self.shape) + elements) * self.itemsize)

    def with_layout(self, layout: Layout) -> Operand:
        return replace(self, layout=layout)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An entry point of a .cu file (`file` beneath cuda/, or a path of the user's), built with -Dname=value
    macros."""

    file: str
    entry: str
    defines: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        macros = "".join(f" {name}={value}" for name, value in self.defines)
        return f"{self.entry}{macros}"


Extent3 = tuple[int, int, int]
Argument = View | int | float | None  # None: a null pointer


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch. `arguments` in the order of the kernel's parameters; made by `kernels.launch`."""

    kernel: Kernel
    grid: Extent3
    block: Extent3
    arguments: tuple[tuple[str, Argument], ...]
    format: str  # the parameters' struct codes, native alignment: "PPiif"
    shared_bytes: int = 0
    reads: tuple[View, ...] = ()
    writes: tuple[View, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}<<<{'x'.join(map(str, self.grid))}, {'x'.join(map(str, self.block))}>>>"


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """c = alpha * op(a) @ op(b) + beta * c, row-major float32: op(a) is m x k, op(b) k x n, c m x n.

    lda, ldb, ldc are elements from row to row as stored; batches lie stride_a, stride_b, stride_c elements
    apart.
    """

    m: int
    n: int
    k: int
    a: View
    b: View
    c: View
    lda: int
    ldb: int
    ldc: int
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    precision: str = "fp32"

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.a, self.b) if self.beta == 0 else (self.a, self.b, self.c)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.c,)

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"gemm {batch}{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, kw_only=True)
class _Transfer:
    """From one place on the device to another."""

    source: View
    target: View

    @property
    def reads(self) -> tuple[View, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.target,)


@dataclass(frozen=True, kw_only=True)
class Fft(_Transfer):
    """`batch` images of `extents` (rows, columns) and `channels`, each channel transformed in two dimensions.

    Shapes    real (batch, rows, columns, channels), complex (batch, rows, columns // 2 + 1, channels)

    Inverse: complex to real, unscaled; what it read is lost.
    """

    extents: tuple[int, int]
    batch: int
    channels: int = 1
    inverse: bool = False

    @property
    def real_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, *self.extents, self.channels)

    @property
    def spectrum_shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.extents[0], self.extents[1] // 2 + 1, self.channels)

    def __str__(self) -> str:
        extents = "x".join(map(str, (*self.extents, self.channels)))
        return f"{'inverse ' if self.inverse else ''}fft {self.batch} x {extents}"


@dataclass(frozen=True, kw_only=True)
class Copy(_Transfer):
    """`nbytes` bytes from one place on the device to another; the two don't overlap."""

    nbytes: int

    def __str__(self) -> str:
        return f"copy {self.nbytes} B"


@dataclass(frozen=True, kw_only=True)
class Fill:
    """`nbytes` bytes (a multiple of 4) set to the 32-bit `pattern` again and again."""

    target: View
    nbytes: int
    pattern: int = 0

    @property
    def reads(self) -> tuple[View, ...]:
        return ()

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.target,)

    def __str__(self) -> str:
        return f"fill {self.nbytes} B"


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """A Python function between device work: arrays of `inputs` in (logical shape), arrays of `outputs` back.

    Ends a plan segment and a graph capture. `function(*arrays) -> sequence of arrays`.
    """

    name: str
    function: Callable[..., tuple[np.ndarray, ...]] = field(compare=False, repr=False)
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]

    @property
    def reads(self) -> tuple[View, ...]:
        return tuple(o.view() for o in self.inputs if o is not None)

    @property
    def writes(self) -> tuple[View, ...]:
        return tuple(o.view() for o in self.outputs)

    def __str__(self) -> str:
        return f"host call {self.name}"


Step = Launch | Gemm | Fft | Copy | Fill | HostCall
