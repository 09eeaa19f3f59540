"""Convolutions by Winograd's minimal filtering: rounding, every width of vectors, and which layers take it."""

from __future__ import annotations

from dataclasses import replace

import conv_layers
import numpy as np
import pytest
import trainers
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.ir.kernel_choice import EVERY_KERNEL, KernelChoice
from minbuild.ops import registry
from minbuild.ops.convolution import conv
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.plan import build_plan
from minbuild.training.library import Library

KERNEL = "winograd_conv_packed"
PARTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
ONE = (1, 1, 1, 1)
EPSILON = 2.0**-24
LAYERS = {
    "56x56": ConvLayer((1, 64, 56, 56), (64, 64, 3, 3), pads=ONE),
    "odd sizes": ConvLayer((2, 35, 31, 29), (41, 35, 3, 3), pads=ONE),
    "without pads": ConvLayer((3, 33, 22, 27), (39, 33, 3, 3)),
    "pads that differ": ConvLayer((2, 40, 23, 30), (33, 40, 3, 3), pads=(0, 2, 2, 1)),
    "all pads": ConvLayer((1, 37, 25, 24), (38, 37, 3, 3), pads=(2, 2, 2, 2)),
    "rows of more tiles than a run": ConvLayer((1, 32, 7, 301), (34, 32, 3, 3), pads=ONE),
    "columns": ConvLayer((2, 48, 301, 3), (48, 48, 3, 3), pads=ONE),
    "many images": ConvLayer((17, 64, 11, 10), (72, 64, 3, 3), pads=ONE),
    "images of a few tiles": ConvLayer((5, 64, 9, 7), (72, 64, 3, 3), pads=ONE),
    "images of half a vector": ConvLayer((4, 64, 14, 14), (72, 64, 3, 3), pads=ONE),
    "a line at a time": ConvLayer((3, 150, 17, 18), (130, 150, 3, 3), pads=ONE),
    "channels beside filters": ConvLayer((1, 32, 30, 30), (300, 32, 3, 3), pads=ONE),
}
# Of the mean error of packed products, at most; those of few outputs add up sums of each image, which round less.
TIMES = {("images of a few tiles", WEIGHT_GRADIENT): 4}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    """Of every layer, also where it does not pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "takes_winograd", lambda *_, **__: True)
        return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(
    plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Library]:
    return conv_layers.libraries_by_width(plans.values(), tmp_path_factory.mktemp("winograd"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, str], Plan], Library]:
    """The same by packed products."""
    return conv_layers.by_other_kernels("takes_winograd", LAYERS, PARTS, tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_results_round_as_those_of_packed_products(
    libraries: dict[str, Library],
    packed: tuple[dict[tuple[str, str], Plan], Library],
    plans: dict[tuple[str, str], Plan],
    name: str,
    part: str,
) -> None:
    """By every width of vectors: the mean error, and the largest."""
    op, case = LAYERS[name].case(part)
    one, ((key, exact),) = trainers.one_node(op, case), trainers.expected(op, case).items()
    plan, other = plans[name, part], packed[0][name, part]
    assert KERNEL in {k.function for k in plan.kernels} and KERNEL not in {k.function for k in other.kernels}
    theirs = trainers.run(packed[1], other, one)[key] - exact
    for library in libraries.values():
        ours = trainers.run(library, plan, one)[key] - exact
        assert np.sqrt(np.mean(ours**2)) < TIMES.get((name, part), 2) * np.sqrt(np.mean(theirs**2))
        assert np.abs(ours).max() < 16 * EPSILON * np.abs(exact).max()


@pytest.mark.parametrize("number", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("part", [FORWARD, INPUT_GRADIENT])
def test_outputs_depend_on_what_their_window_sees_alone(
    libraries: dict[str, Library], plans: dict[tuple[str, str], Plan], part: str, number: float
) -> None:
    """All others are zeros, also where their tile sees more."""
    name = "odd sizes"
    op, case = LAYERS[name].case(part)
    images = np.zeros_like(case.inputs[0])
    for row, column in ((7, 12), (16, 21), (0, 28)):
        images[0, 3, row, column] = number
    last = np.zeros(41) if part == FORWARD else case.inputs[2]
    case = replace(case, inputs=(images, case.inputs[1], last))
    one, ((key, exact),) = trainers.one_node(op, case), trainers.expected(op, case).items()
    for library in libraries.values():
        found = trainers.run(library, plans[name, part], one)[key]
        assert np.array_equal(found != 0, exact != 0)
        assert np.array_equal(np.isfinite(found), np.isfinite(exact))


@pytest.mark.parametrize(
    ("layer", "parts"),
    [
        (ConvLayer((1, 64, 56, 56), (64, 64, 3, 3), pads=ONE), {*PARTS}),
        (ConvLayer((1, 32, 40, 40), (48, 32, 3, 3)), {*PARTS}),
        # One image does not make up for windows that are far, nor do eight of a few elements.
        (ConvLayer((1, 256, 14, 14), (256, 256, 3, 3), pads=ONE), set()),
        (ConvLayer((1, 512, 7, 7), (512, 512, 3, 3), pads=ONE), set()),
        # Gradients of weights take longest to transform, and rows of four tiles as long as rows of sixteen.
        (ConvLayer((1, 128, 14, 14), (128, 128, 3, 3), pads=ONE), {FORWARD, INPUT_GRADIENT}),
        (ConvLayer((8, 128, 7, 7), (128, 128, 3, 3), pads=ONE), set()),
        (ConvLayer((8, 256, 14, 14), (256, 256, 3, 3), pads=ONE), {*PARTS}),
        (ConvLayer((8, 512, 7, 7), (512, 512, 3, 3), pads=ONE), set()),
        (ConvLayer((64, 512, 7, 7), (512, 512, 3, 3), pads=ONE), {*PARTS}),
        (ConvLayer((1, 16, 56, 56), (64, 16, 3, 3), pads=ONE), set()),  # few channels
        (ConvLayer((1, 128, 56, 56), (128, 64, 3, 3), pads=ONE, group=2), set()),
        (ConvLayer((1, 64, 56, 56), (64, 64, 3, 3), pads=ONE, strides=(1, 2)), set()),
        (ConvLayer((1, 64, 56, 56), (64, 64, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 1)), set()),
        (ConvLayer((1, 64, 56, 56), (64, 64, 3, 5), pads=(1, 2, 1, 2)), set()),
        (ConvLayer((1, 64, 56, 56), (64, 64, 3, 3), pads=(3, 0, 0, 0)), set()),
        (ConvLayer((1, 64, 1600), (64, 64, 3), pads=(1, 1)), set()),
    ],
)
def test_layers_that_take_it(layer: ConvLayer, parts: set[str]) -> None:
    takes = {part for part in PARTS if KERNEL in {k.function for k in layer.plan(part).kernels}}
    assert takes == parts


@pytest.mark.parametrize(("channels", "size", "lean"), [(64, 56, KERNEL), (128, 28, "conv_packed")])
def test_lean_plans_have_it_where_it_takes_no_more_scratch_memory(
    channels: int, size: int, lean: str
) -> None:
    layer = ConvLayer((1, channels, size, size), (channels, channels, 3, 3), pads=ONE)
    program = lower(trainers.one_node(*layer.case(FORWARD)).artifacts, registry(), {})
    for choice, function in ((EVERY_KERNEL, KERNEL), (KernelChoice(scratch=0), lean)):
        plan = build_plan(optimize(program, registry()), registry(), kernels=choice)
        assert {k.function for k in plan.kernels} == {function}


def test_doubles_are_packed() -> None:
    op, case = LAYERS["56x56"].case(FORWARD)
    plan = trainers.plan_of(trainers.one_node(op, case, np.float64).artifacts, registry())
    assert {k.function for k in plan.kernels} == {"conv_packed"}
