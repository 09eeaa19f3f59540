"""What proves a trainer must notice a trainer that is wrong: other bits, a crash, another trajectory."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import FREE, GOLDEN

from minbuild import assets
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.codegen.sources import emit_sources
from minbuild.errors import BadInput, ToolchainFailed, VerificationFailed
from minbuild.formats.detect import read_binary
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.planning.compile import CompiledModel, compile_model
from minbuild.planning.library_contents import LibraryContents
from minbuild.reference.synthetic_data import index_limits, inputs_of, seeded_batch, sizes_in
from minbuild.toolchain import (
    ProgramResult,
    Target,
    build_library,
    find_emulator,
    find_toolchain,
    host_target,
    parse_target,
)
from minbuild.verify import cross_target as foreign
from minbuild.verify import differential as verify
from minbuild.verify import double_precision, script_runner
from minbuild.verify import runner_protocol as runner
from minbuild.verify.cross_target import Baseline
from minbuild.verify.kinks import KinkFinder
from minbuild.verify.prove import starting_point
from minbuild.verify.script import TestScript
from minbuild.verify.steps import first_difference, follow_steps, look_at_steps, measure_steps, step_trial
from minbuild.verify.tolerance import Deviation, describe, deviations
from minbuild.verify.trajectory import read_reference, reference_trial
from minbuild.verify.trajectory_check import follow


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return compile_model(FREE, {}, {})


@pytest.fixture(scope="module")
def trial(model: CompiledModel) -> TestScript:
    return verify.seeded_trial(model.program, model.plan, model.checkpoint, model.registry)


def build(
    model: CompiledModel,
    old: str = "",
    new: str = "",
    path: str = "src/kernel_table.cc",
    target: Target | None = None,
    session: tuple[str, str] = ("", ""),
) -> BuiltLibrary:
    """The trimmed library, with `old` replaced in one source, and another text in session.cc."""
    plan = model.plan
    sources = dict(
        emit_sources(LibraryContents(plan.kernels, frozenset(plan.features), True), model.registry)
    )
    text = sources[path].decode()
    assert old in text
    sources[path] = text.replace(old, new).encode()
    text = sources["src/runtime/session.cc"].decode()
    assert session[0] in text
    sources["src/runtime/session.cc"] = text.replace(*session).encode()
    target = target or host_target()
    built = build_library(sources, target, find_toolchain())
    binary = read_binary("library", str(target), built.shared, built.twin)
    return BuiltLibrary(built, binary, plan.kernels, sources)


@pytest.fixture(scope="module")
def good(model: CompiledModel) -> BuiltLibrary:
    return build(model)


@pytest.fixture(scope="module")
def here(model: CompiledModel, trial: TestScript, good: BuiltLibrary) -> Baseline:
    """What this machine computes."""
    if find_emulator(host_target()) is None:
        pytest.skip("programs for this machine do not run here")
    expected = verify.run_trial("", trial, good.built.shared, model.plan_bytes, 1)
    steps = step_trial(model, model.checkpoint)
    trace = measure_steps(steps, model, good, host_target(), find_toolchain())
    return Baseline(model, good, host_target(), find_toolchain(), trace, trial, expected)


def test_equal_builds_are_equal(model: CompiledModel, trial: TestScript, good: BuiltLibrary) -> None:
    proof = verify.prove_equal(trial, model.plan_bytes, good.built.shared, good.built.shared)
    assert "identical bits on seeded batches of 3 and 4" in proof.text and "NaN" not in proof.text
    names = set(proof.results)
    assert {"step 1 gradients/fc1.weight", "final parameters/fc2.bias", "checkpoint"} <= names
    assert any(n.startswith("evaluation 2 after step 3/") for n in names)
    before, after = (proof.results[f"{n}/fc1.weight"] for n in ("step 1 parameters", "final parameters"))
    assert not np.array_equal(before, after)


def test_without_parameters_seeded_ones_are_used(model: CompiledModel) -> None:
    assert starting_point(model) == model.checkpoint
    empty = tuple(replace(p, data=None) for p in model.artifacts.checkpoint.parameters)
    nominal = replace(model.artifacts.checkpoint, parameters=empty, nominal=True)
    seeded = read_checkpoint(
        starting_point(replace(model, artifacts=replace(model.artifacts, checkpoint=nominal)))
    )
    assert [p.name for p in seeded.parameters] == [p.name for p in empty] and not seeded.nominal
    assert all(p.data is not None and p.data.any() for p in seeded.parameters)


def test_memory_nobody_wrote_is_noticed(model: CompiledModel, trial: TestScript, good: BuiltLibrary) -> None:
    """A kernel that does nothing leaves garbage, which is another one in each build."""
    row = next(i for i, k in enumerate(model.plan.kernels) if k.function == "gemm")
    lazy = build(model, "switch (row) {", f"if (row == {row}) return Status::kOk;\n  switch (row) {{")
    for ours, theirs in ((lazy, good), (lazy, lazy)):
        with pytest.raises(
            VerificationFailed, match="do not compute the same.*differs in .* elements|not finite"
        ):
            verify.prove_equal(trial, model.plan_bytes, ours.built.shared, theirs.built.shared)


def test_a_crash_is_a_finding(model: CompiledModel, trial: TestScript) -> None:
    broken = build(model, "switch (row) {", "__builtin_trap();\n  switch (row) {")
    with pytest.raises(VerificationFailed, match=r"full build: the trainer crashed \(SIG(ILL|TRAP)\)"):
        verify.run_trial("full build", trial, broken.built.shared, model.plan_bytes, 0)


def test_no_room_for_a_trial(
    model: CompiledModel,
    trial: TestScript,
    good: BuiltLibrary,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ToolchainFailed, match="cannot be proven: No such file.*TMPDIR"):
        verify.run_trial("trimmed build", trial, good.built.shared, model.plan_bytes, 0)


def test_a_refusal_is_a_finding(model: CompiledModel, trial: TestScript, good: BuiltLibrary) -> None:
    with pytest.raises(
        VerificationFailed, match="trimmed build: .*failed while it was being proven: bad plan"
    ):
        verify.run_trial("trimmed build", trial, good.built.shared, model.plan_bytes[:64], 0)
    with pytest.raises(VerificationFailed, match="cannot load"):
        verify.run_trial("trimmed build", trial, b"no library", model.plan_bytes, 0)


def test_differences() -> None:
    a = {"x": np.float32([1, 2]), "y": np.float32([0.0])}
    assert verify.differences(a, {k: v.copy() for k, v in a.items()}) == []
    assert verify.differences(a, {**a, "y": np.float32([-0.0])}) == ["'y' differs in 1 of 1 elements"]
    assert verify.differences(a, {"x": a["x"]}) == ["'y' is recorded by one build only"]
    assert "float64[2]" in verify.differences(a, {**a, "x": np.float64([1, 2])})[0]


# ---------------------------------------------------------------------------- other machines


def test_the_runner_gives_the_same_bits(here: Baseline, good: BuiltLibrary) -> None:
    """The program for other machines, here on this one."""
    found = foreign.prove_foreign(here, good, host_target(), find_toolchain())
    assert found.proven and "The whole run gives the same bits" in found.text and found.stack is not None
    assert found.steps == len(here.trace.trial.executions) >= 30 and found.step is None


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
    monkeypatch.setattr(script_runner, "build_program", lambda *given: b"")
    monkeypatch.setattr(script_runner, "run_program", lambda *given, **named: ProgramResult(-4, b"", ""))
    with pytest.raises(
        VerificationFailed, match="qemu-loongarch64 met an instruction.* --target loongarch64-linux-musl:CPU"
    ):
        foreign.prove_foreign(here, good, target, find_toolchain())


def test_the_stack_is_measured(model: CompiledModel, trial: TestScript, good: BuiltLibrary) -> None:
    """A kernel that touches some kilobytes more of it is seen."""
    if find_emulator(host_target()) is None:
        pytest.skip("programs for this machine do not run here")
    place = "Status run_kernel(uint32_t row, const Call& call) {"
    deeper = "volatile char room[40000]; for (int i = 0; i < 40000; ++i) room[i] = 1;"
    greedy = build(model, place, f"{place}\n  {deeper}")
    plain, more = (
        foreign.measure_stack(trial, model.plan_bytes, built, host_target(), find_toolchain())
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


# ---------------------------------------------------------------------------- step by step

RUN = "Status run_kernel(uint32_t row, const Call& call) {"


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
        f"{right.removesuffix(' {')};\n{RUN}\n  Status status = run_kernel_right(row, call);\n"
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


def test_the_first_step_that_differs_is_named(
    model: CompiledModel, here: Baseline, good: BuiltLibrary
) -> None:
    """Between two builds for one machine bits count."""
    given = here.trace.trial, model
    where = host_target(), find_toolchain()
    assert look_at_steps(*given, good, *where) == len(here.trace.trial.executions)
    assert first_difference(*given, good, good, *where) == ""
    row = next(i for i, k in enumerate(model.plan.kernels) if k.function == "relu")
    right = RUN.replace("run_kernel", "run_kernel_right")
    code = f"if (row == {row}) call[0].as<int>()[0] ^= 1;"
    other = build(
        model,
        RUN,
        f"{right.removesuffix(' {')};\n{RUN}\n  Status status = run_kernel_right(row, call);\n  {code}\n"
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
    steps = step_trial(model, model.checkpoint)
    trace = measure_steps(steps, model, build(model), host_target(), find_toolchain())
    old = build(
        model,
        "fixed = align16(fixed);",
        "fixed = align16(fixed) + 8;",
        "src/runtime/session.cc",
        target,
        session=("| fixed) & 15", ") & 15"),  # which refuses such an arena today
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


# ---------------------------------------------------------------------------- reference


@pytest.fixture(scope="module")
def replayed(model: CompiledModel, good: BuiltLibrary) -> dict[str, np.ndarray]:
    reference = read_reference(FREE / "reference.npz")
    trial = reference_trial(reference, model.program, model.checkpoint)
    return dict(verify.run_trial("", trial, good.built.shared, model.plan_bytes, 0xFF))


def test_the_recorded_trajectory_is_followed(replayed: dict[str, np.ndarray]) -> None:
    found = deviations(read_reference(FREE / "reference.npz"), replayed)
    assert {d.what for d in found} == {
        "loss",
        "resume loss",
        "step-1 gradients",
        "step-1 parameters",
        "resume-step gradients",
        "resume-step parameters",
        "eval before",
        "eval after",
    }
    assert max(d.noise for d in found) < 2, describe(found)


@pytest.mark.parametrize(
    "what,name",
    [
        ("step-1 gradients", "grad_step1/fc1.weight"),
        ("step-1 parameters", "param_step1/fc2.bias"),
        ("resume-step gradients", "resume1_grad/fc2.weight"),
        ("resume-step parameters", "resume1_param/fc1.bias"),
        ("loss", "loss 3/onnx::loss::2"),
        ("eval before", "eval_before/onnx::loss::2"),
    ],
)
def test_every_quantity_counts(replayed: dict[str, np.ndarray], what: str, name: str) -> None:
    reference = read_reference(FREE / "reference.npz")
    wrong = {**replayed, name: replayed[name] + np.float32(0.1) * np.abs(replayed[name]).max()}
    beyond = [d.what for d in deviations(reference, wrong) if not d.noise <= d.limit]
    assert beyond == [what] or (what.endswith("gradients") and what in beyond)
    nothing = {**replayed, name: np.full_like(replayed[name], np.nan)}
    assert what in [d.what for d in deviations(reference, nothing) if not d.noise <= d.limit]


def test_no_deviation_passes_for_a_kink(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    """What lies before a ReLU is off by little and nothing behind it: no kink is there to explain it."""
    reference = read_reference(FREE / "reference.npz")
    name = "grad_step1/fc1.weight"
    checkpoint = read_checkpoint(model.checkpoint)
    batch = reference_trial(reference, model.program, model.checkpoint).batches["train 0"]
    finder = {"grad_step1": KinkFinder(model.artifacts, model.registry, checkpoint, batch)}
    for wrong in (replayed[name] * np.float32(1.001), replayed[name] + np.float32(1e-6)):
        found = deviations(reference, {**replayed, name: wrong}, finder)
        deviation = next(d for d in found if d.what == "step-1 gradients")
        assert not deviation.kinks and not deviation.noise <= deviation.limit


def test_a_kink_is_shown(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    """A value that rounding puts on the other side of a ReLU's edge: gradients differ by far more than noise, and
    the element is named."""
    reference = read_reference(FREE / "reference.npz")
    checkpoint = read_checkpoint(model.checkpoint)
    batch = reference_trial(reference, model.program, model.checkpoint).batches["train 0"]
    # The bias puts one element of the first layer a hair above 0.
    weights = {p.name: np.asarray(p.data, np.float64) for p in checkpoint.parameters}
    x = batch[0].astype(np.float64).reshape(len(batch[0]), -1)
    scores = x @ weights["fc1.weight"].T + weights["fc1.bias"]
    row, column = np.unravel_index(np.abs(scores).argmin(), scores.shape)
    bias = weights["fc1.bias"].copy()
    bias[column] -= scores[row, column] - 1e-8
    parameters = tuple(
        replace(p, data=bias.astype(np.float32)) if p.name == "fc1.bias" else p for p in checkpoint.parameters
    )
    start = replace(checkpoint, parameters=parameters)
    finder = KinkFinder(model.artifacts, model.registry, start, batch)
    kink = finder.run(()).near[0]
    ours, theirs = (finder.run(flipped).gradients for flipped in ((), (kink,)))
    arrays = {**reference.arrays} | {f"grad_step1/{n}": g.astype(np.float32) for n, g in theirs.items()}
    results = {**replayed} | {f"grad_step1/{n}": g.astype(np.float32) for n, g in ours.items()}
    recording = replace(reference, arrays=arrays)

    def judged(finders: dict[str, KinkFinder]) -> Deviation:
        found = deviations(recording, results, finders)
        return next(d for d in found if d.what == "step-1 gradients")

    assert judged({}).noise > 100
    shown = judged({"grad_step1": finder})
    assert shown.noise <= shown.limit and [(k.value, k.element) for k in shown.kinks] == [
        (kink.value, kink.element)
    ]
    assert kink.element == row * scores.shape[1] + column and abs(kink.distance) < 1e-6
    assert f"element {kink.element} of '{kink.value}', input of node" in describe([shown])
    # Explained is only what the kink does.
    results["grad_step1/fc2.bias"] = results["grad_step1/fc2.bias"] * np.float32(1.001)
    assert not judged({"grad_step1": finder}).noise <= shown.limit


def test_random_numbers_of_others_cannot_be_followed(model: CompiledModel, good: BuiltLibrary) -> None:
    said: list[str] = []
    train = next(p for p in model.program.procedures if p.name == "train")
    calls = (*train.calls, replace(train.calls[0], op="minbuild:RandomMask", node="drop"))
    program = replace(
        model.program,
        procedures=tuple(replace(p, calls=calls) if p is train else p for p in model.program.procedures),
    )
    with pytest.raises(
        BadInput, match=r"draws random numbers while it trains \(node 'drop'\).*eval before"
    ) as refused:
        follow(FREE / "reference.npz", replace(model, program=program), good, said.append)
    assert "report" not in str(refused.value) and said


def test_nan_proves_nothing(model: CompiledModel, good: BuiltLibrary) -> None:
    checkpoint = read_checkpoint(model.checkpoint)
    parameters = tuple(
        replace(p, data=np.full(p.shape, np.nan, np.float32)) if p.name == "fc1.bias" else p
        for p in checkpoint.parameters
    )
    start = write_checkpoint(replace(checkpoint, parameters=parameters))
    trial = verify.seeded_trial(model.program, model.plan, start, model.registry)
    with pytest.raises(VerificationFailed, match="computes NaN or infinite values: .*prove nothing"):
        verify.prove_equal(trial, model.plan_bytes, good.built.shared, good.built.shared)


def test_recordings_that_are_none(tmp_path: Path, model: CompiledModel) -> None:
    path = tmp_path / "r.npz"
    with pytest.raises(BadInput, match="no such file"):
        read_reference(path)
    path.write_bytes(b"PK\3\4 and more")
    with pytest.raises(BadInput, match="cannot be read"):
        read_reference(path)
    np.savez(path, loss=np.zeros(3))
    with pytest.raises(BadInput, match="holds no 'in/"):
        read_reference(path)
    np.savez(path, **{"in/x": np.zeros((2, 3))})
    with pytest.raises(BadInput, match="holds no 'loss'"):
        read_reference(path)
    np.savez(path, **{"loss": np.zeros(2), "in/input": np.zeros((2, 4, 99), np.float32)})
    with pytest.raises(BadInput, match="belongs to another model|the model takes"):
        reference_trial(read_reference(path), model.program, model.checkpoint)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(BadInput, match="meta.json: not readable"):
        read_reference(path)


def test_a_recording_without_meta(model: CompiledModel, replayed: dict[str, np.ndarray]) -> None:
    reference = replace(read_reference(FREE / "reference.npz"), noise={})
    assert max(d.noise for d in deviations(reference, replayed)) < 4
