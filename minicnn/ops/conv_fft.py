"""`fft`: a convolution as products of spectra. It pays for large filters: an output has many products then.

The image is padded, transformed, multiplied frequency by frequency (a batch of small GEMMs: an image's
channels times filters), transformed back, and cropped. The filters' spectra are made at load.

Source    Mathieu, Henaff, LeCun, "Fast Training of Convolutional Networks through FFTs", 2014
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minicnn import epilogue, tiling
from minicnn.geometry import round_up
from minicnn.kernels import launch
from minicnn.ops.conv_variants import Convolution, Extents, extents_of, weights_of
from minicnn.registry import Packing, Problem
from minicnn.step import Fft, Gemm, Kernel, Step

REGION_ELEMENTS = 64  # regions of the workspace begin at multiples of 256 bytes
LARGEST = 2**31 - 1  # elements that kernels count
MOST_PACKED_BYTES = 1 << 30
FAST = 2 * 3 * 5


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Extents of the transforms and elements of what lies between the steps."""

    e: Extents
    rows: int
    columns: int

    @property
    def frequencies(self) -> int:
        return self.rows * (self.columns // 2 + 1)

    def image(self, channels: int) -> int:
        return self.e.N * self.rows * self.columns * channels

    def spectrum(self, channels: int) -> int:
        return 2 * self.e.N * self.frequencies * channels

    @property
    def first_region(self) -> int:
        """Elements of the region where the padded image lies, and then the products."""
        return round_up(max(self.image(self.e.C), self.spectrum(self.e.K)), REGION_ELEMENTS)

    @property
    def second_region(self) -> int:
        """Of the region where the image's spectrum lies, and then the sums."""
        return max(self.spectrum(self.e.C), self.image(self.e.K))


class Spectral(Convolution):
    """Strides and dilations would waste products, and let a NaN that no window sees reach the outputs."""

    name = "fft"
    keeps_bound = False

    def suits(self, problem: Problem) -> str:
        if problem.operator.group != 1:
            return f"it has {problem.operator.group} groups"
        if problem.operator.auto_pad.startswith("SAME") and not problem.operator.kernel_shape:
            return "auto_pad without kernel_shape"
        s = _sizes(problem)
        if any(axis.stride != 1 or axis.dilation != 1 for axis in s.e.windows):
            return "it has strides or dilations"
        if all(extent == 1 for extent in weights_of(problem).shape[2:]):
            return "a 1x1 filter has nothing to save"
        if 16 * s.frequencies * s.e.C * s.e.K > MOST_PACKED_BYTES:
            return f"the filters' spectra would take more than {MOST_PACKED_BYTES >> 20} MiB"
        if max(s.first_region, s.second_region) > LARGEST:
            return "the image's spectra are too large"
        return ""

    def declines(self, problem: Problem) -> str:
        return "an output's error is that of the largest of its image"

    def spread(self, errors: np.ndarray) -> np.ndarray:
        """Every output of an image comes from all its spectrum: the worst of the image."""
        axes = tuple(range(1, errors.ndim))
        return np.broadcast_to(errors.max(axis=axes, keepdims=True), errors.shape)

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """[frequency][C re, im][K re, im]: what a pixel's complex channels are multiplied by as real ones.

        The conjugate, since a convolution of networks is a correlation; scaled, since the transforms aren't.
        """
        s = _sizes(problem)
        K, C, *kernel = weights_of(problem).shape
        R, S = (1, *kernel)[-2:]
        shape = (s.frequencies, 2 * C, 2 * K)

        def pack(w: np.ndarray) -> np.ndarray:
            image = np.zeros((s.rows, s.columns, C, K))
            image[:R, :S] = w.reshape(K, C, R, S).transpose(2, 3, 1, 0)
            spectrum = np.fft.rfft2(image, axes=(0, 1)).conj() / (s.rows * s.columns)
            packed = np.empty((s.frequencies, C, 2, K, 2), np.float32)
            flat = spectrum.reshape(s.frequencies, C, K)
            packed[:, :, 0, :, 0] = packed[:, :, 1, :, 1] = flat.real
            packed[:, :, 0, :, 1] = flat.imag
            packed[:, :, 1, :, 0] = -flat.imag
            return packed.reshape(shape)

        return {1: Packing(name=f"fft_{s.rows}x{s.columns}", shape=shape, function=pack)}

    def workspace_bytes(self, problem: Problem) -> int:
        sizes = _sizes(problem)
        return 4 * (sizes.first_region + sizes.second_region)

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        s = _sizes(problem)
        e, x, y, residual, workspace = s.e, problem.x, problem.y, problem.residual, problem.workspace
        assert workspace is not None
        first, second = workspace.view(), workspace.view(s.first_region)
        pad = launch(
            Kernel(file="conv_fft.cu", entry="fft_pad"),
            **tiling.vectors(channels=e.C, rows=s.columns, planes=e.N * s.rows),
            x=x,
            image=first,
            C=e.C,
            H=e.H,
            W=e.W,
            rows=s.rows,
            columns=s.columns,
            pad_top=e.vertical.pad_before,
            pad_left=e.horizontal.pad_before,
            x_stride=x.pixel_stride,
        )
        extents = (s.rows, s.columns)
        product = Gemm(
            m=e.N,
            n=2 * e.K,
            k=2 * e.C,
            a=second,
            b=weights_of(problem).view(),
            c=first,
            lda=2 * e.C * s.frequencies,
            ldb=2 * e.K,
            ldc=2 * e.K * s.frequencies,
            batch=s.frequencies,
            stride_a=2 * e.C,
            stride_b=4 * e.C * e.K,
            stride_c=2 * e.K,
        )
        crop = launch(
            Kernel(file="conv_fft.cu", entry="fft_crop"),
            **tiling.vectors(channels=e.K, rows=e.Q, planes=e.N * e.P),
            image=second,
            bias=epilogue.own_input(problem, 2),
            residual=residual,
            y=y,
            K=e.K,
            P=e.P,
            Q=e.Q,
            rows=s.rows,
            columns=s.columns,
            y_stride=y.pixel_stride,
            residual_stride=residual.pixel_stride if residual else 0,
            **epilogue.arguments(problem.epilogue),
        )
        return (
            *pad,
            Fft(source=first, target=second, extents=extents, batch=e.N, channels=e.C),
            product,
            Fft(source=first, target=second, extents=extents, batch=e.N, channels=e.K, inverse=True),
            *crop,
        )


def _sizes(problem: Problem) -> _Sizes:
    """Packed weights have forgotten the filter's extents; where those decide nothing, any will do."""
    conv, y = problem.operator, problem.y
    e = extents_of(problem, conv.kernel_shape or (1,) * (len(y.shape) - 2))
    P, Q = (1, *y.shape[2:])[-2:]
    rows, columns = (fast_extent(axis.extent + axis.pad_before + axis.pad_after) for axis in e.windows)
    return _Sizes(e=replace(e, P=P, Q=Q), rows=rows, columns=columns)


def fast_extent(least: int) -> int:
    """The first extent from `least` on with no prime factor above 5: fast to transform."""
    return next(extent for extent in itertools.count(least) if FAST ** extent.bit_length() % extent == 0)
