"""Verification of the libraries of a model: on this machine, against a recorded trajectory, and
elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull
from minbuild.errors import BadInput
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir.mapped import FileBytes
from minbuild.ir.size_report import Stack, Verification
from minbuild.options.graph_selection import select_graphs
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.size_limits import MOST_SAVED, saved_bytes, state_bytes
from minbuild.toolchain import Target, Toolchain, find_emulator, find_toolchain, host_target, why_not_run
from minbuild.verify.cross_target import Baseline, measure_stack, not_proven, prove_foreign
from minbuild.verify.differential import (
    LARGE_STATE,
    PACES,
    EquivalenceResult,
    NotEqual,
    NotFinite,
    Pace,
    prove_equal,
    seeded_script,
)
from minbuild.verify.processor import has_avx512
from minbuild.verify.script import TestScript
from minbuild.verify.step_script import step_script
from minbuild.verify.steps import first_difference, look_at_steps, measure_steps
from minbuild.verify.trajectory_check import follow

# Sentences on the AVX-512 variant of a trimmed library in its proof, by has_avx512().
_AVX512 = {
    True: " By AVX-512, which the full one does without.",
    False: " This processor does not run its AVX-512 variant.",
    None: " It is not known whether this processor runs its AVX-512 variant.",
}


def prove_all(
    bench: LibraryBuilder,
    models: Mapping[str, CompiledModel],
    pairs: Sequence[TrimmedAndFull],
    recording: Path | None,
    note: Callable[[str], None],
) -> tuple[Verification, ...]:
    """One verification per target, of all `models`, by their names in the package.

    `bench` builds what is still missing, `pairs` are the trimmed and full libraries of each target, `recording` is the
    folder of a recorded trajectory, which needs a single model, and `note` receives lines for the user. Raises BadInput
    and VerificationFailed."""
    if len(models) == 1:
        return prove(bench, next(iter(models.values())), pairs, recording, note)
    if recording is not None:
        raise BadInput(
            f"--reference {recording}: is of one model, and there are {len(models)}. Reduce it by itself."
        )
    found = {
        name: prove(bench, model, pairs=pairs, recording=None, note=note, name=name)
        for name, model in models.items()
    }
    each = [{name: proofs[index] for name, proofs in found.items()} for index in range(len(pairs))]
    return tuple(_of_several(proofs) for proofs in each)


def _of_several(proofs: Mapping[str, Verification]) -> Verification:
    """The verdict on one library that serves several models: the least that is of any."""
    reasons = dict.fromkeys(proof.reason for proof in proofs.values() if not proof.proven)
    steps = [proof.step for proof in proofs.values() if proof.step is not None]
    return Verification(
        " ".join(f"{name}: {proof.text}" for name, proof in proofs.items()),
        stack=_together([proof.stack for proof in proofs.values()]),
        proven=not reasons,
        reason=" ".join(reasons),
        steps=sum(proof.steps for proof in proofs.values()),
        step=max(steps, key=lambda step: step.units, default=None),
    )


def _together(stacks: Sequence[Stack | None]) -> Stack | None:
    """The most that each call takes with any of several models; None where one of them was not measured."""
    known = [stack for stack in stacks if stack is not None]
    if len(known) < len(stacks):
        return None
    calls = dict.fromkeys(call for stack in known for call, _ in stack.calls)
    return Stack(tuple((call, max(dict(stack.calls).get(call, 0) for stack in known)) for call in calls))


def prove(
    bench: LibraryBuilder,
    model: CompiledModel,
    pairs: Sequence[TrimmedAndFull],
    recording: Path | None,
    note: Callable[[str], None],
    name: str = "the trainer",
) -> tuple[Verification, ...]:
    """One verification of `model` per pair of `pairs`. Libraries of this machine run as they are; results of other
    targets are compared with theirs, and `bench` builds them where they were not requested. `recording` is a reference
    trajectory; `note` receives the distance of each quantity from it; `name` stands for the model in messages. Raises
    VerificationFailed."""
    try:
        host = host_target()
    except BadInput as error:
        return tuple(not_proven(str(error)) for _ in pairs)
    here = [p for p in pairs if p.target.name == host.name] or [of_this_machine(bench, host)]
    start = starting_point(model)
    compact = model.compact_checkpoint if start is model.checkpoint else b""
    bench.stage(f"Proving {name} for {here[0].target}")
    if (size := state_bytes(model.plan)) >= LARGE_STATE:
        note(
            f"Proof: weights, gradients and optimizer state take {size:,} bytes. From {LARGE_STATE:,} on, whole "
            "runs take two steps of the smallest batches; besides, each step of the plan is checked by itself."
        )
    if bench.contents.checkpoint_writing and saved_bytes(model.plan) > MOST_SAVED:
        note(
            "Proof: saving is no part of it, as parameters and optimizer state are more than a checkpoint holds."
        )
    toolchain = bench.toolchain if here[0] in pairs else default_toolchain(bench)
    own = {pair.target for pair in here}
    run_elsewhere = [p for p in pairs if p.target not in own and find_emulator(p.target) is not None]
    try:
        script, pace, first = _finite(
            model, start, here[0], bench.contents.checkpoint_writing, compact, keeps=bool(run_elsewhere)
        )
    except NotEqual as error:
        if model.separate or model.direct_plan:  # of other steps
            raise
        steps = step_script(model, start)
        which = first_difference(
            steps,
            model,
            ours=here[0].trimmed,
            theirs=here[0].full,
            target=here[0].target,
            toolchain=toolchain,
        )
        raise NotEqual(f"{error}{which and ' The first step that differs: '}{which}") from error
    proofs = {here[0].target: first}
    for pair in here[1:]:
        bench.stage(f"Proving {name} for {pair.target}")
        proofs[pair.target] = prove_equal(
            *(script, model.plan_bytes, pair.trimmed.built.shared, pair.full.built.shared),
            compiled=pair.trimmed.compiled,
            compact=compact,
            separate_plan=model.separate_plan,
            direct_plan=model.direct_plan,
            keeps=False,
        )
    steps = step_script(model, compact or start, pace)
    if run_elsewhere:
        trace = measure_steps(steps, model, here[0].trimmed, here[0].target, toolchain)
        baseline = Baseline(
            model,
            library=here[0].trimmed,
            target=here[0].target,
            toolchain=toolchain,
            trace=trace,
            script=script,
            expected=first.results,
        )
    avx512 = ""
    if bench.contents.avx512 and host.name.startswith("x86_64"):
        runs = has_avx512()
        avx512 = _AVX512[runs]
        if not runs:
            note(f"Proof:{avx512} Prove it on one that does, or leave it out with --avx512 off.")
    worst = None
    if recording is not None:
        bench.stage(f"Comparing with {recording}")
        worst = follow(recording, model, here[0].trimmed, note)
    found = []
    for pair in pairs:
        if pair.target in proofs:
            count = look_at_steps(steps, model, pair.trimmed, pair.target, bench.toolchain)
            text = proofs[pair.target].text + f" None of {count} steps changes memory that is not its own."
            text += " It follows the recorded trajectory." if recording else ""
            text += " The full one has kernels of each operator's own." if model.direct_plan else ""
            text += avx512
            run = script, model.plan_bytes, pair.trimmed, pair.target, bench.toolchain
            found.append(Verification(text, worst, measure_stack(*run), steps=count))
            continue
        if pair not in run_elsewhere:
            found.append(not_proven(why_not_run(pair.target)))
            continue
        bench.stage(f"Proving {name} for {pair.target}")
        found.append(prove_foreign(baseline, pair.trimmed, pair.target, bench.toolchain))
    return tuple(found)


def _finite(
    model: CompiledModel,
    start: FileBytes,
    pair: TrimmedAndFull,
    saves: bool,
    compact: FileBytes,
    *,
    keeps: bool,
) -> tuple[TestScript, Pace, EquivalenceResult]:
    """A script that stays within finite numbers, and what it proves, where the trimmed library starts from `compact`,
    if that is not empty, and the full one from `start`; `keeps` asks for its results. Raises VerificationFailed
    without any."""
    for pace in PACES:
        script = seeded_script(
            model.program, model.plan, checkpoint=start, registry=model.registry, saves=saves, pace=pace
        )
        try:
            proof = prove_equal(
                *(script, model.plan_bytes, pair.trimmed.built.shared, pair.full.built.shared),
                compiled=pair.trimmed.compiled,
                compact=compact,
                separate_plan=model.separate_plan,
                direct_plan=model.direct_plan,
                keeps=keeps,
            )
        except NotFinite:
            if pace == PACES[-1]:
                raise
            continue
        return script, pace, proof
    raise AssertionError("there are paces")


def of_this_machine(bench: LibraryBuilder, host: Target) -> TrimmedAndFull:
    """Both libraries of the machine we run on, by the default toolchain where the chosen one builds for others
    only."""
    try:
        if not bench.cmake:  # a toolchain file is for one machine, and says too late for which
            return bench.pair(host)
    except BadInput:
        pass
    return replace(bench, toolchain=default_toolchain(bench), cmake=False).pair(host)


def default_toolchain(bench: LibraryBuilder) -> Toolchain:
    return find_toolchain().with_build_options(bench.toolchain.build_options)


def starting_point(model: CompiledModel) -> FileBytes:
    """The checkpoint a proof starts from: the model's own. One without parameters gets seeded ones, for with
    all of them zero too many kernels would have nothing to do."""
    checkpoint = select_graphs(model.artifacts, model.options.graphs).checkpoint
    if not checkpoint.nominal:
        return model.checkpoint or model.compact_checkpoint
    random = np.random.default_rng(0)
    parameters = tuple(
        replace(p, data=(0.1 * random.standard_normal(p.shape)).astype(p.element.dtype))
        for p in checkpoint.parameters
    )
    return write_checkpoint(replace(checkpoint, parameters=parameters, nominal=False))
