"""Networks for bench_large.py that no library defines and no kernel was tuned for: own:NAME."""

from __future__ import annotations

import torch
from large_nets import Net
from torch import Tensor, nn


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


NETS = {"unet": Net(UNet, (3, 128, 128), 4)}


def net(name: str) -> Net:
    return NETS[name]
