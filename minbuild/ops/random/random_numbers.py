"""Random numbers: RandomUniform, RandomNormal, their Like forms, Bernoulli, Multinomial, and the masks of Dropout.

Every execution has a minstd_rand0 engine of its own. Its seed is the count of executions so far, of all nodes
together (`mb_set_seed` sets it), or, where the node has a seed, that seed and the count of its own. Masks are those
of ONNX Runtime under the same seed, and so is what a node with a seed draws first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, Shape, TensorType
from minbuild.ops.core.definition import (
    BOOL,
    FLOAT,
    FLOATS,
    INDICES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
)
from minbuild.ops.core.elementwise import zero_gradient
from minbuild.ops.core.graph_builder import GraphBuilder
from minbuild.ops.core.value import Results

_MODULUS, _MULTIPLIER = 2**31 - 1, 16807
_NUMBERS = _MODULUS - 1

_DRAWS = "draws:int64="
random_mask_kernel = KernelFunction(
    "random_mask", ("mask:bool=", _DRAWS, "x:extent", "ratio:R"), params=("seed:int",), types={"R": FLOATS}
)
random_uniform_kernel = KernelFunction(
    "random_uniform", ("y:T=", _DRAWS), params=("seed:int", "low:float", "high:float"), types={"T": FLOATS}
)
random_normal_kernel = KernelFunction(
    "random_normal", ("y:T=", _DRAWS), params=("seed:int", "mean:float", "scale:float"), types={"T": FLOATS}
)
multinomial_kernel = KernelFunction(
    "multinomial",
    ("y:I=", _DRAWS, "x:T", "sums:scratch"),
    params=("seed:int",),
    types={"T": FLOATS, "I": INDICES},
)


def _seed(attributes: Mapping[str, Any]) -> int:
    """The node's seed as the 32 bits that the engine takes."""
    return int(np.array(int(attributes.get("seed", 0)) & 0xFFFFFFFF, np.uint32).view(np.int32))


# ------------------------------------------------------------------------------------------------- references


def engine(seed: int, count: int) -> np.ndarray:
    """The first `count` numbers of minstd_rand0, less 1."""
    first = (seed & 0xFFFFFFFF) % _MODULUS or 1
    powers = np.array([_MULTIPLIER], np.uint64)
    while len(powers) < count:
        powers = np.concatenate([powers, powers * powers[-1] % np.uint64(_MODULUS)])
    return (powers[:count] * np.uint64(first) % np.uint64(_MODULUS)).astype(np.int64) - 1


def uniform(seed: int, count: int, element: ElementType = FLOAT) -> np.ndarray:
    """`count` numbers from 0 to 1 as they are drawn in this type; a double takes two numbers of the engine. `seed` is
    the engine's, `element` that type."""
    if element is FLOAT:
        drawn = engine(seed, count).astype(np.float32) / np.float32(_NUMBERS)
        return np.minimum(drawn, np.nextafter(np.float32(1), np.float32(0))).astype(np.float64)
    pairs = engine(seed, 2 * count).astype(np.float64).reshape(-1, 2)
    drawn = (pairs[:, 0] + pairs[:, 1] * _NUMBERS) / (float(_NUMBERS) * _NUMBERS)
    return np.minimum(drawn, np.nextafter(1.0, 0.0))


def _normal(seed: int, count: int, element: ElementType) -> np.ndarray:
    numbers: Iterator[float] = iter((2 * uniform(seed, 4 * count + 100, element) - 1).tolist())
    made: list[float] = []
    while len(made) < count:
        a, b = next(numbers), next(numbers)
        square = a * a + b * b
        if 0 < square <= 1:
            length = math.sqrt(-2 * math.log(square) / square)
            made += [b * length, a * length]
    return np.array(made[:count])


def _total(attributes: Mapping[str, Any], draws: np.ndarray) -> int:
    return _seed(attributes) + int(draws.item())


def _mask_reference(
    attributes: Mapping[str, Any], x: np.ndarray, ratio: np.ndarray, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    drawn = uniform(_total(attributes, draws), x.size)
    return (drawn >= np.float32(ratio.item())).reshape(x.shape), draws + 1


# ------------------------------------------------------------------------------------------------------ masks


def _mask_infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(BOOL, ctx.shape()),)


def _lower_mask(ctx: OpContext) -> Sequence[KernelCall]:
    extent = TensorType(FLOAT, ctx.shape())
    args = (ctx.result(), ctx.name(2), extent, ctx.name(1))
    return (random_mask_kernel.call(*args, types=(ctx.element(1),), params=(_seed(ctx.attributes),)),)


def _mask_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for shape, ratio, draws, seed in (
        ((), 0.5, 0, None), ((7,), 0.1, 7, None), ((3, 5), 0.0, 2**31 - 1, None), ((40, 50), 0.25, 5, None),
        ((2, 3, 4), 0.75, 2**40 + 3, None), ((9,), 0.5, 0, 12), ((9,), 0.5, 3, -1),
    ):  # fmt: skip
        attributes = {} if seed is None else {"seed": seed}
        inputs = (np.zeros(shape), np.array(ratio), np.array([draws], np.int64))
        yield TestCase(f"shape {list(shape)}, ratio {ratio}, {draws} draws, {attributes}", inputs, attributes)


random_mask = Op(
    "RandomMask",
    domain="minbuild",
    infer=_mask_infer,
    reference=_mask_reference,
    lower=_lower_mask,
    kernels=(random_mask_kernel,),
    mutates={2: None},
    generator=2,
    cases=_mask_cases,
    gradient=zero_gradient,
)


# ---------------------------------------------------------------------------------------------- distributions


def _element(ctx: OpContext) -> ElementType:
    given = ctx.attribute("dtype")
    if given is None:
        return ctx.element() if ctx.has(0) and ctx.inputs[0] is not None else FLOAT
    return ElementType(int(given))


def _like(ctx: OpContext) -> Sequence[TensorType]:
    element = _element(ctx)
    if not element.is_real:
        raise UnsupportedUse(f"there are no random numbers of {element.label}; give the attribute dtype")
    return (TensorType(element, ctx.shape()),)


def _shaped(ctx: OpContext) -> Sequence[TensorType]:
    shape: Shape = tuple(int(d) for d in ctx.attributes["shape"])
    return (TensorType(ElementType(int(ctx.attribute("dtype", FLOAT))), shape),)


def _lower(
    kernel: KernelFunction, generator: int, numbers: Sequence[tuple[str, float]]
) -> Callable[[OpContext], Sequence[KernelCall]]:
    def lower(ctx: OpContext) -> Sequence[KernelCall]:
        result = ctx.results[0]
        assert result is not None
        words = (_seed(ctx.attributes), *(float(ctx.attribute(n, default)) for n, default in numbers))
        return (kernel.call(ctx.result(), ctx.name(generator), types=(result.element,), params=words),)

    return lower


def _reference(
    drawn: Callable[[int, int, ElementType], np.ndarray], numbers: Sequence[tuple[str, float]], like: bool
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def reference(attributes: Mapping[str, Any], *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        draws = inputs[-1]
        shape = inputs[0].shape if like else tuple(attributes["shape"])
        element = ElementType(int(attributes.get("dtype", FLOAT)))
        z = drawn(_total(attributes, draws), math.prod(shape), element).reshape(shape)
        a, b = (float(attributes.get(n, default)) for n, default in numbers)
        return (z * (b - a) + a if drawn is uniform else z * b + a), draws + 1

    return reference


def _cases(like: bool, names: tuple[str, str]) -> Callable[[np.random.Generator], Iterable[TestCase]]:
    """The result's type is always said, because it decides what is drawn."""

    def cases(random: np.random.Generator) -> Iterable[TestCase]:
        for index, shape in enumerate(((), (1,), (7,), (30, 5), (2, 3, 4))):
            for dtype in FLOATS:
                attributes: dict[str, Any] = {"dtype": int(dtype)}
                if index % 2:
                    attributes |= {names[0]: -2.0, names[1]: 3.0, "seed": 2.5 + index}
                draws = np.array([index], np.int64)
                inputs = (np.zeros(shape), draws) if like else (draws,)
                attributes |= {} if like else {"shape": shape}
                yield TestCase(f"shape {list(shape)}, {dtype.label}", inputs, attributes, ulps=32)

    return cases


def _distribution(
    name: str, kernel: KernelFunction, drawn: Callable[..., np.ndarray], names: tuple[str, str], like: bool
) -> Op:
    numbers = tuple(zip(names, (0.0, 1.0), strict=True))
    generator = int(like)
    return Op(
        name + "Like" * like,
        since=(1, 22),
        infer=_like if like else _shaped,
        reference=_reference(drawn, numbers, like),
        lower=_lower(kernel, generator, numbers),
        kernels=(kernel,),
        mutates={generator: None},
        generator=generator,
        cases=_cases(like, names),
        gradient=zero_gradient if like else None,
    )


_BOUNDS, _MOMENTS = ("low", "high"), ("mean", "scale")
random_uniform = _distribution("RandomUniform", random_uniform_kernel, uniform, _BOUNDS, False)
random_uniform_like = _distribution("RandomUniform", random_uniform_kernel, uniform, _BOUNDS, True)
random_normal = _distribution("RandomNormal", random_normal_kernel, _normal, _MOMENTS, False)
random_normal_like = _distribution("RandomNormal", random_normal_kernel, _normal, _MOMENTS, True)


def _bernoulli(b: GraphBuilder) -> Results:
    """1 with the given probability. The function that ONNX defines compares the other way round and has its
    complement."""
    seed: dict[str, Any] = {"seed": float(b.ctx.attributes["seed"])} if "seed" in b.ctx.attributes else {}
    drawn = b.add("RandomUniformLike", b.x[0], dtype=int(b.ctx.element()), **seed)
    return (drawn < b.x[0]).cast(b.ctx.attribute("dtype", b.ctx.element()))


bernoulli = Op("Bernoulli", since=(15, 22), decompose=_bernoulli, gradient=zero_gradient)


def _multinomial_infer(ctx: OpContext) -> Sequence[TensorType]:
    if ctx.rank() != 2:
        raise UnsupportedUse(f"its input has {ctx.rank()} axes; it takes rows of classes")
    element = ElementType(int(ctx.attribute("dtype", ElementType.INT32)))
    return (TensorType(element, (ctx.shape()[0], int(ctx.attribute("sample_size", 1)))),)


def _lower_multinomial(ctx: OpContext) -> Sequence[KernelCall]:
    result = ctx.results[0]
    assert result is not None
    sums = TensorType(ElementType.UINT8, (ctx.shape()[1] * ElementType.DOUBLE.size,))
    args = (ctx.result(), ctx.name(1), ctx.name(0), sums)
    types = (ctx.element(), result.element)
    return (multinomial_kernel.call(*args, types=types, params=(_seed(ctx.attributes),)),)


def _multinomial_reference(
    attributes: Mapping[str, Any], x: np.ndarray, draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows, samples = len(x), int(attributes.get("sample_size", 1))
    sums = np.cumsum(np.exp(x - x.max(axis=1, keepdims=True)), axis=1)
    drawn = uniform(_total(attributes, draws), rows * samples, ElementType.DOUBLE).reshape(rows, samples)
    threshold = drawn * sums[:, -1:]
    found = (sums[:, None, :] <= threshold[:, :, None]).sum(axis=2)
    return np.minimum(found, x.shape[1] - 1).astype(np.int64), draws + 1


def _multinomial_cases(random: np.random.Generator) -> Iterable[TestCase]:
    for rows, classes, samples in ((1, 1, 3), (1, 5, 1), (4, 7, 30)):
        for dtype in INDICES:
            attributes = {"sample_size": samples, "dtype": int(dtype), "seed": 1.0 + rows}
            x = random.standard_normal((rows, classes)) * 2
            yield TestCase(f"{rows} x {classes}, {samples}", (x, np.array([rows], np.int64)), attributes)


multinomial = Op(
    "Multinomial",
    since=(7, 22),
    infer=_multinomial_infer,
    reference=_multinomial_reference,
    lower=_lower_multinomial,
    kernels=(multinomial_kernel,),
    mutates={1: None},
    generator=1,
    cases=_multinomial_cases,
    gradient=zero_gradient,
)

KERNELS = (random_mask_kernel, random_uniform_kernel, random_normal_kernel, multinomial_kernel)
OPS = (
    random_mask,
    random_uniform,
    random_uniform_like,
    random_normal,
    random_normal_like,
    bernoulli,
    multinomial,
)
