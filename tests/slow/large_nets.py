"""Networks of the sizes that people train on phones and desktops, for bench_large.py. Needs torch and nothing else;
weights are random. A name SOURCE:MODEL is a network of another library, which large_SOURCE.py fetches.

Exported with the names that torch gives its parameters, so that what is frozen there is frozen in the artifacts.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Net:
    """A network and its task: classes for every sample of `shape`, which are words where `words` is not 0."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    words: int = 0
    opset: int = 17
    trained: Sequence[str] = ("",)  # beginnings or ends of the names of parameters that train
    gives_loss: bool = (
        False  # the network takes labels beside its inputs, of `label_shape`, and gives its loss
    )
    label_shape: tuple[int, ...] = ()


def normed(*layers: nn.Module, channels: int, activation: nn.Module | None = None) -> nn.Sequential:
    """The layers, batch normalization, and an activation."""
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), *([activation] if activation else []))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """A block of ResNet: two convolutions of 3x3, or three with a bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        plan = ((width, 3, stride), (width, 3, 1)) if expansion == 1 else ((width, 1, 1), (width, 3, stride))
        layers: list[nn.Module] = []
        before = inputs
        for index, (channels, kernel, by) in enumerate(plan):
            last = expansion == 1 and index == 1
            activation = None if last else nn.ReLU(inplace=True)
            layers.append(
                normed(conv(before, channels, kernel, by), channels=channels, activation=activation)
            )
            before = channels
        if expansion > 1:
            layers.append(normed(conv(before, outputs, 1), channels=outputs))
        self.body = nn.Sequential(*layers)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else normed(conv(inputs, outputs, 1, stride), channels=outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


def resnet(blocks: Sequence[int], expansion: int) -> nn.Module:
    layers: list[nn.Module] = [normed(conv(3, 64, 7, 2), channels=64, activation=nn.ReLU(inplace=True))]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Residual(inputs, 64 << stage, stride, expansion))
            inputs = (64 << stage) * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Squeeze(nn.Module):
    """Channels weighted by what is in all of them."""

    def __init__(self, channels: int, fewer: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, fewer, 1), nn.Conv2d(fewer, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(functional.silu(self.down(functional.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(weights)


class Inverted(nn.Module):
    """A block of MobileNetV2 or EfficientNet: wider, depthwise, narrow again."""

    def __init__(
        self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int, squeezes: bool
    ) -> None:
        super().__init__()
        width = inputs * expansion

        def activation() -> nn.Module:
            return nn.SiLU() if squeezes else nn.ReLU6(inplace=True)

        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(normed(conv(inputs, width, 1), channels=width, activation=activation()))
        depthwise = conv(width, width, kernel, stride, groups=width)
        layers.append(normed(depthwise, channels=width, activation=activation()))
        if squeezes:
            layers.append(Squeeze(width, max(1, inputs // 4)))
        layers.append(normed(conv(width, outputs, 1), channels=outputs))
        self.body = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


# Expansion, outputs, blocks, stride, kernel.
MOBILE = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3))
MOBILE += ((6, 160, 3, 2, 3), (6, 320, 1, 1, 3))
EFFICIENT = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5))
EFFICIENT += ((6, 192, 4, 2, 5), (6, 320, 1, 1, 3))


def inverted(stages: Sequence[tuple[int, int, int, int, int]], squeezes: bool) -> nn.Module:
    activation = nn.SiLU() if squeezes else nn.ReLU6(inplace=True)
    layers: list[nn.Module] = [normed(conv(3, 32, 3, 2), channels=32, activation=activation)]
    inputs = 32
    for expansion, outputs, count, stride, kernel in stages:
        for block in range(count):
            by = stride if block == 0 else 1
            layers.append(Inverted(inputs, outputs, expansion, kernel, by, squeezes))
            inputs = outputs
    layers.append(normed(conv(inputs, 1280, 1), channels=1280, activation=activation))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Attention(nn.Module):
    """Heads side by side in one tensor, as PyTorch's models have them; `rank` > 0 adapts queries and values."""

    def __init__(self, width: int, heads: int, rank: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        if rank:
            self.lora_q, self.lora_v = (
                nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))
                for _ in range(2)
            )
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, v = self.q(x), self.v(x)
        if self.rank:
            q, v = q + self.lora_q(x), v + self.lora_v(x)
        scores = split(q) @ split(self.k(x)).transpose(-1, -2) / math.sqrt(width // self.heads)
        mixed = torch.softmax(scores, -1) @ split(v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A layer of an encoder; `first` normalizes before its parts, else after."""

    def __init__(self, width: int, heads: int, first: bool, rank: int = 0) -> None:
        super().__init__()
        self.attention = Attention(width, heads, rank)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first = first

    def wide(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.wide(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.wide(x))


class Encoder(nn.Module):
    """BERT and what is like it: the class of a sequence of 128 words by its first one."""

    def __init__(self, words: int, width: int, heads: int, layers: int, classes: int, rank: int = 0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(128, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width, heads, False, rank) for _ in range(layers)))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        x = self.layers(self.norm(self.words(words) + self.places.weight))
        return self.head(torch.tanh(self.pool(x[:, 0])))


class VisionTransformer(nn.Module):
    """ViT of patches of 16x16 of an image of 224x224: 197 tokens."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Recurrent(nn.Module):
    """Two LSTM layers over 64 steps, classified by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.LSTM(n, 1024, batch_first=False) for n in (512, 1024))
        self.head = nn.Linear(1024, 100)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.second(self.first(x.transpose(0, 1))[0])
        return self.head(y[-1])


def perceptron(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def keywords() -> nn.Module:
    """DS-CNN of MLPerf Tiny."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    for _ in range(4):
        layers.append(normed(conv(64, 64, 3, groups=64), channels=64, activation=nn.ReLU()))
        layers.append(normed(conv(64, 64, 1), channels=64, activation=nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


IMAGE = (3, 224, 224)
NETS = {
    "ResNet-18": Net(lambda: resnet((2, 2, 2, 2), 1), IMAGE, 1000),
    "ResNet-50": Net(lambda: resnet((3, 4, 6, 3), 4), IMAGE, 1000),
    "ViT-Tiny": Net(lambda: VisionTransformer(192, 3, 12), IMAGE, 1000, opset=14),
    "BERT 4x256": Net(lambda: Encoder(30522, 256, 4, 4, 2), (128,), 2, words=30522, opset=14),
    "BERT-base": Net(lambda: Encoder(30522, 768, 12, 12, 2), (128,), 2, words=30522, opset=14),
    "DistilBERT head": Net(
        lambda: Encoder(30522, 768, 12, 6, 2), (128,), 2, words=30522, opset=14, trained=("pool.", "head.")
    ),
    "LoRA BERT-base": Net(
        lambda: Encoder(30522, 768, 12, 12, 2, rank=8), (128,), 2, words=30522, opset=14,
        trained=("lora_", "head."),
    ),
    "LSTM 2x1024": Net(Recurrent, (64, 512), 100, opset=14),
    "MLP 10M": Net(lambda: perceptron(784, 2048, 2048, 2048, 10), (784,), 10),
    "MobileNetV2": Net(lambda: inverted(MOBILE, False), IMAGE, 1000),
    "EfficientNet-B0": Net(lambda: inverted(EFFICIENT, True), IMAGE, 1000),
    "DS-CNN": Net(keywords, (1, 49, 10), 12),
}  # fmt: skip


def net_of(name: str) -> Net:
    """The network `name`: one of NETS, or SOURCE:MODEL, which the function `net` of large_SOURCE.py answers."""
    source, colon, model = name.partition(":")
    return importlib.import_module(f"large_{source}").net(model) if colon else NETS[name]


def without_dropout(model: nn.Module) -> nn.Module:
    """The network with nothing random in its training."""
    for name, child in model.named_children():
        if isinstance(child, (nn.Dropout, nn.Dropout2d, nn.Dropout3d)):
            setattr(model, name, nn.Identity())
        elif type(child).__name__ == "StochasticDepth":
            child.p = 0.0
        without_dropout(child)
    return model


def made(name: str) -> nn.Module:
    """The network with weights that any two processes agree on, and what is frozen marked so."""
    torch.manual_seed(3)
    net = net_of(name)
    model = net.make().train()
    for parameter, value in model.named_parameters():
        value.requires_grad_(any(part in parameter for part in net.trained))
    return model
