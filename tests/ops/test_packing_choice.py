"""The sizes of products that are packed, where some of them are free."""

from types import SimpleNamespace

import pytest

from minbuild.ir import ElementType
from minbuild.ir.dims import Dim, symbol
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.ops.linear_algebra.contraction import contraction_kernel
from minbuild.ops.linear_algebra.gemm_packing import packing_scratch

pytestmark = pytest.mark.unit
BATCH = symbol("batch")


def _packs(sizes: tuple[Dim, ...], choice: KernelChoice = KernelChoice()) -> bool:  # noqa: B008 (frozen)
    context = SimpleNamespace(element=lambda: ElementType.FLOAT, kernels=choice)
    return bool(packing_scratch(context, contraction_kernel, *sizes))


@pytest.mark.parametrize(
    ("sizes", "packs"),
    [
        ((128 * BATCH, 128, 512), True),  # of 128 words a sample
        ((128 * BATCH, 128, 128), True),
        ((BATCH, 128, 512), False),  # a batch of one has a single row
        ((16 * BATCH, 128, 128), False),
        ((128 * BATCH, 32, 32), False),
        ((128 * BATCH - 127, 128, 512), False),
        ((128 * BATCH // (BATCH - 1), 128, 512), False),  # nobody knows how few they are
        ((BATCH, 256, 256), True),  # a layer's weights are enough
        ((128 * BATCH, 768, 8), True),  # an adapter beside a layer, over 128 words a sample
        ((128 * BATCH, 8, 768), True),
        ((768, 8, 128 * BATCH), True),
        ((128 * BATCH, 768, 2), False),
        ((64 * BATCH, 768, 16), False),  # few words
        ((BATCH, 768, 8), False),
        ((128 * BATCH, 256, 8), False),
    ],
)
def test_free_sizes_count_as_the_smallest_that_they_can_be(sizes, packs):
    assert _packs(sizes) is packs


@pytest.mark.parametrize(
    ("sizes", "packs"),
    [
        ((8, 128, 784), False),  # a small layer over eight samples, and the gradient of its weights
        ((128, 784, 8), False),
        ((32, 128, 784), False),
        ((48, 128, 784), True),
        ((128, 128, 64), True),  # attention
        ((1, 256, 256), True),  # a layer's weights are enough
        ((128, 127, 64), False),
    ],
)
def test_small_layers_of_a_fixed_batch_are_as_those_of_a_free_one(sizes, packs):
    """The kernel of packed products is more code than all of a small trainer."""
    assert _packs(sizes) is packs


@pytest.mark.parametrize(
    ("sizes", "batch", "packs"),
    [
        ((BATCH, 128, 784), 32, True),
        ((16 * BATCH, 128, 128), 32, True),
        ((16 * BATCH, 128, 128), 1, False),
        ((BATCH, 16, 16), 32, False),
        ((8, 128, 784), 32, False),  # none is free
    ],
)
def test_where_all_that_gain_are_packed_free_sizes_are_the_largest(sizes, batch, packs):
    assert _packs(sizes, KernelChoice(largest={"batch": batch})) is packs
