"""Convolutions with one filter per channel: rounding and every width of vectors, with windows that are computed column
by column among others."""

from __future__ import annotations

from dataclasses import replace

import conv_layers
import numpy as np
import pytest
import trainers
from conv_layers import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, ConvLayer

from minbuild.ir import Plan
from minbuild.ops.convolution import depthwise_conv
from minbuild.training.library import Library

KERNEL = "depthwise_conv"
TALL = {"depthwise_conv.five_rows", "depthwise_conv.seven_rows"}
PARTS = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT


def _layer(
    image: tuple[int, int, int, int], window: tuple[int, int], pads: tuple[int, ...] = (), stride: int = 1
) -> ConvLayer:
    """Without `pads` the window is centred."""
    pads = pads or (window[0] // 2, window[1] // 2) * 2
    weights = (image[1], 1, *window)
    return ConvLayer(image, weights, strides=(stride,) * 2, pads=pads, group=image[1])


LAYERS = {
    "3x3": _layer((2, 12, 17, 19), (3, 3)),
    "3x3 by two": _layer((2, 12, 17, 19), (3, 3), stride=2),
    "3x3 of narrow images": _layer((2, 12, 9, 7), (3, 3)),
    "7x7 of 7x7": _layer((3, 11, 7, 7), (7, 7)),
    "7x7 of 14x14": _layer((2, 10, 14, 14), (7, 7)),
    "7x7 of 14x14 by two": _layer((3, 7, 14, 14), (7, 7), stride=2),
    "5x5 of 56x56": _layer((1, 4, 56, 56), (5, 5)),
    "7x7 of planes without a twin": _layer((1, 5, 43, 50), (7, 7)),
    "7x7 by two": _layer((2, 6, 15, 18), (7, 7), stride=2),
    "5x5 of 7x7": _layer((3, 12, 7, 7), (5, 5)),
    "5x5 of 28x28": _layer((1, 9, 28, 28), (5, 5)),
    "5x5 by two": _layer((2, 7, 28, 28), (5, 5), stride=2),
    "5x5 of an odd size by two": _layer((2, 7, 15, 29), (5, 5), stride=2),
    "5x5 by two, pads behind": _layer((2, 7, 14, 14), (5, 5), (1, 1, 2, 2), stride=2),
    "5x5 by two, no pads": _layer((1, 8, 19, 33), (5, 5), (0, 0, 0, 0), stride=2),
    "5x5 by two of small images": _layer((2, 9, 4, 5), (5, 5), stride=2),
    "more columns": _layer((2, 6, 9, 21), (5, 9)),
    "one column": _layer((2, 6, 12, 3), (7, 1)),
    "two columns by two": _layer((2, 6, 13, 12), (7, 2), (3, 1, 2, 0), stride=2),
    "a row": _layer((2, 8, 1, 37), (5, 5)),
    "three rows": _layer((2, 8, 3, 5), (7, 7)),
    "pads that differ": _layer((2, 6, 11, 10), (7, 7), (6, 0, 1, 5)),
    "seven rows, pads that differ": _layer((2, 6, 7, 9), (7, 7), (4, 3, 2, 3)),
}


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    """Of every layer, also where it is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depthwise_conv, "_LEAST_WORK", 0)
        return {(name, part): layer.plan(part) for name, layer in LAYERS.items() for part in PARTS}


@pytest.fixture(scope="module")
def libraries(
    plans: dict[tuple[str, str], Plan], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Library]:
    return conv_layers.libraries_by_width(plans.values(), tmp_path_factory.mktemp("depthwise"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, str], Plan], Library]:
    """The same by the kernels of all convolutions."""
    return conv_layers.by_other_kernels("takes_depthwise", LAYERS, PARTS, tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", PARTS)
def test_results_round_as_those_of_other_kernels(
    libraries: dict[str, Library],
    others: tuple[dict[tuple[str, str], Plan], Library],
    plans: dict[tuple[str, str], Plan],
    name: str,
    part: str,
) -> None:
    """By every width of vectors."""
    plan, other = plans[name, part], others[0][name, part]
    assert KERNEL in {k.function for k in plan.kernels} and KERNEL not in {k.function for k in other.kernels}
    assert bool(TALL & set(plan.features)) == (part != WEIGHT_GRADIENT and "3x3" not in name)
    conv_layers.assert_rounds_alike(libraries.values(), plan, others[1], other, LAYERS[name], part)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("part", [FORWARD, INPUT_GRADIENT])
def test_outputs_depend_on_what_their_window_sees_alone(
    libraries: dict[str, Library],
    plans: dict[tuple[str, str], Plan],
    part: str,
    number: float,
    name: str,
) -> None:
    conv_layers.assert_windows_see_alone(libraries.values(), plans[name, part], LAYERS[name], part, number)


@pytest.mark.parametrize("name", [name for name in LAYERS if "3x3" not in name])
@pytest.mark.parametrize("part", [FORWARD, INPUT_GRADIENT])
def test_columns_have_the_sums_of_windows(
    libraries: dict[str, Library],
    plans: dict[tuple[str, str], Plan],
    tmp_path_factory: pytest.TempPathFactory,
    part: str,
    name: str,
) -> None:
    """Whole numbers have no rounding, and vectors of any width the same sums."""
    op, case = LAYERS[name].case(part)
    whole = tuple(None if x is None else np.rint(4 * x) for x in case.inputs)
    case = replace(case, inputs=whole)
    one, ((key, exact),) = trainers.one_node(op, case), trainers.expected(op, case).items()
    for library in libraries.values():
        assert np.array_equal(trainers.run(library, plans[name, part], one)[key], exact)
