"""Results of this machine, which other machines are compared with."""

from __future__ import annotations

from unittest.mock import patch

from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.planning.compiled_model import CompiledModel
from minbuild.toolchain import find_toolchain, host_target
from minbuild.verify import differential
from minbuild.verify.cross_target import Baseline
from minbuild.verify.differential import TRIMMED_GARBAGE, run_script, seeded_script
from minbuild.verify.prove import starting_point
from minbuild.verify.step_script import step_script
from minbuild.verify.steps import measure_steps


def baseline(model: CompiledModel, library: BuiltLibrary, short: bool = False) -> Baseline:
    """The steps and the run of `model` by `library`, which is built for this machine. A `short` run is that of models
    with a large state: two updates and batches of two samples and one, a quarter of the time under an emulator."""
    host, toolchain, start = host_target(), find_toolchain(), starting_point(model)
    with patch.object(differential, "LARGE_STATE", 0 if short else differential.LARGE_STATE):
        script = seeded_script(model.program, model.plan, start, model.registry)
    results = run_script("here", script, library.built.shared, model.plan_bytes, TRIMMED_GARBAGE)
    trace = measure_steps(step_script(model, start), model, library, host, toolchain)
    return Baseline(model, library, host, toolchain, trace, script, results)
