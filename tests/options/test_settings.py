"""Profiles, settings files, environment and command line: what wins, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from commands import SMALL, Command, command_fixture  # noqa: F401

from minbuild.analysis.budgets import parse_budgets
from minbuild.cli.option_parsing import options_of
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import PROFILE, checked_settings, known_keys, resolve_build_options, tomllib
from minbuild.docgen import option_tables as option_tables
from minbuild.errors import BadInput
from minbuild.options.build_options import (
    DEFAULT,
    OFF,
    ON,
    PROFILES,
    BuildOptions,
    build_option,
    in_profile,
    table,
)


def made(
    path: str = "minbuild.toml", profile: str | None = None, given=(), **settings: object
) -> BuildOptions:
    checked = checked_settings(
        {k.replace("_", "-"): v for k, v in settings.items()}, path, options_of(reduce)
    )
    return resolve_build_options(dict(given), checked, profile)


def test_the_default_profile_is_no_choice() -> None:
    assert in_profile(DEFAULT) == BuildOptions() and not BuildOptions().changed
    assert set(PROFILES) == {"smallest", "balanced", "fastest"}
    for option in table():
        assert {*option.profiles} <= {*PROFILES} and option.description and option.read(option.default or "x")
    assert {f.name for f in fields(BuildOptions)} == {option.name for option in table()}


def test_command_line_before_settings_before_profile() -> None:
    assert made(profile="smallest").error_messages == "codes"
    assert made(profile="smallest", error_messages="text").error_messages == "text"
    assert (
        made(profile="smallest", error_messages="text", given={"error_messages": "codes"}).error_messages
        == "codes"
    )
    said = checked_settings({PROFILE: "fastest"}, "minbuild.toml", options_of(reduce))
    assert (
        resolve_build_options({}, said, None).optimize == "speed"
        and resolve_build_options({}, said, "balanced") == BuildOptions()
    )


def test_values_as_people_write_them() -> None:
    found = made(
        unwind_tables=True,
        strip=False,
        max_page_size=16384,
        graphs=["optimize", "train"],
        speed_for="conv, gemm",
    )
    assert (found.unwind_tables, found.strip, found.max_page_size) == (ON, OFF, "16384")
    assert found.graphs == ("train", "optimize") and found.speed_for == ("conv", "gemm")
    assert made(given={"avx512": "1"}).avx512 == ON
    assert found.as_text["graphs"] == "train,optimize" and found.as_text["speed-for"] == "conv,gemm"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        made(strip="maybe", max_page=True, graphs=["train", "fly"], no_analysis="yes", max_page_size=4095)
    lines = str(refused.value).splitlines()
    assert len(lines) == 5 and all(line.startswith("minbuild.toml: ") for line in lines)
    text = str(refused.value)
    assert 'strip: "maybe" is not allowed. Choose from: on, off.' in text
    assert "max-page: there is no such setting. Did you mean max-page-size?" in text
    assert "max-page-size: 4095 is not allowed. Choose from: target, 4096, 16384, 65536." in text
    assert refused.value.exit_code == 2
    with pytest.raises(BadInput) as refused:
        made(profile="tiny", given={"icf": "perhaps", "lto": "full"})
    assert [line.split(" ")[0] for line in str(refused.value).splitlines()] == [
        "--profile",
        "--lto",
        "--icf",
    ]


def test_settings_know_every_option_that_is_not_about_output() -> None:
    keys = known_keys(options_of(reduce))
    for name in (
        "target",
        "dim",
        "max-dim",
        "with",
        "bindings",
        "include-op",
        "exclude-op",
        "types",
    ):
        assert name in keys
    assert {c.key for c in table()} | {PROFILE, "budgets", "no-analysis", "loss", "ops-dir"} <= set(keys)
    assert not {"out", "history", "settings", "json", "json-output", "verbose", "artifacts"} & set(keys)


def test_everything_in_a_file(minbuild: Command, tmp_path: Path) -> None:
    config = tmp_path / "minbuild.toml"
    config.write_text(
        'profile = "smallest"\nno-analysis = true\ntarget = ["wasm32"]\nunwind-tables = true\n'
        'include-op = "Relu"\ngraphs = ["train", "optimize"]\nlto = "off"\n[budgets]\nfile = "1 MiB"\n'
    )
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "--out", out, "--settings", config, "--unwind-tables", "off")
    assert said.code == 0, said.err
    assert "--include-op asks for a library that runs other models too" in " ".join(said.err.split())
    report = json.loads((out / "report" / "report.json").read_text())
    assert (
        report["build_options"]
        == replace(
            in_profile("smallest"), graphs=("train", "optimize"), flavor="interpreted", lto="off"
        ).as_text
    )
    assert [t["target"] for t in report["targets"]] == ["wasm32"]
    assert not report["targets"][0]["waterfall"]
    config.write_text("no-analysis = true\n[budgets]\nfile = 1\n")
    assert minbuild("reduce", SMALL, "--out", out, "--settings", config).code == 5


def test_wrong_settings_end_the_command(minbuild: Command, tmp_path: Path) -> None:
    config = tmp_path / "minbuild.toml"
    config.write_text('strip = "maybe"\nfoo = 1\n')
    said = minbuild("reduce", SMALL, "--out", tmp_path / "dist", "--settings", config)
    assert said.code == 2 and f"{config}: strip" in said.err and f"{config}: foo" in said.err


def test_paths_in_settings_are_seen_from_the_file(minbuild: Command, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    config = folder / "minbuild.toml"
    config.write_text('no-analysis = true\nbaseline = "none.json"\n')
    said = minbuild("reduce", SMALL, "--out", tmp_path / "dist", "--settings", config)
    assert said.code == 2 and str(folder / "none.json") in said.err


def test_the_environment_chooses(minbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINBUILD_AVX512", "0")
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "--out", out, "--no-analysis")
    assert said.code == 0
    assert json.loads((out / "report" / "report.json").read_text())["build_options"]["avx512"] == OFF


def test_help_shows_every_option(minbuild: Command) -> None:
    text = re.sub(r"[\s│]+", "", minbuild("reduce", "--help").out)
    for option in table():
        assert f"--{option.key}" in text and all(value in text for value in option.values)
    assert "--profile" in text and all(f"{name}:" in text for name in PROFILES)


def test_a_choice_takes_its_own_saving_back() -> None:
    for name in BuildOptions().savings:
        assert getattr(BuildOptions().without(name), name) == build_option(name).neutral


def test_the_documented_settings_are_read() -> None:
    keys = options_of(reduce)
    settings = tomllib.loads(option_tables.EXAMPLE)
    checked = checked_settings(settings, "minbuild.toml", keys)
    assert checked["dim"] == ["batch=8"] and parse_budgets(checked["budgets"], "minbuild.toml").limits
    changed = resolve_build_options({}, checked, None).changed.keys()
    assert changed - in_profile("smallest").changed.keys() == {"graphs", "speed_for", "unwind_tables"}
    text = option_tables.document(known_keys(keys), "measured\n")
    assert option_tables.EXAMPLE in text and all(f"| `--{c.key}` |" in text for c in table())
    assert all(f"| `{key}` |" in text for key in known_keys(keys))
    assert all(profile in option_tables.summary() for profile in PROFILES)


def test_whole_numbers_are_settings() -> None:
    keys = options_of(reduce)
    assert checked_settings({"growth-interval": 4}, "minbuild.toml", keys) == {"growth-interval": 4}
    for wrong in ("4", True, 4.5):
        with pytest.raises(BadInput, match="a whole number"):
            checked_settings({"growth-interval": wrong}, "minbuild.toml", keys)


@pytest.mark.parametrize(
    ("given", "value"), [("1", OFF), ("0", OFF), (1, OFF), (2, "2"), ("64", "64"), ("65", None)]
)
def test_one_thread_is_none_besides_the_callers(given: object, value: str | None) -> None:
    assert build_option("threads").read(given) == value


@pytest.mark.parametrize("given", [0, 1, 1001])
def test_a_number_out_of_range_is_no_spelling_of_a_word(given: int) -> None:
    assert build_option("lowering_time").read(given) is None
