"""Every byte of a library has one owner: on real links for three machines, and on damaged files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from attributed_library import KERNELS, TARGETS, Library, kernel

from minbuild import ir as model
from minbuild.analysis import measure
from minbuild.analysis.attribution import attribute
from minbuild.analysis.target_result import TargetResult
from minbuild.codegen.library_builder import BuiltLibrary, TrimmedAndFull
from minbuild.errors import BadInput, MinbuildError
from minbuild.formats import ar, elf
from minbuild.formats import symbol_names as names
from minbuild.toolchain import BuildOutput, host_target

# ------------------------------------------------------------------------------------------------ reading ELF


def test_reads_sections_symbols_exports_imports(library: Library) -> None:
    binary = library.binary
    assert binary.exports == ("mb_last_error", "mb_train_step")
    assert binary.imports == ("host_clock",)
    sections = {s.name: s for s in binary.sections}
    assert sections[".bss"].file_size == 0 and sections[".bss"].size == 256
    assert binary.data[sections[".shstrtab"].offset :][:1] == b"\0"
    names_ = {s.name: s for s in binary.symbols}
    step = names_["mb_train_step"]
    assert step.section == ".text"
    if library.target.startswith("thumb"):
        assert step.address % 2 == 0  # the Thumb bit is gone
    text = sections[".text"]
    assert all(
        text.address <= s.address <= s.address + s.size <= text.address + text.size
        for s in binary.symbols
        if s.section == ".text"
    )
    assert names_["minbuild::Status minbuild::gemm<float>(minbuild::Call const&)"].size > 0


def test_the_two_word_sizes_are_covered() -> None:
    assert {"x86_64-linux-gnu", "thumb-linux-gnueabihf"} <= set(TARGETS)


def test_every_truncation_is_a_clear_error(x86: Library) -> None:
    for size in [*range(0, 400, 7), *range(400, len(x86.stripped), 61)]:
        with pytest.raises(BadInput, match=r"lib\.so.*(Build it again|only little endian)"):
            elf.read_binary("lib.so", "t", x86.stripped[:size], x86.unstripped)
    for size in range(0, len(x86.unstripped) - 1, 173):
        with pytest.raises(BadInput):
            elf.read_binary("lib.so", "t", x86.stripped, x86.unstripped[:size])


def test_random_damage_never_escapes_as_another_error(library: Library) -> None:
    """Flipped bytes either leave a file whose bytes add up, or are a MinbuildError."""
    chance = random.Random(7)
    for _ in range(300):
        damaged = bytearray(library.stripped)
        for _ in range(chance.randint(1, 6)):
            near = chance.choice([64, len(damaged)])
            damaged[chance.randrange(near)] = chance.randrange(256)
        try:
            binary = elf.read_binary("lib.so", library.target, bytes(damaged), library.unstripped)
            assert attribute(binary, library.owners, KERNELS).total == len(damaged)
        except MinbuildError as error:
            assert "lib.so" in str(error)


def test_other_formats_are_refused() -> None:
    for data in (b"", b"MZ\x90\0", b"\0asm\1\0\0\0", b"\x7fELF\x02\x02\x01" + bytes(57)):
        with pytest.raises(BadInput):
            elf.parse("x", data)


def test_an_unstripped_library_of_another_link_is_refused(x86: Library, tmp_path: Path) -> None:
    other = bytearray(x86.unstripped)
    parsed = elf.parse("unstripped", x86.unstripped)
    table = next(at for name, at, _ in parsed.structures if name == "section headers")
    index = 1 + [s.name for s in parsed.sections].index(".text")
    at = table + index * 64 + 32  # sh_size
    other[at : at + 8] = (8).to_bytes(8, "little")
    with pytest.raises(BadInput, match="different links"):
        elf.read_binary("lib.so", "t", x86.stripped, bytes(other))


def test_archive_members_are_the_objects(library: Library) -> None:
    members = ar.members("lib.a", library.archive)
    assert sorted(members.values()) == sorted(library.objects.values())
    with pytest.raises(BadInput, match="truncated"):
        ar.members("lib.a", library.archive[:-100])
    with pytest.raises(BadInput, match="not a static library"):
        ar.members("lib.a", b"hello")


# ------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("mangled", "text", "own"),
    [
        ("_ZN8minbuild4gemmIfEENS_6StatusERKNS_4CallE",
         "minbuild::Status minbuild::gemm<float>(minbuild::Call const&)", ("gemm", ("float",))),
        ("_ZN8minbuildL6kTableE", "minbuild::kTable", ("kTable", ())),
        ("_ZN8minbuild4packILb1ELi4EfEEvPT1_S1_l", "void minbuild::pack<1, 4, float>(float*, float, long)",
         ("pack", ("1", "4", "float"))),
        ("_ZN8minbuild3mulEDv8_fS0_", "minbuild::mul(floatx8, floatx8)", ("mul", ())),
        ("_ZN8minbuild4castIDF16_EEvPKT_", "void minbuild::cast<_Float16>(_Float16 const*)",
         ("cast", ("_Float16",))),
        ("_ZN8minbuild4castIDF16bEEvPKT_", "void minbuild::cast<__bf16>(__bf16 const*)",
         ("cast", ("__bf16",))),
        ("_ZN8minbuild9cast_realINS_4halfENS_8bfloat16EEENS_6StatusERKNS_4CallE",
         "minbuild::Status minbuild::cast_real<minbuild::half, minbuild::bfloat16>(minbuild::Call const&)",
         ("cast_real", ("minbuild::half", "minbuild::bfloat16"))),
        ("_ZN8minbuild10cast_wholeItaEENS_6StatusERKNS_4CallE",
         "minbuild::Status minbuild::cast_whole<unsigned short, signed char>(minbuild::Call const&)",
         ("cast_whole", ("unsigned short", "signed char"))),
        ("_ZZN8minbuild4textEiE5table", "minbuild::text(...)::table", ("text", ())),
        ("_ZZN8minbuild3fooEiENKUlvE_clEv", "minbuild::foo(...)", ("foo", ())),
        ("_ZN8minbuild4gemmEv.cold", "minbuild::gemm() [.cold]", ("gemm", ())),
        ("_ZNK8minbuild6TensorcvbEv", "minbuild::Tensor::operator bool() const", ("operator bool", ())),
        ("_ZNK8minbuild6Reader4takeEjPKc", "minbuild::Reader::take(unsigned int, char const*) const",
         ("take", ())),
        ("_ZNK8minbuild4PackILi2EE4moveIfEEvPf", "minbuild::Pack<2>::move<float>(void, float*) const",
         ("move", ("2",))),
        ("memcpy", "memcpy", ("memcpy", ())),
        ("_Z", "_Z", ("_Z", ())),
        ("minbuild::Rows<float>::next(int)", "minbuild::Rows<float>::next(int)", ("next", ("float",))),
    ],
)  # fmt: skip
def test_names(mangled: str, text: str, own: tuple[str, tuple[str, ...]]) -> None:
    assert names.demangle(mangled) == text
    if "operator" not in text:
        assert names.parts(text) == own


def test_switch_tables_belong_to_their_function() -> None:
    assert names.of_table(".Lswitch.table.mb_last_error") == "mb_last_error"
    assert names.of_table("switch.table._ZN8minbuild4textEi.3") == "minbuild::text(int)"


# -------------------------------------------------------------------------------------------------- measuring


def test_build_report_measures(x86: Library) -> None:
    from minbuild.ir.size_report import Arena, ModelReport, Persistent

    arenas = (Arena("train", 1000, 990), Arena("evaluate", 400, 400))
    facts = ModelReport("m", "0", (), (("batch", 8),), arenas,
                        Persistent(10, 10, 20, 3, 1, 7), 5, 6, 5, 9)  # fmt: skip
    uses = {"gemm": (measure.Use("fc1", "Gemm"), measure.Use("fc2", "MatMul"), measure.Use("fc2", "Gemm"))}
    output = BuildOutput(x86.stripped, b"", b"", "", ("zig c++ -Oz -c a.cc",), "zig", x86.target)

    class Linked(BuiltLibrary):
        owners = x86.owners  # known from the fixture's objects

    build = Linked(output, x86.binary, KERNELS, {})
    extra = Linked(output, x86.binary, (*KERNELS, kernel("never", "never")), {})
    result = TargetResult(TrimmedAndFull(host_target(), extra, build))
    report = measure.build_report(facts, uses, (result,))
    target = report.targets[0]
    assert target.trimmed.file == len(x86.stripped) == sum(r.bytes for r in target.rows)
    assert (
        target.trimmed.file
        == sum(g.bytes for g in target.groups)
        == sum(s.trimmed_file for s in target.sections)
    )
    assert (
        target.full.file
        == sum(g.full_bytes for g in target.groups)
        == sum(s.full_file for s in target.sections)
    )
    assert target.trimmed.loaded < target.trimmed.file
    assert 0 < target.trimmed.download < target.trimmed.file
    assert (target.static.data, target.static.bss) == (0, 256)
    assert target.ram == 256 + 1000 + 44
    gemm = next(r for r in target.rows if r.name == "gemm")
    assert (gemm.nodes, gemm.users, gemm.types) == (("fc1", "fc2"), ("Gemm", "MatMul"), ("float",))
    assert gemm.symbols[0].names == ("gemm<float>",)
    never = next(r for r in target.rows if r.name == "never")
    assert never.bytes == 0 and never.kind == "operator"


def test_plan_facts() -> None:
    tensor = model.PlanTensor(1, 0, model.ElementType.FLOAT, (3, 2))
    roles = (model.Role.PARAMETER, model.Role.BUFFER, model.Role.FROZEN)
    step = model.Step(0, (), (), 0, "fc1")
    routine = model.Routine("train", (step, step, replace(step, node="fc2")), (), (), ())
    parameters = tuple(model.PlanParameter(r.name, r, 0) for r in roles)
    plan = model.Plan(
        (KERNELS[0],), (), (tensor,), (routine,), parameters, b"", (),
        trainable_bytes=32, moments=2, persistent_bytes=32 * 4 + 24 + 16, learning_rate_at=152, step_at=160,
    )  # fmt: skip
    node = model.Node("Gemm", "com.x", 1, "fc1", (), (), {})
    graph = model.Graph("training_model.onnx", (node,), {}, {}, (), {})
    expected = (measure.Use("fc1", "com.x:Gemm"), measure.Use("fc2", "gemm"))
    assert measure.uses_by_stem(plan, (graph,)) == {"gemm": expected}
    found = measure.persistent_of(plan)
    assert (found.parameters, found.gradients, found.optimizer, found.state) == (32, 32, 64, 24)
    assert (found.other, found.frozen, found.total) == (16, 24, plan.persistent_bytes)
