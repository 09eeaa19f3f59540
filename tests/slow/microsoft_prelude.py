"""Cells of Microsoft's samples, run with minbuild in the place of ONNX Runtime's training and without downloads.

python tests/slow/microsoft_prelude.py CELLS.json     run by microsoft_samples.py
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torchvision
import transformers

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "capital", "of", "france", "is", "paris", ".")


def alias(name: str) -> types.ModuleType:
    module = importlib.import_module("minbuild" + name.removeprefix("onnxruntime"))
    sys.modules[name] = module
    return module


def stub(name: str, **members: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


class MadeDigits(torch.utils.data.Dataset):
    """Images in the place of MNIST: class k is a bright square at place k, in noise."""

    def __init__(self, root: str, train: bool = True, download: bool = False, transform=None) -> None:
        random = np.random.default_rng(int(train))
        self.classes, self.transform = random.integers(0, 10, 1280 if train else 1000), transform
        self.images = random.integers(0, 120, (len(self.classes), 28, 28, 1), dtype=np.uint8)
        for image, k in zip(self.images, self.classes, strict=True):
            image[14 * (k // 5) + 3 : 14 * (k // 5) + 10, 5 * (k % 5) + 1 : 5 * (k % 5) + 5] += 100

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int):
        return self.transform(self.images[index]), int(self.classes[index])


class Accuracy:
    """The metric that `evaluate.load("accuracy")` downloads."""

    def __init__(self, _name: str) -> None:
        self.right: list[bool] = []

    def add_batch(self, references, predictions) -> None:
        self.right += list(np.asarray(references) == predictions)

    def compute(self) -> dict[str, float]:
        return {"accuracy": float(np.mean(self.right))}


def tokenizer(*_: object, **__: object) -> transformers.PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(WORDS[:5]))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    names |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **names
    )


def small_vit(_name: str, **others: object) -> transformers.MobileViTConfig:
    """mobilevit-xx-small's own widths."""
    widths = {"hidden_sizes": [64, 80, 96], "neck_hidden_sizes": [16, 16, 24, 48, 64, 80, 320]}
    return transformers.MobileViTConfig(expand_ratio=2.0, **widths, **others)


def small_wav2vec(_name: str, **others: object) -> transformers.Wav2Vec2Config:
    return transformers.Wav2Vec2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, classifier_proj_size=256, **others,
    )  # fmt: skip


def random_mobilenet(weights: object = None) -> torch.nn.Module:
    """Random weights, with the statistics of one batch: without them, features vanish and nothing is learned."""
    model = _mobilenet()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all batches, of which there is one
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 224, 224))
    for norm in norms:
        norm.momentum = 0.1
    return model


@classmethod
def random_weights(cls, _name: str, *, config=None, **_: object):
    """A model of a configuration, for `from_pretrained`."""
    return cls(config if config is not None else small_wav2vec(""))


torch.manual_seed(0)
onnxruntime.training = alias("onnxruntime.training")
for part in ("api", "artifacts", "onnxblock", "onnxblock.blocks", "onnxblock.loss", "onnxblock.optim"):
    alias(f"onnxruntime.training.{part}")
stub("netron", start=lambda _: None)
stub("evaluate", load=Accuracy)
stub("datasets", load_dataset=None)
torchvision.datasets.MNIST = MadeDigits
_mobilenet = torchvision.models.mobilenet_v2
torchvision.models.mobilenet_v2 = random_mobilenet
transformers.MobileViTConfig.from_pretrained = small_vit
transformers.AutoConfig.from_pretrained = small_wav2vec
transformers.AutoTokenizer.from_pretrained = tokenizer
for model in (
    "MobileViTForImageClassification",
    "MobileBertForMaskedLM",
    "Wav2Vec2ForSequenceClassification",
):
    getattr(transformers, model).from_pretrained = random_weights
_export, _dynamo = torch.onnx.export, os.environ["SAMPLE_DYNAMO"] == "1"


def export(model, inputs, *others: object, **options: object):
    """The exporter that is tried; the newer one takes a dictionary of inputs under another name."""
    if _dynamo and isinstance(inputs, dict):
        inputs, options["kwargs"] = (), inputs
    return _export(model, inputs, *others, dynamo=_dynamo, **options)


torch.onnx.export = export

names: dict[str, object] = {"__name__": "__main__"}
for number, cell in enumerate(json.loads(Path(sys.argv[1]).read_text("utf-8"))):
    exec(compile(cell, f"cell {number}", "exec"), names)
