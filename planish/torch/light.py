"""The light capture: the ATen calls of Dynamo's graph of an inference, seen by running it without values.

In: the graph that Dynamo gives a backend. Out: the graph that AOTAutograd would give `inference_compiler`, in
a sixth of the time: one walk instead of three, without functional tensors and proxies. It is right where
there is nothing for AOTAutograd to see to: no gradients, nothing written in place, no result that shares
memory with an argument or another result, no operator that takes graphs. Anything else raises `NotLight`,
whose text says why, and is AOTAutograd's to capture.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from planish.capture.torch import decompositions
from planish.capture.torch.fx import is_overload, is_symbolic_int, is_symbolic_number, is_tensor
from planish.capture.torch.supported import CHECKED

# Operators that write to arguments which their schema does not mark.
WRITING = frozenset({"aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"})


class NotLight(Exception):
    """Why a graph is to be captured by AOTAutograd."""


def capture_light(module: Any) -> Any:
    """The ATen calls of a graph module of Dynamo's, as a module with a `graph` whose nodes have `meta["val"]`
    and stack traces, as AOTAutograd leaves them. Raises NotLight."""
    import torch

    values = {n: n.meta.get("example_value") for n in module.graph.nodes if n.op == "placeholder"}
    mode = _mode_of(list(values.values()))
    recorder = _recorder_class()()
    for node, value in values.items():
        recorder.placeholder(node, value)
    try:
        with _tracing(mode), recorder:
            results = _run(module, values, recorder)
    except NotLight:
        raise
    except Exception as error:  # AOTAutograd raises what is the program's
        raise NotLight(f"{type(error).__name__}: {error}") from error
    recorder.output(results)
    recorder.graph.eliminate_dead_code()
    holder = torch.nn.Module()
    holder.graph = recorder.graph
    for name, constant in recorder.constants.items():
        holder.register_buffer(name, constant)
    recorder.graph.owning_module = holder
    return holder


def static_arguments(module: Any) -> list[int]:
    """The arguments that are parameters or buffers."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    return [
        i
        for i, node in enumerate(placeholders)
        if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None
        and is_tensor(node.meta.get("example_value"))
    ]


def _mode_of(values: Sequence[Any]) -> Any:
    """The mode of the arguments' tensors without values. Raises NotLight for arguments that gradients go to,
    and for other kinds of tensors."""
    import torch
    from torch._C import _len_torch_dispatch_stack
    from torch._subclasses.fake_tensor import FakeTensor

    modes = []
    for value in values:
        if is_tensor(value):
            if not isinstance(value, FakeTensor) or type(value) not in (FakeTensor, torch.nn.Parameter):
                raise NotLight(f"an argument is a {type(value).__name__}")
            if value.layout is not torch.strided or value.device.type != "cpu":
                raise NotLight("an argument is sparse or not in the CPU's memory")
            if value.requires_grad and torch.is_grad_enabled():
                raise NotLight("gradients go to an argument")
            modes.append(value.fake_mode)
        elif not isinstance(value, (int, torch.SymInt)):
            raise NotLight(f"an argument is a {type(value).__name__}")
    if not modes or any(mode is not modes[0] for mode in modes):
        raise NotLight("no argument is a tensor")
    if _len_torch_dispatch_stack():
        raise NotLight("a mode of torch's dispatch is active")
    return modes[0]


@contextmanager
def _tracing(mode: Any) -> Iterator[None]:
    """The state in which AOTAutograd traces."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.utils import preserve_rng_state

    with preserve_rng_state(), mode, enable_python_dispatcher():
        yield


def _run(module: Any, values: dict[Any, Any], recorder: Any) -> Sequence[Any]:
    """Run the graph's calls; the results."""
    import torch

    def of(node: Any) -> Any:
        return values[node]

    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        arguments = torch.fx.map_arg(node.args, of)
        keywords = torch.fx.map_arg(node.kwargs, of)
        recorder.source = node
        if node.op == "output":
            return arguments[0]
        values[node] = _called(node, arguments, keywords)
    raise NotLight("the graph has no output")


def _called(node: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    if node.op == "call_method":
        return getattr(arguments[0], node.target)(*arguments[1:], **keywords)
    if node.op != "call_function":
        raise NotLight(f"Dynamo's graph has {node.op} {node.target}")
    if not _is_plain(node.target):
        raise NotLight(f"{getattr(node.target, '__name__', node.target)} changes how torch calls operators")
    return node.target(*arguments, **keywords)


def _is_plain(function: Any) -> bool:
    """Whether a function of Dynamo's graph computes, and does not set torch's state or take graphs."""
    import torch

    if isinstance(function, torch._ops.HigherOrderOperator):
        return False
    name, home = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    return not (name.startswith(("_set_", "_enter_", "_exit_")) or "functorch" in home or "autocast" in home)


@functools.cache
def _recorder_class() -> type:
    """The class of `Recorder`: its base is torch's."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    fresh, lifted = torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default
    device = torch.ops.prim.device.default
    late = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

    class Recorder(TorchDispatchMode):
        """Writes the ATen calls that pass into `graph`. `source` is the node of Dynamo's graph that makes
        them; `constants` are tensors with values that they take."""

        def __init__(self) -> None:
            super().__init__()
            self.graph = torch.fx.Graph()
            self.source: Any = None
            self.nodes: dict[int, Any] = {}
            self.numbers: dict[str, Any] = {}
            self.inputs: set[int] = set()
            self.constants: dict[str, Any] = {}
            self.table = decompositions()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is device:  # asked at every call by torch's own code, half of all that passes here
                return func(*args)
            keywords = kwargs or {}
            if func in self.table:
                with self:
                    result = self.table[func](*args, **keywords)
                if result is not NotImplemented:
                    return result
            if not is_overload(func):
                raise NotLight(f"{func} takes graphs")
            self._refuse(func)
            taken = lifted if func is fresh else func
            result = func(*args, **keywords)
            self._record(taken, args, keywords, result)
            return result

        def _refuse(self, func: Any) -> None:
            if func._schema.is_mutable or str(func) in WRITING:
                raise NotLight(f"{func} writes in place")
            if not func._schema.returns and str(func) not in CHECKED:
                raise NotLight(f"{func} only does something")
            if any(tag in func.tags for tag in late):
                raise NotLight(f"what {func} gives depends on values")

        def _record(self, func: Any, args: Any, keywords: Any, result: Any) -> None:
            node = self.graph.call_function(func, self._mapped(args), self._mapped(keywords))
            self._know(node, result)
            if isinstance(result, (list, tuple)):
                for i, one in enumerate(result):
                    if is_tensor(one):
                        self._know(self.graph.call_function(operator.getitem, (node, i)), one)

        def _mapped(self, value: Any) -> Any:
            """Arguments of a call with nodes in the place of tensors and of open numbers."""
            if is_tensor(value):
                return self._node(value)
            if isinstance(value, (list, tuple)):
                return tuple(map(self._mapped, value))
            if isinstance(value, dict):
                return {name: self._mapped(v) for name, v in value.items()}
            return self._number(value) if is_open(value) else value

        def _number(self, value: Any) -> Any:
            """What stands for a number that only the run knows."""
            text = str(value.node.expr)
            if text not in self.numbers:
                self.numbers[text] = self.graph.call_function(open_number, (text,))
                self.numbers[text].meta["val"] = value
            return self.numbers[text]

        def _know(self, node: Any, value: Any) -> None:
            node.meta["val"] = value
            if self.source is not None and "stack_trace" in self.source.meta:
                node.meta["stack_trace"] = self.source.meta["stack_trace"]
            if is_tensor(value):
                self.nodes[id(value)] = node
            elif is_open(value):
                self.numbers[str(value.node.expr)] = node

        def _node(self, tensor: Any) -> Any:
            """What stands for a tensor."""
            found = self.nodes.get(id(tensor))
            if found is not None:
                return found
            if isinstance(tensor, FakeTensor):
                raise NotLight("a tensor that no operator made")
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            found = self.nodes[id(tensor)] = self.graph.create_node("get_attr", name)
            return found

        def placeholder(self, node: Any, value: Any) -> None:
            """An argument."""
            made = self.graph.placeholder(node.name)
            made.meta.update({k: v for k, v in node.meta.items() if k != "example_value"})
            self._know(made, value)
            if is_tensor(value):
                self.inputs.add(_memory(value))

        def output(self, results: Sequence[Any]) -> None:
            """The results."""
            seen = set(self.inputs)
            for result in results:
                if result is None:
                    continue
                if not is_tensor(result) or result.requires_grad or has_symbols(result):
                    raise NotLight("a result is no tensor, or one of open size")
                if _memory(result) in seen:
                    raise NotLight("a result shares memory with an argument or another result")
                seen.add(_memory(result))
            self.graph.output(tuple(None if r is None else self._node(r) for r in results))

    return Recorder


def _memory(tensor: Any) -> int:
    """What is the same for tensors over the same memory."""
    return int(tensor.untyped_storage()._cdata)


def has_symbols(tensor: Any) -> bool:
    return any(map(is_open, (*tensor.shape, *tensor.stride())))


def is_open(value: Any) -> bool:
    """Whether it is a number that only the run knows."""
    return is_symbolic_int(value) or is_symbolic_number(value)


def open_number(expression: str) -> Any:
    """Stands in a graph for a number whose value is its node's `meta["val"]`."""
    raise NotImplementedError(expression)
