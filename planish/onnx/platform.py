"""What a program asks of the runtime as a whole: providers, devices, versions."""
from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from planish import __version__

CPU = "CPUExecutionProvider"
INTERFACE = "1.32.0"  # the release of onnxruntime whose Python interface this package follows


def get_available_providers() -> list[str]:
    return [CPU]


def get_all_providers() -> list[str]:
    return [CPU]


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return INTERFACE


def get_build_info() -> str:
    return f"planish {__version__}, interface of ORT {INTERFACE}"


def has_collective_ops() -> bool:
    return False


def preload_dlls(*args: Any, **keywords: Any) -> None:
    """Nothing is to be loaded: there are no libraries of GPUs here."""


def set_seed(seed: int) -> None:
    """For ONNX Runtime's random kernels. Here a model's own `seed` attribute decides."""


def set_default_logger_severity(level: int) -> None:
    """Logs are those of planish: PLANISH_LOGS."""


def set_default_logger_verbosity(level: int) -> None:
    """As `set_default_logger_severity`."""


def enable_telemetry_events() -> None:
    """There is no telemetry."""


def disable_telemetry_events() -> None:
    """There is no telemetry."""


Provider = str | tuple[str, dict[Any, Any]]


def chosen_providers(providers: Sequence[Provider] | None,
                     options: Sequence[dict[Any, Any]] | None) -> dict[str, dict[str, str]]:
    """Provider -> its options, of those asked for that are here; the CPU's takes what is left over. One
    warning for each that is not here."""
    if providers is None:
        providers = [CPU]
    _check_providers(providers, options)
    found: dict[str, dict[str, str]] = {}
    for i, provider in enumerate(providers):
        name, given = (provider, options[i] if options else {}) if isinstance(provider, str) else provider
        if name != CPU:
            warnings.warn(f"Specified provider '{name}' is not in available provider names. "
                          f"Available providers: '{CPU}'", UserWarning, stacklevel=4)
            continue
        found[name] = {str(key): str(value) for key, value in given.items()}
    return found or {CPU: {}}


def _check_providers(providers: Sequence[Provider], options: Sequence[dict[Any, Any]] | None) -> None:
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if options is not None:
        if not isinstance(options, Sequence) or len(options) != len(providers):
            raise ValueError(
                "'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(p, str) for p in providers):
            raise ValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given.")
    pairs = (p for p in providers if not isinstance(p, str))
    if not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], dict) for p in pairs):
        raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
