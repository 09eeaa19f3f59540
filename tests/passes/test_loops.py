"""Scans that stay loops: their gradients, and that a built trainer computes what unrolled rounds do, in any number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trainers
from authored import differences, source, stepped
from built_loops import check_built
from loop_models import MODELS, RECIPE, REGISTRY, ROUNDS, artifacts, batch

from minbuild.authoring import artifacts_of
from minbuild.authoring.autodiff import backward
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import TrainingArtifacts
from minbuild.passes.lowering.loop_call import LOOP
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import optimize
from minbuild.planning.plan import peak_bytes
from minbuild.planning.plan_encoding import dense_form, encode_plan
from minbuild.reference.interpreter import ReferenceTrainer
from minbuild.training.library import TRAIN, Session, TrainerError


def gradients(made: TrainingArtifacts) -> dict[str, np.ndarray]:
    trainer = ReferenceTrainer(made)
    stepped(trainer, *batch())
    return dict(trainer.gradients)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_unrolled_rounds(name, monkeypatch):
    looped = artifacts(name)
    scans = 4 if name == "layers" else 2
    assert sum(node.op_type == "Scan" for node in looped.training.nodes) == scans
    found = gradients(looped)
    monkeypatch.setattr("minbuild.frontend.onnx.loops.LEAST_ROUNDS", ROUNDS + 1)
    unrolled = artifacts(name)
    assert not any(node.op_type == "Scan" for node in unrolled.training.nodes)
    assert len(unrolled.training.nodes) > 5 * len(looped.training.nodes)
    expected = gradients(unrolled)
    assert set(found) == set(expected)
    for each in expected:
        np.testing.assert_allclose(found[each], expected[each], rtol=1e-10, atol=1e-12, err_msg=each)
    assert max(differences(ReferenceTrainer(looped), *batch()).values()) < 1e-6


@pytest.mark.parametrize("rounds", [ROUNDS, "T"])
@pytest.mark.parametrize("name", MODELS)
def test_built_loops_compute_what_the_graphs_say(name, rounds, tmp_path):
    made = artifacts(name, rounds)
    plan = trainers.plan_of(made, REGISTRY)
    assert plan.loops
    counts = (ROUNDS, ROUNDS) if rounds == ROUNDS else (ROUNDS, 1, 32, 7)
    check_built(made, plan, REGISTRY, tmp_path, map(batch, counts))


def test_states_of_both_ends_of_rounds_are_saved_once():
    forward, back = (n for n in artifacts("both ends").training.nodes if n.op_type == "Scan")
    saved = [n for n in forward.outputs if "/saved " in n]
    states = [n for n in saved if n.endswith(("/saved h", "/saved n"))]
    assert [n.rpartition(" ")[2] for n in states] == ["h"]
    assert forward.outputs[0] in back.inputs  # the last state, from which the first round back begins


def test_plans_do_not_grow_with_rounds_and_memory_does_linearly():
    sizes = {}
    for rounds in (64, 512):
        plan = trainers.plan_of(artifacts("elman", rounds), REGISTRY)
        sizes[rounds] = len(encode_plan(plan, {})), peak_bytes(plan, {})[0]
    (small, little), (large, much) = sizes.values()
    assert large == small < 4096
    assert much < 8 * little


@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_loops_of_two_rounds_and_more_stay_loops(rounds):
    few = artifacts("elman", rounds)
    looped = any(call.op == LOOP for p in lower(few, REGISTRY, {}).procedures for call in p.calls)
    assert looped == (rounds > 1)


def test_two_rounds_take_less_memory_as_a_loop(monkeypatch):
    """Rounds add their parts of a weight's gradient where unrolled ones make one each."""
    looped = peak_bytes(trainers.plan_of(artifacts("elman", 2), REGISTRY), {})[0]
    monkeypatch.setattr("minbuild.frontend.onnx.loops.LEAST_ROUNDS", 3)
    assert looped < peak_bytes(trainers.plan_of(artifacts("elman", 2), REGISTRY), {})[0]


def test_no_loop_is_left_after_the_passes():
    program = optimize(lower(artifacts("gated"), REGISTRY, {}), REGISTRY)
    train = program.procedures[0]
    assert len(train.loops) == 2
    assert train.samples == ROUNDS
    assert not any(call.op == LOOP for call in train.calls)


def test_bodies_of_loops_are_fused_and_compute_nothing_twice():
    """A difference as exporters write it, and a sum that a program wrote twice."""
    body = """
        m (float[T,2,3] x) => (float[2,4] out) {
            last = Scan <num_scan_inputs = 1, body = round (float[2,4] h, float[2,3] x_t) => (float[2,4] n) {
                a = MatMul (x_t, W)
                b = Add (h, a) c = Neg (a) d = Add (h, c)
                e = Exp (d) f = Add (h, a) g = Tanh (f) p = Mul (b, e) q = Mul (p, g) n = Sub (q, h)
            }> (start, x)
            out = Identity (last)
        }"""
    random = np.random.default_rng(1)
    weights = {n: random.standard_normal(s).astype(np.float32) for n, s in (("W", (3, 4)), ("start", (2, 4)))}
    made = artifacts_of(source(body.replace("T,", "20,"), weights), RECIPE, REGISTRY)
    looped = optimize(lower(made, REGISTRY, {}), REGISTRY).procedures[1]
    (rounds,) = looped.loops
    ops = [looped.calls[i].op for i in rounds]
    assert ":Neg" not in ops and ops.count(":Sub") == 2 and ops.count(":Add") == 1


def test_states_that_start_from_one_number_take_no_constant(tmp_path):
    """The number is written into all elements: a state of any size adds nothing to the plan."""
    body = """
        m (float[20,2,3] x) => (float[2,300] out) {
            begin = ConstantOfShape <value = float[1] {-0.5}> (shape)
            last = Scan <num_scan_inputs = 1, body = round (float[2,300] h, float[2,3] x_t) => (float[2,300] n) {
                a = MatMul (x_t, V) b = Add (h, a) n = Tanh (b)
            }> (begin, x)
            out = Identity (last)
        }"""
    random = np.random.default_rng(1)
    weights = {"V": random.standard_normal((3, 300)).astype(np.float32), "shape": np.array([2, 300])}
    made = artifacts_of(source(body, weights), RECIPE, REGISTRY)
    plan = trainers.plan_of(made, REGISTRY)
    assert len(plan.constants) < 16
    x, _ = batch()
    target = random.standard_normal((2, 300)).astype(np.float32)
    check_built(made, plan, REGISTRY, tmp_path, [(x, target)])


def test_models_whose_loops_have_no_gradient_are_unrolled(monkeypatch):
    def refuse(*_: object) -> None:
        raise backward.UnsupportedUse("no")

    monkeypatch.setattr(backward, "loop_gradient", refuse)
    made = artifacts("elman")
    assert not any(node.op_type == "Scan" for node in made.training.nodes)


@pytest.mark.parametrize("rounds", [ROUNDS, "T"])
def test_dense_plans_have_loops_in_both_directions(rounds, tmp_path):
    """A step of a dense plan leaves the bits that one of the plain plan leaves."""
    made = artifacts("elman", rounds)
    plan = trainers.plan_of(made, REGISTRY)
    assert plan.loops == 2
    found = []
    for dense in (0, 1, 2):
        data = encode_plan(plan, dict.fromkeys(plan.symbols, 32), dense=dense)
        assert dense_form(data) == dense
        contents = replace(trainers.contents_of([plan]), loops=2, dense=dense)
        folder = tmp_path / str(dense)
        folder.mkdir()
        library = trainers.library_of(contents, REGISTRY, folder)
        session = Session(library, data, write_checkpoint(made.checkpoint))
        losses = [session.run(TRAIN, list(batch()))[0].tobytes() for _ in range(2)]
        found.append((losses, [session.gradient(p.name).tobytes() for p in made.checkpoint.parameters]))
    assert found[0] == found[1] == found[2]


def test_libraries_without_loops_refuse_plans_that_have_them(tmp_path):
    """Such a library would run each step once, or walk through the samples the other way."""
    plan = trainers.plan_of(artifacts("elman"), REGISTRY)
    checkpoint = write_checkpoint(artifacts("elman").checkpoint)
    for loops in (0, 1, 2):
        folder = tmp_path / str(loops)
        folder.mkdir()
        contents = replace(trainers.contents_of([plan]), loops=loops)
        library = trainers.library_of(contents, REGISTRY, folder)
        if loops == 2:
            Session(library, encode_plan(plan, {}), checkpoint)
        else:
            with pytest.raises(TrainerError, match="plan of version"):
                Session(library, encode_plan(plan, {}), checkpoint)
