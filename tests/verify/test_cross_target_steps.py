"""Another machine's steps, one by one: the first that differs is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from verified_build import build

from minbuild import assets
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import VerificationFailed
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import (
    find_emulator,
    find_toolchain,
    host_target,
    parse_target,
)
from minbuild.verify import runner_protocol as runner
from minbuild.verify.cross_target import Baseline
from minbuild.verify.script_runner import perform
from minbuild.verify.step_script import step_script
from minbuild.verify.steps import first_difference, follow_steps, look_at_steps, measure_steps

RUN = "Status run_kernel(const Call& call, uint32_t row) {"
# Machines whose programs use system calls alone.
ALONE = ("x86_64-linux-musl", "aarch64-linux-musl", "arm-linux-musleabihf", "riscv64-linux-musl")


@pytest.mark.parametrize(
    "function,code",
    [
        ("gemm", "call[0].as<float>()[call[0].count - 1] *= 1.0001f;"),
        ("gemm", "call[0].as<float>()[0] += 1e-4f * call[0].as<float>()[0];"),
        ("relu", "call[0].as<float>()[3] += 1e-5f;"),
        ("softmax_cross_entropy", "call[0].as<float>()[0] *= 1.00001f;"),
        ("adamw", "call[0].as<float>()[1] *= 1.00001f;"),
    ],
)
def test_a_wrong_step_is_named(model: CompiledModel, here: Baseline, function: str, code: str) -> None:
    """One element that is off by little, which a whole run would forgive."""
    row, kernel = next((i, k) for i, k in enumerate(model.plan.kernels) if k.function == function)
    right = RUN.replace("run_kernel", "run_kernel_right")
    new = (
        f"{right.removesuffix(' {')};\n{RUN}\n  Status status = run_kernel_right(call, row);\n"
        f"  if (row == {row}) {{ {code} }}\n  return status;\n}}\n{right}"
    )
    wrong = build(model, RUN, new)
    named = rf"step \d+ of (train|eval|optimize) \({re.escape(kernel.symbol)} of"
    with pytest.raises(VerificationFailed, match=named):
        follow_steps(here.trace, model, wrong, host_target(), find_toolchain())


def test_a_step_that_writes_elsewhere_is_named(model: CompiledModel, here: Baseline) -> None:
    for at, what in (
        ("call[0].data + call[0].count * 4", "memory"),
        ("call[1].data", "memory|input|checkpoint"),
    ):
        wrong = build(model, RUN, f"{RUN}\n  *const_cast<char*>({at}) ^= 1;")
        with pytest.raises(
            VerificationFailed, match=f"step .* changes memory that is neither .* of .*({what})"
        ):
            follow_steps(here.trace, model, wrong, host_target(), find_toolchain())
        with pytest.raises(
            VerificationFailed, match=f"step .* changes memory that is neither .* of .*({what})"
        ):
            look_at_steps(here.trace.steps, model, wrong, host_target(), find_toolchain())


@pytest.mark.skipif(os.name == "nt", reason="pages are protected on POSIX systems")
@pytest.mark.parametrize("name", [str(host_target()), *ALONE])
def test_a_write_that_changes_nothing_is_found_by_the_protection_of_pages(
    name: str, model: CompiledModel, here: Baseline
) -> None:
    target = parse_target(name)
    if find_emulator(target) is None:
        pytest.skip(f"{name} does not run here")
    parameter = "volatile char* p = const_cast<char*>(call[1].data); *p = *p;"
    row = next(i for i, k in enumerate(model.plan.kernels) if k.function == "gemm")
    wrong = build(model, RUN, f"{RUN}\n  if (row == {row}) {{ {parameter} }}", target=target)
    with pytest.raises(VerificationFailed, match="changes memory that is neither"):
        look_at_steps(here.trace.steps, model, wrong, target, find_toolchain())


@pytest.mark.parametrize("name", ALONE)
def test_programs_of_other_machines_need_no_c_library(
    name: str, model: CompiledModel, here: Baseline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To build one takes longer than all the rest."""
    target = parse_target(name)
    if find_emulator(target) is None:
        pytest.skip(f"{name} does not run here")
    library = build(model, target=target)
    monkeypatch.setenv("MINBUILD_CACHE", str(tmp_path))
    count, _ = follow_steps(here.trace, model, library, target, find_toolchain())
    assert count == len(here.trace.steps.executions)
    assert perform(here.script, model.plan_bytes, library, target, find_toolchain())
    kept = {path.name for path in tmp_path.rglob("*")}
    assert len(kept) > 2 and not {"libc.a", "crt1.o"} & kept


def test_the_first_step_that_differs_is_named(
    model: CompiledModel, here: Baseline, good: BuiltLibrary
) -> None:
    """Between two builds for one machine bits count."""
    given = here.trace.steps, model
    where = host_target(), find_toolchain()
    assert look_at_steps(*given, good, *where) == len(here.trace.steps.executions)
    assert first_difference(*given, good, good, *where) == ""
    row = next(i for i, k in enumerate(model.plan.kernels) if k.function == "relu")
    right = RUN.replace("run_kernel", "run_kernel_right")
    code = f"if (row == {row}) call[0].as<int>()[0] ^= 1;"
    other = build(
        model,
        RUN,
        f"{right.removesuffix(' {')};\n{RUN}\n  Status status = run_kernel_right(call, row);\n  {code}\n"
        f"  return status;\n}}\n{right}",
    )
    said = first_difference(*given, other, good, *where)
    assert re.match(r"step 1 of eval \(relu<float> of node '.*element 0 is", said), said


def test_scratch_that_overlaps_a_neighbour_is_named() -> None:
    """What computed wrong gradients on every 32-bit target: an arena that begins 8 modulo 16."""
    target = parse_target("armv7-linux-musleabihf")
    if None in (find_emulator(target), find_emulator(host_target())):
        pytest.skip("no qemu-arm here")
    model = compile_model(assets.root("templates").parent / "artifacts", {}, {})
    steps = step_script(model, model.checkpoint)
    trace = measure_steps(steps, model, build(model), host_target(), find_toolchain())
    old = build(
        model,
        "fixed = align_region(align16(fixed));",
        "fixed = align_region(align16(fixed)) + 8;",
        "src/runtime/session.cc",
        target,
        session=("| fixed) & (kAlignment", ") & (kAlignment"),  # which refuses such an arena today
    )
    with pytest.raises(
        VerificationFailed, match=r"step \d+ of \w+ \(.*of node '.*changes memory that is neither"
    ):
        follow_steps(trace, model, old, target, find_toolchain())
    count, worst = follow_steps(trace, model, build(model, target=target), target, find_toolchain())
    assert count >= 30 and worst is not None and worst.units < 1


def test_answers_that_are_none() -> None:
    like = {"a": np.zeros(2, np.float32)}
    for said in (b"", b"\1\0", b"\x08\0\0\0half", b"\x04\0\0\0four"):
        with pytest.raises(VerificationFailed, match="the runner"):
            runner.decode(said, like)


def test_the_runner_is_plain_c() -> None:
    text = (assets.root("templates") / "verify" / "runner.c").read_text()
    assert "//" not in text.replace("://", "")
