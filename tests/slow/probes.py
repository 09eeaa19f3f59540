"""What is probed: operators, each with what ONNX Runtime 1.19.2 makes of its gradient on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

REFUSED = "refused: no gradient"
NO_KERNEL = "refused: no kernel"
CRASHED = "crashes"
WRONG = "wrong gradient"
TYPES = "refused: not these types"
FAILED = "fails in training"
OK = "right"


@dataclass(frozen=True)
class Probe:
    """`apply` gets the batch, [N, *shape], and the layer of LAYERS. `indices`: the batch holds class numbers below it.
    `stops`: gradients end at the first node of this operator. `fixed`: the model is exported for one size of batch.
    `kind` is the type of the model's parameters and images."""

    name: str
    apply: Callable[[torch.Tensor, Any], torch.Tensor]
    shape: tuple[int, ...] = (4, 6)
    ort: str = OK
    opset: int = 0
    indices: int = 0
    stops: str = ""
    fixed: bool = False
    kind: str = "float32"

    @property
    def scaled(self) -> bool:
        return not self.indices

    @property
    def file(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.name)


IMAGE = (4, 8, 8)
SERIES = (4, 10)
WORDS = (7, 6)  # a sequence of 7 vectors
INDEX = torch.tensor([2, 0, 3, 0])


def positive(x: torch.Tensor) -> torch.Tensor:
    return x.abs() + 0.5


def layer(x: torch.Tensor, given: Any) -> torch.Tensor:
    return given(x)


def first(x: torch.Tensor, given: Any) -> torch.Tensor:
    return given(x)[0]


def scattered(x: torch.Tensor, _: Any) -> torch.Tensor:
    places = torch.tensor([[[0, 3, 1]]]).expand(x.shape[0], 4, 3)
    return torch.zeros_like(x).scatter(2, places, x[:, :, 1:4] * 2) + x


def gathered(x: torch.Tensor, _: Any) -> torch.Tensor:
    return torch.gather(x, 2, torch.tensor([[[0, 3, 1]]]).expand(x.shape[0], 4, 3))


def shuffled(x: torch.Tensor, _: Any) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def rms(x: torch.Tensor, scale: Any) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * scale.weight


def all_outputs(x: torch.Tensor, given: Any) -> torch.Tensor:
    y, (h, c) = given(x)
    return torch.cat([y.flatten(1), h.transpose(0, 1).flatten(1), c.transpose(0, 1).flatten(1)], 1)


def with_squeeze(x: torch.Tensor, given: Any) -> torch.Tensor:
    return x * torch.sigmoid(given(x.mean((2, 3), keepdim=True)))


class Parameter(nn.Module):
    """A parameter by itself."""

    def __init__(self, *shape: int, low: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(shape) + low)


ELEMENTWISE = (
    Probe("identity", lambda x, _: x * 1.0),
    Probe("Abs", lambda x, _: x.abs()),
    Probe("Neg", lambda x, _: -x),
    Probe("Sqrt", lambda x, _: positive(x).sqrt()),
    Probe("Exp", lambda x, _: x.exp()),
    Probe("Log", lambda x, _: positive(x).log()),
    Probe("Sin", lambda x, _: x.sin()),
    Probe("Cos", lambda x, _: x.cos()),
    Probe("Tan", lambda x, _: (x * 0.3).tan(), ort=REFUSED),
    Probe("Erf", lambda x, _: x.erf()),
    Probe("Reciprocal", lambda x, _: positive(x).reciprocal()),
    Probe("Tanh", lambda x, _: x.tanh()),
    Probe("Sigmoid", lambda x, _: x.sigmoid()),
    Probe("Relu", lambda x, _: x.relu()),
    Probe("LeakyRelu", lambda x, _: f.leaky_relu(x, 0.1)),
    Probe("Sinh", lambda x, _: x.sinh(), ort=REFUSED),
    Probe("Atan", lambda x, _: x.atan(), ort=REFUSED),
    Probe("Floor", lambda x, _: x.floor() + x, ort=REFUSED),
    Probe("Round", lambda x, _: x.round() + x, ort=REFUSED),
    Probe("Sign", lambda x, _: x.sign() * x, ort=REFUSED),
    Probe("Clip from below", lambda x, _: x.clamp(min=-0.2)),
    Probe("Clip from above", lambda x, _: x.clamp(max=0.3)),
    Probe("Clip", lambda x, _: x.clamp(-0.5, 0.5)),
    Probe("Pow 2", lambda x, _: x.pow(2)),
    Probe("Pow 3", lambda x, _: x.pow(3)),
    Probe("Pow 0.5", lambda x, _: positive(x).pow(0.5)),
    Probe("Pow with a parameter as exponent", lambda x, p: positive(x).pow(p.weight), ort=REFUSED),
    Probe("Max", lambda x, _: torch.maximum(x, x.flip(0) * 0 + 0.1 + x.sin())),
    Probe("Min", lambda x, _: torch.minimum(x, x.cos())),
    Probe("Where", lambda x, _: torch.where(x > 0.1, x * 2, x.sin())),
    Probe("Mul with a parameter", lambda x, p: x * p.weight),
    Probe("Div by a parameter", lambda x, p: x / p.weight, ort=REFUSED),
    Probe("Sub with broadcasting", lambda x, _: x - x.mean(2, keepdim=True)),
    Probe("Add of a scalar parameter", lambda x, p: x + p.weight),
    Probe("Div", lambda x, _: x[:, :2] / positive(x[:, 2:])),
)

REDUCTIONS = (
    Probe("ReduceSum", lambda x, _: x.sum(2)),
    Probe("ReduceMean", lambda x, _: x.mean(1)),
    Probe("ReduceMax", lambda x, _: x.amax(2), ort=REFUSED),
    Probe("ReduceMin", lambda x, _: x.amin(2), ort=REFUSED),
    Probe("ReduceProd", lambda x, _: x.prod(2), ort=REFUSED),
    Probe("ReduceLogSumExp", lambda x, _: x.logsumexp(2)),
    Probe("ReduceL2", lambda x, _: x.norm(2, 2)),
    Probe("ReduceL1", lambda x, _: x.norm(1, 2), ort=REFUSED),
    Probe("Variance", lambda x, _: x.var(2)),
    Probe("ReduceSum over the batch", lambda x, _: x - x.sum(0, keepdim=True) * 0.1),
    Probe("ReduceMean over everything", lambda x, _: x - x.mean()),
    Probe("CumSum", lambda x, _: x.cumsum(2), ort=REFUSED),
    Probe("TopK", lambda x, _: x.topk(3, 2)[0]),
)

MOVEMENT = (
    Probe("Concat", lambda x, _: torch.cat([x, x.sin()], 1)),
    Probe("Stack", lambda x, _: torch.stack([x, x.sin()], 1)),
    Probe("Split", lambda x, _: torch.split(x, [2, 4], 2)[1] * 3),
    Probe("Chunk", lambda x, _: x.chunk(2, 2)[0] * x.chunk(2, 2)[1]),
    Probe("Slice", lambda x, _: x[:, 1:3]),
    Probe("Slice with steps", lambda x, _: x[:, :, ::2]),
    Probe("Slice from the end", lambda x, _: x[:, :, -3:-1]),
    Probe("Flip", lambda x, _: x.flip(2) * x, ort=FAILED),
    Probe("Roll", lambda x, _: x.roll(1, 2)),
    Probe("Gather", lambda x, _: x[:, INDEX]),
    Probe("Gather along the last axis", lambda x, _: x.index_select(2, INDEX)),
    Probe("Gather of one", lambda x, _: x[:, 1]),
    Probe("GatherElements", gathered),
    Probe("GatherND", lambda x, _: x[:, INDEX, torch.tensor([1, 5, 2, 2])]),
    Probe("ScatterElements", scattered),
    Probe("Expand", lambda x, _: x.unsqueeze(1).expand(-1, 3, -1, -1) * 1.5),
    Probe("Expand to the batch", lambda x, p: x + p.weight.expand(x.shape[0], -1, -1)),
    Probe("Tile", lambda x, _: x.repeat(1, 2, 3)),
    Probe("Transpose", lambda x, _: x.transpose(1, 2)),
    Probe("Unsqueeze and Squeeze", lambda x, _: (x.unsqueeze(1) * 2).squeeze(1)),
    Probe("Reshape", lambda x, _: x.reshape(x.shape[0], -1)),
    Probe("Flatten", lambda x, _: x.flatten(1)),
    Probe("Cast", lambda x, _: x * x.long().float()),
    Probe("Trilu", lambda x, _: torch.tril(torch.ones(4, 6)) * x),
    Probe("Same value three times", lambda x, _: x * x + x.sin()),
    Probe("Detach", lambda x, _: x * x.detach(), ort=WRONG, stops="Identity"),
)

PRODUCTS = (
    Probe("MatMul of three axes", lambda x, _: x @ x.transpose(1, 2)),
    Probe("MatMul of four axes", lambda x, _: x @ x.transpose(2, 3), (2, 4, 6)),
    Probe("MatMul with a parameter", lambda x, p: x @ p.weight),
    Probe("MatMul of a parameter, broadcast", lambda x, p: p.weight @ x),
    Probe("Einsum", lambda x, _: torch.einsum("bij,bkj->bik", x, x.sin()), ort=REFUSED),
    Probe("Gemm", layer, (6,)),
    Probe("Linear without bias", layer),
    Probe("OneHot and MatMul", lambda x, p: f.one_hot(x, 5).to(p.weight.dtype) @ p.weight, (3,), indices=5),
    Probe("Embedding", layer, (3,), indices=5),
)

ACTIVATIONS = (
    Probe("Softmax", lambda x, _: x.softmax(-1)),
    Probe("Softmax along axis 1", lambda x, _: x.softmax(1)),
    Probe("LogSoftmax", lambda x, _: x.log_softmax(-1)),
    Probe("GLU", lambda x, _: f.glu(x, 2)),
    Probe("SwiGLU", lambda x, _: f.silu(x[:, :, :3]) * x[:, :, 3:]),
    Probe("Elu", lambda x, _: f.elu(x, 0.7), ort=REFUSED),
    Probe("Selu", lambda x, _: f.selu(x), ort=REFUSED),
    Probe("Celu", lambda x, _: f.celu(x, 0.7), ort=REFUSED),
    Probe("Softplus", lambda x, _: f.softplus(x), ort=REFUSED),
    Probe("Softplus taken apart", lambda x, _: torch.log(1 + torch.exp(x))),
    Probe("Gelu by Erf", lambda x, _: f.gelu(x)),
    Probe("Gelu by Tanh", lambda x, _: f.gelu(x, approximate="tanh")),
    Probe("HardSwish", lambda x, _: f.hardswish(x), ort=REFUSED),
    Probe("HardSigmoid", lambda x, _: f.hardsigmoid(x), ort=REFUSED),
    Probe("PRelu", layer, ort=REFUSED),
    Probe("ThresholdedRelu", lambda x, _: x * (x > 0.1).float()),
    Probe("Mish", lambda x, _: f.mish(x), ort=REFUSED),
    Probe("Dropout", lambda x, _: f.dropout(x, 0.0, True)),
)

NORMALISATION = (
    Probe("LayerNormalization", layer, ort=REFUSED),
    Probe("LayerNormalization of opset 17", layer, ort=REFUSED, opset=17),
    Probe("LayerNormalization without scale", lambda x, _: f.layer_norm(x, (6,))),
    Probe("RMSNormalization", rms),
    Probe("BatchNorm1d", layer, SERIES),
    Probe("BatchNorm2d", layer, IMAGE),
    Probe("BatchNorm2d without scale", layer, IMAGE),
    Probe("InstanceNormalization", layer, IMAGE, ort=REFUSED),
    Probe("GroupNormalization", layer, IMAGE, ort=REFUSED),
    Probe("LRN", layer, IMAGE, ort=CRASHED),
)

IMAGES = (
    Probe("Conv 1x1", layer, IMAGE),
    Probe("Conv with stride", layer, IMAGE),
    Probe("Conv with dilation", layer, IMAGE),
    Probe("Conv by channel", layer, IMAGE),
    Probe("Conv by channel, two each", layer, IMAGE),
    Probe("Conv in groups", layer, IMAGE),
    Probe("Conv with padding same", layer, IMAGE, ort=WRONG),
    Probe("Conv with an even kernel", lambda x, c: c(f.pad(x, (1, 0, 0, 1))), IMAGE),
    Probe("Conv of one axis", layer, SERIES),
    Probe("ConvTranspose", layer, IMAGE, ort=NO_KERNEL),
    Probe("ConvTranspose of one axis", layer, SERIES, ort=NO_KERNEL),
    Probe("MaxPool", lambda x, _: f.max_pool2d(x, 2), IMAGE),
    Probe("MaxPool with overlap", lambda x, _: f.max_pool2d(x, 3, 2, 1), IMAGE),
    Probe("MaxPool rounded up", lambda x, _: f.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    Probe("MaxPool with dilation", lambda x, _: f.max_pool2d(x, 2, 1, dilation=2), IMAGE),
    Probe("MaxPool of one axis", lambda x, _: f.max_pool1d(x, 2), SERIES),
    Probe("AveragePool", lambda x, _: f.avg_pool2d(x, 2), IMAGE, ort=CRASHED),
    Probe(
        "AveragePool with overlap",
        lambda x, _: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        IMAGE,
        ort=CRASHED,
    ),
    Probe("AveragePool with a rest", lambda x, _: f.avg_pool2d(x, 3), IMAGE, ort=CRASHED),
    Probe("AveragePool rounded up", lambda x, _: f.avg_pool2d(x, 3, 2, ceil_mode=True), IMAGE, ort=WRONG),
    Probe("AveragePool of one axis", lambda x, _: f.avg_pool1d(x, 2), SERIES, ort=CRASHED),
    Probe("AveragePool, fixed batch", lambda x, _: f.avg_pool2d(x, 2), IMAGE, fixed=True),
    Probe(
        "AveragePool with overlap, fixed batch",
        lambda x, _: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        IMAGE,
        fixed=True,
    ),
    Probe("AveragePool with a rest, fixed batch", lambda x, _: f.avg_pool2d(x, 3), IMAGE, fixed=True),
    Probe("AveragePool of one axis, fixed batch", lambda x, _: f.avg_pool1d(x, 2), SERIES, fixed=True),
    Probe("GlobalAveragePool", lambda x, _: f.adaptive_avg_pool2d(x, 1), IMAGE),
    Probe("GlobalMaxPool", lambda x, _: f.adaptive_max_pool2d(x, 1), IMAGE),
    Probe("Mean of an image", lambda x, _: x.mean((2, 3)), IMAGE),
    Probe("Maximum of an image", lambda x, _: x.amax((2, 3)), IMAGE, ort=REFUSED),
    Probe("Pad", lambda x, _: f.pad(x, (1, 2, 0, 1), value=0.5), IMAGE),
    Probe("Pad by reflection", lambda x, _: f.pad(x, (1, 2, 2, 1), mode="reflect"), IMAGE, ort=REFUSED),
    Probe("Pad by the edge", lambda x, _: f.pad(x, (1, 2, 2, 1), mode="replicate"), IMAGE, ort=REFUSED),
    Probe("Pad by less than nothing", lambda x, _: f.pad(x, (-1, 0, 0, -2)), IMAGE),
    Probe(
        "Resize to the nearest",
        lambda x, _: f.interpolate(x, scale_factor=2, mode="nearest"),
        IMAGE,
        ort=NO_KERNEL,
    ),
    Probe(
        "Resize, bilinear",
        lambda x, _: f.interpolate(x, scale_factor=2, mode="bilinear"),
        IMAGE,
        ort=NO_KERNEL,
    ),
    Probe("DepthToSpace", lambda x, _: f.pixel_shuffle(x, 2), IMAGE, ort=REFUSED),
    Probe("SpaceToDepth", lambda x, _: f.pixel_unshuffle(x, 2), IMAGE),
    Probe("Channel shuffle", shuffled, IMAGE),
    Probe("Squeeze and excitation", with_squeeze, IMAGE),
)

SEQUENCES = (
    Probe("LSTM", first, WORDS),
    Probe("GRU", first, WORDS),
    Probe("RNN", first, WORDS, ort=REFUSED),
    Probe("LSTM in both directions", first, WORDS, ort=REFUSED),
    Probe("LSTM of two layers", first, WORDS),
    Probe("LSTM, last state", lambda x, r: r(x)[1][0][-1], WORDS),
    Probe("LSTM, all outputs", all_outputs, WORDS),
    Probe("GRU, last state", lambda x, r: r(x)[1][-1], WORDS),
    Probe("MultiheadAttention", lambda x, a: a(x, x, x, need_weights=False)[0], WORDS),
    Probe("TransformerEncoderLayer", layer, WORDS),
)

PRECISIONS = (
    Probe("Linear and Tanh in double", layer, kind="float64", ort=TYPES),
    Probe("Conv in double", layer, IMAGE, kind="float64", ort=TYPES),
    Probe("Linear and Tanh in half", layer, kind="float16", ort=TYPES),
    Probe("Conv in half", layer, IMAGE, kind="float16", ort=TYPES),
)

PROBES = (
    *ELEMENTWISE, *REDUCTIONS, *MOVEMENT, *PRODUCTS, *ACTIVATIONS, *NORMALISATION, *IMAGES, *SEQUENCES,
    *PRECISIONS,
)  # fmt: skip

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Pow with a parameter as exponent": lambda: Parameter(6, low=0.5),
    "Mul with a parameter": lambda: Parameter(6),
    "Div by a parameter": lambda: Parameter(6, low=0.5),
    "Add of a scalar parameter": lambda: Parameter(1),
    "Expand to the batch": lambda: Parameter(1, 4, 6),
    "MatMul with a parameter": lambda: Parameter(6, 5),
    "MatMul of a parameter, broadcast": lambda: Parameter(3, 4),
    "Gemm": lambda: nn.Linear(6, 5),
    "Linear and Tanh in double": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "Linear and Tanh in half": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "Conv in double": lambda: nn.Conv2d(4, 3, 3, 2, 1),
    "Conv in half": lambda: nn.Conv2d(4, 3, 3, 2, 1),
    "Linear without bias": lambda: nn.Linear(6, 5, bias=False),
    "OneHot and MatMul": lambda: Parameter(5, 4),
    "Embedding": lambda: nn.Embedding(5, 4),
    "PRelu": lambda: nn.PReLU(4),
    "LayerNormalization": lambda: nn.LayerNorm(6),
    "LayerNormalization of opset 17": lambda: nn.LayerNorm(6),
    "RMSNormalization": lambda: Parameter(6),
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "BatchNorm2d without scale": lambda: nn.BatchNorm2d(4, affine=False),
    "InstanceNormalization": lambda: nn.InstanceNorm2d(4, affine=True),
    "GroupNormalization": lambda: nn.GroupNorm(2, 4),
    "LRN": lambda: nn.LocalResponseNorm(3),
    "Conv 1x1": lambda: nn.Conv2d(4, 3, 1),
    "Conv with stride": lambda: nn.Conv2d(4, 3, 3, 2, 1),
    "Conv with dilation": lambda: nn.Conv2d(4, 3, 3, dilation=2),
    "Conv by channel": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "Conv by channel, two each": lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4),
    "Conv in groups": lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False),
    "Conv with padding same": lambda: nn.Conv2d(4, 3, 4, padding="same"),
    "Conv with an even kernel": lambda: nn.Conv2d(4, 3, 2),
    "Conv of one axis": lambda: nn.Conv1d(4, 3, 3, dilation=2),
    "ConvTranspose": lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1, 1),
    "ConvTranspose of one axis": lambda: nn.ConvTranspose1d(4, 3, 3, 2),
    "Squeeze and excitation": lambda: nn.Conv2d(4, 4, 1),
    "LSTM": lambda: nn.LSTM(6, 5, batch_first=True),
    "GRU": lambda: nn.GRU(6, 5, batch_first=True),
    "RNN": lambda: nn.RNN(6, 5, batch_first=True),
    "LSTM in both directions": lambda: nn.LSTM(6, 5, batch_first=True, bidirectional=True),
    "LSTM of two layers": lambda: nn.LSTM(6, 5, 2, batch_first=True),
    "LSTM, last state": lambda: nn.LSTM(6, 5, batch_first=True),
    "LSTM, all outputs": lambda: nn.LSTM(6, 5, batch_first=True),
    "GRU, last state": lambda: nn.GRU(6, 5, batch_first=True),
    "MultiheadAttention": lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True),
}
