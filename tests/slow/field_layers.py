"""Networks of one's own for field_zoo.py, each as short as what it stands for allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, WORDS = 10, 61


class ByName(nn.Module):
    """A model of `transformers`, its inputs in their given order by name, its loss or logits as the only output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names: tuple[str, ...] = ()

    def forward(self, *inputs: Tensor) -> Tensor:
        given = dict(zip(self.names, inputs, strict=True))
        if (
            "labels" in given
        ):  # without a mask, models look for sequences packed together, in ways of no exporter
            given["attention_mask"] = torch.ones_like(given["input_ids"])
        answer = self.model(**given, return_dict=True)
        return answer.loss if "labels" in self.names else answer.logits


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)]
    return ConvNeXt(blocks, num_classes=CLASSES)


def densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(8, (6, 12, 24, 16), 16, num_classes=CLASSES)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=CLASSES)


def swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 16, [2, 2, 6], [2, 4, 4], [4, 4], num_classes=CLASSES)


def mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(CLASSES, img_size=64, patch_size=16, num_blocks=2, embed_dim=64)


def resmlp() -> nn.Module:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    parts = {"block_layer": ResBlock, "norm_layer": Affine, "mlp_ratio": 4}
    return MlpMixer(CLASSES, img_size=64, patch_size=16, num_blocks=2, embed_dim=64, **parts)


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.GELU(),
        nn.Conv2d(8, 4, 3, 2, 1),
        nn.Flatten(),
        nn.Linear(64, 10),
        nn.Linear(10, 64),
        nn.Unflatten(1, (4, 4, 4)),
        nn.ConvTranspose2d(4, 8, 3, 2, 1, 1),
        nn.ELU(),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
        nn.Sigmoid(),
    )


def dscnn() -> nn.Module:
    def block() -> list[nn.Module]:
        depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        return [depthwise, nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.ReLU()]

    first = [nn.Conv2d(1, 16, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *first, *block(), *block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def super_resolution() -> nn.Module:
    convs = [nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 9, 3, padding=1)]
    return nn.Sequential(*convs, nn.PixelShuffle(3))


def conv3d() -> nn.Module:
    convs = [nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)]
    return nn.Sequential(
        *convs, nn.Conv3d(4, 4, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


def encoder(dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(192, CLASSES)
    )


def activations() -> nn.Module:
    kinds: list[Any] = [nn.ReLU6, nn.LeakyReLU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Hardswish]
    kinds += [nn.Hardsigmoid, nn.Hardtanh, nn.Mish, nn.SiLU, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink]
    kinds += [nn.PReLU, nn.Softmin, nn.GLU]
    layers: list[nn.Module] = []
    for kind in kinds:
        layers += [nn.Linear(16, 32 if kind is nn.GLU else 16), kind(1) if kind is nn.Softmin else kind()]
        layers += [nn.LayerNorm(16)]
    return nn.Sequential(*layers, nn.Linear(16, CLASSES), nn.LogSoftmax(1))


class Recurrent(nn.Module):
    """The last hidden state of two layers, classified."""

    def __init__(self, kind: str, both: bool) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(8, 12, 2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(24 if both else 12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


class TextLstm(nn.Module):
    """Embedding, LSTM, maximum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0].max(1).values)


class UNet(nn.Module):
    """Two levels, transposed convolutions up, skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._two(3, 8), self._two(8, 16)
        self.bottom, self.third, self.last = self._two(16, 32), self._two(32, 16), self._two(16, 8)
        self.up, self.top = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _two(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b, affine=True), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(F.max_pool2d(one, 2))
        up = self.third(torch.cat([self.up(self.bottom(F.max_pool2d(two, 2))), two], 1))
        return self.head(self.last(torch.cat([self.top(up), one], 1)))


class Tcn(nn.Module):
    """Causal dilated convolutions with weight normalisation."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(norm(nn.Conv1d(8, 8, 3, dilation=2**i)) for i in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = x + torch.relu(conv(F.pad(x, (2 * 2**i, 0))))
        return self.head(x.mean(-1))


class Triplet(nn.Module):
    """Embeddings on the sphere, triplet margin loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        a, b, c = (F.normalize(self.net(x)) for x in (anchor, near, far))
        return torch.relu(F.pairwise_distance(a, b) - F.pairwise_distance(a, c) + 0.4).mean()


class Siamese(nn.Module):
    """Two images through one network, contrastive loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(196, 8))

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        distance = F.pairwise_distance(self.net(a), self.net(b))
        apart = torch.clamp(1 - distance, min=0) ** 2
        return torch.where(same.bool(), distance**2, apart).mean()


class Vae(nn.Module):
    """A variational autoencoder whose noise is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.back = nn.Linear(32, 4), nn.Linear(32, 4), nn.Linear(4, 32)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, spread = self.mean(x), self.spread(x)
        code = mean + noise * torch.exp(spread / 2)
        fit = F.binary_cross_entropy_with_logits(self.back(code), torch.sigmoid(x), reduction="sum")
        return fit - 0.5 * torch.sum(1 + spread - mean**2 - spread.exp())


class VaeRandom(Vae):
    """The same, drawing its noise."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, torch.randn_like(self.mean(x)))


class Dlrm(nn.Module):
    """Bags of embeddings and dense features, their products, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 8), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.top = nn.Linear(8 + 6, CLASSES)
        self.register_buffer("rows", torch.tensor([1, 2, 2, 3, 3, 3]), persistent=False)
        self.register_buffer("columns", torch.tensor([0, 0, 1, 0, 1, 2]), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        bags = [table(sparse[:, i]).sum(1) for i, table in enumerate(self.tables)]
        each = torch.stack([bottom, *bags], 1)
        products = (each @ each.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([bottom, products], 1))


class DeepAr(nn.Module):
    """An LSTM that predicts mean and spread, negative log likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.mean, self.spread = (
            nn.LSTM(3, 12, 2, batch_first=True),
            nn.Linear(12, 1),
            nn.Linear(12, 1),
        )

    def forward(self, series: Tensor, wanted: Tensor) -> Tensor:
        hidden = self.lstm(series)[0]
        mean, spread = self.mean(hidden).squeeze(-1), F.softplus(self.spread(hidden)).squeeze(-1) + 1e-3
        return (torch.log(spread) + 0.5 * ((wanted - mean) / spread) ** 2).mean()


class PointNet(nn.Module):
    """A learned transform of points, shared layers, maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.matrix = nn.Linear(16, 9)
        self.net = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.matrix(torch.max(self.turn(x), 2)[0]).view(-1, 3, 3) + torch.eye(3)
        return self.head(torch.max(self.net(torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)), 2)[0])


class Gcn(nn.Module):
    """Graph convolutions by gathering along edges and scattering to nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("edges", torch.randint(12, (2, 30), generator=generator))

    def _spread(self, x: Tensor) -> Tensor:
        messages = x[:, self.edges[0]]
        index = self.edges[1].view(1, -1, 1).expand_as(messages)
        return torch.zeros_like(x).scatter_add(1, index, messages)

    def forward(self, x: Tensor) -> Tensor:
        return self._spread(self.two(torch.relu(self._spread(self.one(x))))).mean(1)


class Policy(nn.Module):
    """A policy gradient with an entropy bonus and a value head; the advantage comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, state: Tensor, action: Tensor, gain: Tensor, advantage: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(state))
        logs, value = F.log_softmax(self.actor(hidden), -1), self.critic(hidden).squeeze(-1)
        chosen = logs.gather(1, action.unsqueeze(1)).squeeze(1)
        entropy = -(logs.exp() * logs).sum(-1)
        return (-chosen * advantage + 0.5 * (gain - value) ** 2 - 0.01 * entropy).mean()


class Yolo(nn.Module):
    """A detection head: boxes, objectness and classes of each cell, a loss of their sum."""

    def __init__(self) -> None:
        super().__init__()
        convs: list[nn.Module] = []
        for a, b in ((3, 8), (8, 16), (16, 16)):
            convs += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU()]
        self.body, self.head = nn.Sequential(*convs), nn.Conv2d(16, 5 + 6, 1)

    def forward(self, x: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
        found = self.head(self.body(x))
        place, size = torch.sigmoid(found[:, :2]), torch.exp(found[:, 2:4].clamp(max=4))
        there = (boxes[:, 4] > 0).float()
        wanted_size = boxes[:, 2:4].abs() + 0.1
        low = torch.maximum(place - size / 2, boxes[:, :2] - wanted_size / 2)
        high = torch.minimum(place + size / 2, boxes[:, :2] + wanted_size / 2)
        common = (high - low).clamp(min=0).prod(1)
        union = size.prod(1) + wanted_size.prod(1) - common
        overlap = ((1 - common / (union + 1e-6)) * there).sum() / (there.sum() + 1)
        object_ = F.binary_cross_entropy_with_logits(found[:, 4], there)
        return overlap + object_ + F.cross_entropy(found[:, 5:], classes, ignore_index=0)


class Focal(nn.Module):
    """Focal loss, with what smooths labels beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        logits = self.net(x)
        loss = F.cross_entropy(logits, label, reduction="none")
        smooth = -F.log_softmax(logits, 1).mean()
        return ((1 - torch.exp(-loss)) ** 2 * loss).mean() + 0.1 * smooth


class Distillation(nn.Module):
    """A student that learns from a frozen teacher and from labels."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        soft = F.kl_div(
            F.log_softmax(self.student(x) / 2, 1), F.softmax(self.teacher(x) / 2, 1), reduction="batchmean"
        )
        return soft * 4 + F.nll_loss(F.log_softmax(self.student(x), 1), label)


class ArcFace(nn.Module):
    """Angular margin between normalised features and class directions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.PReLU(8), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.directions = nn.Parameter(torch.randn(CLASSES, 72) * 0.1)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(self.net(x)), F.normalize(self.directions)).clamp(-0.999, 0.999)
        turned = torch.cos(torch.acos(cosine) + 0.3)
        chosen = F.one_hot(label, CLASSES).to(cosine.dtype)
        return F.cross_entropy(8 * torch.where(chosen > 0, turned, cosine), label)


class Contrastive(nn.Module):
    """Two views of a batch, each the other's positive (InfoNCE)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 5, 4), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 8)
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left, right = F.normalize(self.net(a), dim=1), F.normalize(self.net(b), dim=1)
        like = left @ right.t() / 0.2
        wanted = torch.arange(like.shape[0])
        return (F.cross_entropy(like, wanted) + F.cross_entropy(like.t(), wanted)) / 2


class Film(nn.Module):
    """Features scaled and shifted by what a condition says."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.film = nn.Conv2d(3, 8, 3), nn.Linear(5, 16)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, 1)
        return self.head(torch.relu(self.conv(x) * (1 + scale) + shift).amax((2, 3)))


class Upsampler(nn.Module):
    """Interpolation in two ways between convolutions, reflecting borders."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.two = nn.Conv2d(8, 8, 3, padding=1, padding_mode="replicate")
        self.three = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(
            F.leaky_relu(self.one(x), 0.1), scale_factor=2, mode="bilinear", align_corners=False
        )
        x = F.interpolate(torch.tanh(self.two(x)), scale_factor=2, mode="nearest")
        return self.three(x)


class Norms(nn.Module):
    """Every normalisation, and pools of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.group, self.instance = nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.InstanceNorm2d(8)
        self.local, self.layer, self.rms = (
            nn.LocalResponseNorm(3),
            nn.LayerNorm([8, 12, 12]),
            nn.Parameter(torch.ones(12)),
        )
        self.head = nn.Linear(8 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.local(self.instance(self.group(self.batch(x)))))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.rms
        x = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) + F.max_pool2d(x, 3, 1, 1)
        return self.head(F.adaptive_avg_pool2d(F.lp_pool2d(x, 2.0, 2), 6).flatten(1))


class Nhwc(nn.Module):
    """Channels last outside, first inside, as converters from TensorFlow write it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in ((3, 8), (8, 8), (8, 8)))
        self.bias = nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu6(conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) + self.bias)
        return self.head(x.mean((1, 2)))


class Tabular(nn.Module):
    """Numbers, and embeddings of what is counted; batch normalisation between."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(9, 4)
        self.net = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, CLASSES))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        return self.net(torch.cat([numbers, self.kinds(kinds).flatten(1)], 1))


class Mixture(nn.Module):
    """Experts, of which a gate takes the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 16, CLASSES) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).topk(2, dim=-1)
        each = torch.einsum("bi,eio->beo", x, self.experts)
        chosen = each.gather(1, which.unsqueeze(-1).expand(-1, -1, each.shape[-1]))
        return (torch.softmax(best, -1).unsqueeze(-1) * chosen).sum(1)


class MatrixFactors(nn.Module):
    """Users and items, their product is the rating."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 6), nn.Embedding(30, 6)
        self.bias = nn.Embedding(30, 1)

    def forward(self, user: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        found = (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)
        return F.smooth_l1_loss(found, rating)


class Spectrogram(nn.Module):
    """Frames of a signal, learned filters, logarithm, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.gru = nn.Linear(32, 12), nn.GRU(12, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.stack([x[:, i : i + 32] for i in range(0, 129, 16)], 1)
        energy = torch.log(self.filters(frames).square() + 1e-3)
        energy = (energy - energy.mean(1, keepdim=True)) / (energy.std(1, keepdim=True) + 1e-5)
        return self.head(self.gru(energy)[0].mean(1))


class Tagger(nn.Module):
    """A conditional random field: score of the given tags against all."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.emit = nn.Embedding(WORDS, 8), nn.Linear(8, 5)
        self.steps = nn.Parameter(torch.randn(5, 5) * 0.1)

    def forward(self, x: Tensor, tags: Tensor) -> Tensor:
        scores = self.emit(torch.tanh(self.words(x)))
        given = scores.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        given = given + self.steps[tags[:, :-1], tags[:, 1:]].sum(1)
        every = scores[:, 0]
        for i in range(1, x.shape[1]):
            every = torch.logsumexp(every.unsqueeze(2) + self.steps, 1) + scores[:, i]
        return (torch.logsumexp(every, 1) - given).mean()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.three, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.three(x).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def attention_image() -> nn.Module:
    """Patches by unfolding, attention by scaled_dot_product_attention."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.mix, self.head = nn.Linear(48, 16), _Attention(), nn.Linear(16, CLASSES)
            self.norm = nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            parts = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], -1, 48)
            x = self.first(parts)
            return self.head((x + self.mix(self.norm(x))).mean(1))

    return Patches()
