"""Models of the package transformers: configurations at their defaults, random weights, nothing downloaded.

A model's workload reads three files, which `python -m benchmarks.models NAME` writes into the folder that
the environment variable BENCHMARK_FILES names: NAME.onnx (as torch exports it), NAME.npy (the output in
float64) and NAME.json (what it costs at least). Operations are counted by torch, bytes are those of the
parameters, the input and the output.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exported import FirstOutput
from benchmarks.workloads import Array, Cost, Workload

FILES = "BENCHMARK_FILES"
SEED = 0


@dataclass(frozen=True)
class Model:
    title: str
    make: Callable[[], Any]                   # a torch module
    shape: tuple[int, ...]
    aim: float
    vocabulary: int | None = None             # of a model that reads tokens
    tolerance: float = 5e-5

    def inputs(self) -> tuple[Array, ...]:
        rng = np.random.default_rng(SEED)
        if self.vocabulary is None:
            return (rng.normal(size=self.shape).astype(np.float32),)
        return (rng.integers(0, self.vocabulary, self.shape),)

    def module(self) -> Any:
        import torch
        torch.manual_seed(SEED)
        return self.make().eval()


def bert() -> Any:
    from transformers import BertConfig, BertModel
    return FirstOutput(BertModel(BertConfig(), add_pooling_layer=False), ("input_ids",))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel
    return FirstOutput(GPT2LMHeadModel(GPT2Config()), ("input_ids",), use_cache=False)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                         num_attention_heads=12, num_key_value_heads=4)
    return FirstOutput(LlamaForCausalLM(config), ("input_ids",), use_cache=False)


def resnet() -> Any:
    from transformers import ResNetConfig, ResNetModel
    return FirstOutput(ResNetModel(ResNetConfig()), ("pixel_values",))


def mobilenet() -> Any:
    from transformers import MobileNetV2Config, MobileNetV2Model
    return FirstOutput(MobileNetV2Model(MobileNetV2Config()), ("pixel_values",))


def vit() -> Any:
    from transformers import ViTConfig, ViTModel
    return FirstOutput(ViTModel(ViTConfig(), add_pooling_layer=False), ("pixel_values",))


def convnext() -> Any:
    from transformers import ConvNextConfig, ConvNextModel
    return FirstOutput(ConvNextModel(ConvNextConfig()), ("pixel_values",))


IMAGE = (1, 3, 224, 224)
MODELS = {
    "bert": Model("BERT-base 1x128", bert, (1, 128), 1.16, vocabulary=30522),
    "gpt2": Model("GPT-2 124M, prefill 1x256", gpt2, (1, 256), 1.19, vocabulary=50257),
    "gpt2_token": Model("GPT-2 124M, one token", gpt2, (1, 1), 1.33, vocabulary=50257),
    "llama": Model("Llama-shaped 110M (GQA 12/4) 1x128", llama, (1, 128), 1.17, vocabulary=32000),
    "resnet50": Model("ResNet-50 1x3x224x224", resnet, IMAGE, 1.17),
    "mobilenet_v2": Model("MobileNetV2 1x3x224x224", mobilenet, IMAGE, 1.41),
    "vit": Model("ViT-B/16 1x3x224x224", vit, IMAGE, 1.15),
    "convnext": Model("ConvNeXt-T 1x3x224x224", convnext, IMAGE, 1.44),
}


# --- files

def folder() -> Path:
    return Path(os.environ[FILES])


def write(name: str) -> None:
    """The three files of a model, NAME.json last: it says that the others are whole."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    model = MODELS[name]
    module, inputs = model.module(), [torch.from_numpy(x) for x in model.inputs()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = module(*inputs)
    parameters = sum(p.nbytes for p in module.parameters())
    cost = Cost(counter.get_total_flops(), parameters + inputs[0].nbytes, output.nbytes)
    program = torch.onnx.export(module, tuple(inputs), dynamo=True, external_data=False, verbose=False,
                                input_names=["x"], output_names=["y"])
    program.save(str(folder() / f"{name}.onnx"))
    with torch.no_grad():
        exact = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    np.save(folder() / f"{name}.npy", exact.numpy())
    (folder() / f"{name}.json").write_text(json.dumps(asdict(cost)))


def prepare(name: str) -> None:
    """Write the files, in a process of its own, unless they are there."""
    if not (folder() / f"{name}.json").exists():
        subprocess.run([sys.executable, "-m", "benchmarks.models", name], check=True,
                       cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def workload(name: str) -> Workload:
    model = MODELS[name]
    return Workload(
        name, model.title, model.inputs, lambda: Cost(**json.loads((folder() / f"{name}.json").read_text())),
        model.aim, model.tolerance, reference=lambda: np.load(folder() / f"{name}.npy"), torch=model.module,
        onnx=lambda: str(folder() / f"{name}.onnx"), prepare=lambda: prepare(name))


WORKLOADS = {name: partial(workload, name) for name in MODELS}


if __name__ == "__main__":
    write(sys.argv[1])
