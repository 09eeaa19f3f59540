"""Errors as codes: what `minbuild explain` says of them is what a library with messages says itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_sets import EVAL, GOLDEN, TRAIN, Library, load, trainer
from commands import Command, command_fixture  # noqa: F401  the fixture `minbuild`
from shared_library import shared_library

from minbuild.analysis.error_codes import Failure, device_errors, explain, statuses, words
from minbuild.codegen.sources import emit_sources
from minbuild.ops import registry
from minbuild.planning.library_contents import COMPONENTS
from minbuild.training.library import Session, TrainerError, aligned_copy, arena_size

RESIDUAL = GOLDEN / "residual"
OTHER = GOLDEN / "embedding"  # wants kernels that this one lacks


def built(folder, **choices: bool) -> Library:
    contents = replace(trainer(RESIDUAL).contents, components=frozenset(COMPONENTS), **choices)
    path = folder / f"{'-'.join(choices) or 'plain'}.so"
    path.write_bytes(shared_library(emit_sources(contents, registry())))
    return Library(path)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> Library:
    return built(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def coded(tmp_path_factory) -> Library:
    return built(tmp_path_factory.mktemp("coded"), error_messages=False)


def provoked(library: Library, folder) -> Iterator[tuple[str, TrainerError]]:
    """Failures of many kinds, by what was done."""

    def session(
        plan: bytes = trainer(RESIDUAL).data, checkpoint: bytes | None = load(RESIDUAL).checkpoint, **more
    ) -> Session:
        return Session(library, plan, checkpoint, **more)

    def run(graph: int, *inputs: np.ndarray) -> list[np.ndarray]:
        return session().run(graph, inputs)

    images, labels = load(RESIDUAL).batch(0)
    size = arena_size(library, trainer(RESIDUAL).data)
    renamed = load(RESIDUAL).checkpoint.replace(b"stem.weight", b"stem.heavy!")
    assert renamed != load(RESIDUAL).checkpoint
    actions: dict[str, Callable[[], object]] = {
        "plan": lambda: session(trainer(RESIDUAL).data[:40]),
        "symbols": lambda: session(sizes=(1, 2, 3)),
        "kernel": lambda: session(trainer(OTHER).data, None),
        "memory": lambda: session(arena=aligned_copy(bytes(size - 16))),
        "graph": lambda: session().initialize(),
        "input count": lambda: run(TRAIN, images),
        "input": lambda: run(TRAIN, images[:, :1], labels),
        "type": lambda: run(EVAL, images.astype(np.float64), labels),
        "labels": lambda: run(TRAIN, images, labels + 1000),
        "checkpoint": lambda: session().load(load(RESIDUAL).checkpoint[:100]),
        "parameter": lambda: session(checkpoint=renamed),
        "cannot write": lambda: session().save(folder / "no such folder" / "x", True),
        "property": lambda: session().set_property("a", "x" * 5000),
        "buffer": lambda: session().fill(np.zeros(3, np.float32), True),
        "template": lambda: session().export(b"nothing"),
    }
    for what, action in actions.items():
        with pytest.raises(TrainerError) as error:
            action()
        yield what, error.value


def test_explained_codes_are_the_messages(spoken, coded, tmp_path):
    seen = set()
    for (what, said), (_, code) in zip(provoked(spoken, tmp_path), provoked(coded, tmp_path), strict=True):
        text, short = str(said).partition(": ")[2], str(code).partition(": ")[2]
        assert said.status == code.status, what
        assert words(short) == text, what
        assert len(short) < len(text), what
        assert explain(short).startswith(f"{text}. {said.status} {statuses()[said.status][0]}: "), what
        seen.add(short.split()[0])
    assert len(seen) == 13


def bits_of(data: bytes) -> str:
    """The bits of bytes, the lowest of each first."""
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def packed(text: str) -> str:
    """The bits that error_text.cc makes of letters, blanks, commas and colons: five each, the lowest first."""
    others = {" ": 29, ",": 30, ":": 31}
    return "".join(f"{others.get(letter) or ord(letter) - ord('a') + 1:05b}"[::-1] for letter in text)


def test_no_sentence_is_left(tmp_path):
    spoken, coded = (
        built(tmp_path, wide=True, fused_updates=True),
        built(tmp_path, wide=True, fused_updates=True, error_messages=False),
    )  # with all failures
    texts = [failure.text.partition("%")[0] for failure in device_errors()]
    with_words, without = (bits_of(Path(library.handle._name).read_bytes()) for library in (spoken, coded))
    for text in filter(lambda text: len(text) > 6, texts):
        assert packed(text) in with_words and packed(text) not in without
    assert len(without) < len(with_words)


def test_names_may_hold_blanks_and_codes_may_be_cut_off():
    (shape,) = (f for f in device_errors() if f.name == "kInput")
    number = device_errors().index(shape)
    assert words(f"E{number} a name 3 1 7 2") == (
        "input a name 3 1: expected 7 as number 2 of type, rank, dimensions"
    )
    assert words(f"E{number} {'long' * 39}").startswith("input …: expected …")
    assert Failure("k", "MB_IO", "no place").words("") == "no place"


@pytest.mark.parametrize("named", ["3 ", "3"])
def test_a_code_without_the_name_of_a_kernel_has_the_step(named: str) -> None:
    number = next(i for i, each in enumerate(device_errors()) if each.name == "kStepValues")
    assert words(f"E{number} {named}") == "step 3, …: value out of range"


def test_the_command_explains_codes(minbuild: Command):
    number = next(i for i, f in enumerate(device_errors()) if f.name == "kStepValues")
    said = minbuild("explain", f"E{number} 3 Conv")
    assert said.code == 0
    assert said.out.startswith("step 3, Conv: value out of range. 7 MB_BAD_VALUE: ")
    for wrong in ("E99", "E99 3 Conv", "E", "Efoo"):
        said = minbuild("explain", wrong)
        assert said.code == 2 and ("E0" in said.err), wrong
