"""Cast between all element types, and BitCast.

A kernel exists for every pair of kinds: integers, reals, bool. Where only the size of an integer matters its sign is
left out; halves that no kernel reads or writes go through float, which holds them exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minbuild.ir import ElementType, TensorType
from minbuild.ops.core.definition import (
    BOOL,
    ELEMENTS,
    FLOATS,
    HALVES,
    INDICES,
    INTEGERS,
    STORAGE_TYPES,
    KernelCall,
    KernelFunction,
    Op,
    OpContext,
    TestCase,
    UnsupportedUse,
    every_input,
    storage_type,
)
from minbuild.ops.core.graph_builder import GradientBuilder, GraphBuilder
from minbuild.ops.core.pattern import Rewrite, RewritingOp, identity
from minbuild.ops.core.value import Results
from minbuild.ops.movement import copy as _copy


def _kernel(function: str, **types: tuple[ElementType, ...]) -> KernelFunction:
    return KernelFunction(function, ("y:U=" if "U" in types else "y:bool=", "x:T"), types=types, cut=ELEMENTS)


whole_kernel = _kernel("cast_whole", U=FLOATS + STORAGE_TYPES, T=INTEGERS)
to_whole_kernel = _kernel("cast_to_whole", U=STORAGE_TYPES, T=FLOATS)
real_kernel = _kernel("cast_real", U=FLOATS + HALVES, T=FLOATS + HALVES)
bool_kernel = KernelFunction(
    "cast_bool", ("y:U=", "x:bool"), params=("one_0:int", "one_1:int"), types={"U": STORAGE_TYPES}
)
to_bool_kernel = _kernel("cast_to_bool", T=FLOATS + STORAGE_TYPES)


def _target(ctx: OpContext) -> ElementType:
    to = ctx.attribute("to")
    if to not in set(ElementType):
        offered = ", ".join(e.label for e in ElementType)
        raise UnsupportedUse(f"element type {to} of its attribute 'to' is not supported; has {offered}")
    return ElementType(to)


def _infer(ctx: OpContext) -> Sequence[TensorType]:
    return (TensorType(_target(ctx), ctx.shape()),)


def _reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    to = ElementType(attributes["to"])
    if x.dtype == object:
        if to not in INDICES:
            raise TypeError("dimensions are whole numbers")
        return x
    with np.errstate(all="ignore"):
        return x.astype(to.dtype)


def _bits(element: ElementType) -> ElementType:
    """The type under which a kernel writes integers, and reads those that keep their size or lose some."""
    return storage_type(element) if element in INTEGERS else element


def _call(ctx: OpContext, to: ElementType, source: ElementType) -> KernelCall:
    y, x = ctx.result(), ctx.name(0)
    if to is source or (to in INTEGERS and source in INTEGERS and to.size == source.size):
        return _copy.copy_kernel.call(y, x, types=(storage_type(to),))
    if to is BOOL:
        return to_bool_kernel.call(y, x, types=(_bits(source),))
    if source is BOOL:
        one = np.ones(1, to.dtype).tobytes().ljust(8, b"\0")
        return bool_kernel.call(y, x, types=(storage_type(to),), params=np.frombuffer(one, np.int32).tolist())
    if source in INTEGERS:
        narrower = to in INTEGERS and to.size < source.size
        return whole_kernel.call(y, x, types=(_bits(to), _bits(source) if narrower else source))
    kernel = to_whole_kernel if to in INTEGERS else real_kernel
    return kernel.call(y, x, types=(_bits(to), source))


def _lower(ctx: OpContext) -> Sequence[KernelCall]:
    result = ctx.results[0]
    assert result is not None
    return (_call(ctx, result.element, ctx.element()),)


def _body(b: GraphBuilder) -> Results:
    """Wide integers become bfloat16 through double: by way of float they would be rounded twice."""
    to = _target(b.ctx)
    if to is ElementType.BFLOAT16 and b.ctx.element() in INTEGERS and b.ctx.element().size >= 4:
        exact = b.x[0].cast(ElementType.DOUBLE)
        return exact.cast(to)
    return None


def _cases(random: np.random.Generator) -> Iterable[TestCase]:
    x = np.array([[0.0, 0.25, -0.75], [1.5, -2.5, 3.0], [100.25, -99.5, 7.0], [0.1, 1e-6, 1e-9]])
    y = random.standard_normal((3, 37)) * 30
    for to in ElementType:
        smooth, unsigned = to is ElementType.DOUBLE, to in INTEGERS and not np.iinfo(to.dtype).min
        for name, reals in (("reals", x), ("more reals", y)):
            source = np.abs(reals) if unsigned else reals
            yield TestCase(f"{name} to {to.label}", (source,), {"to": int(to)}, ulps=0, smooth=smooth)
        yield TestCase(f"bool to {to.label}", (x > 0,), {"to": int(to)}, ulps=0)
        for element in INTEGERS:
            limits = np.iinfo(element.dtype)
            whole = random.integers(limits.min, limits.max, (3, 5), element.dtype, True)
            whole[0] = limits.min, limits.max, 0, 1, limits.max // 3
            yield TestCase(f"{element.label} to {to.label}", (whole,), {"to": int(to)}, ulps=0)
    yield TestCase("no number is true", (np.array([np.nan, np.inf, -0.0]),), {"to": int(BOOL)})


def _gradient(b: GradientBuilder) -> Results:
    return b.dy[0].cast(b.ctx.element()) if b.ctx.element().is_real else None


cast = RewritingOp(
    "Cast",
    since=(6, 9, 13, 19, 21, 23, 24, 25),
    infer=_infer,
    reference=_reference,
    lower=_lower,
    kernels=(bool_kernel, real_kernel, to_bool_kernel, to_whole_kernel, whole_kernel, _copy.copy_kernel),
    decompose=_body,
    in_place=((0, 0),),
    batched_inputs=every_input,
    cases=_cases,
    gradient=_gradient,
    rewrites=(Rewrite(("Cast", "x"), identity),),
)


def _bit_infer(ctx: OpContext) -> Sequence[TensorType]:
    to = _target(ctx)
    if to.size != ctx.element().size:
        raise UnsupportedUse(f"{ctx.element().label} and {to.label} differ in size")
    return (TensorType(to, ctx.shape()),)


def _bit_reference(attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    if x.dtype == object:
        raise TypeError("the bits of free dimensions are the device's")
    return np.ascontiguousarray(x).view(ElementType(attributes["to"]).dtype).reshape(x.shape)


bit_cast = Op("BitCast", since=(26,), infer=_bit_infer, reference=_bit_reference, is_view=True)

KERNELS = (whole_kernel, to_whole_kernel, real_kernel, bool_kernel, to_bool_kernel)
OPS = (cast, bit_cast)
