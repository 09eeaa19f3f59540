"""Gradient rules as documentation shows them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minbuild.docgen.formulas import LONGEST, gradient_formula
from minbuild.docgen.operators import gradients_table
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase
from minbuild.ops.core.graph_builder import GradientBuilder

pytestmark = pytest.mark.unit

OPS = registry().ops


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        (":Relu", "dx = ReluGrad(dy, y)"),
        (":Mul", "dx0 = dy * x1; dx1 = dy * x0"),
        (":Atan", "dx = dy / ((x * x) + 1)"),
        (":Neg", "dx = -dy"),
        (":Equal", ""),
    ],
)
def test_a_rule_reads_as_a_formula(op, formula):
    assert gradient_formula(OPS[op]) == formula


def test_what_is_read_twice_gets_a_name_and_saved_outputs_their_number():
    def rule(b: GradientBuilder):
        squared = b.save(2) * b.x[0]
        return squared + squared.exp()

    op = Op("Own", gradient=rule, cases=lambda random: [TestCase("only", (np.ones(2), None))])
    assert gradient_formula(op) == "t1 = y2 * x0; dx0 = t1 + Exp(t1)"
    instead = replace(op, gradient=lambda b: (b.replace_forward("Other"), rule(b))[1])
    assert gradient_formula(instead).endswith(" after Other")


def test_long_rules_are_summed_up():
    def rule(b: GradientBuilder):
        value = b.dy[0]
        for _ in range(LONGEST):
            value = value.exp()
        return value

    op = Op("Own", gradient=rule, cases=lambda random: [TestCase("only", (np.ones(2),))])
    assert gradient_formula(op) == f"dx = {LONGEST} nodes of Exp"


def test_every_rule_is_in_the_table():
    table = gradients_table(registry())
    for op in OPS.values():
        if op.gradient is not None:
            assert f"| {op.title} |" in table or f" {op.title}," in table or f" {op.title}." in table, (
                op.title
            )
