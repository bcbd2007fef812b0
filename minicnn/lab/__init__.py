"""For people who write kernels: what a file given to `--kernel` needs, by one import.

    from minicnn.lab import Kernel, Orders, Problem, Variant, beside, launch, tiling, variant
"""

from minicnn import epilogue, tiling
from minicnn.geometry import ceil_div
from minicnn.kernels import launch
from minicnn.lab.files import beside, variant
from minicnn.registry import Orders, Packing, Problem, Variant
from minicnn.step import Gemm, Kernel
from minicnn.window import window_arguments

__all__ = [
    "Gemm",
    "Kernel",
    "Orders",
    "Packing",
    "Problem",
    "Variant",
    "beside",
    "ceil_div",
    "epilogue",
    "launch",
    "tiling",
    "variant",
    "window_arguments",
]
