"""Fixtures that tests of verification share."""

from __future__ import annotations

import pytest
from commands import FREE
from verified_build import build

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import (
    find_emulator,
    find_toolchain,
    host_target,
)
from minbuild.verify import differential as verify
from minbuild.verify.cross_target import Baseline
from minbuild.verify.script import TestScript
from minbuild.verify.step_script import step_script
from minbuild.verify.steps import measure_steps


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return compile_model(FREE, {}, {})


@pytest.fixture(scope="module")
def script(model: CompiledModel) -> TestScript:
    return verify.seeded_script(model.program, model.plan, model.checkpoint, model.registry)


@pytest.fixture(scope="module")
def good(model: CompiledModel) -> BuiltLibrary:
    return build(model)


@pytest.fixture(scope="module")
def here(model: CompiledModel, script: TestScript, good: BuiltLibrary) -> Baseline:
    """What this machine computes."""
    if find_emulator(host_target()) is None:
        pytest.skip("programs for this machine do not run here")
    expected = verify.run_script("", script, good.built.shared, model.plan_bytes, 1)
    steps = step_script(model, model.checkpoint)
    trace = measure_steps(steps, model, good, host_target(), find_toolchain())
    return Baseline(model, good, host_target(), find_toolchain(), trace, script, expected)
