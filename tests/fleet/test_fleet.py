"""Fleets: files that describe them, what is kept, what fails, budgets, and real builds in processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from commands import SMALL, Command, call, command_fixture, copy_of, tree  # noqa: F401
from interrupts import heed_interrupts
from places import ROOT

from minbuild.analysis.budgets import Budgets
from minbuild.cli.fleet_file import read_fleet
from minbuild.errors import BadInput
from minbuild.fleet import BuildResult, FleetReport, Job, Outcome, run_fleet
from minbuild.fleet.ledger import LEDGER, locked
from minbuild.fleet.report import BUILT, FAILED, KEPT, OVER, render_json, render_markdown, render_text
from minbuild.fleet.schedulers import Ends


class Canned:
    """A scheduler whose builds are there already: for each name the outcome, and a list of what was asked for."""

    workers = 3

    def __init__(self, outcome: Callable[[Job], Outcome]) -> None:
        self.outcome = outcome
        self.asked: list[str] = []

    def run(self, jobs: Sequence[Job]) -> Ends:
        for job in jobs:
            self.asked.append(job.name)
            yield job, self.outcome(job)


class Silent:
    def begun(self, kept: int, missing: int, workers: int) -> None:
        self.kept = kept

    def ended(self, result: BuildResult, done: int, missing: int) -> None:
        assert 0 < done <= missing


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("package") / "dist"
    said = call("reduce", SMALL, "--out", out, "--no-analysis")
    assert said.returncode == 0, said.stderr
    return tree(out)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the artifacts of two models."""
    (tmp_path / "models").mkdir()
    for name in ("first", "second"):
        copy_of(SMALL, tmp_path / "models" / name)
    return tmp_path


def fleet_of(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


TWO = '[[build]]\nartifacts = "models/*"\n'


def run(
    folder: Path,
    scheduler: Canned,
    *,
    limits: dict[str, int] | None = None,
    again: bool = False,
    text: str = TWO,
) -> FleetReport:
    fleet = read_fleet(fleet_of(folder, text))
    budgets = {job.name: Budgets(limits or {}) for job in fleet.jobs}
    return run_fleet(fleet.jobs, folder / "dist", scheduler, Silent(), budgets=budgets, again=again)


def states(report: FleetReport) -> dict[str, str]:
    return {build.name: build.state for build in report.builds}


# ------------------------------------------------------------------------------------------------- its file


def test_settings_hold_for_all_builds_and_a_build_has_its_own(models: Path) -> None:
    text = """
        profile = "smallest"
        dim = { batch = 4 }
        [budgets]
        flash = "20 KiB"
        ram = 1000
        [[build]]
        artifacts = "models/first"
        [[build]]
        name = "pair"
        artifacts = ["models/first", "models/second"]
        profile = "fastest"
        target = ["wasm32", "cortex-m4f"]
        with = "properties"
        types = "float"
        no-analysis = true
        require-proof = false
        [build.budgets]
        ram = 2000
        """
    fleet = read_fleet(fleet_of(models, text))
    first, pair = fleet.jobs
    assert first.name == "first"
    assert first.arguments == ("models/first", "--profile", "smallest", "--dim", "batch=4")
    assert set(first.inputs) == {f"models/first/{p.name}" for p in (models / "models/first").iterdir()}
    assert pair.arguments[:4] == ("models/first", "models/second", "--profile", "fastest")
    assert pair.arguments[pair.arguments.index("--target") :][:4] == (
        "--target",
        "wasm32",
        "--target",
        "cortex-m4f",
    )
    assert {"--no-analysis", "--allow-unproven"} < set(pair.arguments)
    assert fleet.budgets["first"].limits == {"flash": 20480, "ram": 1000}
    assert fleet.budgets["pair"].limits == {"flash": 20480, "ram": 2000}


def test_a_pattern_is_a_build_for_each_match(models: Path) -> None:
    assert [job.name for job in read_fleet(fleet_of(models, TWO)).jobs] == ["first", "second"]


def test_paths_outside_stand_elsewhere_for_the_job(models: Path) -> None:
    (models / "below").mkdir()
    path = fleet_of(models / "below", '[[build]]\nartifacts = "../models/first"\n')
    (job,) = read_fleet(path).jobs
    assert job.arguments == ("outside/0/first",)
    assert all(
        name.startswith("outside/0/first/") and source.is_file() for name, source in job.inputs.items()
    )


def test_the_key_follows_contents_and_arguments_not_places(models: Path, tmp_path: Path) -> None:
    job = read_fleet(fleet_of(models, TWO)).jobs[0]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(models / "models", elsewhere / "models")
    assert read_fleet(fleet_of(elsewhere, TWO)).jobs[0].key() == job.key()
    assert replace(job, arguments=(*job.arguments, "--no-analysis")).key() != job.key()
    before = job.key()
    with (models / "models/first/checkpoint").open("ab") as stream:
        stream.write(b"\0")
    assert job.key() != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile = 'smallest'\n", "has no builds"),
        ("[[build]]\nname = 'a'\n", "artifacts: is missing"),
        ("[[build]]\nartifacts = 'models/third'\n", "no such file or folder"),
        ("[[build]]\nartifacts = 'models/f*'\nname = 'a'\n", "Write it alone"),
        ("[[build]]\nartifacts = 'none/*'\n", "nothing matches"),
        ("[[build]]\nartifacts = 'models/first'\nprofil = 'smallest'\n", "Did you mean profile?"),
        ("[[build]]\nartifacts = 'models/first'\nname = '../up'\n", "cannot name a folder"),
        ("[[build]]\nartifacts = 'models/first'\nname = 7\n", "is no text"),
        (TWO + TWO, "two builds called first"),
        ("[[build]]\nartifacts = 'models/first'\nbaseline = 'h'\n", "is for single builds"),
        (
            "[[build]]\nartifacts = 'models/first'\n[build.budgets]\nweight = 3\n",
            "nothing is called 'weight'",
        ),
        ("budgets = 3\n" + TWO, "is no table"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(models: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("?", r"\?")):
        read_fleet(fleet_of(models, text))


def test_all_that_is_wrong_is_named_at_once(models: Path) -> None:
    text = "[[build]]\nartifacts = 'a'\n[[build]]\nartifacts = 'b'\n"
    with pytest.raises(BadInput) as found:
        read_fleet(fleet_of(models, text))
    assert str(found.value).count("no such file or folder") == 2


# ------------------------------------------------------------------------------------------------- what is kept


def test_what_is_finished_is_kept_until_something_changes(models: Path, package: dict[str, bytes]) -> None:
    built = Canned(lambda job: Outcome(0, "", "here", 2.0, package=package))
    assert states(run(models, built)) == {"first": BUILT, "second": BUILT}
    assert tree(models / "dist" / "first") == package
    second = Canned(built.outcome)
    report = run(models, second)
    assert states(report) == {"first": KEPT, "second": KEPT} and not second.asked
    assert report.builds[0].figures is not None and report.exit_code == 0
    with (models / "models/second/eval_model.onnx").open("ab") as stream:
        stream.write(b"\0")
    changed = Canned(built.outcome)
    assert states(run(models, changed)) == {"first": KEPT, "second": BUILT}
    assert changed.asked == ["second"]
    everything = Canned(built.outcome)
    run(models, everything, again=True)
    assert everything.asked == ["first", "second"]


def test_a_fleet_goes_on_where_it_was_stopped(models: Path, package: dict[str, bytes]) -> None:
    def stopped(job: Job) -> Outcome:
        if job.name == "second":
            raise KeyboardInterrupt
        return Outcome(0, "", "here", 2.0, package=package)

    with pytest.raises(KeyboardInterrupt):
        run(models, Canned(stopped))
    rest = Canned(lambda job: Outcome(0, "", "here", 2.0, package=package))
    assert states(run(models, rest)) == {"first": KEPT, "second": BUILT}
    assert rest.asked == ["second"]


@pytest.mark.parametrize("damage", ["edited", "missing", "ledger cut", "no ledger"])
def test_a_package_that_is_not_as_it_was_is_built_again(
    models: Path, package: dict[str, bytes], damage: str
) -> None:
    built = Canned(lambda job: Outcome(0, "", "here", 2.0, package=package))
    run(models, built)
    place = models / "dist" / "second"
    ledger = models / "dist" / LEDGER
    if damage == "missing":
        (place / "README.md").unlink()
    elif damage == "edited":
        (place / "README.md").write_text("mine")
        with pytest.raises(BadInput, match="README.md"):  # nothing of the user's is overwritten
            run(models, built)
        return
    elif damage == "ledger cut":
        ledger.write_bytes(ledger.read_bytes()[:-20])
    else:
        ledger.unlink()
    again = Canned(built.outcome)
    run(models, again)
    assert again.asked == (["first", "second"] if damage == "no ledger" else ["second"])
    final = Canned(built.outcome)
    run(models, final)
    assert not final.asked


def test_two_fleets_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BadInput, match="another `minbuild fleet`"), locked(tmp_path):
        pass


# ------------------------------------------------------------------------------------------------- what fails


def test_a_build_that_fails_does_not_stop_the_others(models: Path, package: dict[str, bytes]) -> None:
    def outcome(job: Job) -> Outcome:
        if job.name == "first":
            return Outcome(3, "Planning\nerror: node 3: no such operator", "here", 1.0)
        return Outcome(0, "", "here", 2.0, package=package)

    report = run(models, Canned(outcome))
    assert states(report) == {"first": FAILED, "second": BUILT}
    assert report.builds[0].messages == ("error: node 3: no such operator",)
    assert report.exit_code == 3 and not (models / "dist" / "first").exists()
    later = Canned(lambda job: Outcome(0, "", "here", 2.0, package=package))
    assert states(run(models, later)) == {"first": BUILT, "second": KEPT}


def test_a_build_that_was_killed_says_so(models: Path) -> None:
    report = run(models, Canned(lambda job: Outcome(-9, "", "here", 1.0)))
    assert report.exit_code == 1 and "want of memory" in report.builds[0].messages[0]


def test_budgets_are_held_for_built_and_kept_packages(models: Path, package: dict[str, bytes]) -> None:
    built = Canned(lambda job: Outcome(0, "", "here", 2.0, package=package))
    for limits, state, code in (({"flash": 100}, OVER, 5), ({}, KEPT, 0), ({"flash": 100}, OVER, 5)):
        report = run(models, built, limits=limits)
        assert set(states(report).values()) == {state} and report.exit_code == code
    assert built.asked == ["first", "second"]  # over budget, but finished
    assert "over the budget of 100" in report.builds[0].messages[0]


# ------------------------------------------------------------------------------------------------- its report


def test_the_report_is_one_table_and_follows_its_schema(models: Path, package: dict[str, bytes]) -> None:
    def outcome(job: Job) -> Outcome:
        code = 0 if job.name == "first" else 6
        return Outcome(code, "error: it differs", "here", 30.0, package={} if code else package)

    report = replace(run(models, Canned(outcome)), elapsed=20.0)
    assert report.summary == "1 built, 1 failed; 60 s of work in 20 s with 3 workers (3.00 at a time)."
    document = json.loads(render_json(report))
    schema = json.loads((ROOT / "schemas/fleet.schema.json").read_text())
    jsonschema.validate(document, schema)
    for broken in ({"schema": 2}, {"builds": [{}]}, {"exit_code": 8}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, **broken}, schema)
    written = json.loads((models / "dist" / "fleet.json").read_text())
    assert written["builds"] == document["builds"]
    text, page = render_text(report, 100), render_markdown(report)
    assert "PROVEN" in text and "second: error: it differs" in text and report.summary in text
    assert max(map(len, text.splitlines())) <= 100 and "| first |" in page


# ------------------------------------------------------------------------------------------------- real builds


def test_builds_in_processes(models: Path, minbuild: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One builds, one fails; the package is that of `minbuild reduce`."""
    monkeypatch.setenv("MINBUILD_PROFILE", "fastest")  # the environment has no say
    text = """
        no-analysis = true
        [[build]]
        artifacts = "models/first"
        [[build]]
        artifacts = "models/second"
        dim = { nothing = 2 }
        """
    fleet = fleet_of(models, text)
    shown = minbuild("fleet", fleet, "--out", models / "dist", "--dry-run")
    assert shown.out.startswith("first: minbuild reduce models/first --no-analysis") and shown.code == 0
    said = minbuild("fleet", fleet, "--out", models / "dist", "--workers", 2)
    assert said.code == 2 and "--dim nothing=2" in said.out and "1 built, 1 failed" in said.out
    assert call("reduce", models / "models/first", "--out", models / "alone", "--no-analysis").returncode == 0
    assert tree(models / "alone") == tree(models / "dist" / "first")
    kept = minbuild("fleet", fleet, "--out", models / "dist", "--only", "first", "--json")
    assert kept.code == 0 and [b["state"] for b in json.loads(kept.out)["builds"]] == [KEPT]
    wrong = minbuild("fleet", fleet, "--out", models / "dist", "--only", "third")
    assert wrong.code == 2 and "Choose from first, second" in wrong.err


def test_ctrl_c_ends_all_builds(models: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "minbuild",
        "fleet",
        str(fleet_of(models, TWO)),
        "--out",
        str(models / "dist"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
        "MINBUILD_CACHE": str(tmp_path / "cold"),
    }
    running = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("Building"):
            break
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130
    assert "Stopped" in running.stderr.read()
    assert not list(tmp_path.glob("minbuild-fleet-*"))
    assert not (models / "dist" / "first").exists()
