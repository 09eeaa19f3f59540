"""Networks for bench_large.py that no library defines and no kernel was tuned for: own:NAME."""

from __future__ import annotations

import torch
from large_nets import IMAGE, Net, perceptron
from torch import Tensor, nn
from torch.nn import functional


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions of 3x3 with batch normalization."""
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """U-Net of four levels: half the size and twice the channels on the way down, transposed convolutions back."""

    def __init__(self, classes: int = 4, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.joined = nn.ModuleList(twice(2 * w, w) for w in reversed(widths[:-1]))
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, down in enumerate(self.down):
            x = down(self.pool(x) if level else x)
            kept.append(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            kept.pop()
            x = joined(torch.cat((kept[-1], up(x)), 1))
        return self.head(x)


class Recurrent(nn.Module):
    """Two layers of a kind over the steps of a sequence, both ways or not, classified by the last step."""

    def __init__(self, kind: str, inputs: int, width: int, both: bool = False) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(inputs, width, num_layers=2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(width * (2 if both else 1), 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


class Causal(nn.Module):
    """A block of a temporal convolutional network: two convolutions of what came before, some steps apart."""

    def __init__(self, inputs: int, outputs: int, apart: int) -> None:
        super().__init__()
        self.pad = 2 * apart
        self.first = nn.Conv1d(inputs, outputs, 3, dilation=apart)
        self.second = nn.Conv1d(outputs, outputs, 3, dilation=apart)
        self.short = nn.Identity() if inputs == outputs else nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(functional.pad(x, (self.pad, 0))))
        y = torch.relu(self.second(functional.pad(y, (self.pad, 0))))
        return torch.relu(y + self.short(x))


def temporal() -> nn.Module:
    widths = (16, 64, 64, 64, 128, 128, 128, 128)
    blocks = [Causal(a, b, 1 << i) for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))]
    return nn.Sequential(*blocks, LastStep(), nn.Linear(128, 10))


class LastStep(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[..., -1]


class Recommender(nn.Module):
    """DLRM: 13 counts through a perceptron, 8 kinds of words as embeddings, products of all pairs, a perceptron."""

    def __init__(self, words: int = 20000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(words, width) for _ in range(8))
        self.bottom = nn.Sequential(perceptron(13, 512, 256, width), nn.ReLU())
        self.top = perceptron(width + 36, 512, 256, 2)
        i, j = torch.tril_indices(9, 9, -1)
        self.register_buffer("pairs", i * 9 + j)

    def forward(self, x: Tensor) -> Tensor:
        dense = self.bottom(torch.log(x[:, :13].float() + 1))
        rows = torch.stack([dense, *(table(x[:, 13 + i]) for i, table in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat((dense, products), 1))


class Autoencoder(nn.Module):
    """Pixels through a narrow code, to which what is known of their class is added, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = perceptron(3072, 2048, 1024, 256), perceptron(256, 1024, 2048, 3072)
        self.kinds = nn.Embedding(10, 256)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.mse_loss(self.up(torch.relu(self.down(x)) + self.kinds(labels)), x)


class Mixed(nn.Module):
    """A block of MLP-Mixer: a perceptron over the patches, and one over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer-S/16."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Mixed(196, width) for _ in range(8)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.cut(x).flatten(2).transpose(1, 2))).mean(1))


NETS = {
    "unet": Net(UNet, (3, 128, 128), 4),
    "gru": Net(lambda: Recurrent("GRU", 256, 512), (64, 256), 20),
    "bilstm": Net(lambda: Recurrent("LSTM", 128, 256, both=True), (128, 128), 20),
    "rnn": Net(lambda: Recurrent("RNN", 256, 512), (64, 256), 20),
    "tcn": Net(temporal, (16, 1024), 10),
    "dlrm": Net(Recommender, (21,), 2, words=20000),
    "autoencoder": Net(Autoencoder, (3072,), 10, gives_loss=True),
    "mixer": Net(Mixer, IMAGE, 1000, opset=14),
}


def net(name: str) -> Net:
    return NETS[name]
