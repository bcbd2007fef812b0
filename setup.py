"""Installing minicnn: ships cuda/ inside the package and compiles the host kernels for this machine's processors.

Without a C++ compiler the package installs all the same; the host device then asks for one when it is first used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PACKAGE_DATA = {"minicnn": ["sim/*.cpp", "sim/*.h"], "minicnn.cuda": ["*.cu", "*.cuh", "*.h", "*.cpp"]}


class BuildWithKernels(build_py):
    """build_py, then the host libraries into minicnn/prebuilt of the package that is built (not of a checkout)."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        sys.path.insert(0, str(ROOT))
        from minicnn.device import host_build
        from minicnn.errors import MinicnnError

        try:
            host_build.prebuild(Path(self.build_lib) / "minicnn" / "prebuilt", host_build.levels())
        except MinicnnError as error:
            print(f"the host kernels aren't prebuilt: {error}", file=sys.stderr)


setup(
    packages=[*find_packages(include=["minicnn", "minicnn.*"]), "minicnn.cuda"],
    package_dir={"minicnn.cuda": "cuda"},
    package_data=PACKAGE_DATA,
    cmdclass={"build_py": BuildWithKernels},
)
