"""`igemm`: a transposed convolution as products on a GPU's tensor cores, one for each phase of the strides.

Outputs whose places differ by whole strides see the same taps of the filter, the others of it fall between
inputs. Each such phase is a convolution of stride 1 with a part of the filter, turned around, whose outputs
lie a stride apart in y: no product is spent on zeros, nothing is added up in memory.

Source    Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, chapter 4
Not here  fewer than 4 channels of a group
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from minicnn import epilogue
from minicnn.geometry import Window, ceil_div
from minicnn.ops.tensor_cores import FEWEST_TERMS, Sums, TensorCores, Work, copy_bytes
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Step
from minicnn.window import two_axes, window_arguments


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Along one axis: outputs `first`, `first` + stride, ...; the filter's taps that they see, last one
    first; and the window of stride 1 that this makes."""

    first: int
    taps: tuple[int, ...]
    window: Window


def phases_of(axis: Window) -> tuple[Phase, ...]:
    """`axis`: stride, dilation and pads of the transposed convolution, `out` its outputs.

    Output p gets input h through tap r where p = h * stride + r * dilation - pad_before.
    """
    found = []
    for first in range(min(axis.stride, axis.out)):
        reached = first + axis.pad_before
        taps = [r for r in range(axis.kernel) if (reached - r * axis.dilation) % axis.stride == 0][::-1]
        input_of_first = (reached - taps[0] * axis.dilation) // axis.stride if taps else 0
        window = Window(
            extent=axis.extent,
            kernel=len(taps),
            stride=1,
            dilation=axis.dilation // math.gcd(axis.dilation, axis.stride),
            pad_before=-input_of_first,
            pad_after=0,
            out=ceil_div(axis.out - first, axis.stride),
        )
        found.append(Phase(first=first, taps=tuple(taps), window=window))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class PhasedGemm(TensorCores, Variant):  # type: ignore[misc, override]
    """Floats as two TF32 numbers each."""

    def applies(self, problem: Problem) -> str:
        w = problem.inputs[1]
        if len(problem.x.shape) > 4:
            return "x is a volume"
        if w is None or not w.is_constant:
            return "the weights are computed at run time"
        channels = problem.x.shape[1] // problem.operator.group
        if channels < FEWEST_TERMS:
            return f"sums of fewer than {FEWEST_TERMS} products show what two TF32 numbers leave out"
        return next(filter(None, (self.refuses(problem, one.sums) for one in self._works(problem))), "")

    def orders(self, problem: Problem) -> Orders:
        return epilogue.orders(problem, "NHWC")

    def tunings(self, problem: Problem) -> tuple[Variant, ...]:
        largest = max((one.sums for one in self._works(problem)), key=lambda sums: sums.pixels * sums.terms)
        return tuple(replace(self, tile=t, parts=p) for t, p in self.forms(problem.target, largest))

    def packings(self, problem: Problem) -> Mapping[int, Packing]:
        """The phases' filters one behind the other; a shape that still tells R and S."""
        w, groups = problem.inputs[1], problem.operator.group
        assert w is not None
        C, K, *kernel = w.shape
        R, S = (1, *kernel)[-2:]
        sums = [one.sums for one in self._works(problem)]
        shape = (R, S, ceil_div(sum(one.weights for one in sums), R * S))
        phases = _phases(problem, tuple(kernel))

        def pack(array: np.ndarray) -> np.ndarray:
            split = array.reshape(groups, C // groups, K, R, S).transpose(0, 2, 3, 4, 1)  # (G, K, R, S, C)
            parts = []
            for own, (vertical, horizontal) in zip(sums, phases, strict=True):
                rows = split.take(np.array(vertical.taps, int), axis=2)
                filters = rows.take(np.array(horizontal.taps, int), axis=3)
                parts.append(own.packed(filters.reshape(groups * K, own.taps, C // groups)))
            packed = np.concatenate(parts)
            return np.pad(packed, (0, math.prod(shape) - packed.size)).reshape(shape)

        return {1: Packing(name=self.name, shape=shape, function=pack)}

    def workspace_bytes(self, problem: Problem) -> int:
        return max(one.partial_bytes for one in self._works(problem))

    def tables(self, problem: Problem) -> tuple[np.ndarray, ...]:
        """A counter for each tile of sums that is cut into parts; a launch leaves them as they were."""
        counters = max(one.counters for one in self._works(problem))
        return (np.zeros(counters, np.uint32),) if counters else ()

    def steps(self, problem: Problem) -> tuple[Step, ...]:
        w, y, residual = problem.inputs[1], problem.y, problem.residual
        assert w is not None
        kernel = w.shape[:2]
        P, Q = (1, *y.shape[2:])[-2:]
        steps: tuple[Step, ...] = ()
        place = 0
        for work, (vertical, horizontal) in zip(
            self._works(problem, kernel), _phases(problem, kernel), strict=True
        ):
            first = vertical.first * Q + horizontal.first
            windows = vertical.window, replace(horizontal.window, kernel=max(horizontal.window.kernel, 1))
            if not horizontal.taps:  # as if there were no rows of taps
                windows = replace(vertical.window, kernel=0), windows[1]
            down, right = _strides(problem, kernel)
            steps += self.launches(
                problem,
                work,
                weights=w.view(place),
                y=y.view(first * y.pixel_stride),
                residual=residual.view(first * residual.pixel_stride) if residual else None,
                window=window_arguments(windows),
                y_pixels=(P * Q, down * Q, right),
            )
            place += work.sums.weights
        return steps

    def _works(self, problem: Problem, kernel: tuple[int, ...] = ()) -> list[Work]:
        """Of the phases. `kernel`: where packed weights have another shape than ONNX's."""
        x, w, groups = problem.x, problem.inputs[1], problem.operator.group
        assert w is not None
        works = []
        for vertical, horizontal in _phases(problem, kernel or w.shape[2:]):
            sums = Sums(
                pixels=x.shape[0] * vertical.window.out * horizontal.window.out,
                groups=groups,
                filters=problem.y.shape[1] // groups,
                channels=x.shape[1] // groups,
                taps=len(vertical.taps) * len(horizontal.taps),
                dtype=self.dtype,
            )
            works.append(self.work(problem.target, sums, copy_bytes(x, sums)))
        return works


def _axes(problem: Problem, kernel: tuple[int, ...]) -> tuple[Window, Window]:
    rank = len(problem.x.shape) - 2
    return two_axes(problem.operator.windows_of(problem.x.shape[2:], kernel[-rank:]))


def _phases(problem: Problem, kernel: tuple[int, ...]) -> list[tuple[Phase, Phase]]:
    vertical, horizontal = _axes(problem, kernel)
    return list(itertools.product(phases_of(vertical), phases_of(horizontal)))


def _strides(problem: Problem, kernel: tuple[int, ...]) -> tuple[int, int]:
    vertical, horizontal = _axes(problem, kernel)
    return vertical.stride, horizontal.stride
