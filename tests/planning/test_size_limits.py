"""Sizes beyond 32 bits: wide plans compute what narrow ones do, and what cannot be counted is refused before it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from authored import source, uniform
from places import GOLDEN
from trainers import library_of

from minbuild.authoring import Recipe, make_artifacts, write_artifacts
from minbuild.errors import BadInput
from minbuild.options.plan_options import PlanOptions, Updates
from minbuild.planning import plan_encoding, size_limits
from minbuild.planning.compile import compile_model, compile_models
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.plan_encoding import decode_plan, encode_plan, is_wide
from minbuild.planning.size_limits import MOST_ELEMENTS, check_address_space, needs_64_bits, saved_bytes
from minbuild.training.library import EVAL, TRAIN, Library, Session, TrainerError, aligned_copy, arena_size
from minbuild.verify import differential
from minbuild.verify.differential import seeded_script

NET = """
net (float[batch, 6] x) => (float[batch, 3] y) {
    h = Gemm <transB = 1> (x, w1, b1)
    a = Relu (h)
    y = Gemm <transB = 1> (a, w2)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of a small net whose batch is free."""
    w1, b1, w2 = uniform((5, 6), (5,), (3, 5))
    model = source(NET, {"w1": w1, "b1": b1, "w2": w2})
    made = make_artifacts(model, Recipe(loss="cross-entropy", optimizer="adamw"))
    out = tmp_path_factory.mktemp("artifacts")
    write_artifacts(made, out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> CompiledModel:
    return compile_model(folder, {}, {})


def widened(model: CompiledModel) -> CompiledModel:
    """The model with a wide plan."""
    return replace(model, plan_bytes=encode_plan(model.plan, model.largest, wide=True))


def built(model: CompiledModel, folder: Path) -> Library:
    """The trimmed library of a model."""
    return library_of(contents_of([model]), model.registry, folder)


def trained(library: Library, model: CompiledModel) -> list[bytes]:
    """Everything that three steps at different batch sizes leave behind."""
    session, found = Session(library, model.plan_bytes, model.checkpoint), []
    random = np.random.default_rng(2)
    for batch in (1, 7, 32):
        x = random.standard_normal((batch, 6)).astype(np.float32)
        labels = random.integers(0, 3, batch)
        for graph in (TRAIN, EVAL):
            found += [np.array(each).tobytes() for each in session.run(graph, (x, labels))]
        session.optimizer_step()
    return [*found, session.checkpoint(True)]


def test_wide_plans_compute_the_same_bits(model: CompiledModel, tmp_path: Path) -> None:
    wide = widened(model)
    assert is_wide(wide.plan_bytes) and not is_wide(model.plan_bytes)
    assert trained(built(wide, tmp_path), wide) == trained(built(model, tmp_path), model)


def test_a_library_refuses_plans_of_the_other_width(model: CompiledModel, tmp_path: Path) -> None:
    wide = widened(model)
    for library, plan in ((built(model, tmp_path), wide), (built(wide, tmp_path), model)):
        with pytest.raises(TrainerError, match="bad plan"):
            Session(library, plan.plan_bytes, plan.checkpoint)


def test_sizes_that_overflow_are_refused_by_the_device(model: CompiledModel, tmp_path: Path) -> None:
    """A batch whose temporaries pass 31 bits, alone or as a product that would come back as a small number."""
    narrow, wide = built(model, tmp_path), built(widened(model), tmp_path)
    for batch in (2**27, 2**30, 2**31 - 1):
        with pytest.raises(TrainerError, match="bad shape: the model takes no such sizes"):
            arena_size(narrow, model.plan_bytes, [batch])
    at = [arena_size(wide, widened(model).plan_bytes, [batch]) for batch in (2**20, 2**27, 2**30)]
    per_sample = (at[1] - at[0]) / (2**27 - 2**20)
    assert at[2] - at[1] == per_sample * (2**30 - 2**27) > 2**33


def test_more_state_than_a_checkpoint_counts_is_refused_before_the_first_byte(
    model: CompiledModel, tmp_path: Path
) -> None:
    """The size of what persists is changed in the session, where the plan's number is: no test has 2 GB of state."""
    wide = widened(model)
    library = built(wide, tmp_path)
    memory = aligned_copy(bytes(arena_size(library, wide.plan_bytes)))
    session = Session(library, wide.plan_bytes, wide.checkpoint, arena=memory)
    good = session.checkpoint(True)
    trained, persistent = (
        np.int64(decode_plan(wide.plan_bytes)[n]) for n in ("trainable_bytes", "persistent_bytes")
    )
    (place,) = (np.flatnonzero(memory[:512].view(np.int64) == persistent),)
    assert len(place) == 1
    for most, fits in ((0x7F000000, True), (0x7F000001, False), (2**33, False)):
        memory[:512].view(np.int64)[place] = most + trained
        if fits:
            assert session.checkpoint(True) == good
            session.save(tmp_path / "saved", True)
        else:
            for refused in (session.checkpoint, lambda o: session.save(tmp_path / "saved", o)):
                with pytest.raises(TrainerError, match="a checkpoint has less than two gigabytes"):
                    refused(True)
            assert (tmp_path / "saved").read_bytes() == good and not list(tmp_path.glob("saved?*"))


def test_a_session_keeps_its_sizes_when_others_are_refused(model: CompiledModel, tmp_path: Path) -> None:
    session = Session(built(model, tmp_path), model.plan_bytes, model.checkpoint)
    few = np.zeros((2, 6), np.float32), np.zeros(2, np.int64)
    before = session.run(EVAL, few)
    with pytest.raises(TrainerError, match="bad shape"):
        session.run(EVAL, (np.empty((2**27, 6), np.float32), np.zeros(2**27, np.int64)))
    assert [x.tobytes() for x in session.run(EVAL, few)] == [x.tobytes() for x in before]


def test_models_become_wide_where_32_bits_do_not_suffice(folder: Path) -> None:
    model = compile_model(folder, {}, {"batch": 2**27})
    assert is_wide(model.plan_bytes) and contents_of([model]).wide
    reason = needs_64_bits(model.plan, model.largest)
    assert reason.startswith("temporaries of train take ") and reason.endswith(" bytes at batch 134217728")


def test_models_beside_a_wide_one_are_wide_in_all_their_plans(folder: Path) -> None:
    fused = PlanOptions(updates=Updates(fused=True))
    models = compile_models([folder, GOLDEN / "dense_fixed"], {}, {"batch": 2**27}, options=fused)
    assert all(is_wide(plan) for model in models for plan in (model.plan_bytes, model.separate_plan))


def test_many_parameters_make_a_wide_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plan_encoding, size_limits):
        monkeypatch.setattr(module, "MOST_PERSISTENT", 500)
    model = compile_model(folder, {}, {})
    assert is_wide(model.plan_bytes)
    assert decode_plan(model.plan_bytes)["persistent_bytes"] == model.plan.persistent_bytes
    with pytest.raises(
        BadInput, match=r"--target wasm32: net: parameters, gradients and optimizer state take \d+"
    ):
        check_address_space(model.plan, model.largest, "net", ["wasm32"])


@pytest.mark.parametrize(("persistent", "wide"), [(0x70000000 - 1, False), (0x70000000, True)])
def test_a_narrow_plan_has_as_much_state_as_the_device_takes(
    model: CompiledModel, persistent: int, wide: bool
) -> None:
    """kMostPersistent of kernels/runtime/session.h, which a narrow plan stays below."""
    ends = {"step_at": persistent - 16, "learning_rate_at": persistent - 8}
    plan = replace(model.plan, persistent_bytes=persistent, **ends)
    assert is_wide(encode_plan(plan, model.largest)) is wide


def test_a_state_that_passes_a_checkpoint_makes_a_wide_plan(
    folder: Path, model: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen parameters of 1.5 GB, say, and 0.8 GB with moments: only wide libraries refuse to save more than a file
    holds, and others would replace a good checkpoint by one that nothing reads."""
    saved = saved_bytes(model.plan)
    for most, wide in ((saved, False), (saved - 1, True)):
        monkeypatch.setattr(size_limits, "MOST_SAVED", most)
        made = compile_model(folder, {}, {})
        assert is_wide(made.plan_bytes) is wide
        check_address_space(made.plan, made.largest, "net", ["wasm32"])  # which have room for all of it


def test_many_entries_make_a_wide_plan(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_encoding, "_MOST_ENTRIES", 20)
    assert is_wide(encode_plan(model.plan, model.largest))
    assert not needs_64_bits(model.plan, model.largest)


def test_tensors_that_kernels_cannot_count_are_refused(folder: Path) -> None:
    with pytest.raises(BadInput) as caught:
        compile_model(folder, {}, {"batch": 10**9})
    text = str(caught.value)
    assert "tensor 'x' (batch, 6) has 6,000,000,000 elements at batch 1000000000" in text
    most = MOST_ELEMENTS // 6
    assert text.endswith(f"Build for at most --max-dim batch={most}.")
    assert compile_model(folder, {}, {"batch": most}).largest == {"batch": most}


def test_fixed_sizes_that_kernels_cannot_count_are_refused(folder: Path) -> None:
    with pytest.raises(
        BadInput, match=r"(?s)Kernels count up to .* Give --dim batch=1000000000 a smaller size"
    ):
        compile_model(folder, {"batch": 10**9}, {})


def test_a_proof_saves_what_a_checkpoint_holds(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device refuses to write more: a limit that the script has to know."""
    saved = saved_bytes(model.plan)
    parameters = sum(p.data.nbytes for p in model.artifacts.checkpoint.parameters)
    assert 3 * parameters <= saved < 3 * parameters + 200  # with two moments, and the progress
    for most, saves in ((saved, True), (saved - 1, False)):
        monkeypatch.setattr(differential, "MOST_SAVED", most)
        script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
        assert any(action.verb == "save" for action in script.actions) is saves


LSTM = """
net (float[16, batch, 8] x) => (float[16, 1, batch, 64] y) { y = LSTM <hidden_size = 64> (x, w, r) }"""


def test_scratch_memory_that_kernels_cannot_count_is_refused(tmp_path: Path) -> None:
    """Gates of all steps of a recurrent layer, which are bytes of one piece of scratch memory."""
    w, r = uniform((1, 256, 8), (1, 256, 64))
    made = make_artifacts(source(LSTM, {"w": w, "r": r}), Recipe(loss="mse", optimizer="sgd"))
    write_artifacts(made, tmp_path)
    with pytest.raises(BadInput) as caught:
        compile_model(tmp_path, {}, {"batch": 2**18})
    text = str(caught.value)
    assert "train: node 'LSTM" in text and "bytes of scratch memory at batch 262144" in text
    most = int(text.rsplit("--max-dim batch=", 1)[1].rstrip("."))
    assert compile_model(tmp_path, {}, {"batch": most}).largest == {"batch": most}
    with pytest.raises(BadInput, match="bytes of scratch memory"):
        compile_model(tmp_path, {}, {"batch": most + 1})


def test_32_bit_targets_are_refused_with_the_cure(folder: Path) -> None:
    model = compile_model(folder, {}, {"batch": 2**27})
    with pytest.raises(
        BadInput, match=r"--target arm-linux-gnu: net: temporaries of train .* --max-dim batch="
    ):
        check_address_space(model.plan, model.largest, "net", ["arm-linux-gnu"])
