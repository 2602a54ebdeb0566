"""The exceptions of a session, under the names and numbers that programs written for ONNX Runtime know.

In: an error of planish. Out: the one a program catches (`as_session_error`). Each is an error of planish too,
and the built-in kind a person would expect.
"""
from __future__ import annotations

from planish.errors import (
    ModelError,
    PlanishError,
    ShapeError,
    SignatureError,
    TypeRuleError,
    UnreadableModel,
    UnsupportedDType,
    UnsupportedOp,
)


class SessionError(PlanishError):
    """Base of what a session raises: `[planish] : number : NAME : message`."""

    number, status = 1, "FAIL"

    def __init__(self, message: str):
        super().__init__(f"[planish] : {self.number} : {self.status} : {message}")


class Fail(SessionError, RuntimeError):
    """Something else."""


class InvalidArgument(SessionError, ValueError):
    """A feed, a name or an option that does not fit the model."""

    number, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(SessionError, FileNotFoundError):
    number, status = 3, "NO_SUCHFILE"


class NoModel(SessionError):
    number, status = 4, "NO_MODEL"


class EngineError(SessionError, RuntimeError):
    number, status = 5, "ENGINE_ERROR"


class RuntimeException(SessionError, RuntimeError):
    """A check of the model's own failed while it ran."""

    number, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(SessionError, ModelError):
    """Bytes that are no model."""

    number, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(SessionError):
    number, status = 8, "MODEL_LOADED"


class NotImplemented(SessionError, UnsupportedOp):
    """What planish does not have."""

    number, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(SessionError, ModelError):
    """A model that is not well formed, or whose types do not fit together."""

    number, status = 10, "INVALID_GRAPH"


class EPFail(SessionError, RuntimeError):
    number, status = 11, "EP_FAIL"


class NotFound(SessionError):
    number, status = 14, "NOT_FOUND"


# The first that fits. An error of a kind that is not listed, of no kind of ours for example, stays as it is.
_MEANINGS: tuple[tuple[tuple[type[Exception], ...], type[SessionError]], ...] = (
    ((UnreadableModel,), InvalidProtobuf),
    ((UnsupportedOp, UnsupportedDType), NotImplemented),
    ((ShapeError, SignatureError), InvalidArgument),
    ((ModelError, TypeRuleError), InvalidGraph),
    ((FileNotFoundError,), NoSuchFile),
    ((PlanishError,), Fail),
)


def as_session_error(error: Exception) -> Exception:
    """What a session raises for an error."""
    if isinstance(error, SessionError):
        return error
    found = next((made for kinds, made in _MEANINGS if isinstance(error, kinds)), None)
    return error if found is None else found(str(error))
