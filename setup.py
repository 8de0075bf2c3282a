"""Builds `graphlearn_dist._C` with CMake. Neither torch nor CUDA is needed to build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# One place for all commands (install, build_ext, wheel) and for the core's own tests: what one has compiled stays.
BUILD = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"


class CMakeBuild(build_ext):
    """Configures and builds the one CMake target into the place setuptools expects it."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        BUILD.mkdir(parents=True, exist_ok=True)
        with_cuda = os.environ.get("WITH_CUDA", "off").lower()
        if with_cuda not in ("auto", "on", "off"):
            raise SystemExit(f"WITH_CUDA: expected auto, on or off, got {with_cuda!r}")
        ninja = shutil.which("ninja")
        if ninja is None:
            raise SystemExit("ninja: expected on PATH, found none (pip install ninja)")
        configure = [
            "cmake",
            str(ROOT),
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",  # that of the last build may have gone with pip's environment for it
            f"-DCMAKE_BUILD_TYPE={os.environ.get('CMAKE_BUILD_TYPE', 'Release')}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DWITH_CUDA={with_cuda}",
            f"-DGLD_SANITIZE={os.environ.get('GLD_SANITIZE', '')}",
        ]
        # A make that runs this has a jobserver in these flags, which pip has closed: ninja would only complain of it.
        environ = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
        subprocess.run(configure, cwd=BUILD, check=True, env=environ)
        subprocess.run(["cmake", "--build", "."], cwd=BUILD, check=True, env=environ)


setup(ext_modules=[Extension("graphlearn_dist._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
