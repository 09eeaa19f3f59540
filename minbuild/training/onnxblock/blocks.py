"""The blocks: each writes one or more nodes and returns the names of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType
from minbuild.ops.core.graph_builder import MICROSOFT
from minbuild.training.onnxblock.accessor import ModelAccessor
from minbuild.training.onnxblock.context import composer

Names = str | tuple[str, ...]


class Block:
    """A part of a model. Subclasses write it in `build`, which takes and returns names of values; calling the block
    builds it into the current graph."""

    def __init__(self, temp_file_name: str = "") -> None:
        """`temp_file_name` is there for calls written for onnxruntime, and not read."""

    @property
    def base(self) -> ModelAccessor:
        """The model being written: its onnx.ModelProto by the names that this has, and methods that write nodes."""
        return composer()

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Writes the block."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)


class _Unary(Block):
    """One node of the operator that the class is named after."""

    attributes: dict[str, Any] = {}

    def build(self, input_name: str) -> str:
        return self.base.add(type(self).__name__, input_name, **self.attributes)


class _Binary(Block):
    """The same of two inputs."""

    def build(self, input_name1: str, input_name2: str) -> str:
        return self.base.add(type(self).__name__, input_name1, input_name2)


class Add(_Binary):
    """x + y"""


class Sub(_Binary):
    """x - y"""


class Mul(_Binary):
    """x * y"""


class Div(_Binary):
    """x / y"""


class Abs(_Unary):
    """|x|"""


class Neg(_Unary):
    """-x"""


class Log(_Unary):
    """log(x)"""


class Sigmoid(_Unary):
    """1 / (1 + exp(-x))"""


class _Reduction(_Unary):
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

    def build(self, pow_input_name: str) -> str:
        return self.base.add("Pow", pow_input_name, self.base.constant(self.exponent, pow_input_name))


class Clip(Block):
    """x between two constants; either may be absent."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self.bounds = (clip_min, clip_max)

    def build(self, clip_input_name: str) -> str:
        x = clip_input_name
        bounds = ["" if bound is None else self.base.constant(bound, x) for bound in self.bounds]
        return self.base.add("Clip", x, *bounds)


class Cast(Block):
    """x in element type `to`, numbered as onnx.TensorProto numbers them."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self.to = int(to)

    def build(self, cast_input_name: str) -> str:
        return self.base.add("Cast", cast_input_name, to=self.to)


class LabelEncoder(Block):
    """Numbers that become other numbers by a table: one of `keys_floats` and `keys_int64s` beside one of
    `values_floats` and `values_int64s`, of equal length. A number that no key equals becomes `default_float` or
    `default_int64`.

    minbuild has no strings: `default_string`, `keys_strings` and `values_strings` are there for ONNX Runtime's sake.
    """

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        tables = {
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self.attributes: dict[str, Any] = {n: tuple(t) for n, t in tables.items() if t is not None}
        self.attributes |= {"default_float": default_float, "default_int64": default_int64}
        self.attributes["default_string"] = default_string

    def build(self, label_encoder_input_name: str) -> str:
        return self.base.add("LabelEncoder", label_encoder_input_name, domain="ai.onnx.ml", **self.attributes)


class SequenceConstruct(Block):
    """A sequence of tensors, for operators that take one: SequenceAt, SequenceLength, ConcatFromSequence."""

    def build(self, *names: str) -> str:
        return self.base.add("SequenceConstruct", *names)


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
    """A dense layer, alpha * x @ weight.T + beta * bias, with parameters of its own: [N, in_features] becomes
    [N, out_features].

    They begin as those of torch.nn.Linear do, uniform up to 1 / sqrt(`in_features`), the same numbers for the same
    `seed`. `bias` is False for none; `alpha` and `beta` are Gemm's; the weight is [`out_features`, `in_features`].
    """

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

    def build(self, linear_input_name: str) -> str:
        name = linear_input_name
        random, bound = np.random.default_rng(self.seed), 1 / np.sqrt(self.shape[1])
        title = self.base.unused("linear")

        def uniform(*shape: int) -> np.ndarray:
            return random.uniform(-bound, bound, shape).astype(self._element(name).dtype)

        inputs = [name, self.base.parameter(f"{title}.weight", uniform(*self.shape))]
        inputs += [self.base.parameter(f"{title}.bias", uniform(self.shape[0]))] * self.bias
        return self.base.add("Gemm", *inputs, name=title, **self.attributes)

    def _element(self, name: str) -> ElementType:
        return self.base.type_of(name).element
