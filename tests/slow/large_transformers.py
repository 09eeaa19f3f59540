"""Networks of the library transformers for bench_large.py: transformers:NAME with a NAME of NETS, with random weights
and 128 words where nothing else is said. Language models give a loss over all their words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from large_nets import Net
from torch import Tensor, nn

LENGTH = 128


@dataclass(frozen=True)
class Source:
    """A model by its class and configuration. `words` of its vocabulary, or 0 where its inputs of `shape` are numbers;
    `classes` of a sample, or 0 where words are predicted."""

    model: str
    config: str
    words: int = 0
    shape: tuple[int, ...] = (LENGTH,)
    classes: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)


class Scores(nn.Module):
    """The scores of classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=True).logits


class Words(nn.Module):
    """The loss of a language model, which sees all words, or those before. Without a mask, models look for sequences
    that are packed together, in ways of no exporter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.model(
            input_ids=x, attention_mask=torch.ones_like(x), labels=labels, return_dict=True
        ).loss


class Spoken(nn.Module):
    """The class of speech by the mean of what Whisper's encoder makes of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = model.encoder, nn.Linear(model.config.d_model, 35)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).last_hidden_state.mean(1))


_SPEECH = {"num_hidden_layers": 4, "apply_spec_augment": False, "mask_time_prob": 0.0}
_WIDE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12}
_LLAMA = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
_LLAMA |= {"num_key_value_heads": 2, "pad_token_id": 0}
_HEARING = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
NETS = {
    "gpt2": Source("GPT2LMHeadModel", "GPT2Config", 50257, classes=0, settings={"n_layer": 4}),
    "t5-small": Source(
        "T5ForConditionalGeneration", "T5Config", 32128, classes=0, settings={"decoder_start_token_id": 0}
    ),
    "llama": Source("LlamaForCausalLM", "LlamaConfig", 32000, classes=0, settings=_LLAMA),
    "albert-base": Source("AlbertForSequenceClassification", "AlbertConfig", 30000, settings=_WIDE),
    "mobilebert": Source(
        "MobileBertForSequenceClassification", "MobileBertConfig", 30522, settings={"num_hidden_layers": 4}
    ),
    "whisper-tiny": Source(
        "WhisperModel", "WhisperConfig", shape=(80, 3000), classes=35, settings={**_HEARING, "decoder_layers": 1}
    ),
    "wav2vec2": Source(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", shape=(16000,),
        settings=_SPEECH,
    ),
}  # fmt: skip


def _made(source: Source) -> nn.Module:
    import transformers

    config = getattr(transformers, source.config)(**source.settings)
    config._attn_implementation, config.use_cache = "eager", False
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model = getattr(transformers, source.model)(config)
    if source.model == "WhisperModel":
        return Spoken(model)
    return Scores(model) if source.classes else Words(model)


def net(name: str) -> Net:
    """The model `name` with random weights."""
    source = NETS[name]
    opset = 14  # the last without layer normalization, which ONNX Runtime's tools cannot differentiate
    given: dict[str, Any] = {"words": source.words, "opset": opset}
    if not source.classes:
        given |= {"gives_loss": True, "label_shape": (LENGTH,)}
    return Net(lambda: _made(source), source.shape, source.classes or source.words, **given)
