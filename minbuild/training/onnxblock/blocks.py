"""The blocks: each writes a node or a few, and answers with the names of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minbuild.authoring.composer import Composer
from minbuild.model import ElementType
from minbuild.ops.body import MICROSOFT
from minbuild.training.onnxblock.context import composer

Names = str | tuple[str, ...]


class Block:
    """A part of a model. Subclasses write it in `build`, which takes and answers names of values; calling the block
    builds it into the current graph."""

    def __init__(self, temp_file_name: str = "") -> None:
        """`temp_file_name` is there for calls written for onnxruntime, and not read."""

    @property
    def base(self) -> Composer:
        """The graph being written."""
        return composer()

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Writes the block."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)


class _Operator(Block):
    """One node of the operator that the class is named after."""

    attributes: dict[str, Any] = {}

    def build(self, *names: str) -> str:
        return self.base.add(type(self).__name__, *names, **self.attributes)


class Add(_Operator):
    """x + y"""


class Sub(_Operator):
    """x - y"""


class Mul(_Operator):
    """x * y"""


class Div(_Operator):
    """x / y"""


class Abs(_Operator):
    """|x|"""


class Neg(_Operator):
    """-x"""


class Log(_Operator):
    """log(x)"""


class Sigmoid(_Operator):
    """1 / (1 + exp(-x))"""


class _Reduction(_Operator):
    """Over all elements: a single number, with as many axes as before where `keepdims`."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self.attributes = {"keepdims": int(keepdims)}


class ReduceMean(_Reduction):
    """The mean of all elements."""


class ReduceSum(_Reduction):
    """The sum of all elements."""


class ReduceAllL2(Block):
    """The norm of several tensors taken as one vector."""

    def build(self, *names: str) -> str:
        return self.base.add("ReduceAllL2", *names, domain=MICROSOFT)


class Pow(Block):
    """x to a constant power."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def build(self, name: str) -> str:
        return self.base.add("Pow", name, self.base.constant(self.exponent, name))


class Clip(Block):
    """x between two constants, either of which may be left out."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self.bounds = (clip_min, clip_max)

    def build(self, name: str) -> str:
        bounds = ["" if bound is None else self.base.constant(bound, name) for bound in self.bounds]
        return self.base.add("Clip", name, *bounds)


class Cast(Block):
    """x in element type `to`, numbered as onnx.TensorProto numbers them."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self.to = int(to)

    def build(self, name: str) -> str:
        return self.base.add("Cast", name, to=self.to)


class Constant(Block):
    """A float32 constant: a number, or an array."""

    def __init__(self, value_float: float | Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.value = np.asarray(value_float, np.float32)

    def build(self) -> str:
        return self.base.constant(self.value)


class InputLike(Block):
    """A further input of the model, of the type of a value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self.like = like

    def build(self, input_name: str | None = None) -> str:
        return self.base.input(input_name or f"{self.like}_like", self.base.type_of(self.like))


class PassThrough(Block):
    """The values themselves, where a block is asked for and nothing is to be added."""

    def build(self, *names: str) -> Names:
        return names[0] if len(names) == 1 else names


class Linear(Block):
    """A dense layer with parameters of its own, which begin as those of torch.nn.Linear do: uniform up to
    1 / sqrt(in_features), the same numbers each time."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape, self.bias, self.seed = (out_features, in_features), bias, seed
        self.attributes: dict[str, Any] = {"alpha": alpha, "beta": beta, "transB": 1}

    def build(self, name: str) -> str:
        random, bound = np.random.default_rng(self.seed), 1 / np.sqrt(self.shape[1])
        title = self.base.unused("linear")

        def uniform(*shape: int) -> np.ndarray:
            return random.uniform(-bound, bound, shape).astype(self._element(name).dtype)

        inputs = [name, self.base.parameter(f"{title}.weight", uniform(*self.shape))]
        inputs += [self.base.parameter(f"{title}.bias", uniform(self.shape[0]))] * self.bias
        return self.base.add("Gemm", *inputs, name=title, **self.attributes)

    def _element(self, name: str) -> ElementType:
        return self.base.type_of(name).element
