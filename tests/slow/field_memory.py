"""Networks with a state, a memory or a search in them, for field_zoo.py: each as short as its idea allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


class Ode(nn.Module):
    """A differential equation, four steps of Runge and Kutta; sines as activations (SIREN)."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.inner, self.head = nn.Linear(6, 8), nn.Linear(9, 8), nn.Linear(8, CLASSES)

    def _slope(self, x: Tensor, t: float) -> Tensor:
        return torch.sin(3 * self.inner(torch.cat((x, torch.full_like(x[:, :1], t)), -1)))

    def forward(self, x: Tensor) -> Tensor:
        x, step = self.into(x), 0.25
        for i in range(4):
            t = i * step
            a = self._slope(x, t)
            b = self._slope(x + step / 2 * a, t + step / 2)
            c = self._slope(x + step / 2 * b, t + step / 2)
            d = self._slope(x + step * c, t + step)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        return self.head(x)


class Slots(nn.Module):
    """Slot attention: normalised over slots, three rounds of a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.cell = nn.Parameter(torch.randn(3, 8)), nn.GRUCell(8, 8)
        self.q, self.kv, self.norm = nn.Linear(8, 8), nn.Linear(6, 16), nn.LayerNorm(8)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        slots = self.start.expand(x.shape[0], -1, -1)
        for _ in range(3):
            share = (self.q(self.norm(slots)) @ k.transpose(1, 2) * 8**-0.5).softmax(1) + 1e-6
            read = share / share.sum(-1, keepdim=True) @ v
            slots = self.cell(read.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return self.head(slots.flatten(1))


class Sparsemax(nn.Module):
    """TabNet's mask: a projection onto the simplex by sorting, and gated linear steps."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.step = nn.Linear(8, 8), nn.Linear(8, 16)
        self.batch, self.head = nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.mask(self.batch(x))
        ordered = z.sort(-1, descending=True).values
        count = torch.arange(1, 9, dtype=z.dtype)
        inside = 1 + count * ordered > ordered.cumsum(-1)
        size = inside.sum(-1, keepdim=True)
        level = (ordered.cumsum(-1).gather(-1, size - 1) - 1) / size
        return self.head(F.glu(self.step(x * F.relu(z - level)), -1))


class Turing(nn.Module):
    """A memory read by content and by shifted place: cosines, sharpening, circular convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.controller, self.memory = nn.LSTMCell(6, 8), nn.Parameter(torch.randn(5, 4))
        self.key, self.rest, self.head = nn.Linear(8, 4), nn.Linear(8, 5), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        weight = x.new_full((x.shape[0], 5), 0.2)
        for t in range(4):
            h, c = self.controller(x[:, t], (h, c))
            near = F.cosine_similarity(self.key(h)[:, None].expand(-1, 5, -1), self.memory, dim=-1)
            power, mix, shift = self.rest(h).split((1, 1, 3), -1)
            weight = mix.sigmoid() * (F.softplus(power) * near).softmax(-1) + (1 - mix.sigmoid()) * weight
            shift = shift.softmax(-1)
            weight = sum(shift[:, i : i + 1] * weight.roll(i - 1, -1) for i in range(3))
            weight = weight**1.5 / (weight**1.5).sum(-1, keepdim=True)
        return self.head(torch.cat((h, weight @ self.memory), -1))


class Mined(nn.Module):
    """Triplets out of the batch itself: the farthest of the same kind, the nearest of another, masks as where."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Hardswish(), nn.Linear(16, 4))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        x = self.net(x)
        square = x.square().sum(1)
        apart = (square[:, None] + square - 2 * x @ x.t()).clamp(min=1e-6).sqrt()
        same = kind[:, None] == kind
        far = apart.masked_fill(~same, 0.0).amax(1)
        near = apart.masked_fill(same, 1e3).amin(1)
        return F.softplus(far - near + 0.3).mean()


class Chosen(nn.Module):
    """Rows that a mask picks out of the data: boolean indexing, whose size is known at run time only."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.net(x).flatten(0, 1)
        return F.softplus(self.head(h[x.flatten(0, 1)[:, 0] > 0])).mean()


class Padded(nn.Module):
    """A decoder over padded batches: key masks of Booleans, a causal mask, sums over what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 20)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        hidden = x < 4
        first = torch.cat((torch.zeros_like(hidden[:, :1]), hidden[:, 1:]), 1)
        causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
        h = self.layer(self.words(x), memory, tgt_mask=causal, tgt_key_padding_mask=first)
        loss = F.cross_entropy(self.head(h).transpose(1, 2), x, reduction="none")
        return (loss * ~hidden).sum() / (~hidden).sum().clamp(min=1)


class Odd(nn.Module):
    """Layers that few use: bilinear forms, power pools, local response, fractions of ordered values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fold = nn.Conv1d(2, 6, 3), nn.ConvTranspose1d(6, 4, 3, 2, 1, 1, groups=2)
        self.both, self.act = nn.Bilinear(4, 4, 6), nn.PReLU(6)
        self.norm, self.head = nn.LocalResponseNorm(3), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.lp_pool1d(self.norm(self.act(self.conv(x))), 2.0, 2)
        h = self.fold(F.softshrink(h, 0.01) + F.hardshrink(h, 0.02) + F.tanhshrink(h))
        middle = h.sort(-1).values[..., 2:5].mean(-1)
        return self.head(self.both(middle, h.std(-1, unbiased=False)) + F.logsigmoid(h).mean((1, 2))[:, None])


class Retentive(nn.Module):
    """Retention and a diagonal state space: decays as powers, a kernel by Vandermonde's matrix, a causal sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.decay = nn.Linear(6, 24), nn.Parameter(torch.tensor([-0.5, -1.0]))
        self.a, self.b = nn.Parameter(-torch.rand(4, 3)), nn.Parameter(torch.randn(4, 3))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 12, 3, 2, 4).permute(2, 0, 3, 1, 4)
        away = torch.arange(12)[:, None] - torch.arange(12)
        decay = torch.exp(F.logsigmoid(self.decay)[:, None, None] * away.clamp(min=0)) * (away >= 0)
        kept = (q @ k.transpose(-2, -1) * decay) @ v
        times = torch.arange(12, dtype=x.dtype)
        kernel = torch.einsum("cn,cnt->ct", self.b, torch.exp(self.a[..., None] * times))
        state = F.conv1d(F.pad(x[..., :4].transpose(1, 2), (11, 0)), kernel.flip(-1)[:, None], groups=4)
        return self.head(torch.cat((kept.mean(2).flatten(1), state[..., -1]), -1))
