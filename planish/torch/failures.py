"""Wrong programs fail as eager fails.

A wrong program fails while Dynamo traces it, with torch's description of an operator, whose errors may be of
other types than its kernel's, and wrapped. `planish.compile` then does what eager does: where nothing of the
call has run, it runs in eager and raises; after a graph break the inner error is raised as it is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from planish.errors import CaptureWarning, PlanishError


def failing_as_eager(compiled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, made by torch.compile of `function`, raising what eager raises."""
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError

    @wraps(compiled)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            return compiled(*args, **keywords)
        except (TorchRuntimeError, BackendCompilerFailed) as error:
            failure = error
        except InternalTorchDynamoError as error:
            ours = error.__cause__ or error.__context__
            if not isinstance(ours, PlanishError):
                raise
            raise ours from None
        if not nothing_ran(failure, function):
            raise inner_error(failure) from None
        result = function(*args, **keywords)
        warnings.warn(f"this call ran in eager: {failure}", CaptureWarning, stacklevel=2)
        return result

    return called


def nothing_ran(error: Any, function: Any) -> bool:
    """Whether tracing failed in the compiled function itself, before anything of it had run: the outermost
    line of the error is not one of a resumed or of a called function."""
    stack = getattr(error, "real_stack", None) or ()
    own = getattr(function, "__code__", None) or getattr(type(function).forward, "__code__", None)
    if not stack or hasattr(error, "inner_exception"):
        return False
    first = stack[0]
    if first.name == "inner" and first.filename.endswith("external_utils.py"):
        return True  # of torch, around a module's `forward`
    return own is not None and (first.name, first.filename) == (own.co_name, own.co_filename)


def inner_error(error: BaseException) -> BaseException:
    """The first error of the chain that is not Dynamo's, with the user's lines in its message."""
    from torch._dynamo.exc import TorchDynamoException

    inner: BaseException | None = getattr(error, "inner_exception", error)
    for _ in range(10):
        if inner is None or not isinstance(inner, TorchDynamoException):
            break
        inner = inner.__cause__ or inner.__context__
    if inner is None or isinstance(inner, TorchDynamoException):
        return error
    lines = re.search(r"\nfrom user code:\n.*?(?=\n\n|\Z)", str(error), re.DOTALL)
    if lines and len(inner.args) == 1 and "from user code:" not in str(inner):
        inner.args = (f"{inner.args[0]}\n{lines[0]}",)
    return inner.with_traceback(None)
