"""The file that describes a fleet: settings for all builds, and a table for each build with its own."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minbuild.analysis.budgets import Budgets, parse_budgets
from minbuild.cli.option_parsing import options_of
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import BUDGETS, checked_settings, read_settings
from minbuild.errors import BadInput
from minbuild.fleet import Job
from minbuild.frontend.onnx.external_data import external_files

BUILD, NAME, ARTIFACTS = "build", "name", "artifacts"
_SWITCHES = {"require-proof": "allow-unproven", "no-analysis": "analysis"}  # and what says the contrary
_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The builds of a file, and the budgets of each by its name."""

    jobs: tuple[Job, ...]
    budgets: Mapping[str, Budgets]


def read_fleet(path: Path) -> Fleet:
    """Read a fleet's file. Paths in it are seen from its folder. Raises BadInput that lists all that is wrong."""
    document = dict(read_settings(path))
    builds = document.pop(BUILD, None)
    if not isinstance(builds, list) or not builds or not all(isinstance(build, dict) for build in builds):
        raise BadInput(f'{path}: has no builds. Write [[build]] and artifacts = "folder" for each one.')
    jobs: dict[str, Job] = {}
    budgets: dict[str, Budgets] = {}
    wrong: list[str] = []
    for index, build in enumerate(builds, 1):
        where = f"{path}: build {build.get(NAME, index)}"
        try:
            for job in _jobs(build, document, path.parent, where):
                if job.name in jobs:
                    raise BadInput(f"{where}: there are two builds called {job.name}. Give them a name each.")
                jobs[job.name] = job
                table = {**_table(document), **_table(build)}
                budgets[job.name] = parse_budgets(table, where)
        except BadInput as error:
            wrong.append(str(error))
    if wrong:
        raise BadInput("\n".join(wrong))
    return Fleet(tuple(jobs.values()), budgets)


def _table(settings: Mapping[str, Any]) -> dict[str, Any]:
    table = settings.get(BUDGETS, {})
    if not isinstance(table, dict):
        raise BadInput("budgets: is no table. Write [budgets], or [build.budgets] behind a [[build]].")
    return table


def _jobs(build: Mapping[str, Any], common: Mapping[str, Any], folder: Path, where: str) -> Iterator[Job]:
    """The jobs of one table: one, or one for each folder or file that a pattern finds."""
    given = build.get(ARTIFACTS)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise BadInput(
            f'{where}: {ARTIFACTS}: is missing. Write artifacts = "folder", or a list of models that share a library.'
        )
    own = {key: value for key, value in build.items() if key not in (NAME, ARTIFACTS, BUDGETS)}
    shared = {key: value for key, value in common.items() if key != BUDGETS}
    settings = checked_settings({**shared, **own}, where, options_of(reduce))
    if "baseline" in settings:
        raise BadInput(
            f"{where}: baseline: is for single builds. Leave it out: growth counts from the package that is replaced."
        )
    name = build.get(NAME)
    if name is not None and not isinstance(name, str):
        raise BadInput(f"{where}: {NAME}: {name!r} is no text.")
    patterns = [text for text in texts if glob.has_magic(text)]
    if not patterns:
        yield _job(name or Path(texts[0]).stem, [Path(text) for text in texts], settings, folder, where)
        return
    if len(texts) > 1 or name is not None:
        raise BadInput(
            f"{where}: {patterns[0]}: a pattern is a build for each match, named as that. Write it alone, without name."
        )
    matches = sorted(Path(match) for match in glob.glob(patterns[0], root_dir=folder))
    if not matches:
        raise BadInput(f"{where}: {patterns[0]}: nothing matches in {folder}. Correct the pattern.")
    for match in matches:
        yield _job(match.stem, [match], settings, folder, where)


def _job(name: str, artifacts: list[Path], settings: Mapping[str, Any], folder: Path, where: str) -> Job:
    if not _NAMES.fullmatch(name):
        raise BadInput(
            f"{where}: {name!r} cannot name a folder. Give it a name of letters, digits, dots, dashes and underscores."
        )
    inputs: dict[str, Path] = {}
    arguments = [_placed(path, folder, inputs) for path in artifacts]
    for key, value in settings.items():
        arguments += _option(key, value, folder, inputs)
    return Job(name, inputs, tuple(arguments))


def _option(key: str, value: Any, folder: Path, inputs: dict[str, Path]) -> list[str]:
    """A setting as arguments of the command."""
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--{_SWITCHES.get(key, f'no-{key}')}"]
    if isinstance(value, tuple):  # a build option of several words
        return [f"--{key}", ",".join(value)]
    values = value if isinstance(value, list) else [value]
    if key == "loss" and str(value).endswith(".onnx"):
        values = [Path(value)]
    texts = [_placed(v, folder, inputs) if isinstance(v, Path) else str(v) for v in values]
    return [word for text in texts for word in (f"--{key}", text)]


def _placed(path: Path, folder: Path, inputs: dict[str, Path]) -> str:
    """Where a file or folder of the user stands for a job: as the user calls it, if that is below the fleet's file.
    Everything in it, and what an ONNX file has beside it, is added to `inputs`. Raises BadInput."""
    below = not path.is_absolute() and ".." not in path.parts
    place = path if below else Path("outside", str(sum(n.startswith("outside/") for n in inputs)), path.name)
    real = folder / path
    if real.is_dir():
        found = {place / file.relative_to(real): file for file in sorted(real.rglob("*")) if file.is_file()}
        if not found:
            raise BadInput(f"{real}: there is nothing in this folder. Give one with training artifacts.")
    elif real.is_file():
        beside = external_files(real) if real.suffix == ".onnx" else ()
        found = {place: real, **{place.parent / f.relative_to(real.parent): f for f in beside}}
    else:
        raise BadInput(f"{real}: no such file or folder. Correct the path.")
    inputs.update({file.as_posix(): source for file, source in found.items()})
    return place.as_posix()
