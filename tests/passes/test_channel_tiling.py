"""Channel tiling: gradients of one image in slices of channels have the bits of whole ones, in less memory."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest
from authored import source
from case_sets import TRAIN, loaded

from minbuild.authoring import Recipe, artifacts_of
from minbuild.codegen.library_builder import build_checked
from minbuild.errors import OverBudget
from minbuild.frontend.checkpoint import write_checkpoint
from minbuild.ir import Procedure, TrainingArtifacts
from minbuild.ops import registry
from minbuild.options.build_options import BuildOptions
from minbuild.options.plan_options import PlanOptions
from minbuild.passes.analysis.channel_slices import ROUNDS, TILE, tiles_of
from minbuild.passes.lowering.lower import lower
from minbuild.passes.manager import PASSES
from minbuild.passes.rewrite.checkpointing import split_large_calls, tile_large_calls
from minbuild.planning.arena.peak_memory import arena_peak
from minbuild.planning.compile import compile_artifacts
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, host_target
from minbuild.training.library import Library, Session

OPERATORS = registry()
NORM = "BatchNormalization<training_mode = 1>"
WINDOW = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
HEAD = "m = GlobalAveragePool(e) f = Flatten(m) scores = MatMul(f, w)"
INPUT, OUTPUT = "net (float[batch, 3, {size}, {size}] x)", "(float[batch, 4] scores)"


def norm(y: str, x: str, name: str) -> str:
    inputs = ", ".join(f"{name}_{part}" for part in ("weight", "bias", "running_mean", "running_var"))
    return f"{y}, {name}_m, {name}_v = {NORM}({x}, {inputs}) "


# An inverted residual with ReLU6, another with Swish, and the stem of a residual network.
NETS = {
    "relu6": (
        "a = Conv<kernel_shape = [1, 1]>(x, c1) " + norm("b", "a", "n1") + "r = Clip(b, zero, six) "
        f"d = Conv<{WINDOW}, group = 64, strides = [2, 2]>(r, c2) " + norm("e", "d", "n2") + HEAD,
        {"c1": (64, 3, 1, 1), "c2": (64, 1, 3, 3), "n1": (64,), "n2": (64,), "w": (64, 4)},
    ),
    "odd": (
        "a = Conv<kernel_shape = [1, 1]>(x, c1) " + norm("e", "a", "n1") + HEAD,
        {"c1": (40, 3, 1, 1), "n1": (40,), "w": (40, 4)},
    ),
    "swish": (
        "a = Conv<kernel_shape = [1, 1]>(x, c1) " + norm("b", "a", "n1") + "s = Sigmoid(b) r = Mul(b, s) "
        f"d = Conv<{WINDOW}, group = 32>(r, c2) " + norm("e", "d", "n2") + HEAD,
        {"c1": (32, 3, 1, 1), "c2": (32, 1, 3, 3), "n1": (32,), "n2": (32,), "w": (32, 4)},
    ),
    "stem": (
        f"a = Conv<{WINDOW}>(x, c1) " + norm("b", "a", "n1") + "r = Relu(b) "
        f"e = MaxPool<{WINDOW}, strides = [2, 2]>(r) " + HEAD,
        {"c1": (32, 3, 3, 3), "n1": (32,), "w": (32, 4)},
    ),
}


def artifacts(name: str, size: int = 32) -> TrainingArtifacts:
    text, shapes = NETS[name]
    random, weights = np.random.default_rng(5), {}
    for parameter, shape in shapes.items():
        if parameter.startswith("n"):
            for part, fill in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
                noise = random.standard_normal(shape) / 8 if part in ("weight", "bias") else 0
                weights[f"{parameter}_{part}"] = np.full(shape, fill, np.float32) + np.float32(noise)
        else:
            weights[parameter] = random.standard_normal(shape).astype(np.float32) / 2
    weights |= {"zero": np.float32(0).reshape(()), "six": np.float32(6).reshape(())} if "zero" in text else {}
    graph = f"{INPUT.format(size=size)} => {OUTPUT} {{ {text} }}"
    return artifacts_of(
        source(graph, {n: np.asarray(w, np.float32) for n, w in weights.items()}),
        Recipe(loss="cross-entropy"),
        OPERATORS,
    )


def compiled(made: TrainingArtifacts, ram: int | None = None) -> CompiledModel:
    """For one image."""
    made = replace(made, digests={made.training.source: "0" * 64} | dict(made.digests))
    checkpoint = write_checkpoint(made.checkpoint)
    return compile_artifacts(made, checkpoint, OPERATORS, {"batch": 1}, {}, options=PlanOptions(ram=ram))


def session_of(model: CompiledModel, flavor: str = "interpreted") -> Session:
    chosen = BuildOptions(flavor=flavor)
    built = build_checked(
        contents_of((model,), build_options=chosen),
        OPERATORS,
        host_target(),
        find_toolchain(build_options=chosen),
    )
    plan = b"" if flavor == "compiled" else model.plan_bytes
    return Session(Library(loaded(built.built.shared)[0]), plan, model.checkpoint)


def least(made: TrainingArtifacts) -> CompiledModel:
    """The smallest plan."""
    with pytest.raises(OverBudget) as refused:
        compiled(made, 1)
    found = re.search(r"takes ([\d,]+) bytes of RAM", str(refused.value))
    assert found is not None
    return compiled(made, int(found[1].replace(",", "")))


def training_step(made: TrainingArtifacts, batch: int = 1) -> Procedure:
    """The training procedure as the passes find it that repeat calls."""
    program = lower(made, OPERATORS, {"batch": batch})
    for each in PASSES:
        if each.name == "rematerialize_cheap":
            break
        program = each.function(program, OPERATORS)
    return next(p for p in program.procedures if p.name == "train")


def marked(procedure: Procedure, limit: int) -> Procedure:
    """With marks at tiles for `limit` bytes."""
    return tile_large_calls(split_large_calls(procedure, OPERATORS, limit, {}), OPERATORS, limit, {})


def trained(session: Session, model: CompiledModel) -> bytes:
    """All that persists, and losses, after steps that replace gradients and steps that add to them."""
    random, found = np.random.default_rng(9), b""
    for _ in range(2):
        for _ in range(2):
            image = random.standard_normal((1, 3, 32, 32)).astype(np.float32)
            found += session.run(TRAIN, [image, random.integers(0, 4, 1)])[0].tobytes()
        end = ctypes.addressof(session._session.contents.progress.contents) + 24
        found += ctypes.string_at(end - model.plan.persistent_bytes, model.plan.persistent_bytes)
        session.optimizer_step()
        session.lazy_reset_grad()
    session.close()
    return found


@pytest.mark.parametrize("name", sorted(set(NETS) - {"odd"}))
def test_slices_of_channels_have_the_same_bits_in_less_memory(name: str) -> None:
    made = artifacts(name)
    usual, tiled = compiled(made), least(made)
    assert tiled.fitted is not None and tiled.fitted.tiled
    assert tiled.plan.routines[0].samples == ROUNDS and tiled.plan.loops == 1
    assert arena_peak(tiled.plan.routines[0], {}) < 0.75 * arena_peak(usual.plan.routines[0], {})
    bits = [trained(session_of(usual), usual)]
    bits += [trained(session_of(tiled, flavor=flavor), tiled) for flavor in ("interpreted", "compiled")]
    assert bits[0] == bits[1] == bits[2]


def test_a_tile_makes_forward_results_again_and_adds_sums_behind_it() -> None:
    procedure = marked(training_step(artifacts("relu6")), 200_000)
    tiles = tiles_of(procedure)
    assert tiles
    for tile in tiles.values():
        calls = procedure.calls[tile.start : tile.stop]
        assert all(TILE in call.attributes and not call.accumulate for call in calls)
    added = [c for c in procedure.calls if c.op == "minbuild:AddToGradient"]
    assert added and all(name.endswith("(by slices)") for call in added for name in call.inputs)
    again = [c.op for c in procedure.calls if TILE in c.attributes and "(again, slices" in c.outputs[0]]
    assert again[:3] == [":Conv", "minbuild:BatchNormRecompute", ":Clip"]


def test_nothing_is_tiled_without_need() -> None:
    small, images = training_step(artifacts("relu6")), training_step(artifacts("relu6"), batch=2)
    assert not tiles_of(marked(small, 50_000_000))  # all calls are small
    assert not tiles_of(marked(images, 200_000))  # channels of several images do not lie side by side
    assert not tiles_of(marked(training_step(artifacts("odd")), 100_000))  # 40 channels have no 16 slices
