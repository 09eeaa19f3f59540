"""A variant for some processors is proven on such ones only, and elsewhere a line says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from minbuild.codegen.library_builder import LibraryBuilder
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, host_target
from minbuild.verify import processor, prove


@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        ("fpu avx2 fma avx512f avx512dq avx512vl", True),
        ("fpu avx2 fma avx512f avx512vl", False),
        ("", None),
    ],
)
def test_flags_of_the_processor_are_read(
    monkeypatch: pytest.MonkeyPatch, flags: str, runs: bool | None
) -> None:
    def fields(name: str) -> Iterator[str]:
        assert name == "flags"
        return iter([flags] if flags else [])

    monkeypatch.setattr(processor, "_fields", fields)
    assert processor.has_avx512() is runs


@pytest.mark.skipif(not host_target().name.startswith("x86_64"), reason="a variant of x86-64")
@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (True, "By AVX-512, which the full one does without."),
        (False, "This processor does not run its AVX-512 variant."),
        (None, "It is not known whether this processor runs its AVX-512 variant."),
    ],
)
def test_a_variant_that_did_not_run_is_named(
    monkeypatch: pytest.MonkeyPatch, model: CompiledModel, runs: bool | None, said: str
) -> None:
    monkeypatch.setattr(prove, "has_avx512", lambda: runs)
    notes = list[str]()
    contents = replace(contents_of([model]), avx512=True)
    bench = LibraryBuilder(contents, model.registry, find_toolchain(), False, notes.append, notes.append)
    pair = bench.pair(host_target())
    (found,) = prove.prove(bench, model, (pair,), None, notes.append)
    assert found.proven and said in found.text
    told = [note for note in notes if "AVX-512" in note]
    assert told == (
        [] if runs else [f"Proof: {said} Prove it on one that does, or leave it out with --avx512 off."]
    )
