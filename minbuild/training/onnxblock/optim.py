"""Optimizers as blocks. Called with a model's parameters they make an optimizer model; `generate_artifacts` takes the
block itself."""

from __future__ import annotations

from typing import Any

from minbuild.authoring.artifact_graphs import TRUTH
from minbuild.authoring.optimizers import OptimizerOptions, optimizer_graph
from minbuild.frontend.onnx.writer import model_proto, opsets_of
from minbuild.ir import Graph
from minbuild.ops.core.graph_builder import MICROSOFT
from minbuild.training.onnxblock.blocks import Block
from minbuild.training.onnxblock.context import OPSET, current_model

__all__ = ["Adagrad", "Adam", "AdamW", "ClipGradNorm", "Momentum", "RMSProp", "SGD"]


class ClipGradNorm(Block):
    """Scales all gradients down to a common norm of at most `max_norm`, before the optimizer's step. As a block of its
    own it does so to the values in a sequence; 1e-6 is added to their norm as ONNX Runtime does."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        if self.base.is_sequence(gradients_name):
            return self.base.add_on_sequence(
                "InplaceClipGradNorm", gradients_name, domain=MICROSOFT, max_norm=float(self.max_norm)
            )
        gradients = self.base.parts(gradients_name)
        norm = self.base.add("ReduceAllL2", *gradients, domain=MICROSOFT)
        norm = self.base.add("Add", norm, self.base.constant(1e-6, norm))
        largest = self.base.add("Div", self.base.constant(self.max_norm, norm), norm)
        scale = self.base.add("Min", largest, self.base.constant(1.0, norm))
        return self.base.add("SequenceConstruct", *(self.base.add("Mul", g, scale) for g in gradients))


class _Optimizer(Block):
    """An optimizer of the name `kind`, with options."""

    kind: str

    def __init__(self, clip_grad: ClipGradNorm | float | None = None, **options: Any) -> None:
        super().__init__()
        norm = clip_grad.max_norm if isinstance(clip_grad, ClipGradNorm) else clip_grad
        self.options = OptimizerOptions(max_norm=norm, **options)

    @property
    def graph(self) -> Graph:
        """The optimizer model."""
        return optimizer_graph(self.kind, self.options)

    def build(self, parameters: Any = None) -> str:
        """The name of the output that says whether parameters were updated. `parameters` are not looked at: the model
        takes whatever sequences it is fed. Inside of onnxblock.empty_base the optimizer becomes its model."""
        into = current_model()
        if into is not None:
            into.replace(self.to_model_proto())
        return self.graph.outputs[0]

    def to_model_proto(self) -> Any:
        """The optimizer model as an onnx.ModelProto."""
        graph = self.graph
        return model_proto(graph, dict.fromkeys(graph.outputs, TRUTH), opsets_of(graph.nodes, OPSET))


class AdamW(_Optimizer):
    """Adam with decoupled weight decay, as ONNX Runtime's training tools write it.

    `betas` are the decay rates of the first and second moment, `eps` is added to the denominator, `weight_decay`
    multiplies the parameters, and `bias_correction` corrects both moments for their start at zero.
    `clip_grad` bounds the norm of all gradients first.
    """

    kind = "adamw"

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(
            clip_grad, betas=betas, epsilon=eps, weight_decay=weight_decay, correct_bias=bias_correction
        )


class Adam(_Optimizer):
    """Adam; `weight_decay` times the parameter is added to the gradient.

    `betas` are the decay rates of the first and second moment, `eps` is added to the denominator.
    `clip_grad` bounds the norm of all gradients first.
    """

    kind = "adam"

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad, betas=betas, epsilon=eps, weight_decay=weight_decay)


class SGD(_Optimizer):
    """Gradient descent."""

    kind = "sgd"

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__(clip_grad)


class Momentum(_Optimizer):
    """Gradient descent with `momentum`, the share of the last direction that stays; `nesterov` looks one step ahead.

    `weight_decay` times the parameter is added to the gradient. `clip_grad` bounds the norm of all gradients first.
    """

    kind = "momentum"

    def __init__(
        self,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


class Adagrad(_Optimizer):
    """Adagrad: rates fall with the sum of squared gradients; `eps` is added to the denominator.

    `weight_decay` times the parameter is added to the gradient. `clip_grad` bounds the norm of all gradients first.
    """

    kind = "adagrad"

    def __init__(
        self, eps: float = 1e-10, weight_decay: float = 0.0, clip_grad: ClipGradNorm | None = None
    ) -> None:
        super().__init__(clip_grad, epsilon=eps, weight_decay=weight_decay)


class RMSProp(_Optimizer):
    """RMSprop: `alpha` is the smoothing constant of the mean square, `eps` is added to the denominator.

    `weight_decay` times the parameter is added to the gradient. `clip_grad` bounds the norm of all gradients first.
    """

    kind = "rmsprop"

    def __init__(
        self,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad, alpha=alpha, epsilon=eps, weight_decay=weight_decay)
