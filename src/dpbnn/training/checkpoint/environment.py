"""What may change the last bits of a sum, though data, model and settings are the same.

A run resumed where any of this differs would put the noise of its repeated steps on other sums. Its checkpoint stores
these values, and a difference means a fresh key. What is not listed here is noticed step by step: a repeated step whose
bits differ is never used.
"""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpbnn import _version
from dpbnn.device.execution import Execution
from dpbnn.files import claim

__all__ = ["current_environment"]

PROCESSORS = Path("/proc/cpuinfo")
PROCESSOR_FIELDS = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
}  # fmt: skip
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE",
    "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
)  # fmt: skip
NO_EFFECT = {"checkpoint_seconds"}
"""Choices of an `Execution` that no sum depends on."""


def current_environment(device: torch.device, execution: Execution, engine: str, records: str) -> dict[str, str]:
    """Values by name; `engine` names what clips, and `records` how records are held.

    Taken once, when a run begins or goes on, and never inside a step, which changes torch's flags.
    """
    chosen = {name: repr(value) for name, value in asdict(execution).items() if name not in NO_EFFECT}
    run = {"host": claim.host(), "device": str(device), "engine": engine, "records": records}
    return chosen | run | _versions() | _hardware(device) | _flags(device)


def _versions() -> dict[str, str]:
    return {
        "python": sys.version,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "triton": version("triton") if find_spec("triton") else "",
        "dpbnn": _version.__version__,
    }


def _hardware(device: torch.device) -> dict[str, str]:
    hardware = {
        "processor": f"{platform.machine()} {platform.processor()} {_first_processor()}",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        of_device = torch.cuda.get_device_properties(device)
        hardware["gpu"] = f"{of_device.name} {of_device.major}.{of_device.minor} {of_device.multi_processor_count}"
    return hardware


def _first_processor() -> str:
    """As Linux describes it, without what changes from moment to moment."""
    try:
        lines = PROCESSORS.read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return ""
    return "; ".join(line for line in lines if line.partition(":")[0].strip() in PROCESSOR_FIELDS)


def _flags(device: torch.device) -> dict[str, str]:
    """Torch's settings for the whole process, and the variables of the system that it reads."""
    backends: Any = torch.backends
    readings: dict[str, Callable[[], object]] = {
        "matmul precision": torch.get_float32_matmul_precision,
        "matmul on a GPU": lambda: _precision(backends.cuda.matmul),
        "half precision sums on a GPU": lambda: (
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ),
        "attention on a GPU": lambda: (
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
            backends.cuda.cudnn_sdp_enabled(),
        ),
        "cuDNN": lambda: (
            backends.cudnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            _precision(backends.cudnn.conv),
            _precision(backends.cudnn.rnn),
        ),
        "oneDNN": lambda: (
            backends.mkldnn.enabled,
            _precision(backends.mkldnn.matmul),
            _precision(backends.mkldnn.conv),
        ),
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "autocast": lambda: (torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)),
        "flushes denormals": lambda: float(torch.tensor(1e-40) * 1.0) == 0.0,
    }
    flags = {name: _answer(read) for name, read in readings.items()}
    return flags | {name: os.environ.get(name, "") for name in VARIABLES}


def _precision(backend: Any) -> str:
    """A backend's precision. Unset counts as "ieee", which it becomes when a step has set and reset it."""
    return "ieee" if backend.fp32_precision == "none" else str(backend.fp32_precision)


def _answer(read: Callable[[], object]) -> str:
    try:
        return repr(read())
    except RuntimeError as error:  # torch does not answer where somebody has used both its old and its new settings
        return str(error)
