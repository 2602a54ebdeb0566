"""The adapter that the package onnx runs its conformance suite through: `onnx.backend.base.Backend`.

    onnx.backend.test.BackendTest(planish.onnx.backend, __name__)

In: a ModelProto. Out: something with `run(inputs)`, inputs in the model's order.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx.backend.base import Backend, BackendRep, namedtupledict

from planish.onnx.options import SessionOptions
from planish.onnx.platform import get_device
from planish.onnx.session import InferenceSession


class PlanishRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: InferenceSession):
        self.session = session
        self.inputs = [a.name for a in (*session.get_inputs(), *session.get_overridable_initializers())]
        self.outputs = [a.name for a in session.get_outputs()]

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Outputs as a named tuple; `inputs` are in the model's order, or by name."""
        feeds = inputs if isinstance(inputs, Mapping) else dict(zip(self.inputs, inputs))
        return namedtupledict("Outputs", self.outputs)(*self.session.run(None, feeds))


class PlanishBackend(Backend):
    """planish on the CPU."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> PlanishRep:
        """`sess_options` are SessionOptions. Raises the session's errors, ValueError for another device."""
        if not cls.supports_device(device):
            raise ValueError(f"there is no device {device!r}; planish's session runs on the CPU")
        sess_options: SessionOptions | None = options.get("sess_options")
        return PlanishRep(InferenceSession(model.SerializeToString(), sess_options))

    @classmethod
    def run_model(cls, model: Any, inputs: Sequence[Any], device: str = "CPU", **options: Any) -> Any:
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(cls, node: Any, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None,
                 **options: Any) -> Any:
        """A single node, of the newest opset, or `opset_imports`, on arrays."""
        return cls.run_model(_model_of(node, inputs, options.pop("opset_imports", None)), inputs, device,
                             **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == get_device()


def _model_of(node: Any, inputs: Sequence[Any], opsets: Any) -> Any:
    """A model of one node; what its outputs are is left to the node."""
    from onnx import TypeProto, ValueInfoProto, helper

    types = [TypeProto(tensor_type=TypeProto.Tensor(elem_type=helper.np_dtype_to_tensor_dtype(x.dtype),
                                                    shape=_shape(x.shape))) for x in inputs]
    values = [ValueInfoProto(name=name, type=type_) for name, type_ in zip(filter(None, node.input), types)]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", values, outputs)
    return helper.make_model(graph, opset_imports=opsets) if opsets else helper.make_model(graph)


def _shape(sizes: Sequence[int]) -> Any:
    from onnx import TensorShapeProto

    return TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=n) for n in sizes])


prepare = PlanishBackend.prepare
run_model = PlanishBackend.run_model
run_node = PlanishBackend.run_node
supports_device = PlanishBackend.supports_device
