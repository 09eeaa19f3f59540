"""Build options: each has its effect on a real library, and is found on the command line, in settings, in profiles."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import fields, replace
from pathlib import Path

import pytest
from commands import SMALL, Command, command_fixture  # noqa: F401

from minbuild import toolchain
from minbuild.analysis.attribution import attribute
from minbuild.analysis.budgets import parse_budgets
from minbuild.analysis.whatif.suggestions import SuggestionPlanner
from minbuild.cli.option_parsing import options_of
from minbuild.cli.reduce import reduce
from minbuild.cli.settings_file import PROFILE, checked_settings, known_keys, resolve_build_options, tomllib
from minbuild.codegen.cmake import cmake_files
from minbuild.codegen.library_builder import BuiltLibrary, LibraryBuilder, build_checked
from minbuild.codegen.sources import emit_sources
from minbuild.docgen import option_tables as option_tables
from minbuild.errors import BadInput
from minbuild.formats import elf_format
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
from minbuild.planning.compile import CompiledModel, compile_model
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of, with_kernels
from minbuild.toolchain import find_toolchain, host_target, not_applied, parse_target
from minbuild.toolchain.flags import AVX512, speed_units
from minbuild.verify.differential import prove_equal, seeded_trial

HOST = host_target()
X86 = pytest.mark.skipif(HOST.traits.arch != "x86_64", reason="another processor")
ELF = pytest.mark.skipif(not HOST.traits.is_elf, reason="the host's libraries are not ELF")


@pytest.fixture(scope="module")
def model() -> CompiledModel:
    return compile_model(SMALL, {}, {})


def built(
    model: CompiledModel, target: str = "", cxx: str | None = None, **chosen: str | tuple[str, ...]
) -> BuiltLibrary:
    """A library that holds just what it should, and every byte of which has an owner."""
    build_options = BuildOptions(**chosen)  # type: ignore[arg-type]
    where = parse_target(target) if target else HOST
    contents = contents_of([model], build_options=build_options)
    library = build_checked(contents, model.registry, where, find_toolchain(cxx, build_options=build_options))
    attribute(library.binary, library.owners, library.kernels)
    return library


def proven(model: CompiledModel, library: BuiltLibrary, usual: BuiltLibrary | None = None) -> None:
    """It computes the very bits of the `usual` library, by default that of the default build options."""
    trial = seeded_trial(model.program, model.plan, model.checkpoint, model.registry)
    prove_equal(trial, model.plan_bytes, library.built.shared, (usual or built(model)).built.shared)


def sections(data: bytes) -> set[str]:
    return {section.name for section in elf_format.parse("library", data).sections}


def segments(data: bytes) -> list[tuple[int, ...]]:
    """Type, offset, address and alignment of every program header of a 64-bit file."""
    start, size, count = struct.unpack_from("<Q14xHH", data, 32)
    found = (struct.unpack_from("<IIQQQQQQ", data, start + size * i) for i in range(count))
    return [(row[0], row[2], row[3], row[7]) for row in found]


# ------------------------------------------------------------------------------------------- real libraries


@ELF
def test_unwind_tables(model: CompiledModel) -> None:
    library = built(model, unwind_tables=ON)
    frames, there = 0x6474E550, [row[0] for row in segments(library.built.shared)]
    assert ".eh_frame" in sections(library.built.twin) and frames in there
    usual = built(model).built
    assert ".eh_frame" not in sections(usual.twin) and frames not in [
        row[0] for row in segments(usual.shared)
    ]
    arm = built(model, "arm-linux-musleabihf", unwind_tables=ON).built.twin
    assert ".ARM.exidx" in sections(arm)
    proven(model, library)


@ELF
def test_visibility(model: CompiledModel) -> None:
    usual, open_ = built(model), built(model, visibility="default")
    assert all(name.startswith("mb_") for name in usual.binary.exports)
    assert set(usual.binary.exports) < set(open_.binary.exports)
    proven(model, open_)


@ELF
def test_strip(model: CompiledModel) -> None:
    whole = built(model, strip=OFF, section_headers="all").built.shared
    assert ".symtab" in sections(whole) and ".symtab" not in sections(built(model).built.shared)


@ELF
@pytest.mark.parametrize("size", [4096, 16384, 65536])
def test_pages(model: CompiledModel, size: int) -> None:
    library = built(model, max_page_size=str(size))
    loaded = [row for row in segments(library.built.shared) if row[0] == elf_format.LOAD]
    assert [row[3] for row in loaded] == [size, size]
    assert all(address % size == offset % size for _, offset, address, _ in loaded)
    assert len(library.built.shared) == len(built(model).built.shared)
    proven(model, library)


@ELF
def test_padding(model: CompiledModel) -> None:
    library = built(model, separate_code=ON)
    page = HOST.traits.page
    data = [row for row in segments(library.built.shared) if row[0] == elf_format.LOAD][1]
    assert data[1] % page == data[2] % page == 0
    # Code that happens to end with a page has nothing to be filled up.
    assert len(library.built.shared) >= len(built(model).built.shared)
    proven(model, library)


@ELF
def test_headers(model: CompiledModel) -> None:
    every, usual = built(model, section_headers="all"), built(model)
    assert sections(usual.built.shared) < sections(every.built.shared)
    assert len(every.built.shared) > len(usual.built.shared)


@ELF
def test_link_time_optimisation(model: CompiledModel) -> None:
    library, usual, without = built(model, lto=ON), built(model), built(model, lto=OFF)
    assert library.built.shared == usual.built.shared != without.built.shared
    assert "--lto-O" in library.built.commands[1] and "--lto-O" not in without.built.commands[1]
    assert library.built.archive == without.built.archive
    proven(model, library)
    proven(model, without)


@ELF
def test_the_full_library_is_compiled_once(model: CompiledModel) -> None:
    """Its objects are not made again for the link unless that is asked for."""
    silent = lambda text: None  # noqa: E731
    pair = LibraryBuilder(contents_of([model]), model.registry, find_toolchain(), False, silent, silent).pair(
        HOST
    )
    assert "--lto-O" in pair.trimmed.built.commands[1]
    assert "--lto-O" not in pair.full.built.commands[1]


@ELF
def test_sections_and_fold(model: CompiledModel) -> None:
    kept = built(model, gc_sections=OFF)
    assert "-fno-function-sections" in kept.built.commands[0] and "--no-gc-sections" in kept.built.commands[1]
    apart = built(model, icf=OFF)
    assert "--icf=none" in apart.built.commands[1]
    usual = len(built(model).built.shared)
    assert len(kept.built.shared) >= usual and len(apart.built.shared) >= usual
    proven(model, kept)


def test_speed(model: CompiledModel) -> None:
    fast, usual = built(model, optimize="speed"), built(model)
    assert len(fast.built.shared) > len(usual.built.shared)
    gemm = built(model, speed_for=("gemm",))
    but_gemm = built(model, optimize="speed", size_for=("gemm",))
    sizes = [len(x.built.shared) for x in (usual, gemm, but_gemm, fast)]
    assert sizes[0] < min(sizes[1:3]) and max(sizes[1:3]) < sizes[3]
    assert sum("-c SOURCE" in command for command in gemm.built.commands) == 2
    for library in (fast, gemm, but_gemm):
        proven(model, library)


@X86
def test_avx512(model: CompiledModel) -> None:
    wide = built(model, avx512=ON)
    assert AVX512 in wide.built.commands[0] and len(wide.built.shared) > len(built(model).built.shared)
    proven(model, wide)  # where the processor lacks it, by the other forms


def test_what_the_device_lacks(model: CompiledModel) -> None:
    usual = len(built(model).built.shared)
    for name, value in (("error_messages", "codes"), ("checkpoint_writing", OFF), ("file_io", OFF)):
        assert len(built(model, **{name: value}).built.shared) < usual, name
    assert "mb_save_checkpoint" not in built(model, checkpoint_writing=OFF).binary.exports
    assert "mb_create_from_files" not in built(model, file_io=OFF).binary.exports


def test_all_features(model: CompiledModel) -> None:
    every, used = (
        contents_of([model], build_options=BuildOptions(kernel_features=value)) for value in ("all", "used")
    )
    stems = {kernel.stem for kernel in used.kernels}
    assert every.kernels == used.kernels and every.features > used.features
    assert {f.split(".")[0] for f in every.features} <= stems
    general = contents_of([model], build_options=BuildOptions(shape_ops="all"))
    assert general.symbols and general.loops and set(general.expressions) > set(used.expressions)
    proven(model, built(model, kernel_features="all", shape_ops="all"))


def test_operators_and_files_name_kernels(model: CompiledModel) -> None:
    named = with_kernels(BuildOptions(speed_for=("MatMul", "softmax_cross_entropy")), model.registry)
    assert "softmax_cross_entropy" in named.speed_for
    assert set(named.speed_for) <= set(model.registry.stems.values()) and len(named.speed_for) > 1
    with pytest.raises(BadInput, match="both name gemm"):
        with_kernels(BuildOptions(speed_for=("Gemm",), size_for=("gemm", "Relu")), model.registry)
    with pytest.raises(BadInput, match=r"--size-for Convv: .* is called so\. Did you mean Conv\?"):
        with_kernels(BuildOptions(size_for=("Convv",)), model.registry)
    told: list[str] = []
    contents_of([model], note=told.append, build_options=named)
    assert not told
    contents_of([model], note=told.append, build_options=BuildOptions(size_for=("top_k",)))
    assert told == ["--size-for: the library has no kernel of top_k.cc; this changes nothing."]
    with pytest.raises(BadInput, match="--size-for Nonsense: no operator.*Files are "):
        with_kernels(BuildOptions(size_for=("Nonsense",)), model.registry)


# ------------------------------------------------------------------------------------------- other toolchains


def test_what_cannot_be_done_is_said() -> None:
    build_options = BuildOptions(unwind_tables=ON, max_page_size="16384", optimize="speed", avx512=ON)
    wasm = not_applied(find_toolchain(build_options=build_options), parse_target("wasm32"))
    assert wasm == ("--unwind-tables on", "--max-page-size 16384", "--avx512 on")
    assert not_applied(find_toolchain(build_options=build_options), parse_target("x86_64-linux-gnu")) == ()
    assert not_applied(find_toolchain(), parse_target("wasm32")) == ()


def test_a_target_that_cannot_builds_as_usual(model: CompiledModel) -> None:
    usual = built(model, "wasm32").built.shared
    assert (
        built(model, "wasm32", unwind_tables=ON, strip=OFF, max_page_size="65536", lto=ON).built.shared
        == usual
    )
    assert built(model, "wasm32", optimize="speed").built.shared != usual


@ELF
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_another_compiler(model: CompiledModel) -> None:
    assert set(not_applied(find_toolchain("g++", build_options=BuildOptions(icf=OFF, lto=ON)), HOST)) == {
        "--icf off"
    }
    usual = built(model, cxx="g++")
    assert ".eh_frame" in sections(built(model, cxx="g++", unwind_tables=ON).built.twin)
    assert ".symtab" in sections(built(model, cxx="g++", strip=OFF).built.shared)
    assert len(built(model, cxx="g++", optimize="speed").built.shared) > len(usual.built.shared)
    proven(model, built(model, cxx="g++", lto=ON), usual)


def test_the_package_builds_as_chosen(model: CompiledModel) -> None:
    build_options = BuildOptions(
        optimize="speed", unwind_tables=ON, strip=OFF, visibility="default", max_page_size="16384", avx512=ON
    )
    sources = emit_sources(contents_of([model]), model.registry)
    files = cmake_files(sources, (), build_options)
    text = files["CMakeLists.txt"].decode()
    for word in ("-funwind-tables", "-fvisibility=default", "max-page-size=16384", AVX512, 'libraries" OFF'):
        assert word in text
    assert b"global: *" in files["src/exports.map"]
    units = re.search(r"set_source_files_properties\((.*?)PROPERTIES COMPILE_OPTIONS -O2\)", text, re.DOTALL)
    assert units is not None and set(units[1].split()) == speed_units(build_options, sources) != set()
    plain = cmake_files(sources, ())["CMakeLists.txt"].decode()
    assert "set_source_files_properties" not in plain and AVX512 not in plain
    assert text.count("max-page-size") == plain.count("max-page-size") + 1  # Android has its own


# ------------------------------------------------------------------------------------- profiles and settings


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


def test_the_smallest_profile_loses_nothing_that_a_trainer_can_do(model: CompiledModel) -> None:
    smallest = in_profile("smallest")
    assert (smallest.checkpoint_writing, smallest.file_io, smallest.graphs) == (ON, ON, BuildOptions().graphs)
    advisor = SuggestionPlanner((model,), contents_of([model]), ExtraRequirements(), False, smallest)
    kept = {
        "--checkpoint-writing off",
        "--rollback off",
        "--finite-checks off",
        "--file-io off",
        "--graphs train,optimize",
    }
    assert smallest.lto == ON
    assert len(built(model, lto=ON).built.shared) < len(built(model, lto=OFF).built.shared)
    assert {o.how for o in advisor.candidates() if o.how.startswith("--")} == kept


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
        'profile = "smallest"\nno-analysis = true\ntarget = ["x86_64-linux-musl"]\nunwind-tables = true\n'
        'include-op = "Relu"\ngraphs = ["train", "optimize"]\n[budgets]\nfile = "1 MiB"\n'
    )
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "--out", out, "--settings", config, "--unwind-tables", "off")
    assert said.code == 0, said.err
    report = json.loads((out / "report" / "report.json").read_text())
    assert report["build_options"] == replace(in_profile("smallest"), graphs=("train", "optimize")).as_text
    assert [t["target"] for t in report["targets"]] == ["x86_64-linux-musl"]
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
    monkeypatch.setenv("MINBUILD_AVX512", "1")
    out = tmp_path / "dist"
    said = minbuild("reduce", SMALL, "--out", out, "--no-analysis", "--target", "wasm32")
    assert said.code == 0 and "wasm32: not applied" in said.err and "--avx512 on" in said.err
    assert json.loads((out / "report" / "report.json").read_text())["build_options"]["avx512"] == ON


def test_help_shows_every_option(minbuild: Command) -> None:
    text = re.sub(r"[\s│]+", "", minbuild("reduce", "--help").out)
    for option in table():
        assert f"--{option.key}" in text and all(value in text for value in option.values)
    assert "--profile" in text and all(f"{name}:" in text for name in PROFILES)


def test_several_libraries_at_once_are_those_one_by_one(model: CompiledModel) -> None:
    orders = [
        toolchain.BuildJob(
            emit_sources(contents_of([model]), model.registry),
            HOST,
            find_toolchain(build_options=build_options),
        )
        for build_options in (BuildOptions(), BuildOptions(separate_code=ON), BuildOptions())
    ]
    one, padded, again = toolchain.build_all(orders)
    assert one == again == built(model).built and padded.shared == built(model, separate_code=ON).built.shared


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
