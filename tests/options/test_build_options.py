"""Build options: each has its effect on a real library, and is found on the command line, in settings, in profiles."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest
from commands import SMALL, Command, command_fixture  # noqa: F401
from packed_model import packed_artifacts

from minbuild import toolchain
from minbuild.analysis.attribution import attribute
from minbuild.analysis.whatif.suggestions import SuggestionPlanner
from minbuild.codegen.cmake import cmake_files
from minbuild.codegen.library_builder import BuiltLibrary, LibraryBuilder, build_checked
from minbuild.codegen.sources import emit_sources
from minbuild.docgen import option_tables as option_tables
from minbuild.errors import BadInput
from minbuild.formats import elf_format
from minbuild.options.build_options import (
    OFF,
    ON,
    BuildOptions,
    in_profile,
    table,
)
from minbuild.planning.compile import compile_model
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.kernel_selection import ExtraRequirements, contents_of, with_kernels
from minbuild.toolchain import find_toolchain, host_target, not_applied, parse_target
from minbuild.toolchain.flags import speed_units
from minbuild.verify.differential import prove_equal, seeded_script

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
    script = seeded_script(model.program, model.plan, model.checkpoint, model.registry)
    prove_equal(script, model.plan_bytes, library.built.shared, (usual or built(model)).built.shared)


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
    assert ".eh_frame" in sections(library.built.unstripped) and frames in there
    usual = built(model).built
    assert ".eh_frame" not in sections(usual.unstripped) and frames not in [
        row[0] for row in segments(usual.shared)
    ]
    arm = built(model, "arm-linux-musleabihf", unwind_tables=ON).built.unstripped
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
    # Once: the link reads what that left.
    assert "optimised.o" in library.built.commands[2] and "--lto-O" not in library.built.commands[2]
    assert library.built.archive == without.built.archive
    proven(model, library)
    proven(model, without)


def bench_of(model: CompiledModel) -> LibraryBuilder:
    silent = lambda text: None  # noqa: E731
    return LibraryBuilder(contents_of([model]), model.registry, find_toolchain(), False, silent, silent)


@ELF
def test_the_full_library_is_compiled_once(model: CompiledModel) -> None:
    """Its objects are not made again for the link unless that is asked for."""
    pair = bench_of(model).pair(HOST)
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
def test_avx512(model: CompiledModel, tmp_path: Path) -> None:
    # Of products that are packed: where there are none, nothing is added.
    assert built(model, avx512=ON).built.shared == built(model, avx512=OFF).built.shared
    large = compile_model(packed_artifacts(tmp_path), {}, {})
    assert len(built(large, avx512=ON).built.shared) > len(built(large, avx512=OFF).built.shared)
    proven(large, built(large, avx512=ON), built(large, avx512=OFF))
    bench = bench_of(large)  # so is what reduce compares
    assert bench.contents.avx512 and not bench.full.avx512


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
    proven(model, built(model, kernel_features="all", shape_ops="all"), built(model, loop_variants="all"))


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
    build_options = BuildOptions(unwind_tables=ON, max_page_size="16384", optimize="speed")
    wasm = not_applied(find_toolchain(build_options=build_options), parse_target("wasm32"))
    assert wasm == ("--unwind-tables on", "--max-page-size 16384")
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
    assert ".eh_frame" in sections(built(model, cxx="g++", unwind_tables=ON).built.unstripped)
    assert ".symtab" in sections(built(model, cxx="g++", strip=OFF).built.shared)
    assert len(built(model, cxx="g++", optimize="speed").built.shared) > len(usual.built.shared)
    proven(model, built(model, cxx="g++", lto=ON), usual)


def test_the_package_builds_as_chosen(model: CompiledModel) -> None:
    build_options = BuildOptions(
        optimize="speed", unwind_tables=ON, strip=OFF, visibility="default", max_page_size="16384"
    )
    sources = emit_sources(contents_of([model]), model.registry)
    files = cmake_files(sources, (), build_options)
    text = files["CMakeLists.txt"].decode()
    for word in ("-funwind-tables", "-fvisibility=default", "max-page-size=16384", 'libraries" OFF'):
        assert word in text
    assert b"global: *" in files["src/exports.map"]
    units = re.search(r"set_source_files_properties\((.*?)PROPERTIES COMPILE_OPTIONS -O2\)", text, re.DOTALL)
    assert units is not None and set(units[1].split()) == speed_units(build_options, sources) != set()
    plain = cmake_files(sources, ())["CMakeLists.txt"].decode()
    assert "set_source_files_properties" not in plain
    assert text.count("max-page-size") == plain.count("max-page-size") + 1  # Android has its own


def test_the_smallest_profile_loses_nothing_that_a_trainer_can_do(model: CompiledModel) -> None:
    smallest = in_profile("smallest")
    assert (smallest.checkpoint_writing, smallest.file_io, smallest.graphs) == (ON, ON, BuildOptions().graphs)
    advisor = SuggestionPlanner((model,), contents_of([model]), ExtraRequirements(), smallest)
    kept = {
        "--checkpoint-writing off",
        "--rollback off",
        "--finite-checks off",
        "--checkpoint-checks off",
        "--accept-checkpoint any",
        "--file-io off",
        "--graphs train,optimize",
    }
    assert smallest.lto == ON
    assert len(built(model, lto=ON).built.shared) < len(built(model, lto=OFF).built.shared)
    assert {o.how for o in advisor.candidates() if o.how.startswith("--")} == kept


def test_every_suggestion_has_a_name(model: CompiledModel) -> None:
    proposed = [option for option in table() if option.tradeoff]
    # None of the options is at its smallest: each is proposed.
    others = {o.name: next(v for v in o.values if v != o.min_size) for o in proposed}
    chosen = BuildOptions(**others)
    contents = contents_of([model], build_options=chosen)
    advisor = SuggestionPlanner((model,), contents, ExtraRequirements(), chosen)
    names = {candidate.how: candidate.title for candidate in advisor.candidates()}
    assert {f"--{o.key} {o.min_size}" for o in proposed} <= set(names)
    assert all(names.values()) and len(set(names.values())) == len(names)
    assert "avx512" not in chosen.savings  # and it is no step of the waterfall


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
