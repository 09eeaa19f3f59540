"""The input and the output of making artifacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minbuild.authoring.losses import LossOptions
from minbuild.authoring.optimizers import OptimizerOptions
from minbuild.frontend.onnx.exporter_metadata import ExporterMetadata
from minbuild.ir import Graph
from minbuild.ir.pieces import FileContent

# A loss of one's own: writes nodes behind the outputs named, and returns the name of a single number; or with
# several names, of which the first is the loss and the others are returned beside it.
OwnLoss = Callable[..., "str | Sequence[str]"]


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank adapters (lora.py) beside the layers whose weights' names match `weights`, of this rank and scaled by
    alpha / rank; alpha is the rank where it is None."""

    weights: Sequence[str] = ()
    rank: int = 8
    alpha: float | None = None


@dataclass(frozen=True)
class LossScale:
    """A factor of the loss in the backward pass, without which gradients in half precision underflow; they are divided
    by it before they are added up. `initial` is a power of two. With `growth_interval` the scale is dynamic: it is
    halved where a gradient overflows, and doubled after as many updates without."""

    initial: float = 32768.0
    growth_interval: int = 0


@dataclass(frozen=True)
class Recipe:
    """The training setup of a model.

    `train` and `frozen` name parameters (see parameters.py). `loss` is one of losses.LOSSES, the path of an ONNX file
    (own_loss.py), or a function of a TypedGraphBuilder and names; empty when output `loss_output` (by default the
    first) is the loss already. `loss_inputs` are the outputs the loss is taken of, by default the first. `optimizer`
    is one of optimizers.OPTIMIZERS, an optimizer model, or empty. `outputs` are further values that the training and
    evaluation models return. No gradient flows into the values `stops`: exporters drop what PyTorch calls detach.
    `input_gradients` are inputs whose gradients are computed beside those of parameters. `tolerant` accepts what ONNX
    Runtime's tools accept: names in `frozen` that no parameter has, and models without parameters. `sizes` fixes free
    dimensions of the inputs, by name, and inputs that are a single number; `largest` bounds inputs of one whole number
    that say how often a loop runs. With `lora`, adapters train, and of
    the parameters only those in `train`. `loss_scale` is for models in half precision. `nominal` asks for a checkpoint
    without data beside the other, `ort` for the models in ONNX Runtime's own format beside the ONNX files.
    """

    loss: str | OwnLoss = ""
    loss_output: str = ""
    loss_inputs: Sequence[str] = ()
    loss_options: LossOptions = LossOptions()
    optimizer: str | Graph = "adamw"
    optimizer_options: OptimizerOptions = OptimizerOptions()
    train: Sequence[str] = ()
    frozen: Sequence[str] = ()
    outputs: Sequence[str] = ()
    stops: Sequence[str] = ()
    input_gradients: Sequence[str] = ()
    tolerant: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    lora: LoraOptions = LoraOptions()
    loss_scale: LossScale | None = None
    nominal: bool = False
    ort: bool = False


@dataclass(frozen=True)
class Source:
    """A forward model: its graph, the version of ONNX's own operators that it imports, and what its exporter says."""

    graph: Graph
    opset: int
    path: Path  # for messages
    metadata: ExporterMetadata = ExporterMetadata()


@dataclass(frozen=True)
class GeneratedArtifacts:
    """The files, by name, those of large models in pieces; and remarks a user should see."""

    files: Mapping[str, FileContent]
    notes: tuple[str, ...]
