"""Operators over images with a batch that is known only when the inputs arrive, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers

from minbuild.errors import Unsupported
from minbuild.ir import ElementType, TensorType, TrainingArtifacts
from minbuild.ir.dims import symbol
from minbuild.ops import registry
from minbuild.ops.core.definition import Op, TestCase
from minbuild.training.library import TrainerError

REGISTRY = registry()
_KERNEL = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
# Operator, attributes, shapes of the inputs (None where absent), and which are constants rather than fed.
APPLICATIONS = {
    ":Conv": ({"pads": (1, 1, 1, 1)}, ((2, 3, 5, 4), (4, 3, 3, 3)), {1}),
    ":ConvTranspose": ({"strides": (2, 2)}, ((2, 3, 4, 5), (3, 4, 3, 2), (4,)), {1, 2}),
    ":MaxPool": (_KERNEL, ((2, 3, 5, 4),), set()),
    ":AveragePool": (_KERNEL, ((2, 3, 5, 4),), set()),
    ":LpPool": ({**_KERNEL, "p": 3}, ((2, 3, 5, 4),), set()),
    ":GlobalAveragePool": ({}, ((2, 3, 5, 4),), set()),
    ":GlobalMaxPool": ({}, ((2, 3, 5, 4),), set()),
    ":GlobalLpPool": ({}, ((2, 3, 5, 4),), set()),
    ":LRN": ({"size": 3}, ((2, 3, 5, 4),), set()),
    ":Resize": ({"mode": "linear"}, ((2, 3, 5, 4), None, np.array([1, 1, 2, 0.5], np.float32)), {2}),
    ":Upsample": ({}, ((2, 3, 5, 4), np.array([1, 1, 2, 3], np.float32)), {1}),
    ":GridSample": ({}, ((2, 3, 5, 4), (2, 3, 2, 2)), set()),
    ":DeformConv": ({}, ((2, 2, 4, 4), (3, 2, 2, 2), (2, 8, 3, 3)), {1}),
}


def application(key: str) -> tuple[Op, TestCase]:
    op, (attributes, shapes, constant) = REGISTRY.ops[key], APPLICATIONS[key]
    random = np.random.default_rng(8)
    arrays = tuple(random.standard_normal(s) if isinstance(s, tuple) else s for s in shapes)
    return op, TestCase(key, arrays, attributes, frozenset(constant))


def with_free_batch(artifacts: TrainingArtifacts) -> TrainingArtifacts:
    """The bundle with the first dimension of everything that is fed a symbol."""
    inputs = {
        name: TensorType(t.element, (symbol("batch"), *(t.shape or ())[1:]))
        for name, t in artifacts.training.inputs.items()
    }
    return replace(artifacts, training=replace(artifacts.training, inputs=inputs))


@pytest.fixture(scope="module")
def plans():
    made = {}
    for key in APPLICATIONS:
        one = trainers.one_node(*application(key))
        made[key] = trainers.plan_of(with_free_batch(one.artifacts), REGISTRY)
    return made


@pytest.fixture(scope="module")
def library(plans, tmp_path_factory):
    contents = trainers.contents_of(plans.values())
    return trainers.library_of(contents, REGISTRY, tmp_path_factory.mktemp("free"))


@pytest.mark.parametrize("key", APPLICATIONS, ids=lambda key: key[1:])
def test_batches_of_any_size(key, plans, library):
    op, case = application(key)
    session = trainers.session_of(library, plans[key], {})
    for batch in (2, 1, 2):
        inputs = tuple(
            x[:batch] if x is not None and i not in case.constant else x for i, x in enumerate(case.inputs)
        )
        fed = [x.astype(np.float32) for i, x in enumerate(inputs) if x is not None and i not in case.constant]
        wanted = trainers.expected(op, replace(case, inputs=inputs))["y0"]
        assert trainers.disagreement(session.run(0, fed)[0], wanted, 64) == ""


def test_resizing_a_free_axis_to_a_fixed_size_is_refused():
    cases = REGISTRY.ops[":Resize"].cases(np.random.default_rng(0))
    case = next(c for c in cases if c.name == "[2, 3, 4, 5] {} sizes")
    one = trainers.one_node(REGISTRY.ops[":Resize"], case)
    shape = (2, 3, symbol("height"), 5)
    inputs = {"x0": TensorType(ElementType.FLOAT, shape)}
    artifacts = replace(one.artifacts, training=replace(one.artifacts.training, inputs=inputs))
    with pytest.raises(Unsupported, match="resizes axis 2 of size height, which must be known"):
        trainers.plan_of(artifacts, REGISTRY)


@pytest.mark.parametrize("image", [-1, 2, 2**40])
def test_regions_of_images_that_are_not_there_are_refused(image, tmp_path):
    op = REGISTRY.ops[":RoiAlign"]
    inputs = (np.zeros((2, 1, 4, 4)), np.array([[0.0, 0, 2, 2]]), np.array([image], np.int64))
    one = trainers.one_node(op, TestCase("beyond", inputs, {}))
    plan = trainers.plan_of(one.artifacts, REGISTRY)
    library = trainers.library_of(trainers.contents_of([plan]), REGISTRY, tmp_path)
    with pytest.raises(TrainerError):
        trainers.run(library, plan, one)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_positions_that_are_no_places_read_nothing(value, tmp_path):
    """Samples beyond the image are zero, however far beyond; nearest in all modes of padding stays in the image."""
    op = REGISTRY.ops[":GridSample"]
    grid = np.full((1, 1, 1, 2), value)
    plans = []
    for padding in ("zeros", "border", "reflection"):
        for mode in ("nearest", "linear", "cubic"):
            case = TestCase("far", (np.ones((1, 1, 3, 3)), grid), {"mode": mode, "padding_mode": padding})
            one = trainers.one_node(op, case)
            plans.append((padding, one, trainers.plan_of(one.artifacts, REGISTRY)))
    library = trainers.library_of(trainers.contents_of(p for _, _, p in plans), REGISTRY, tmp_path)
    for padding, one, plan in plans:
        found = trainers.run(library, plan, one)["y0"].item()
        assert found == 0 if padding == "zeros" else np.isclose(found, 1), padding


def test_images_are_not_decoded():
    case = TestCase("jpeg", (np.zeros(4, np.uint8),), {})
    one = trainers.one_node(REGISTRY.ops[":ImageDecoder"], case)
    with pytest.raises(Unsupported, match="decoded by whoever feeds the trainer"):
        trainers.plan_of(one.artifacts, REGISTRY)
