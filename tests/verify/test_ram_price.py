"""The price of a budget of RAM: estimated, measured on this machine, and the curve of an analysis."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from commands import FREE, Command, tree
from commands import command_fixture as command_fixture
from report_pages import schema

from minbuild.codegen.library_builder import LibraryBuilder, TrimmedAndFull, build_checked
from minbuild.errors import VerificationFailed
from minbuild.options.plan_options import PlanOptions
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import contents_of
from minbuild.planning.ram_budget import ram_of
from minbuild.toolchain import Target, find_emulator, find_toolchain, host_target
from minbuild.verify import ram_price

MEASURED = re.compile(
    r"^RAM fitted to the budget: ([\d,]+) bytes instead of ([\d,]+)\. Measured on this machine(.*): a training step "
    r"takes ([\d.]+) times as long, ([\d.]+) times by estimate$",
    re.M,
)


@pytest.fixture(scope="module")
def budget(model: CompiledModel) -> int:
    """Half of the temporaries of `model`, besides what persists."""
    return (ram_of(model.plan, model.largest) + model.plan.persistent_bytes) // 2


@pytest.fixture(scope="module")
def fitted(budget: int) -> CompiledModel:
    return compile_model(FREE, {}, {}, options=PlanOptions(ram=budget))


def priced(model: CompiledModel, target: Target) -> tuple[CompiledModel, list[str]]:
    """`model` with its price, as a package for `target` has it; and the notes."""
    notes: list[str] = []
    progress: list[str] = []
    bench = LibraryBuilder(
        contents_of([model]), model.registry, find_toolchain(), False, progress.append, progress.append
    )
    library = build_checked(bench.contents, model.registry, host_target(), bench.toolchain)
    pairs = [TrimmedAndFull(target, library, library)]
    found = ram_price.with_measured_prices(bench, {"net": model}, pairs, notes.append)
    return found["net"], notes


def test_the_command_reports_the_price_of_a_budget(
    minbuild: Command, tmp_path: Path, model: CompiledModel, budget: int
) -> None:
    """The curve begins with the plan without a budget; this plan is on it, with a measured time of its own."""
    whole = ram_of(model.plan, model.largest)
    options = ("--ram", str(budget), "--time", "--analysis")
    said = minbuild("reduce", FREE, "--out", tmp_path / "dist", *options)
    assert said.code == 0, said.err
    report = json.loads((tmp_path / "dist" / "report" / "report.json").read_text("utf-8"))
    jsonschema.validate(report, schema())
    price = report["model"]["ram_price"]
    assert price["ram"] <= budget < price["unlimited"] == whole
    assert price["curve"][0] == {"ram": whole, "added_time": 0.0} and len(price["curve"]) > 1
    assert price["curve"][-1]["ram"] <= price["ram"]
    assert price["added_time"] > 0 and price["measured"] > 0  # one sample after the other: far more calls
    page = (tmp_path / "dist" / "report" / "report.md").read_text("utf-8")
    assert "Time over memory" in page and f"{1 + price['measured']:.2f} as measured" in page


def test_the_command_measures_the_price_without_being_asked(
    minbuild: Command, tmp_path: Path, budget: int
) -> None:
    """In a note behind the estimate and in what is printed, never in files: these are the same every time."""
    packages = []
    for name in ("first", "second"):
        said = minbuild("reduce", FREE, "--out", tmp_path / name, "--ram", str(budget), "--json")
        assert said.code == 0, said.err
        (found,) = MEASURED.findall(said.err)
        assert said.err.index("longer by estimate") < said.err.index("Measured on this machine")
        printed = json.loads(said.out)
        jsonschema.validate(printed, schema())
        price = printed["model"]["ram_price"]
        assert found == (
            *(f"{price['ram']:,}", f"{price['unlimited']:,}", ""),
            *(f"{1 + price['measured']:.2f}", f"{1 + price['added_time']:.2f}"),
        )
        written = json.loads((tmp_path / name / "report" / "report.json").read_text("utf-8"))
        del price["measured"]
        assert written == printed
        packages.append(tree(tmp_path / name))
    assert packages[0] == packages[1]


def test_a_session_above_the_budget_is_named_with_the_value_that_fits(
    minbuild: Command, tmp_path: Path, fitted: CompiledModel
) -> None:
    """Where temporaries and what persists fit, and tables and static data do not."""
    counted = ram_of(fitted.plan, fitted.largest)

    def reduced(budget: int) -> tuple[int, str]:
        said = minbuild("reduce", FREE, "--out", tmp_path / str(budget), "--ram", str(budget), "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)["targets"][0]["ram"], said.err

    ram, notes = reduced(counted)
    found = re.findall(r"takes [\d,]+ bytes, ([\d,]+) above the budget.*--ram ([\d,]+)", notes)[0]
    above, value = (int(number.replace(",", "")) for number in found)
    assert ram - counted == above and abs(counted - above - value) < 64  # bytes between regions
    ram, notes = reduced(counted + 4096)
    assert ram <= counted + 4096 and "above the budget" not in notes


@pytest.mark.skipif(find_emulator(host_target()) != [], reason="programs for this machine do not run here")
def test_a_library_of_this_machine_is_measured_in_place_of_others(fitted: CompiledModel) -> None:
    for target in (host_target(), Target("aarch64-windows"), Target("cortex-m4f")):
        found, (note,) = priced(fitted, target)
        assert found.measured_time is not None and found.measured_time > -1
        assert found.ram_price is not None and found.ram_price.measured == found.measured_time
        (said,) = MEASURED.findall(note)
        instead = "" if target == host_target() else f" ({host_target()} in place of {target})"
        assert said[2] == instead and said[3] == f"{1 + found.measured_time:.2f}"


def test_a_price_stays_an_estimate_where_nothing_can_be_timed(
    fitted: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> bytes:
        raise VerificationFailed("here: it crashed.")

    monkeypatch.setattr(ram_price, "time_steps", crash)
    found, notes = priced(fitted, host_target())
    assert notes == ["The price of the budget of RAM was not measured. here: it crashed."]
    assert found is fitted and found.ram_price is not None and found.ram_price.measured is None


def test_plans_that_the_budget_did_not_change_have_no_price(model: CompiledModel) -> None:
    for each in (model, compile_model(FREE, {}, {}, options=PlanOptions(ram=1 << 30))):
        found, notes = priced(each, host_target())
        assert found is each and not notes
