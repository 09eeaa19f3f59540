"""Products of halves in native arithmetic: which ones, and in what types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from authored import source

from minbuild.authoring import Recipe, artifacts_of
from minbuild.ir import ElementType, Program
from minbuild.ops import registry
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.passes.rewrite.native_products import PRODUCT, take_native_products
from minbuild.planning.plan import build_plan

REGISTRY = registry()
MATMUL = """m (float[8,16] x) => (float[8,4] y) {{
    xh = Cast <to={0}> (x) wh = Cast <to={0}> (w) vh = Cast <to={0}> (v)
    p = MatMul (xh, wh) h = Tanh (p) q = MatMul (h, vh) y = Cast <to=1> (q) }}"""
GEMM = """m (float[8,16] x) => (float[8,4] y) {{
    xh = Cast <to={0}> (x) wh = Cast <to={0}> (w) vh = Cast <to={0}> (v) bh = Cast <to={0}> (b)
    p = MatMul (xh, wh) h = Tanh (p) q = Gemm (h, vh, bh) y = Cast <to=1> (q) }}"""
RANDOM = np.random.default_rng(3)
WEIGHTS = {
    n: RANDOM.standard_normal(s).astype("f") for n, s in (("w", (16, 32)), ("v", (32, 4)), ("b", (4,)))
}


def program_of(text: str, kind: int) -> Program:
    weights = WEIGHTS if "Gemm" in text else {n: WEIGHTS[n] for n in ("w", "v")}
    recipe = Recipe(loss="mse", train=tuple(weights))
    return lower(artifacts_of(source(text.format(kind), weights), recipe, REGISTRY), REGISTRY, {})


@pytest.mark.parametrize("text", [MATMUL, GEMM], ids=["matmul", "gemm"])
@pytest.mark.parametrize("element", [ElementType.FLOAT16, ElementType.BFLOAT16], ids=lambda e: e.label)
def test_every_product_of_halves_is_native(text, element):
    program = optimize(take_native_products(program_of(text, int(element)), REGISTRY), REGISTRY)
    train = next(p for p in program.procedures if p.name == "train")
    products = [c for c in train.calls if c.op == PRODUCT]
    # Two forward, two gradients of weights, one of what is between.
    assert len(products) == 5 and not any(c.op in (":MatMul", ":Gemm") for c in train.calls)
    for call in products:
        assert [train.values[n].type.element for n in call.inputs] == [element] * 2
        assert train.values[call.outputs[0]].type.element is ElementType.FLOAT
    kernels = {k.symbol for k in build_plan(program, REGISTRY).kernels}
    assert f"half_contraction<{'half' if element is ElementType.FLOAT16 else 'bfloat16'}>" in kernels


def test_products_of_floats_stay():
    program = program_of(MATMUL, int(ElementType.FLOAT))
    assert take_native_products(program, REGISTRY) == program


def test_a_scaled_bias_stays_with_its_product():
    program = program_of(GEMM, int(ElementType.FLOAT16))
    train = next(p for p in program.procedures if p.name == "train")
    calls = tuple(
        replace(c, attributes={**c.attributes, "beta": 0.5}) if c.op == ":Gemm" and len(c.inputs) > 2 else c
        for c in train.calls
    )
    scaled = replace(program, procedures=(replace(train, calls=calls),))
    found = take_native_products(scaled, REGISTRY).procedures[0].calls
    assert sum(c.op == ":Gemm" for c in found) == 1
