"""Networks for sequences, graphs and tables as papers describe them, for field_zoo.py: each as short as its idea
allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, WORDS = 10, 61


class Conformer(nn.Module):
    """Half feed-forward layers around attention by relative position and a gated convolution, for speech."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.into = nn.Conv2d(1, 4, 3, 2), nn.Linear(28, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(5))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in (0, 1)
        )
        self.qkv, self.places, self.out = nn.Linear(16, 48), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.u, self.v = nn.Parameter(torch.randn(2, 8) * 0.1), nn.Parameter(torch.randn(2, 8) * 0.1)
        self.gated, self.deep = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 5, 1, 2, groups=16)
        self.batch, self.last, self.head = nn.BatchNorm1d(16), nn.Conv1d(16, 16, 1), nn.Linear(16, CLASSES)
        away = torch.arange(14, -15, -1.0)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
        self.register_buffer("waves", torch.cat((away.sin(), away.cos()), 1))

    def _attended(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        p = self.places(self.waves).view(-1, 2, 8).transpose(0, 1)
        away = F.pad((q + self.v[:, None]) @ p.transpose(-2, -1), (1, 0))
        away = away.view(batch, 2, 2 * length, length)[:, :, 1:].reshape(batch, 2, length, 2 * length - 1)
        scores = (q + self.u[:, None]) @ k.transpose(-2, -1) + away[..., :length]
        return self.out(((scores * 8**-0.5).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 16))

    def _convolved(self, x: Tensor) -> Tensor:
        x = F.glu(self.gated(x.transpose(1, 2)), 1)
        return self.last(F.silu(self.batch(self.deep(x)))).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(F.relu(self.front(x[:, None])).transpose(1, 2).flatten(2))
        x = x + 0.5 * self.feeds[0](self.norms[0](x))
        x = x + self._attended(self.norms[1](x))
        x = x + self._convolved(self.norms[2](x))
        return self.head(self.norms[4](x + 0.5 * self.feeds[1](self.norms[3](x))).mean(1))


class Wavenet(nn.Module):
    """Gated causal convolutions, each twice as far apart, with sums of what every layer leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 16, 1)
        self.pairs = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4))
        self.ways = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(4))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        x, total = self.first(x[:, None]), 0
        for i, (pair, way) in enumerate(zip(self.pairs, self.ways, strict=True)):
            a, b = pair(F.pad(x, (2**i, 0))).chunk(2, 1)
            stay, leave = way(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + stay, total + leave
        return F.cross_entropy(self.last(F.relu(total)), wanted)


class GruVae(nn.Module):
    """A recurrent encoder to a normal distribution, and a recurrent decoder out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.reads, self.writes = nn.GRU(12, 16, batch_first=True), nn.GRU(16, 16, batch_first=True)
        self.mean, self.spread, self.start = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(4, 16)
        self.out = nn.Linear(16, WORDS)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        known = self.words(x)
        last = self.reads(known)[1][0]
        mean, spread = self.mean(last), self.spread(last)
        z = mean + noise * (0.5 * spread).exp()
        given = torch.cat((known, z[:, None].expand(-1, x.shape[1], -1)), -1)
        logits = self.out(self.writes(given, self.start(z).tanh()[None])[0])
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()) + 0.1 * divergence


class Experts(nn.Module):
    """A mixture of experts, two of four for a token, with weights normalised and a loss of balance."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, 4, bias=False), nn.Linear(8, CLASSES)
        self.up, self.down = (
            nn.Parameter(torch.randn(4, 8, 16) * 0.3),
            nn.Parameter(torch.randn(4, 16, 8) * 0.3),
        )

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        tokens = x.reshape(-1, 8)
        share = self.gate(tokens).softmax(-1)
        top, which = share.topk(2, -1)
        weight = torch.zeros_like(share).scatter(1, which, top / top.sum(-1, keepdim=True))
        each = torch.einsum("neh,ehd->ned", F.gelu(torch.einsum("nd,edh->neh", tokens, self.up)), self.down)
        used = F.one_hot(which, 4).float().sum(1).mean(0)
        mixed = (weight[..., None] * each).sum(1).view_as(x)
        return (
            F.cross_entropy(self.head((x + mixed).mean(1)), wanted) + 0.01 * (used * share.mean(0)).sum() * 4
        )


class Rotary(nn.Module):
    """A block of Llama: root mean squares, rotated queries and keys, shared heads, a causal mask, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(WORDS, 16), nn.Parameter(torch.ones(2, 16))
        self.q, self.kv, self.out = (
            nn.Linear(16, 16, False),
            nn.Linear(16, 8, False),
            nn.Linear(16, 16, False),
        )
        self.up, self.down = nn.Linear(16, 64, False), nn.Linear(32, 16, False)

    def _normed(self, x: Tensor, which: int) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale[which]

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2])[:, None] * 100 ** (-torch.arange(0, 4, 2) / 4)
        even, odd = x[..., ::2], x[..., 1::2]
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(turned, -1).flatten(-2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        batch, length = x.shape
        h = self.words(x)
        n = self._normed(h, 0)
        q = self._turned(self.q(n).view(batch, length, 4, 4).transpose(1, 2))
        k, v = self.kv(n).view(batch, length, 2, 1, 4).permute(2, 0, 3, 1, 4)
        k, v = self._turned(k).expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(batch, length, 16))
        a, b = self.up(self._normed(h, 1)).chunk(2, -1)
        logits = F.linear(h + self.down(F.silu(a) * b), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=3)


class Ctc(nn.Module):
    """Connectionist temporal classification in plain operations: the forward recursion in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(8, 16, 3, 1, 1), nn.Linear(16, 6)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        share = self.out(F.relu(self.into(x)).transpose(1, 2)).log_softmax(-1)
        blank = torch.zeros_like(labels)
        signs = torch.cat((torch.stack((blank, labels), -1).flatten(1), blank[:, :1]), 1)
        two_back = F.pad(signs, (2, 0))[:, : signs.shape[1]]
        skips = (signs != 0) & (signs != two_back)
        alpha = F.pad(share[:, 0].gather(1, signs[:, :2]), (0, signs.shape[1] - 2), value=-1e4)
        for t in range(1, 8):
            one = F.pad(alpha, (1, 0), value=-1e4)[:, :-1]
            two = torch.where(skips, F.pad(alpha, (2, 0), value=-1e4)[:, :-2], -1e4)
            alpha = torch.logsumexp(torch.stack((alpha, one, two)), 0) + share[:, t].gather(1, signs)
        return -torch.logsumexp(alpha[:, -2:], 1).mean()


class Clip(nn.Module):
    """Pictures and words drawn together: both directions' cross-entropy over the batch, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.words = nn.Linear(12, 8), nn.Embedding(WORDS, 8)
        self.heat = nn.Parameter(torch.tensor(2.0))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.words(text).mean(1), dim=-1)
        logits = a @ b.t() * self.heat.exp()
        wanted = torch.arange(image.shape[0])
        return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.t(), wanted)) / 2


class Bag(nn.Module):
    """Means of words by torch's own layer, which both exporters write as a loop over the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x))


class Gat(nn.Module):
    """Attention along the edges of graphs, and sums by scatter: maximum, exponent and total at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.score, self.head = nn.Linear(6, 8), nn.Linear(16, 1), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, origin: Tensor, end: Tensor) -> Tensor:
        h = self.into(x)
        far, near = (h.gather(1, i[..., None].expand(-1, -1, 8)) for i in (origin, end))
        score = F.leaky_relu(self.score(torch.cat((far, near), -1)).squeeze(-1), 0.2)
        most = torch.full_like(h[..., 0], -1e4).scatter_reduce(1, end, score, "amax").detach()
        weight = (score - most.gather(1, end)).exp()
        total = torch.zeros_like(h[..., 0]).scatter_add(1, end, weight)
        weight = weight / (total.gather(1, end) + 1e-6)
        sums = torch.zeros_like(h).scatter_add(1, end[..., None].expand(-1, -1, 8), far * weight[..., None])
        return self.head(F.elu(sums).mean(1))


class Linear(nn.Module):
    """Attention as running sums of key and value products, and a map of Fourier transforms beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(k[..., None] * v[..., None, :], 1)
        mixed = torch.einsum("bti,btij->btj", q, state) / (q * k.cumsum(1)).sum(-1, keepdim=True)
        return self.head(mixed.mean(1))


class Fourier(nn.Module):
    """FNet: the real part of a transform over places and channels takes the place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        return self.head(F.gelu(h + torch.fft.fft(torch.fft.fft(h, dim=-1), dim=1).real * 0.1).mean(1))


class Flow(nn.Module):
    """RealNVP: couplings, their determinants, and the likelihood of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for net in self.nets:
            a, b = x.chunk(2, -1)
            scale, shift = net(a).chunk(2, -1)
            total = total + scale.tanh().sum(-1)
            x = torch.cat((b * scale.tanh().exp() + shift, a), -1)
        return -(torch.distributions.Normal(0.0, 1.0, validate_args=False).log_prob(x).sum(-1) + total).mean()


class Splines(nn.Module):
    """A Kolmogorov-Arnold layer: B-splines by the recursion of Cox and de Boor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.base = nn.Parameter(torch.randn(CLASSES, 6, 7) * 0.1), nn.Linear(6, CLASSES)
        self.register_buffer("knots", torch.linspace(-2.5, 2.5, 11))

    def forward(self, x: Tensor) -> Tensor:
        at, t = x.tanh()[..., None], self.knots
        basis = ((at >= t[:-1]) & (at < t[1:])).to(x.dtype)
        for k in range(1, 4):
            left = (at - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * basis[..., :-1]
            basis = left + (t[k + 1 :] - at) / (t[k + 1 :] - t[1:-k]) * basis[..., 1:]
        return self.base(F.silu(x)) + torch.einsum("bik,oik->bo", basis, self.weight)
