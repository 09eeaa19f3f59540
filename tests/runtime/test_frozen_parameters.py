"""Parameters that training does not update: a library for plans without them has no code for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from case_sets import GOLDEN, TRAIN, Trainer, load, loaded, persistent, trainer
from sessions import refusal
from shared_library import shared_library

from minbuild.analysis.package_compatibility import InstalledPackage, missing_capabilities
from minbuild.codegen.sources import emit_sources
from minbuild.frontend.checkpoint import read_checkpoint, write_checkpoint
from minbuild.ops import registry
from minbuild.options.build_options import BuildOptions
from minbuild.planning.capabilities import as_dict, capabilities_of, from_dict
from minbuild.planning.compile import compile_model
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of
from minbuild.planning.library_contents import LibraryContents
from minbuild.training.library import Session

BAD_PLAN = 2
WITHOUT, BOUND, STATISTICS = "dense", "transfer", "residual"


def made(built: Trainer, frozen_parameters: bool) -> Trainer:
    """The trainer by a library that has them or not."""
    contents = replace(built.contents, frozen_parameters=frozen_parameters)
    return replace(built, library=loaded(shared_library(emit_sources(contents, registry())))[1])


def test_only_what_plans_need_is_in_a_library() -> None:
    """Other kernels, asked for by name, may be for plans with frozen parameters, and so may all shape arithmetic."""
    without, bound, statistics = (compile_model(GOLDEN / n, {}, {}) for n in (WITHOUT, BOUND, STATISTICS))
    assert not contents_of([without]).frozen_parameters
    assert contents_of([bound]).frozen_parameters and contents_of([statistics]).frozen_parameters
    assert contents_of([without, bound]).frozen_parameters
    assert contents_of([without], ExtraRequirements(("Conv",))).frozen_parameters
    assert contents_of([without], build_options=BuildOptions(shape_ops="all")).frozen_parameters


@pytest.mark.parametrize("name", [BOUND, STATISTICS])
def test_a_library_without_refuses_plans_with_frozen_parameters(name: str) -> None:
    built, checkpoint = trainer(GOLDEN / name), load(GOLDEN / name).checkpoint
    assert made(built, frozen_parameters=True).session(checkpoint).step_count == 0
    library = made(built, frozen_parameters=False).library
    assert refusal(lambda: Session(library, built.data, checkpoint)).status == BAD_PLAN


def test_frozen_parameters_are_those_of_the_checkpoint_loaded_last() -> None:
    case = load(GOLDEN / BOUND)
    session = trainer(GOLDEN / BOUND).session(case.checkpoint)
    held = read_checkpoint(case.checkpoint)
    doubled = tuple(replace(p, data=2 * p.data) for p in held.parameters if p.data is not None)
    session.load(write_checkpoint(replace(held, parameters=doubled)), accept_any=True)
    assert {p.name: p.data.tolist() for p in doubled} == {
        name: session.parameter(name).tolist() for name in session.parameters
    }


def test_plans_without_train_alike_in_both_libraries() -> None:
    case, built = load(GOLDEN / WITHOUT), trainer(GOLDEN / WITHOUT)
    assert not built.contents.frozen_parameters
    after = []
    for frozen_parameters in (False, True):
        session = made(built, frozen_parameters).session(case.checkpoint)
        session.run(TRAIN, case.batch(0))
        session.optimizer_step()
        saved = session.checkpoint(True)
        assert made(built, not frozen_parameters).session(saved).checkpoint(True) == saved
        after.append(persistent(session, built))
    assert after[0] == after[1]


def test_packages_report_frozen_parameters() -> None:
    without, bound = (compile_model(GOLDEN / n, {}, {}) for n in (WITHOUT, BOUND))

    def missing(contents: LibraryContents) -> tuple[str, ...]:
        capabilities = from_dict(as_dict(capabilities_of(contents)))
        package = InstalledPackage(
            Path("dist"), minbuild="0", capabilities=capabilities, targets=(), graphs=()
        )
        return missing_capabilities(bound, package)

    assert not missing(contents_of([without, bound]))
    (text,) = missing(replace(contents_of([bound]), frozen_parameters=False))
    assert text == "dist: reads no frozen parameters. Reduce for both models together."
    earlier = as_dict(capabilities_of(contents_of([bound])))
    del earlier["frozen_parameters"]
    assert from_dict(earlier).frozen_parameters
