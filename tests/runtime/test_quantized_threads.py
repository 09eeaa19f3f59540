"""Threads that share products and convolutions with weights in 8 and 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import TRAIN, Trainer, load, persistent, trainer
from quantized_nets import LORA, artifact_set, dense

from minbuild.training.library import Session


def trained(folder: Path, built: Trainer, **options: object) -> bytes:
    """What persists after steps of many samples and of few."""
    case = load(folder)
    trains = Session(built.library, built.data, case.checkpoint, **options)  # type: ignore[arg-type]
    for batch in (case.batch(0), case.samples(3), case.samples(1)):
        trains.run(TRAIN, batch)
        trains.optimizer_step()
        trains.lazy_reset_grad()
    found = persistent(trains, built)
    trains.close()
    return found


@pytest.mark.parametrize(
    "name, kernel",
    [
        ("int8 packed products", "dequantize_product"),
        ("packed convolution", "conv_dequantize_packed"),
        ("uint16 packed products", "dequantize_product"),
        ("packed int16 convolution", "conv_dequantize_packed"),
    ],
)
def test_any_number_of_threads_computes_the_same_bits(name: str, kernel: str, tmp_path: Path) -> None:
    folder = artifact_set(tmp_path, name)
    alone, built = trainer(folder), trainer(folder, threads=4)
    assert kernel in {k.function for k in built.contents.kernels}
    expected = trained(folder, alone)
    assert [n for n in (0, 1, 2, 3, 4) if trained(folder, built, threads=n) != expected] == []
    members = []

    def counted(task: Callable[[int], None], count: int) -> None:
        members.append(count)
        for index in reversed(range(count)):
            task(index)

    assert trained(folder, built, threads=3, parallel=counted) == expected
    assert len(members) >= 2 and set(members) <= {2, 3}


def test_threads_that_have_no_room_for_a_column_each_leave_it_to_fewer(tmp_path: Path) -> None:
    """Dot products of 16,384 elements, in a library of eight threads for a plan with memory for one, as where another
    model asked for them. The product of one sample divides memory that the one of all fills."""
    models = {"deep": (lambda f: dense(f, "int4 rows", (8, 16384, 160, 4)), LORA)}
    folder = artifact_set(tmp_path, "deep", models=models)
    alone, built = trainer(folder), trainer(folder, threads=8)
    expected = trained(folder, alone)
    assert trained(folder, replace(built, data=alone.data), threads=8) == expected
    assert trained(folder, built, threads=8) == expected
