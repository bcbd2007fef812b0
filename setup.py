"""Installing minicnn: ships cuda/ inside the package and compiles the kernels, for the GPU where nvcc is.

Kernels for the CPU are compiled for this machine's kind; with MINICNN_LEVELS=all, as for a wheel that is to
be given away, for all of x86-64-v2, v3 and v4. Without a C++ compiler the package installs all the same; the
host device asks for one when it is used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PACKAGE_DATA = {
    "minicnn": ["sim/*.cpp", "sim/*.h", "report/page/*", "lab/templates/*", "study/*.csv"],
    "minicnn.models": ["build.py"],
    "minicnn.cuda": ["*.cu", "*.cuh", "*.h", "*.cpp", "*.json"],
}


class BuildWithKernels(build_py):
    """build_py, then the host libraries into minicnn/prebuilt of the package (not of a checkout)."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT))
        from minicnn.device import host_build, nvcc
        from minicnn.errors import MinicnnError

        into = Path(self.build_lib) / "minicnn" / "prebuilt"
        try:
            is_for_others = os.environ.get("MINICNN_LEVELS") == "all"
            host_build.prebuild(into, host_build.levels() if is_for_others else [host_build.cpu_level()])
            if nvcc.find() is not None:
                nvcc.prebuild(into)
        except MinicnnError as error:
            print(f"not all kernels are prebuilt: {error}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """The prebuilt kernels tie a wheel to a platform, but to no version of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    packages=[*find_packages(include=["minicnn", "minicnn.*"]), "minicnn.cuda", "minicnn.models"],
    package_dir={"minicnn.cuda": "cuda", "minicnn.models": "models"},
    include_package_data=False,  # MANIFEST.in is for the sdist; wheels hold no models, no ladder
    package_data=PACKAGE_DATA,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
