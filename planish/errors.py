"""Every error planish raises by itself. Each also is the built-in kind a person would expect to catch."""
from __future__ import annotations

from collections.abc import Iterable


class PlanishError(Exception):
    """Base of all errors of planish."""


class UnsupportedDType(PlanishError, TypeError):
    """An element type planish does not have."""


class TypeRuleError(PlanishError, TypeError):
    """Operands whose dtypes or shapes an operation does not take. `sizes` holds the sizes that should be
    equal, where that is the fault."""

    def __init__(self, message: str, sizes: tuple = ()):
        super().__init__(message)
        self.sizes = sizes


class ShapeError(PlanishError, ValueError):
    """An array whose shape does not fit what was compiled."""


class SignatureError(PlanishError, TypeError):
    """An argument whose kind, dtype or number does not fit what was compiled."""


class UnsupportedOp(PlanishError, NotImplementedError):
    """An operation without a meaning in the place it is used: the message names op, place and what to do."""


class NeedsValue(UnsupportedOp):
    """A translation that needs to know the value of graph inputs (`inputs`, their names) or of symbolic sizes
    (`sizes`, theirs). Captured with these given, the program can be translated: for that value."""

    def __init__(self, message: str, inputs: Iterable[str] = (), sizes: Iterable[str] = ()):
        super().__init__(message)
        self.inputs, self.sizes = frozenset(inputs), frozenset(sizes)


class CaptureError(PlanishError, TypeError):
    """A program that can't be captured: the message has the user's file and line and what to write
    instead."""


class ModelError(PlanishError, ValueError):
    """A model file that is corrupt, truncated, invalid or uses what is not supported."""


class UnreadableModel(ModelError):
    """Bytes that are no model at all."""


class VerificationError(PlanishError):
    """An IR that breaks its own grammar: shows the pass and the lines around the fault."""


class ParseError(PlanishError, ValueError):
    """Text that is not the printed form of an IR."""


class FuelExhausted(PlanishError, RuntimeError):
    """Rewriting that did not end; names the rules that alternate."""


class UnsoundRule(PlanishError):
    """A rewrite rule refused by its machine check; shows the counterexample."""


class LinkError(PlanishError, RuntimeError):
    """Native code that can't be linked or loaded."""


class LibraryError(PlanishError, RuntimeError):
    """A library that is not there, can't be loaded, or has no kernel for what was asked of it."""


class GraphBreakError(PlanishError, RuntimeError):
    """A program that is cut into more graphs than PLANISH_MAX_GRAPH_BREAKS allows."""


class CacheWarning(UserWarning):
    """The disk cache can't be used; compilation goes on without it."""


class LibraryWarning(UserWarning):
    """A library that is installed but can't be used; tuning goes on without it."""


class GraphBreakWarning(UserWarning):
    """A function that is captured in parts, with Python between them."""


class RecompileWarning(UserWarning):
    """A function that was compiled as often as its front end allows: other calls of it run in eager."""


class LogsWarning(UserWarning):
    """A setting of the logs that can't be followed."""


class CaptureWarning(UserWarning):
    """Something in a captured program happens at trace time only."""
