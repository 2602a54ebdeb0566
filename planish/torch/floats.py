"""Float arguments are values of the call from the first one on.

By itself Dynamo takes a float for a constant until it has changed once. A learning rate that changes then
compiles its step a second time, and never again. Here Dynamo is told before the first compile of a function
that the floats it was given have changed; those that are default values stay constants.
"""

from __future__ import annotations

from planish.torch.frames import CalledFunction


def open_floats(called: CalledFunction) -> None:
    """Have Dynamo take the float arguments of a call as values of the call, unless it knows them already or
    is to take no value so (`dynamic=False`)."""
    target = called.target
    code, defaults = target.__code__, target.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    usual = {**dict(zip(names[len(names) - len(defaults) :], defaults)), **(target.__kwdefaults__ or {})}
    given = {**dict(zip(names[called.is_method :], called.arguments)), **called.keywords}
    floats = [name for name, x in given.items() if type(x) is float and x is not usual.get(name)]
    if not floats:
        return
    from torch._dynamo import config
    from torch._dynamo.pgo import CodeId, FrameStateSizeEntry, auto_dynamic, get_code_state

    if config.automatic_dynamic_shapes:
        state = get_code_state()[CodeId.make(code, target.__closure__)].automatic_dynamic
        for name in floats:
            state.setdefault(f"L['{name}']", FrameStateSizeEntry(auto_dynamic, auto_dynamic, auto_dynamic))
