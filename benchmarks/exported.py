"""ONNX files of known architectures, as torch exports them: small configurations with random weights.

    python -m benchmarks.exported FOLDER [name ...]

writes one NAME.onnx each by `torch.onnx.export(dynamo=True)`, batch, sequence and image sizes left open.
Needs torch, transformers and onnxscript; nothing is downloaded. The configurations keep the real sizes of a
head and of a patch and are otherwise shrunk to two layers. `MODELS` lists them.

    python -m benchmarks.exported --structure FOLDER NAME.onnx ...

writes files without their weights, a few KB each, which `filled` gives random ones again.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Sizes = dict[str, int]


@dataclass(frozen=True)
class Exported:
    """`make` gives (module, inputs): what is exported, and a tensor for each argument of `inputs`.

    inputs   argument -> its shape: numbers, or names of open sizes
    integers arguments that hold numbers of tokens, below the number given; others are normal floats
    """

    make: Callable[[], Any]
    inputs: dict[str, tuple[int | str, ...]]
    integers: dict[str, int]
    masks: tuple[str, ...] = ()

    @property
    def open_sizes(self) -> list[str]:
        return list(dict.fromkeys(d for shape in self.inputs.values() for d in shape if isinstance(d, str)))


VOCABULARY = 1000
EAGER: dict[str, Any] = {"attn_implementation": "eager"}  # the exporter can't decompose the fused one there
TOKENS = {"input_ids": ("batch", "sequence")}


class FirstOutput:
    """A module that gives its first output only (a cache is no tensor)."""

    def __new__(cls, model: Any, names: tuple[str, ...] = (), **settings: Any) -> Any:
        from torch import nn

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *inputs: Any) -> Any:
                result = self.model(**dict(zip(names, inputs)), **settings)
                return result[0] if isinstance(result, tuple) else next(iter(result.values()))
        return Wrapped()


def bert() -> Any:
    from transformers import BertConfig, BertModel
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=512)
    return FirstOutput(BertModel(config, add_pooling_layer=False), ("input_ids", "attention_mask"))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=512, n_embd=128, n_layer=2, n_head=2)
    return FirstOutput(GPT2LMHeadModel(config), ("input_ids",), use_cache=False)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)
    return FirstOutput(LlamaForCausalLM(config), ("input_ids",), use_cache=False)


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=VOCABULARY, d_model=128, d_kv=64, d_ff=256, num_layers=2, num_heads=2,
                      **EAGER)
    names = ("input_ids", "decoder_input_ids")
    return FirstOutput(T5ForConditionalGeneration(config), names, use_cache=False)


def whisper_encoder() -> Any:
    from transformers import WhisperConfig, WhisperModel
    config = WhisperConfig(vocab_size=VOCABULARY, d_model=128, encoder_layers=2, encoder_attention_heads=2,
                           decoder_layers=1, decoder_attention_heads=2, encoder_ffn_dim=512,
                           max_source_positions=200, num_mel_bins=80, pad_token_id=0, bos_token_id=1,
                           eos_token_id=2, decoder_start_token_id=1)
    return FirstOutput(WhisperModel(config).encoder, ("input_features",))


def clip() -> Any:
    from torch import nn
    from transformers import CLIPConfig, CLIPModel
    text = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 2, "eos_token_id": VOCABULARY - 1, "bos_token_id": VOCABULARY - 2}
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 64, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=64))

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, pixel_values: Any) -> Any:
            return self.model(input_ids=input_ids, pixel_values=pixel_values).logits_per_image
    return Scores()


def resnet() -> Any:
    from transformers import ResNetConfig, ResNetModel
    config = ResNetConfig(embedding_size=32, hidden_sizes=[64, 128, 128, 256], depths=[1, 2, 1, 1])
    return FirstOutput(ResNetModel(config), ("pixel_values",))


def mobilenet_v2() -> Any:
    from transformers import MobileNetV2Config, MobileNetV2Model
    config = MobileNetV2Config(depth_multiplier=0.5, image_size=96)
    return FirstOutput(MobileNetV2Model(config), ("pixel_values",))


def vit() -> Any:
    from transformers import ViTConfig, ViTModel
    config = ViTConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
                       image_size=64)
    return FirstOutput(ViTModel(config, add_pooling_layer=False), ("pixel_values",))


def convnext() -> Any:
    from transformers import ConvNextConfig, ConvNextModel
    config = ConvNextConfig(hidden_sizes=[48, 96, 128, 192], depths=[1, 1, 2, 1])
    return FirstOutput(ConvNextModel(config), ("pixel_values",))


def swin() -> Any:
    from transformers import SwinConfig, SwinModel
    config = SwinConfig(image_size=56, patch_size=4, embed_dim=64, depths=[2, 2], num_heads=[2, 4],
                        window_size=7, **EAGER)
    return FirstOutput(SwinModel(config, add_pooling_layer=False), ("pixel_values",))


def yolo() -> Any:
    """A detector in the manner of YOLO: SiLU convolutions, a pyramid by upsampling and concatenation, a
    pooled neck, and boxes decoded from distances by a softmax over bins."""
    import torch
    from torch import nn

    def block(channels: int, wanted: int, size: int, stride: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(channels, wanted, size, stride, size // 2, bias=False),
                             nn.BatchNorm2d(wanted), nn.SiLU())

    class Detector(nn.Module):
        bins, classes = 16, 20

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(block(3, 16, 3, 2), block(16, 32, 3, 2), block(32, 32, 3))
            self.middle = nn.Sequential(block(32, 64, 3, 2), block(64, 64, 3))
            self.deep = nn.Sequential(block(64, 128, 3, 2), block(128, 64, 1))
            self.pool = nn.MaxPool2d(5, 1, 2)
            self.joined = block(256, 128, 1)
            self.lateral = block(128 + 64, 64, 3)
            self.heads = nn.ModuleList(nn.Conv2d(c, 4 * self.bins + self.classes, 1) for c in (64, 128))
            self.register_buffer("steps", torch.arange(self.bins, dtype=torch.float32))

        def forward(self, image: Any) -> Any:
            middle = self.middle(self.stem(image))
            deep = self.deep(middle)
            pools = [deep]
            for _ in range(3):
                pools.append(self.pool(pools[-1]))
            deep = self.joined(torch.cat(pools, 1))
            middle = self.lateral(torch.cat([nn.functional.interpolate(deep, scale_factor=2.0), middle], 1))
            found = [self.decoded(head(x), stride)
                     for head, x, stride in zip(self.heads, (middle, deep), (8, 16))]
            return torch.cat(found, 2)

        def decoded(self, x: Any, stride: int) -> Any:
            """[N, 4 + classes, places]: corners in pixels, scores."""
            n, _, h, w = x.shape
            x = x.flatten(2)
            distances, scores = x.split([4 * self.bins, self.classes], 1)
            weights = distances.reshape(n, 4, self.bins, h * w).softmax(2)
            left, top, right, bottom = (weights * self.steps.reshape(1, 1, -1, 1)).sum(2).unbind(1)
            rows, columns = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
            rows, columns = rows.reshape(1, -1), columns.reshape(1, -1)
            corners = [columns - left, rows - top, columns + right, rows + bottom]
            return torch.cat([torch.stack(corners, 1) * stride, scores.sigmoid()], 1)
    return Detector()


IMAGE = {"pixel_values": ("batch", 3, 64, 64)}

MODELS: dict[str, Exported] = {
    "bert": Exported(bert, {**TOKENS, "attention_mask": ("batch", "sequence")}, {"input_ids": VOCABULARY},
                     masks=("attention_mask",)),
    "gpt2": Exported(gpt2, TOKENS, {"input_ids": VOCABULARY}),
    "llama": Exported(llama, TOKENS, {"input_ids": VOCABULARY}),
    "t5": Exported(t5, {**TOKENS, "decoder_input_ids": ("batch", "target")},
                   {"input_ids": VOCABULARY, "decoder_input_ids": VOCABULARY}),
    "whisper_encoder": Exported(whisper_encoder, {"input_features": ("batch", 80, 400)}, {}),
    "clip": Exported(clip, {"input_ids": ("texts", "sequence"), "pixel_values": ("batch", 3, 64, 64)},
                     {"input_ids": VOCABULARY}),
    "resnet": Exported(resnet, {"pixel_values": ("batch", 3, "height", "width")}, {}),
    "mobilenet_v2": Exported(mobilenet_v2, {"pixel_values": ("batch", 3, 96, 96)}, {}),
    "vit": Exported(vit, IMAGE, {}),
    "convnext": Exported(convnext, {"pixel_values": ("batch", 3, "height", "width")}, {}),
    "swin": Exported(swin, {"pixel_values": ("batch", 3, 56, 56)}, {}),
    "yolo": Exported(yolo, {"image": ("batch", 3, "height", "width")}, {}),
}

EXAMPLE = {"batch": 2, "sequence": 11, "target": 7, "texts": 3, "height": 64, "width": 96}


def example(model: Exported, sizes: Sizes, rng: Any) -> dict[str, Any]:
    """Random arrays for a model's inputs at given sizes."""
    import numpy as np
    feeds = {}
    for name, shape in model.inputs.items():
        known = tuple(sizes[d] if isinstance(d, str) else d for d in shape)
        if name in model.integers:
            feeds[name] = rng.integers(3, model.integers[name], known)
        elif name in model.masks:
            lengths = rng.integers(1, known[1] + 1, (known[0], 1))
            feeds[name] = (np.arange(known[1]) < lengths).astype(np.int64)
        else:
            feeds[name] = rng.normal(size=known).astype(np.float32)
    return feeds


def export(name: str, path: Path) -> None:
    """Write one model."""
    import numpy as np
    import torch
    torch.manual_seed(0)
    model = MODELS[name]
    module = model.make().eval()
    _randomise(module)
    arguments = tuple(torch.from_numpy(a) for a in example(model, EXAMPLE, np.random.default_rng(0)).values())
    dims = dict.fromkeys(model.open_sizes, torch.export.Dim.DYNAMIC)
    shapes = tuple({i: dims[d] for i, d in enumerate(shape) if isinstance(d, str)}
                   for shape in model.inputs.values())
    dynamic = (shapes,) if type(module).__name__ == "Wrapped" else shapes
    program = torch.onnx.export(module, arguments, dynamo=True, dynamic_shapes=dynamic, external_data=False,
                                input_names=list(model.inputs), output_names=["result"])
    program.save(str(path))


def _randomise(module: Any) -> None:
    """Statistics of normalisations that are not 0 and 1, so that folding them is seen."""
    import torch
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            torch.nn.init.normal_(buffer, std=0.1)
        elif name.endswith("running_var"):
            torch.nn.init.uniform_(buffer, 0.5, 2)


# --- files without weights

LARGE = 256  # elements from which a tensor of floats is a weight


def without_weights(path: Path) -> bytes:
    """A model whose weights are empty, without notes."""
    import onnx
    model = onnx.load(path)
    for node in (*model.graph.node, *(n for f in model.functions for n in f.node)):
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    del model.graph.value_info[:]
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) > 4 * LARGE:
            tensor.raw_data = b""
    return model.SerializeToString()


def filled(path: Path, rng: Any) -> Any:
    """The model of a file without weights, with random ones: of a size that keeps values near 1."""
    import numpy as np
    import onnx
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not tensor.raw_data:
            shape = tuple(tensor.dims)
            values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
            tensor.raw_data = values.astype(np.float32).tobytes()
    return model


def main(folder: str, *names: str) -> None:
    if folder == "--structure":
        folder, *files = names
        for path in map(Path, files):
            (Path(folder) / path.name).write_bytes(without_weights(path))
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        path = Path(folder) / f"{name}.onnx"
        export(name, path)
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
