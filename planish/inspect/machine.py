"""What figures were measured on: processor, threads, how busy it is, versions."""
from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planish import __version__
from planish.runtime.threads import available_cpus, get_num_threads

PACKAGES = ("numpy", "llvmlite", "onednn-cpu-gomp", "onnxruntime", "torch")


@dataclass(frozen=True)
class MachineInfo:
    """`load` is the number of threads that wanted to run, averaged over the last minute, before anything was
    measured.
    """

    cpu: str
    cpus: int
    threads: int
    load: float
    versions: dict[str, str]

    @property
    def is_busy(self) -> bool:
        """Whether others use the machine so much that times are not to be trusted."""
        return self.load > 0.5 * self.cpus


def machine_info() -> MachineInfo:
    found = {"planish": __version__, "python": platform.python_version()}
    found |= {p: v for p in PACKAGES if (v := _version(p))}
    return MachineInfo(_cpu(), available_cpus(), get_num_threads(), os.getloadavg()[0], found)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
