"""What proves a trainer must notice a trainer that is wrong: other bits, a crash, another trajectory."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from commands import GOLDEN
from verified_build import build

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.errors import BadInput, ToolchainFailed, VerificationFailed
from minbuild.frontend.checkpoint import read_checkpoint
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, sizes_in
from minbuild.toolchain import (
    ProgramResult,
    find_emulator,
    find_toolchain,
    host_target,
    parse_target,
)
from minbuild.verify import cross_target as foreign
from minbuild.verify import differential as verify
from minbuild.verify import double_precision, script_runner
from minbuild.verify.cross_target import Baseline
from minbuild.verify.prove import starting_point
from minbuild.verify.script import TestScript, digest_of, read_script, write_script


def test_equal_builds_are_equal(model: CompiledModel, script: TestScript, good: BuiltLibrary) -> None:
    proof = verify.prove_equal(script, model.plan_bytes, good.built.shared, good.built.shared)
    assert "identical bits on seeded batches of 3 and 4" in proof.text and "NaN" not in proof.text
    names = set(proof.results)
    assert {"step 1 gradients/fc1.weight", "final parameters/fc2.bias", "checkpoint"} <= names
    assert any(n.startswith("evaluation 2 after step 3/") for n in names)
    before, after = (proof.results[f"{n}/fc1.weight"] for n in ("step 1 parameters", "final parameters"))
    assert not np.array_equal(before, after)


def test_digests_prove_as_much_without_the_results(
    model: CompiledModel, script: TestScript, good: BuiltLibrary
) -> None:
    given = script, model.plan_bytes, good.built.shared, good.built.shared
    kept, compared = verify.prove_equal(*given), verify.prove_equal(*given, keeps=False)
    assert kept.text == compared.text and not compared.results
    digests = verify._run("", script, good.built.shared, model.plan_bytes, 0, ("step 1 gradients/fc1.bias",))[
        1
    ]
    own = {name: digest_of(array) for name, array in kept.results.items()}
    own.pop("step 1 gradients/fc1.bias")  # what is kept needs no digest
    assert digests == own


def test_batches_keep_their_element_types(script: TestScript, tmp_path: Path) -> None:
    numbers = np.arange(6).reshape(2, 3)
    types = [np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.int64, np.bool_)]
    batches = {"train 0": tuple(numbers.astype(t) for t in types)}
    write_script(tmp_path, replace(script, batches=batches), b"", b"", garbage=0)
    found, _, _ = read_script(tmp_path)
    assert [array.dtype for array in found.batches["train 0"]] == types
    for array, wanted in zip(found.batches["train 0"], batches["train 0"], strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_digest_shows_what_is_not_finite(value: float) -> None:
    numbers = np.zeros((3, 1 << 19), np.float32)
    assert digest_of(numbers).finite
    numbers[2, -1] = value
    assert not digest_of(numbers).finite and digest_of(numbers.view(np.int32)).finite


def test_without_parameters_seeded_ones_are_used(model: CompiledModel) -> None:
    assert starting_point(model) == model.checkpoint
    empty = tuple(replace(p, data=None) for p in model.artifacts.checkpoint.parameters)
    nominal = replace(model.artifacts.checkpoint, parameters=empty, nominal=True)
    seeded = read_checkpoint(
        starting_point(replace(model, artifacts=replace(model.artifacts, checkpoint=nominal)))
    )
    assert [p.name for p in seeded.parameters] == [p.name for p in empty] and not seeded.nominal
    assert all(p.data is not None and p.data.any() for p in seeded.parameters)


def test_memory_nobody_wrote_is_noticed(model: CompiledModel, script: TestScript, good: BuiltLibrary) -> None:
    """A kernel that does nothing leaves garbage, which is another one in each build."""
    row = next(i for i, k in enumerate(model.plan.kernels) if k.function == "gemm")
    lazy = build(model, "switch (row) {", f"if (row == {row}) return Status::kOk;\n  switch (row) {{")
    for ours, theirs in ((lazy, good), (lazy, lazy)):
        messages = []
        for keeps in (True, False):  # elements, or their digests
            with pytest.raises(
                VerificationFailed, match="do not compute the same.*differs in .* elements|not finite"
            ) as raised:
                verify.prove_equal(
                    script, model.plan_bytes, ours.built.shared, theirs.built.shared, keeps=keeps
                )
            messages.append(str(raised.value))
        assert messages[0] == messages[1]


def test_a_crash_is_a_finding(model: CompiledModel, script: TestScript) -> None:
    broken = build(model, "switch (row) {", "__builtin_trap();\n  switch (row) {")
    with pytest.raises(VerificationFailed, match=r"full build: the trainer crashed \(SIG(ILL|TRAP)\)"):
        verify.run_script("full build", script, broken.built.shared, model.plan_bytes, 0)


def test_no_room_for_a_trial(
    model: CompiledModel,
    script: TestScript,
    good: BuiltLibrary,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ToolchainFailed, match="cannot be proven: No such file.*TMPDIR"):
        verify.run_script("trimmed build", script, good.built.shared, model.plan_bytes, 0)


def test_a_refusal_is_a_finding(model: CompiledModel, script: TestScript, good: BuiltLibrary) -> None:
    with pytest.raises(
        VerificationFailed, match="trimmed build: .*failed while it was being proven: bad plan"
    ):
        verify.run_script("trimmed build", script, good.built.shared, model.plan_bytes[:64], 0)
    with pytest.raises(VerificationFailed, match="cannot load"):
        verify.run_script("trimmed build", script, b"no library", model.plan_bytes, 0)


def test_differences() -> None:
    a = {"x": np.float32([1, 2]), "y": np.float32([0.0])}
    assert verify.differences(a, {k: v.copy() for k, v in a.items()}) == []
    assert verify.differences(a, {**a, "y": np.float32([-0.0])}) == ["'y' differs in 1 of 1 elements"]
    assert verify.differences(a, {"x": a["x"]}) == ["'y' is recorded by one build only"]
    assert "float64[2]" in verify.differences(a, {**a, "x": np.float64([1, 2])})[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_equal_bits_of_what_is_no_number_prove_nothing(
    script: TestScript, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """In a library that checks nothing itself."""
    found = {"a": np.float32([1, 2]), "b": np.float32([1, value]), "n": np.int64([1])}
    monkeypatch.setattr(verify, "run_script", lambda *given: found)
    with pytest.raises(verify.NotFinite, match="1 of 3 tensors hold them, from 'b' on.*prove nothing"):
        verify.prove_equal(script, b"", b"", b"")
    found["b"][1] = 0
    assert verify.prove_equal(script, b"", b"", b"").results is found


# ---------------------------------------------------------------------------- other machines


def test_the_runner_gives_the_same_bits(here: Baseline, good: BuiltLibrary) -> None:
    """The program for other machines, here on this one."""
    found = foreign.prove_foreign(here, good, host_target(), find_toolchain())
    assert found.proven and "The whole run gives the same bits" in found.text and found.stack is not None
    assert found.steps == len(here.trace.steps.executions) >= 30 and found.step is None


def test_without_an_emulator_nothing_is_claimed(
    here: Baseline, good: BuiltLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "find_emulator", lambda target: None)
    found = foreign.prove_foreign(here, good, parse_target("aarch64-linux-musl"), find_toolchain())
    assert not found.proven and found.stack is None and found.steps == 0
    assert (
        found.reason
        == "no emulator is installed. Install qemu-aarch64 (package qemu-user on most Linux systems)."
    )
    assert found.text == f"NOT PROVEN: {found.reason}"


def test_an_emulator_without_an_instruction_is_named(
    here: Baseline, good: BuiltLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = parse_target("loongarch64-linux-musl")
    for module in (foreign, script_runner):
        monkeypatch.setattr(module, "find_emulator", lambda target: ["/usr/bin/qemu-loongarch64"])
    monkeypatch.setattr(script_runner, "build_program", lambda *given, **named: b"")
    monkeypatch.setattr(script_runner, "run_program", lambda *given, **named: ProgramResult(-4, b"", ""))
    with pytest.raises(
        VerificationFailed, match="qemu-loongarch64 met an instruction.* --target loongarch64-linux-musl:CPU"
    ):
        foreign.prove_foreign(here, good, target, find_toolchain())


@pytest.mark.parametrize(
    ("name", "calls"),
    [("aarch64-linux-musl", "linux_calls.c"), ("x86_64-windows", "windows_calls.c")],
)
def test_a_trainer_that_needs_more_of_a_c_library_has_one(
    name: str, calls: str, good: BuiltLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kernels of one's own may, of which the runner knows nothing."""
    target, asked = parse_target(name), []

    def linked(sources: Mapping[str, bytes], *given: object, libc: bool = True) -> bytes:
        asked.append((libc, calls in sources))
        if not libc:
            raise ToolchainFailed("undefined symbol: powf")
        return b"program"

    monkeypatch.setattr(script_runner, "build_program", linked)
    assert script_runner._program({}, good, target, find_toolchain()) == b"program"
    assert asked == [(False, True), (True, False)]


def test_the_stack_is_measured(model: CompiledModel, script: TestScript, good: BuiltLibrary) -> None:
    """A kernel that touches some kilobytes more of it is seen."""
    if find_emulator(host_target()) is None:
        pytest.skip("programs for this machine do not run here")
    place = "Status run_kernel(const Call& call, uint32_t row) {"
    deeper = "volatile char room[40000]; for (int i = 0; i < 40000; ++i) room[i] = 1;"
    greedy = build(model, place, f"{place}\n  {deeper}")
    plain, more = (
        foreign.measure_stack(script, model.plan_bytes, built, host_target(), find_toolchain())
        for built in (good, greedy)
    )
    assert plain is not None and more is not None
    sizes, larger = dict(plain.calls), dict(more.calls)
    assert set(sizes) == set(larger) == {
        *("mb_create", "mb_train_step", "mb_eval_step", "mb_optimizer_step", "mb_write_checkpoint")
    }  # fmt: skip
    assert plain.peak == max(sizes.values()) and sizes[plain.call] == plain.peak
    for call in ("mb_train_step", "mb_optimizer_step"):
        assert 40000 <= larger[call] < 42000
    assert abs(larger["mb_create"] - sizes["mb_create"]) < 64


def test_a_whole_run_may_be_off_by_noise_only(here: Baseline) -> None:
    near = here.disturbed(99)
    found = foreign.agreement(near, here, "far")
    assert 0 < found.units < 4 and found.runs == 3
    assert str(found).endswith("on this machine in 3 runs and beside double precision.")
    for wrong in (np.float32(1 + 2**-10), np.float32(np.nan)):
        for name in ("step 1/onnx::loss::2", "step 1 gradients/fc1.weight", "final parameters/fc2.bias"):
            with pytest.raises(VerificationFailed, match=f"far: .*'{name.split('/')[0]}' by"):
                foreign.agreement({**here.expected, name: here.expected[name] * wrong}, here, "far")


def test_double_precision_is_a_measure_of_noise(here: Baseline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor that a run records, within rounding of what the trainer has; above a size it is left out, and the
    text says so."""
    exact = here.double.results
    assert exact is not None and set(here.expected) - set(exact) == {"checkpoint"}
    for name, array in exact.items():
        assert array.dtype == np.float64
        np.testing.assert_allclose(array, here.expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
    rounded = {n: exact.get(n, x).astype(x.dtype) for n, x in here.expected.items()}
    still = replace(
        here, runs=dict.fromkeys(range(1, 16), here.expected)
    )  # nothing moves but double precision
    assert 0 < foreign.agreement(rounded, still, "far").units <= 1.01
    monkeypatch.setattr(double_precision, "MOST_ELEMENTS", 100)
    alone = replace(here, runs=here.runs)
    assert alone.double.results is None
    said = str(foreign.agreement(here.disturbed(99), alone, "far"))
    assert re.search(r"in 3 runs \(double precision is left out: a graph has .* takes 100\)\.$", said)


# ---------------------------------------------------------------------------- batches


def test_indices_stay_in_range() -> None:
    model = compile_model(GOLDEN / "embedding", {}, {})
    limits = index_limits(model.program, model.registry)
    shapes = {p.name: p.shape for p in model.artifacts.checkpoint.parameters}
    assert limits["labels"] == shapes["cls.bias"][0]
    batch = seeded_batch(inputs_of(model.program), limits, {"batch": 500}, 1)
    rows = {n: limits[n] for n in limits if n != "labels"}
    assert rows and set(rows.values()) <= {s[0] for s in shapes.values()}
    for name, limit in limits.items():
        assert batch[name].dtype.kind == "i" and set(np.unique(batch[name])) <= set(range(limit))
    again = seeded_batch(inputs_of(model.program), limits, {"batch": 500}, 1)
    assert all(np.array_equal(batch[n], again[n]) for n in batch)


def test_sizes_are_read_from_arrays(model: CompiledModel) -> None:
    inputs = inputs_of(model.program)
    good = seeded_batch(inputs, {}, {"batch": 5}, 0)
    assert sizes_in(inputs, good, "here") == {"batch": 5}
    with pytest.raises(BadInput, match="here: .*'labels'.*has shape"):
        sizes_in(inputs, {**good, "labels": good["labels"][:4, None]}, "here")
    with pytest.raises(BadInput, match="no values for input"):
        sizes_in(inputs, {"input": good["input"]}, "here")
