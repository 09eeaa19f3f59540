"""Networks for images, points and rays as papers describe them, for field_zoo.py: each as short as its idea allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


class EfficientFormer(nn.Module):
    """Pooling as the mixer of an image's early stages, attention with a bias by position in the late ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 16, 3, 2, 1)
        )
        self.scale = nn.Parameter(torch.full((16, 1, 1), 0.1))
        self.pool, self.widen = nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Conv2d(16, 32, 1)
        self.narrow = nn.Conv2d(32, 16, 1)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.randn(2, 49) * 0.1)
        rows = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        away = rows[:, :, None] - rows[:, None]
        self.register_buffer("places", (away[0] + 3) * 7 + away[1] + 3)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.scale * (self.pool(x) - x)
        x = x + self.scale * self.narrow(F.gelu(self.widen(x)))
        x = F.avg_pool2d(x, 2).flatten(2).transpose(1, 2)
        batch, count, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, count, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-2, -1)) * 8**-0.5 + self.bias[:, self.places]).softmax(-1) @ v
        return self.head((x + self.out(mixed.transpose(1, 2).reshape(batch, count, width))).mean(1))


class WindowAttention(nn.Module):
    """Swin's attention in shifted windows: rolled maps, a mask between what was apart, positions by table."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.qkv, self.out = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48), nn.Linear(16, 16)
        self.table, self.norm = nn.Parameter(torch.randn(49, 2) * 0.1), nn.LayerNorm(16)
        rows = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        away = rows[:, :, None] - rows[:, None] + 3
        self.register_buffer("places", (away[0] * 7 + away[1]).flatten())
        regions = torch.zeros(1, 8, 8, 1)
        for i, across in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
            for j, along in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
                regions[:, across, along] = 3 * i + j
        kinds = self._windows(regions).squeeze(-1)
        self.register_buffer("mask", (kinds[:, None] != kinds[:, :, None]) * -100.0)
        self.head = nn.Linear(64, CLASSES)

    @staticmethod
    def _windows(x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        x = x.view(batch, rows // 4, 4, columns // 4, 4, width).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, 16, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        windows = self._windows(torch.roll(self.norm(x), (-2, -2), (1, 2)))
        q, k, v = self.qkv(windows).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        bias = self.table[self.places].view(16, 16, 2).permute(2, 0, 1)
        scores = (q * 8**-0.5) @ k.transpose(-2, -1) + bias
        scores = scores.view(-1, 4, 2, 16, 16) + self.mask[:, None]
        mixed = (scores.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 2, 2, 4, 4, 16)
        back = torch.roll(mixed.permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, 8, 16), (2, 2), (1, 2))
        x = x + self.out(back)
        merged = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return self.head(merged.mean((1, 2)))


class Detr(nn.Module):
    """Object queries that a decoder reads out of an image; boxes by L1 and generalised overlap, kinds by logits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 16, 2, 2))
        self.places, self.queries = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(5, 16))
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.kinds, self.boxes = (
            nn.Linear(16, 4),
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)),
        )

    def forward(self, x: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        memory = self.encoder(self.backbone(x).flatten(2).transpose(1, 2) + self.places)
        found = self.decoder(self.queries.expand(x.shape[0], -1, -1), memory)
        a, b = _corners(self.boxes(found).sigmoid()), _corners(boxes.sigmoid())
        inner = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
        outer = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).prod(-1)
        union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inner
        overlap = inner / union - (outer - union) / outer
        kind = F.cross_entropy(self.kinds(found).transpose(1, 2), kinds)
        return kind + (1 - overlap).mean() + 5 * (a - b).abs().mean()


def _corners(box: Tensor) -> Tensor:
    x, y, wide, high = box.unbind(-1)
    return torch.stack((x - wide / 2, y - high / 2, x + wide / 2 + 0.01, y + high / 2 + 0.01), -1)


class Nerf(nn.Module):
    """Colour along rays: sines of positions, a network with a skip, and transmittance by a running product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(39, 32), nn.Linear(32 + 39, 32)
        self.density, self.colour = nn.Linear(32, 1), nn.Linear(32, 3)
        self.register_buffer("octaves", 2.0 ** torch.arange(6))

    def forward(self, origin: Tensor, direction: Tensor, wanted: Tensor) -> Tensor:
        depth = torch.linspace(0.5, 2.5, 8)
        point = origin[:, None] + F.normalize(direction, dim=-1)[:, None] * depth[:, None]
        waves = (point[..., None, :] * self.octaves[:, None]).flatten(-2)
        code = torch.cat((point, waves.sin(), waves.cos()), -1)
        hidden = F.relu(self.second(torch.cat((F.relu(self.first(code)), code), -1)))
        alpha = 1 - torch.exp(-F.softplus(self.density(hidden)).squeeze(-1) * 0.25)
        through = torch.cumsum(torch.log(1 - alpha + 1e-6), -1) - torch.log(1 - alpha + 1e-6)
        weight = alpha * through.exp()
        return F.mse_loss((weight[..., None] * self.colour(hidden).sigmoid()).sum(1), wanted)


class SpatialTransformer(nn.Module):
    """A network that turns and moves its own input before it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 6))
        self.look = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(392, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(x).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        rows = torch.linspace(-1, 1, 16)
        grid = torch.stack((*torch.meshgrid(rows, rows, indexing="xy"), torch.ones(16, 16)), -1)
        grid = (grid.view(1, -1, 3) @ theta.transpose(1, 2)).view(-1, 16, 16, 2)
        return self.look(F.grid_sample(x, grid, align_corners=True, padding_mode="border"))


class Involution(nn.Module):
    """A kernel of its own at every place, made of the input there, over unfolded patches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.kernel = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 18, 1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        kernel = self.kernel(x).view(-1, 2, 1, 9, x.shape[2], x.shape[3])
        patches = F.unfold(x, 3, padding=1).view(-1, 2, 4, 9, x.shape[2], x.shape[3])
        return self.head((kernel * patches).sum(3).flatten(1, 2).mean((2, 3)))


class Capsules(nn.Module):
    """Routing by agreement between small vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.votes = nn.Conv2d(1, 16, 5, 3), nn.Parameter(torch.randn(32, CLASSES, 8, 8) * 0.1)

    @staticmethod
    def _squashed(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-7).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        low = self._squashed(self.conv(x).reshape(-1, 32, 8))
        votes = torch.einsum("bni,nkio->bnko", low, self.votes)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            high = self._squashed((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * high[:, None]).sum(-1)
        return high.norm(dim=-1)


class Attended(nn.Module):
    """Weights over channels, rows and places: selective kernels, coordinates, CBAM, and Conv1d over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Conv2d(3, 12, 3, 1, 1), nn.Conv2d(3, 12, 3, 1, 2, dilation=2)
        self.choose, self.across = nn.Linear(12, 24), nn.Conv1d(1, 1, 3, 1, 1)
        self.both, self.place = nn.Conv2d(12, 12, 1), nn.Conv2d(2, 1, 7, 1, 3)
        self.drop = nn.PixelUnshuffle(2)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        branches = torch.stack((self.small(x), self.large(x)), 1)
        weight = self.choose(branches.sum(1).mean((2, 3))).view(-1, 2, 12).softmax(1)
        x = (branches * weight[..., None, None]).sum(1)
        x = x * self.across(x.mean((2, 3))[:, None]).sigmoid().transpose(1, 2)[..., None]
        rows, columns = x.mean(3, keepdim=True), x.mean(2, keepdim=True).transpose(2, 3)
        rows, columns = self.both(torch.cat((rows, columns), 2)).sigmoid().split(x.shape[2], 2)
        x = x * rows * columns.transpose(2, 3)
        x = x * self.place(torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)).sigmoid()
        return self.head(self.drop(x.unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2)).amax((2, 3)))


class Hyper(nn.Module):
    """Convolutions whose weights other layers make: standardised, conditional by experts, and turned by quarters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.experts = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.Parameter(torch.randn(3, 64))
        self.route, self.turned = nn.Linear(8, 3), nn.Parameter(torch.randn(4, 8, 3, 3) * 0.2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.weight.mean((1, 2, 3), keepdim=True), self.weight.std((1, 2, 3), keepdim=True)
        x = F.relu(F.conv2d(x, (self.weight - mean) / (spread + 1e-5)))
        kernel = (self.route(x.mean((2, 3))).sigmoid() @ self.experts).view(-1, 8, 8)
        x = x + torch.einsum("bchw,bkc->bkhw", x, kernel)
        half = self.turned.transpose(2, 3)
        four = (self.turned, half.flip(2), self.turned.flip((2, 3)), half.flip(3))
        return self.head(F.conv2d(x, torch.cat(four)).mean((2, 3)))


class Keypoints(nn.Module):
    """Places as expectations of heat maps."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 6, 3, 1, 1), nn.Conv2d(6, 4, 3, 1, 1)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        small = F.max_pool2d(self.down(x), 3, 1, 1) * F.adaptive_max_pool2d(x, 1)
        heat = self.up(small).flatten(2).softmax(-1).view(-1, 4, 16, 16)
        axis = torch.linspace(-1, 1, 16)
        found = torch.stack(((heat.sum(2) * axis).sum(-1), (heat.sum(3) * axis).sum(-1)), -1)
        return F.mse_loss(found, wanted.tanh())


class Segmented(nn.Module):
    """A U-Net with transposed convolutions and groups, and a loss of overlap with one-hot labels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.SiLU())
        self.b = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.Mish())
        self.up, self.out = nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        first = self.a(x)
        logits = self.out(torch.cat((self.up(self.b(first)), first), 1))
        wanted = F.one_hot(mask, 3).permute(0, 3, 1, 2).float()
        share = logits.softmax(1)
        dice = (2 * (share * wanted).sum((2, 3)) + 1) / (share.sum((2, 3)) + wanted.sum((2, 3)) + 1)
        return 1 - dice.mean() + F.cross_entropy(logits, mask)
