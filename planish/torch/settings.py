"""What a person may ask for: torch.compile's `mode` and `options`, read into one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planish import knobs
from planish.compiler import Options, check_switches
from planish.errors import PlanishError

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
NUMERICS = ("strict", "default", "fast")
STRATEGIES = ("native", "library")
RANDOM = ("keys", "eager")


@dataclass(frozen=True)
class Settings:
    """`freeze`: in inference, parameters and buffers are constants, folded and packed. `host`: torch runs
    what has no native form. `random`: where random numbers come from."""

    options: Options = field(default_factory=Options)
    freeze: bool = True
    host: bool = True
    random: str = "keys"


def settings_of(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Settings:
    """Raises PlanishError for what is not a mode or an option."""
    if mode is not None and mode not in MODES:
        raise PlanishError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    given = dict(options or {})
    known = ("numerics", "strategy", "disable", "freeze", "host", "random")
    if unknown := [name for name in given if name not in known]:
        raise PlanishError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
    numerics = _one_of("numerics", given.get("numerics", "default"), NUMERICS)
    strategy = _one_of("strategy", given.get("strategy", "native"), STRATEGIES)
    disable: Iterable[str] = given.get("disable", ())
    check_switches(frozenset(disable))
    return Settings(
        Options(
            numerics=numerics,
            strategy="library" if knobs.value("disable") else strategy,
            disable=frozenset(disable),
            mode="max-autotune" if (mode or "").startswith("max-autotune") else "default",
        ),
        bool(given.get("freeze", True)),
        bool(given.get("host", True)),
        _one_of("random", given.get("random", "keys"), RANDOM),
    )


def _one_of(what: str, value: Any, values: tuple[str, ...]) -> Any:
    if value not in values:
        raise PlanishError(f"there is no {what} {value!r}; there are {', '.join(values)}")
    return value
