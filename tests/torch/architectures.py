"""Known architectures of the package transformers, small, with random weights, and the comparison with eager.

    python -m tests.torch.architectures [--only bert,gpt2] [--dtypes float32,bfloat16]

prints a line for each architecture and dtype: the graphs, their host ops, and the errors of results and of
the gradients of all parameters, beside eager's own. Both are measured against eager in float64. Exit status 1
if one fails.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Made = tuple[Any, dict[str, Any]]  # a module and the arguments of its call

VOCABULARY = 99
COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def tokens() -> Any:
    import torch

    return torch.randint(2, VOCABULARY, (2, 9))


def image(size: int = 32) -> Any:
    import torch

    return torch.randn(2, 3, size, size)


def _text(model: str, config: str, **settings: Any) -> Callable[[], Made]:
    """An encoder of tokens, the second row of them padded."""

    def make() -> Made:
        import torch
        import transformers

        module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        mask = torch.ones(2, 9, dtype=torch.int64)
        mask[1, 6:] = 0
        return module, {"input_ids": tokens(), "attention_mask": mask}

    return make


def _decoder(name: str, **settings: Any) -> Callable[[], Made]:
    """A language model, with its own loss."""

    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        model = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
        ids = tokens()
        return getattr(transformers, model)(config), {"input_ids": ids, "labels": ids, "use_cache": False}

    return make


def _translator(name: str, **settings: Any) -> Callable[[], Made]:
    """An encoder and a decoder, with its own loss."""

    def make() -> Made:
        import torch
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        given = {"input_features": torch.randn(2, 8, 32)} if name == "Whisper" else {"input_ids": tokens()}
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        return model, {**given, "labels": tokens(), "use_cache": False}

    return make


def _vision(name: str, size: int = 32, **settings: Any) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        return getattr(transformers, f"{name}Model")(config), {"pixel_values": image(size)}

    return make


def _clip() -> Made:
    import transformers

    half = {k: COMMON[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size")}
    config = transformers.CLIPConfig(
        text_config={**half, "num_hidden_layers": 1, "vocab_size": VOCABULARY, **SPECIAL},
        vision_config={**half, "num_hidden_layers": 1, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    inputs = {"input_ids": tokens(), "pixel_values": image(), "return_loss": True}
    return transformers.CLIPModel(config), inputs


GROUPED = {**COMMON, "num_key_value_heads": 1, **SPECIAL}
SPEECH = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32}


def _halves(layers: int, feed_forward: str) -> dict[str, Any]:
    """Settings of an encoder and a decoder."""
    each = {"layers": layers, "attention_heads": 2, feed_forward: 64}
    sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in each.items()}
    return {"d_model": 32, "vocab_size": VOCABULARY, "decoder_start_token_id": 1, **SPECIAL, **sides}


ARCHITECTURES: dict[str, Callable[[], Made]] = {
    "bert": _text("BertModel", "BertConfig", **COMMON),
    "roberta": _text("RobertaModel", "RobertaConfig", **COMMON, **SPECIAL),
    "distilbert": _text(
        "DistilBertModel",
        "DistilBertConfig",
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        vocab_size=VOCABULARY,
    ),
    "albert": _text("AlbertModel", "AlbertConfig", embedding_size=16, **COMMON),
    "gpt2": _decoder("GPT2", n_embd=32, n_layer=2, n_head=2, vocab_size=VOCABULARY, **SPECIAL),
    "gpt_neox": _decoder("GPTNeoX", **COMMON, **SPECIAL),
    "llama": _decoder("Llama", **GROUPED),
    "mistral": _decoder("Mistral", **GROUPED),
    "qwen2": _decoder("Qwen2", **GROUPED),
    "gemma": _decoder("Gemma", head_dim=16, **GROUPED),
    "phi": _decoder("Phi", **COMMON, **SPECIAL),
    "opt": _decoder(
        "OPT",
        **{k: v for k, v in COMMON.items() if k != "intermediate_size"},
        ffn_dim=64,
        word_embed_proj_dim=32,
        **SPECIAL,
    ),
    "falcon": _decoder(
        "Falcon",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=VOCABULARY,
        **SPECIAL,
    ),
    "t5": _translator(
        "T5",
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    ),
    "bart": _translator("Bart", max_position_embeddings=64, **_halves(2, "ffn_dim")),
    "whisper": _translator("Whisper", **SPEECH, **_halves(1, "ffn_dim")),
    "vit": _vision(
        "ViT",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    ),
    "swin": _vision(
        "Swin", image_size=32, patch_size=2, embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4
    ),
    "convnext": _vision("ConvNext", 64, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    "resnet": _vision("ResNet", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"),
    "clip": _clip,
    "mamba": _decoder(
        "Mamba", hidden_size=32, num_hidden_layers=1, vocab_size=VOCABULARY, state_size=4, **SPECIAL
    ),
}


# --- one comparison


@dataclass
class Ran:
    """What a module gave: results and gradients, by name."""

    results: dict[str, Any]
    gradients: dict[str, Any]


@dataclass
class Comparison:
    """Errors relative to the largest value of their group (results, gradients), against float64."""

    graphs: int
    hosts: list[str]
    ours: dict[str, float] = field(default_factory=dict)
    eager: dict[str, float] = field(default_factory=dict)

    def is_equal(self, factor: float = 2.0, floor: float = 2e-6) -> bool:
        """Whether no error is much larger than eager's own."""
        return all(self.ours[k] <= factor * self.eager[k] + floor for k in self.ours)

    def __str__(self) -> str:
        errors = ", ".join(f"{k} {self.ours[k]:.1e} (eager {self.eager[k]:.1e})" for k in self.ours)
        hosts = f", host ops {' '.join(self.hosts)}" if self.hosts else ""
        return f"{errors}; {self.graphs} graphs{hosts}"


def compare(name: str, dtype: Any, seed: int = 0) -> Comparison:
    """Compile an architecture's forward and backward, and hold it to eager in float64."""
    import torch

    import planish

    torch.manual_seed(seed)
    module, arguments = ARCHITECTURES[name]()
    module.eval()
    exact = run(copy.deepcopy(module).to(torch.float64), in_dtype(arguments, torch.float64))
    module, arguments = module.to(dtype), in_dtype(arguments, dtype)
    eager = run(module, arguments)
    with captured_graphs() as graphs:
        ours = run(module, arguments, planish.compile(module))
    hosts = sorted({n.attributes.function.name for g in graphs for n in g.nodes() if n.op.name == "host"})
    found = Comparison(len(graphs), hosts)
    for what in ("results", "gradients"):
        found.ours[what] = error(getattr(ours, what), getattr(exact, what))
        found.eager[what] = error(getattr(eager, what), getattr(exact, what))
    return found


def in_dtype(arguments: dict[str, Any], dtype: Any) -> dict[str, Any]:
    def cast(x: Any) -> Any:
        return x.to(dtype) if hasattr(x, "is_floating_point") and x.is_floating_point() else x

    return {k: cast(v) for k, v in arguments.items()}


def run(module: Any, arguments: dict[str, Any], call: Any = None) -> Ran:
    """Results, and the gradients of a loss: the model's own, or one over all its results."""
    module.zero_grad(set_to_none=True)
    given = (module if call is None else call)(**arguments)
    results = dict(_tensors(given, ""))
    floats = [x.double() for x in results.values() if x.requires_grad]
    loss = getattr(given, "loss", None)
    (loss if loss is not None else sum((x * x.cos()).mean() for x in floats)).backward()
    gradients = {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}
    return Ran({k: x.detach() for k, x in results.items()}, gradients)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "items"):
        for key, one in value.items():
            yield from _tensors(one, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from _tensors(one, f"{name}.{i}")
    elif hasattr(value, "requires_grad"):
        yield name, value


def error(found: dict[str, Any], exact: dict[str, Any]) -> float:
    """The largest difference, relative to the largest value; infinite where names or shapes differ."""
    shapes = [{k: x.shape for k, x in d.items()} for d in (found, exact)]
    if shapes[0] != shapes[1]:
        return float("inf")
    scale = max(x.double().abs().max().item() for x in exact.values())
    differences = [(found[k].double() - x.double()).abs().max().item() for k, x in exact.items()]
    return max(d if d == d else float("inf") for d in differences) / scale


@contextmanager
def captured_graphs() -> Iterator[list[Any]]:
    """The graphs that are compiled meanwhile."""
    from planish.torch import dynamo

    graphs: list[Any] = []
    translate = dynamo.translate

    def kept(*args: Any, **keywords: Any) -> Any:
        captured = translate(*args, **keywords)
        graphs.append(captured.graph)
        return captured

    dynamo.translate = kept
    try:
        yield graphs
    finally:
        dynamo.translate = translate


# --- all of them


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.architectures")
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="names, by commas")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="by commas")
    options = parser.parse_args(argv)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")  # torch and transformers say much; a line here is one comparison
    failed = 0
    for name in options.only.split(","):
        for dtype in options.dtypes.split(","):
            torch.compiler.reset()
            found = compare(name, getattr(torch, dtype))
            good = found.is_equal() and not found.hosts
            failed += not good
            print(f"{name:12} {dtype:10} {'equal' if good else 'FAILED'}: {found}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
