"""Gradient checkpointing: a training step in less memory computes the same bits, and calls run again for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_sets import SHARED, TRAIN, CaseSet, Trainer, load, persistent, trainer
from places import GOLDEN

from minbuild.ir import Procedure
from minbuild.ops import registry
from minbuild.passes.analysis.checkpoints import choose_checkpoints
from minbuild.passes.analysis.recomputation import Recomputation
from minbuild.passes.analysis.repetition import Checkpoints
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import PASSES
from minbuild.passes.rewrite.checkpointing import checkpoint, repeat_inexpensive
from minbuild.passes.rewrite.rematerialization import rematerialize_cheap
from minbuild.planning.ram_budget import ram_of

OPERATORS = registry()
# Sets, the live bytes to aim at, and a bound for their RAM as a share of that without a limit (batch 32): networks with
# running statistics, with attention, and with Dropout's random numbers; and one whose calls all run again in vain.
LIMITS = [
    (SHARED / "cnn_bn", 2_500_000, 0.9),
    (SHARED / "bert_tiny", 2_200_000, 0.6),
    (SHARED / "bert_tiny_dropout", 3_900_000, 0.8),
    (GOLDEN / "residual", 1, 2.0),
]
SETS = [pytest.param(*each, id=each[0].name) for each in LIMITS if each[0].is_dir()]


def trained(case: CaseSet, built: Trainer) -> bytes:
    """All that persists after three steps, and the losses."""
    session = built.session(case.checkpoint)
    losses = b""
    for step in range(3):
        losses += b"".join(x.tobytes() for x in session.run(TRAIN, case.batch(step)))
        session.optimizer_step()
        session.lazy_reset_grad()
    found = persistent(session, built) + losses
    session.close()
    return found


def training_step(folder: Path, batch: int | None = 8) -> Procedure:
    """The training procedure as checkpointing finds it, with every free dimension of size `batch`, or free."""
    artifacts = load(folder).artifacts
    program = lower(artifacts, OPERATORS, {})
    if batch is not None:
        program = lower(artifacts, OPERATORS, dict.fromkeys(program.symbols, batch))
    for each in PASSES:
        if each.name == "rematerialize_cheap":
            break
        program = each.function(program, OPERATORS)
    return next(p for p in program.procedures if p.name == "train")


@pytest.mark.parametrize(("folder", "live_bytes", "share"), SETS)
def test_it_computes_the_same_bits_in_less_memory(folder: Path, live_bytes: int, share: float) -> None:
    case = load(folder)
    usual, fitted = trainer(folder), trainer(folder, live_bytes=live_bytes)
    most = dict.fromkeys(usual.plan.symbols, 32)
    assert ram_of(fitted.plan, most) <= share * ram_of(usual.plan, most)
    assert trained(case, fitted) == trained(case, usual)


@pytest.mark.parametrize(("folder", "live_bytes", "share"), SETS)
def test_what_persists_changes_once(folder: Path, live_bytes: int, share: float) -> None:
    procedure = training_step(folder)
    made = checkpoint(procedure, OPERATORS, 1, {})
    new = [call for call in made.calls if call not in procedure.calls]
    for call in new:
        op = OPERATORS.ops[call.op]
        again = any(name.endswith("again)") or "(again, " in name for name in call.outputs)
        assert not again or (not op.mutates and op.generator is None and not call.accumulate), call.node


def test_the_simulation_knows_the_live_bytes_of_any_choice() -> None:
    """Counted here from the rewritten calls alone; in a plain network nothing is stored in place of another."""
    procedure = training_step(GOLDEN / "conv")
    work = Recomputation(procedure, OPERATORS, {})
    for choice in (
        Checkpoints(work.natural),
        Checkpoints(frozenset()),
        Checkpoints(frozenset(), frozenset(work.repeats)),
    ):
        steps = work.order(choice)
        for step in steps:  # what is read was made before, as that copy
            assert all(
                any(made.makes.get(number) == copy for made in steps[: steps.index(step)])
                for number, copy in step.reads.items()
                if any(number in each.makes for each in steps)
            )
        again = [step.index for step in steps if step.again]
        assert sorted(again) == sorted(set(again)) or choice.volatile
        assert [s.index for s in steps if not s.again] == [*range(len(procedure.calls))]


@pytest.mark.parametrize("folder", [p.values[0] for p in SETS if "bert_tiny" in str(p.values[0])])
def test_time_grows_as_memory_shrinks(folder: Path) -> None:
    work = Recomputation(training_step(folder), OPERATORS, {})
    usual = work.outcome(Checkpoints(work.natural))
    assert usual.seconds == 0
    seconds = -1.0
    for share in (0.8, 0.6, 0.4):
        _, outcome = choose_checkpoints(work, int(share * usual.peak))
        assert work.largest_call <= outcome.peak <= share * usual.peak
        assert seconds < outcome.seconds < 0.4 * sum(work.seconds)
        seconds = outcome.seconds


def test_activations_are_repeated_where_that_saves_much_in_little_time() -> None:
    """Results of Gelu and LayerNormalization, whose inputs gradients need anyway."""
    if not (SHARED / "bert_tiny").is_dir():
        pytest.skip("the larger recorded sets are not beside this repository")
    procedure = rematerialize_cheap(training_step(SHARED / "bert_tiny", None), OPERATORS)
    made = repeat_inexpensive(procedure, OPERATORS)
    again = [call.op for call in made.calls if "(again" in call.outputs[0]]
    assert set(again) <= {"com.microsoft:Gelu", ":LayerNormalization"} and again
    work, fewer = (Recomputation(p, OPERATORS, {"batch": 32}) for p in (procedure, made))
    seconds = sum(fewer.seconds) - sum(work.seconds)
    assert 0 < seconds <= 0.02 * sum(work.seconds)
    small = training_step(GOLDEN / "conv")
    assert repeat_inexpensive(small, OPERATORS) is small
