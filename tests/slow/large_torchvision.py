"""Networks of torchvision for bench_large.py: torchvision:NAME with a NAME of its classification models, one such as
video.r3d_18 (of a clip of 8 images of 112x112) or segmentation.lraspp_mobilenet_v3_large (classes of every pixel)."""

from __future__ import annotations

import importlib

from large_nets import IMAGE, Net, without_dropout
from torch import Tensor, nn

# Options without which a model has several outputs.
OPTIONS = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}
# Before opset 17 the exporter writes layer normalization as what it is made of, which ONNX Runtime differentiates.
NORMALIZED = ("convnext", "swin", "vit", "maxvit")


class Pixels(nn.Module):
    """A segmentation model without its dictionary and without its auxiliary head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)["out"]


def net(name: str) -> Net:
    """The model `name` with random weights."""
    family, _, short = name.rpartition(".")
    options, opset = OPTIONS.get(name, {}), 14 if short.startswith(NORMALIZED) else 17

    def make() -> nn.Module:
        models = importlib.import_module(f"torchvision.models.{family}".rstrip("."))
        if family != "segmentation":
            return without_dropout(getattr(models, short)(weights=None, **options))
        segments = getattr(models, short)(weights=None, weights_backbone=None, num_classes=21)
        return without_dropout(Pixels(segments))

    shapes = {"video": (3, 8, 112, 112)}
    classes = {"video": 400, "segmentation": 21}
    return Net(make, shapes.get(family, IMAGE), classes.get(family, 1000), opset=opset)
