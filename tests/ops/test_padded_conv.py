"""Convolutions over small images, whose products leave padding out: the same bits, and which layers ask for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.ir import Plan
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase
from minbuild.training.library import Library

FEATURE = "conv.padded"
PARTS = FORWARD, BACKWARD = "forward", "input gradient"
# Shapes of x and w, strides, pads, dilations, groups.
LAYERS = {
    "7x7 in eight images": ((8, 128, 7, 7), (128, 128, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "7x7 in one": ((1, 300, 7, 7), (256, 300, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "a pass of eight and one of three": ((11, 67, 7, 7), (250, 67, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "14x14": ((1, 68, 14, 14), (132, 68, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "two steps": ((2, 64, 28, 28), (70, 64, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    "pads that differ": ((3, 64, 12, 17), (70, 64, 3, 3), (1, 1), (0, 2, 1, 0), (1, 1), 1),
    "5x5 with gaps": ((1, 40, 20, 20), (64, 40, 5, 5), (1, 1), (4, 4, 4, 4), (2, 2), 1),
    "windows larger than images": ((9, 190, 3, 3), (290, 190, 5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    "groups": ((2, 128, 14, 14), (128, 64, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "a row": ((1, 256, 1, 80), (256, 256, 1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1),
}


def _attributes(name: str) -> dict[str, object]:
    _, w, strides, pads, dilations, group = LAYERS[name]
    return {
        "kernel_shape": w[2:],
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": group,
        "auto_pad": "NOTSET",
    }


def _forward(name: str) -> TestCase:
    x, w, *_ = LAYERS[name]
    random = np.random.default_rng(1)
    arrays = (random.standard_normal(shape) for shape in (x, w, w[:1]))
    return TestCase("y", tuple(arrays), _attributes(name))


def _backward(op: Op, name: str) -> TestCase:
    """The gradient of the input alone."""
    forward = _forward(name)
    assert op.reference is not None
    x, w, _ = forward.inputs
    assert x is not None and w is not None
    y = np.asarray(op.reference(forward.attributes, x, w))
    dy = np.random.default_rng(2).standard_normal(y.shape)
    return TestCase("dx", (dy, x, w), forward.attributes, outputs=3, absent=frozenset({1, 2}))


def _case(name: str, part: str) -> tuple[Op, TestCase]:
    known = registry()
    conv, grad = known.ops[":Conv"], known.ops["com.microsoft:ConvGrad"]
    return (grad, _backward(conv, name)) if part == BACKWARD else (conv, _forward(name))


def _without(plan: Plan) -> Plan:
    return replace(plan, features=tuple(f for f in plan.features if f != FEATURE))


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    known = registry()
    return {
        (name, part): trainers.plan_of(trainers.one_node(*_case(name, part)).artifacts, known)
        for name in LAYERS
        for part in PARTS
    }


@pytest.fixture(scope="module")
def libraries(plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory) -> list[Library]:
    """For all layers: with padding left out and multiplied, by AVX2 and by AVX-512 as well."""
    made = []
    for change in (lambda plan: plan, _without):
        contents = trainers.contents_of(change(plan) for plan in plans.values())
        for avx512 in (False, True):
            folder = tmp_path_factory.mktemp("padded")
            made.append(trainers.library_of(replace(contents, avx512=avx512), registry(), folder))
    return made


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_leaving_padding_out_changes_no_bit(
    libraries: list[Library], plans: dict[tuple[str, str], Plan], name: str, part: str
) -> None:
    op, case = _case(name, part)
    plan = plans[name, part]
    exchanged = LAYERS[name][2] == (1, 1)
    assert (FEATURE in plan.features) == (part == FORWARD or exchanged)
    one = trainers.one_node(op, case)
    used = (plan, plan, _without(plan), _without(plan))
    results = [trainers.run(library, p, one) for library, p in zip(libraries, used, strict=True)]
    for key, array in trainers.expected(op, case).items():
        for found in results:
            assert not trainers.disagreement(found[key], array, 64)
            assert found[key].tobytes() == results[0][key].tobytes()


@pytest.mark.parametrize(
    ("size", "taps", "pad", "asks"),
    [
        (22, 3, 1, True),
        (23, 3, 1, False),
        (14, 3, 0, False),
        (14, 1, 0, False),
        (14, 5, 1, True),
        (14, 7, 3, False),
    ],
)
def test_layers_that_ask(size: int, taps: int, pad: int, asks: bool) -> None:
    """Those with padding around few outputs, and no more taps than a mask has bits."""
    random = np.random.default_rng(1)
    x, w = random.standard_normal((1, 128, size, size)), random.standard_normal((256, 128, taps, taps))
    attributes = {
        "kernel_shape": (taps, taps),
        "pads": (pad,) * 4,
        "strides": (1, 1),
        "dilations": (1, 1),
        "group": 1,
    }
    case = TestCase("y", (x, w), {**attributes, "auto_pad": "NOTSET"})
    known = registry()
    plan = trainers.plan_of(trainers.one_node(known.ops[":Conv"], case).artifacts, known)
    assert (FEATURE in plan.features) == asks
