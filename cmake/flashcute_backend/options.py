"""What the user asked of this build, wherever they may say it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

OPTIONS_CMAKE = Path(__file__).resolve().parent.parent / "options.cmake"
# What else of the environment changes objects. The level of parallelism does not.
VARIABLES = re.compile(
    r"(CC|CXX|(C|CXX|CUDA|LD)FLAGS|CUDA(CXX|HOSTCXX|_HOME|_PATH)|NVCC_\w+_FLAGS|CMAKE_\w+|SKBUILD_\w+)$"
)
NEUTRAL = {"CMAKE_BUILD_PARALLEL_LEVEL", "SKBUILD_BUILD_DIR", "SKBUILD_LOGGING_LEVEL", "FLASHCUTE_CUDA"}


def _last(value: str | list[str]) -> str:
    return value if isinstance(value, str) else value[-1]


class Options:
    """The configuration settings of the frontend, and the environment."""

    def __init__(self, config_settings: Mapping[str, str | list[str]] | None) -> None:
        self._settings = {
            key.removeprefix("skbuild."): _last(value) for key, value in (config_settings or {}).items() if value
        }
        self.build_dir = self._settings.get("build-dir") or os.environ.get("SKBUILD_BUILD_DIR", "")
        self.cutlass_dir = self.get("FLASHCUTE_CUTLASS_DIR")
        self.nanobind_dir = self.get("FLASHCUTE_NANOBIND_DIR")
        self.system_nvcc = self._system_nvcc()
        cuda = self.get("FLASHCUTE_CUDA").lower()
        self.fetch_nvcc = cuda == "on" and not self.system_nvcc
        self.cuda = self.fetch_nvcc or (cuda != "off" and self.system_nvcc)

    def get(self, name: str) -> str:
        """A CMake variable's value as CMake will see it, "" where nobody set it."""
        for word in reversed(shlex.split(os.environ.get("CMAKE_ARGS", ""))):
            if found := re.match(rf"-D{name}(?::\w+)?=(.*)", word):
                return found[1]
        if f"cmake.define.{name}" in self._settings:
            return self._settings[f"cmake.define.{name}"]
        for word in os.environ.get("SKBUILD_CMAKE_DEFINE", "").split(";"):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return os.environ.get(name, "")

    def _system_nvcc(self) -> bool:
        """Whether third_party/FindCudaToolchain.cmake will find one."""
        if self.get("CMAKE_CUDA_COMPILER") or os.environ.get("CUDACXX"):
            return True
        roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
        return any(shutil.which("nvcc", path=os.path.join(root, "bin")) for root in roots if root) or bool(
            shutil.which("nvcc")
        )

    def of_objects(self) -> dict[str, str]:
        """All that makes objects differ from those of a build without options, but for whether CUDA is on."""
        ours = set(re.findall(r"FLASHCUTE_\w+", OPTIONS_CMAKE.read_text(encoding="utf-8")))
        given = {k: v for k, v in os.environ.items() if k in ours or VARIABLES.match(k)}
        given |= {k: v for k, v in self._settings.items() if k.startswith("cmake.")}
        result = {k: v for k, v in given.items() if v and k.removeprefix("cmake.define.") not in NEUTRAL}
        if self.fetch_nvcc:
            result["nvcc"] = "fetched"
        return result
