"""Bytes of plans: nothing twice, no more with fixed sizes, no names that nobody reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_sets import folders
from places import GOLDEN

from minbuild.codegen.library_builder import build_checked
from minbuild.ir import PlanTensor
from minbuild.ir.kernel_choice import KernelChoice
from minbuild.options.build_options import BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import decode_plan, dense_form, encode_plan
from minbuild.toolchain import find_toolchain, host_target
from minbuild.verify.differential import prove_equal, seeded_script

KEY = 4  # bytes of a kernel's key in a plan


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_fixed_sizes_never_make_a_plan_larger(folder: Path) -> None:
    """At 1, where every size of it disappears, and at 8 and 32; also with the kernels that pack, which known sizes may
    be a reason for and which want memory of their own."""
    free = compile_model(folder, {}, {})
    for size in (1, 8, 32) if free.largest else ():
        fixed = compile_model(folder, dict.fromkeys(free.largest, size), {})
        assert len(fixed.plan_bytes) <= len(free.plan_bytes), size


def dense_bytes(model: CompiledModel, form: int, kernel_names: bool) -> int:
    """The bytes of a model's plan in one dense form."""
    plan = encode_plan(model.plan, model.largest, kernel_names=kernel_names, dense=form)
    assert dense_form(plan) in (form, 1)
    return len(plan)


def own_tensors(model: CompiledModel, kernels: set[str]) -> list[PlanTensor]:
    """The tensors that steps of these `kernels` alone name: memory that they want for themselves."""
    steps = [step for routine in model.plan.routines for step in routine.steps]
    named: dict[bool, set[int]] = {True: set(), False: set()}
    for step in steps:
        named[model.plan.kernels[step.kernel].symbol in kernels] |= set(step.args)
    return [model.plan.tensors[i] for i in sorted(named[True] - named[False]) if i < len(model.plan.tensors)]


@pytest.mark.parametrize("packs", [True, False], ids=["packs", "plain"])
@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_fixed_sizes_never_make_a_dense_plan_larger(folder: Path, packs: bool) -> None:
    """In either form, with names of kernels and without. Only known sizes show that packing pays: a plan with kernels
    for it that the free one lacks is faster, and may be larger by the tensors that these want for themselves, and by
    their names where it has names of kernels."""
    options = PlanOptions(kernels=KernelChoice(packs=packs))
    free = compile_model(folder, {}, {}, options=options)
    for size in (1, 8, 32) if free.largest else ():
        fixed = compile_model(folder, dict.fromkeys(free.largest, size), {}, options=options)
        added = {k.symbol for k in fixed.plan.kernels} - {k.symbol for k in free.plan.kernels}
        assert all("_packed" in symbol for symbol in added)
        names = sum(len(f"{symbol}\0") + KEY for symbol in added)
        numbers = sum(len(("at", "shape", "type", *t.shape)) for t in own_tensors(fixed, added))
        for kernel_names in (True, False):
            for form in (1, 2):
                bytes_of = [dense_bytes(model, form, kernel_names) for model in (fixed, free)]
                allowed = numbers * (2 if form == 1 else 1) + (names if kernel_names else 0)
                assert bytes_of[0] <= bytes_of[1] + allowed, (size, form, kernel_names)


def test_equal_tensors_stand_in_a_plan_once() -> None:
    tensors = decode_plan(compile_model(GOLDEN / "conv", {}, {}).plan_bytes)["tensors"].tolist()
    assert len(tensors) == len(set(tensors))


def lists(model: CompiledModel, kernel_names: bool = True) -> list[tuple[object, ...]]:
    """Every step with its arguments and parameters."""
    tables = decode_plan(encode_plan(model.plan, model.largest, kernel_names=kernel_names))
    args, params = tables["args"].tolist(), tables["params"].tolist()
    found: list[tuple[object, ...]] = []
    for (kernel, words, at, *rest), step in zip(
        tables["steps"].tolist(), (s for r in model.plan.routines for s in r.steps), strict=True
    ):
        count = model.plan.kernels[kernel].params
        found.append((kernel, params[words : words + count], args[at : at + len(step.args)], rest))
    return found


def test_lists_that_share_a_place_are_read_as_they_are() -> None:
    model = compile_model(GOLDEN / "conv", {}, {})
    steps = [s for r in model.plan.routines for s in r.steps]
    entries: dict[int, int] = {}  # equal tensors have one
    for step, (kernel, params, args, _) in zip(steps, lists(model), strict=True):
        assert kernel == step.kernel and params == list(step.params)
        assert all(entries.setdefault(a, entry) == entry for a, entry in zip(step.args, args, strict=True))
    tables = decode_plan(model.plan_bytes)
    assert len(tables["args"]) <= sum(len(s.args) for s in steps)
    assert len(tables["params"]) <= 1 + sum(len(p) for p in {s.params for s in steps})


def test_names_of_kernels_go_with_codes() -> None:
    """The plan is smaller, says everything else the same, and trains with the same bits."""
    named = compile_model(GOLDEN / "dense", {}, {})
    model = compile_model(GOLDEN / "dense", {}, {}, options=PlanOptions(kernel_names=False))
    assert len(model.plan_bytes) < len(named.plan_bytes) - 100
    assert lists(named) == lists(named, kernel_names=False)
    with_names, without = decode_plan(named.plan_bytes), decode_plan(model.plan_bytes)
    assert np.array_equal(with_names["kernels"]["key"], without["kernels"]["key"])
    assert b"gemm" in bytes(with_names["names"]) and b"gemm" not in bytes(without["names"])
    options = BuildOptions(error_messages="codes")
    contents = contents_of([model], build_options=options)
    built = build_checked(contents, model.registry, host_target(), find_toolchain(build_options=options))
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    prove_equal(script, model.plan_bytes, built.built.shared, built.built.shared)
