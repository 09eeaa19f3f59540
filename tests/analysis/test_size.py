"""Every byte of a library has one owner: on real links for three machines, and on damaged files."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minbuild import ir as model
from minbuild.analysis import measure
from minbuild.analysis.attribution import Attribution, attribute
from minbuild.analysis.target_result import TargetResult
from minbuild.codegen.library_builder import BuiltLibrary, TrimmedAndFull
from minbuild.errors import BadInput, MinbuildError, ToolchainFailed
from minbuild.formats import ar, elf
from minbuild.formats import symbol_names as names
from minbuild.formats import symbol_origins as owners
from minbuild.ir.size_report import KINDS
from minbuild.toolchain import BuildOutput, host_target

TARGETS = ("x86_64-linux-gnu", "thumb-linux-gnueabihf", "aarch64-linux-musl")

SHARED_H = """
#pragma once
#include <stdint.h>
namespace minbuild {
struct Call { void** args; const int32_t* params; };
enum class Status : uint8_t { kOk, kBad };
float shared_exp(float x);
template <class Body, class... Rest> __attribute__((noinline)) void each(float* x, int n, Rest... rest) {
  for (int i = 0; i < n; ++i) x[i] = Body::of(x[i], rest...);
}
struct Doubled {
  static float of(float x, int by) { return x + by * x; }
};
template <class T> __attribute__((noinline)) T dot(const T* a, const T* b, int n) {
  T sum{};
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
}  // namespace minbuild
"""
SOURCES = {
    "kernels/gemm.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status gemm(const Call& c) {
  *(T*)c.args[0] = dot<T>((T*)c.args[1], (T*)c.args[2], c.params[0]);
  return Status::kOk;
}
template Status gemm<float>(const Call&);
}""",
    "kernels/softmax.cc": """
#include "lib/math.h"
namespace minbuild {
struct Cubed {
  static float of(float x) { return x * x * x; }
};
__attribute__((noinline)) static float largest(const float* x, int n) {
  float best = x[0];
  for (int i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}
template <class T> Status softmax(const Call& c) {
  T* y = (T*)c.args[0];
  y[1] = dot<T>(y, (T*)c.args[1], c.params[0]) + largest(y, c.params[1]);
  for (int i = 0; i < c.params[0]; ++i) y[i] = shared_exp(y[i]);
  return Status::kOk;
}
template <class T> Status softmax_grad(const Call& c) {
  each<Cubed>((float*)c.args[0], c.params[2]);
  each<Doubled>((float*)c.args[1], c.params[3], 2);
  ((T*)c.args[0])[2] = 3 - largest((T*)c.args[1], c.params[0]);
  return Status::kOk;
}
template Status softmax<float>(const Call&);
template Status softmax_grad<float>(const Call&);
}""",
    "kernels/copy.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status copy(const Call& c) {
  for (int i = 0; i < c.params[0]; ++i) ((T*)c.args[0])[i] = ((T*)c.args[1])[i + 1];
  return Status::kOk;
}
template Status copy<int32_t>(const Call&);
}""",
    "kernels/move.cc": """
#include "lib/math.h"
namespace minbuild {
template <class T> Status move(const Call& c) {
  for (int i = 0; i < c.params[0]; ++i) ((T*)c.args[0])[i] = ((T*)c.args[1])[i + 1];
  return Status::kOk;
}
template Status move<int32_t>(const Call&);
}""",
    "kernels/lib/math.cc": """
#include "lib/math.h"
namespace minbuild {
static const float powers[16] = {1, 2, 3, 4, 5.5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7.25};
float shared_exp(float x) { return powers[(int)x & 15] * x + 0.3f; }
}""",
    "kernels/runtime/session.cc": """
#include "lib/math.h"
extern "C" int host_clock(void);
extern "C" __attribute__((noinline)) void zero(char* p, int n) {
  for (volatile char* q = p; n--;) *q++ = 0;
}
namespace minbuild {
template <class T> Status gemm(const Call&);
template <class T> Status softmax(const Call&);
template <class T> Status softmax_grad(const Call&);
template <class T> Status copy(const Call&);
template <class T> Status move(const Call&);
using Function = Status (*)(const Call&);
static const Function table[] = {gemm<float>, softmax<float>, softmax_grad<float>, copy<int32_t>,
                                 move<int32_t>};
static char counters[256];
}
#define MB_API extern "C" __attribute__((visibility("default")))
MB_API const char* mb_last_error(int i) {
  return i == 1 ? "bad plan: the table is damaged" : i == 2 ? "no such parameter" : "";
}
MB_API int mb_train_step(minbuild::Call* c, int k) {
  zero(minbuild::counters, k);
  return (int)minbuild::table[k](*c) + minbuild::counters[k + 1] + host_clock();
}""",
}


def kernel(function: str, stem: str, types: tuple[str, ...] = ("float",)) -> model.Kernel:
    return model.Kernel(stem=stem, function=function, types=types, args=(), params=0)


KERNELS = (
    kernel("gemm", "gemm"),
    kernel("softmax", "softmax"),
    kernel("softmax_grad", "softmax"),
    kernel("copy", "copy", ("int32_t",)),
    kernel("move", "move", ("int32_t",)),
)


class Library:
    """One link of SOURCES: the files as bytes, what they tell, and who owns what."""

    def __init__(self, target: str, folder: Path) -> None:
        self.target = target
        zig = [sys.executable, "-m", "ziglang"]
        (folder / "lib").mkdir()
        (folder / "lib" / "math.h").write_text(SHARED_H)
        self.objects = {}
        files = []
        for path, text in SOURCES.items():
            source = folder / path.replace("/", ".")
            source.write_text(text)
            result = source.with_suffix(".o")
            flags = [
                "-Oz",
                "-std=c++17",
                "-fPIC",
                "-fno-exceptions",
                "-fno-rtti",
                "-fvisibility=hidden",
                "-fno-unwind-tables",
            ]
            flags += ["-ffunction-sections", "-fdata-sections", f"-I{folder}", "-c"]
            subprocess.run([*zig, "c++", "-target", target, *flags, source, "-o", result], check=True)
            self.objects[path] = result.read_bytes()
            files.append(result)
        link = [*zig, "ld.lld", "-shared", "--gc-sections", "--icf=all", "--hash-style=gnu", *files]
        link += ["-z", "max-page-size=4096", "-o", folder / "out"]
        self.twin = self._link([*link, "--emit-relocs"], folder)
        self.stripped = self._link([*link, "-s"], folder)
        self.headerless = self._link([*link, "-s", "-z", "nosectionheader"], folder)
        subprocess.run([*zig, "ar", "rcsD", folder / "lib.a", *files], check=True)
        self.archive = (folder / "lib.a").read_bytes()
        self.sources = {
            **{path: text.encode() for path, text in SOURCES.items()},
            "kernels/lib/math.h": SHARED_H.encode(),
        }
        self.owners = owners.from_objects(self.objects, {p: d.decode() for p, d in self.sources.items()})
        self.binary = elf.read_binary("libtrainer.so", target, self.stripped, self.twin)

    @staticmethod
    def _link(command: list[object], folder: Path) -> bytes:
        subprocess.run([str(word) for word in command], check=True)
        return (folder / "out").read_bytes()

    def attribution(self) -> Attribution:
        return attribute(self.binary, self.owners, KERNELS)


@pytest.fixture(scope="module", params=TARGETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(request.param, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(TARGETS[0], tmp_path_factory.mktemp("library"))


def rows(attribution: Attribution) -> dict[tuple[str, str], int]:
    found = {(s.owner.kind, s.owner.name): s.bytes for s in attribution.shares}
    assert len(found) == len(attribution.shares), "an owner has two rows"
    return found


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
            elf.read_binary("lib.so", "t", x86.stripped[:size], x86.twin)
    for size in range(0, len(x86.twin) - 1, 173):
        with pytest.raises(BadInput):
            elf.read_binary("lib.so", "t", x86.stripped, x86.twin[:size])


def test_random_damage_never_escapes_as_another_error(library: Library) -> None:
    """Flipped bytes either leave a file whose bytes add up, or are a MinbuildError."""
    chance = random.Random(7)
    for _ in range(300):
        damaged = bytearray(library.stripped)
        for _ in range(chance.randint(1, 6)):
            near = chance.choice([64, len(damaged)])
            damaged[chance.randrange(near)] = chance.randrange(256)
        try:
            binary = elf.read_binary("lib.so", library.target, bytes(damaged), library.twin)
            assert attribute(binary, library.owners, KERNELS).total == len(damaged)
        except MinbuildError as error:
            assert "lib.so" in str(error)


def test_other_formats_are_refused() -> None:
    for data in (b"", b"MZ\x90\0", b"\0asm\1\0\0\0", b"\x7fELF\x02\x02\x01" + bytes(57)):
        with pytest.raises(BadInput):
            elf.parse("x", data)


def test_a_twin_of_another_link_is_refused(x86: Library, tmp_path: Path) -> None:
    other = bytearray(x86.twin)
    parsed = elf.parse("twin", x86.twin)
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


# ------------------------------------------------------------------------------------------------ attribution


def test_every_byte_has_one_owner(library: Library) -> None:
    attribution = library.attribution()
    assert attribution.total == len(library.stripped) == sum(s.bytes for s in attribution.shares)
    covered = sorted((p.offset, p.bytes) for s in attribution.shares for p in s.pieces)
    position = 0
    for offset, size in covered:
        assert offset == position and size > 0
        position += size
    assert position == len(library.stripped)
    assert {s.owner.kind for s in attribution.shares} <= set(KINDS)
    assert not any("other" in s.owner.name for s in attribution.shares)


def test_owners_are_the_right_ones(library: Library) -> None:
    found = rows(library.attribution())
    sizes = {names.parts(s.name)[0]: s.size for s in library.binary.symbols}
    for body in ("Cubed", "Doubled"):
        sizes[body] = next(s.size for s in library.binary.symbols if f"each<minbuild::{body}" in s.name)
    assert found["operator", "gemm"] == sizes["gemm"]
    own = ("softmax", "softmax_grad", "largest", "Cubed")  # a shared loop around its own body
    assert found["operator", "softmax"] == sum(sizes[name] for name in own)
    assert found["shared", "Doubled (math.h)"] == sizes["Doubled"]
    assert found["shared", "dot (math.h)"] == sizes["dot"]
    assert found["shared", "shared_exp (math.cc)"] == sizes["shared_exp"]
    assert found["shared", "powers (math.cc)"] == 64
    functions = ("mb_train_step", "mb_last_error", "zero", "table")
    assert found["runtime", "session"] >= sum(sizes[f] for f in functions)
    assert found["overhead", "ELF header"] in (52, 64)
    texts = ("bad plan: the table is damaged", "no such parameter")
    literals = sum(size for (kind, _), size in found.items() if kind == "literal")
    assert literals >= sum(len(t) + 1 for t in texts)
    if any(s.name.startswith(".L.str") for s in library.binary.symbols):  # not every machine keeps labels
        assert ("literal", "literals of kernels.runtime.session.cc") in found
    for what in (
        "program headers",
        "section headers",
        "dynamic symbols (.dynsym)",
        "symbol lookup (.gnu.hash)",
    ):
        assert found["overhead", what] > 0


def test_shared_rows_name_their_users(x86: Library) -> None:
    users = {s.owner.name: s.owner.operators for s in x86.attribution().shares}
    assert users["dot (math.h)"] == ("gemm", "softmax")
    assert users["shared_exp (math.cc)"] == ("softmax",)


def test_folded_functions_count_once(library: Library) -> None:
    share = next(s for s in library.attribution().shares if "copy" in s.owner.name)
    assert share.owner.kind == "shared" and share.owner.operators == ("copy", "move")
    assert len(share.pieces) == 1 and len(share.pieces[0].names) == 2
    sizes = [s.size for s in library.binary.symbols if "copy" in s.name or "move" in s.name]
    assert len(sizes) == 2 and share.bytes == sizes[0]


def test_functions_nobody_owns_are_the_librarys(x86: Library) -> None:
    sources = {n: p for n, p in x86.owners.sources.items() if n not in ("zero", "mb_last_error")}
    found = rows(attribute(x86.binary, owners.Owners(sources), KERNELS))
    assert ("library", "zero") in found
    assert ("runtime", "functions of unknown source") in found


def test_the_archive_tells_the_same_owners(library: Library) -> None:
    assert owners.from_archive("lib.a", library.archive, library.sources) == library.owners


def test_a_file_without_section_headers_still_adds_up(library: Library) -> None:
    binary = elf.read_binary("lib.so", library.target, library.headerless, library.twin)
    found = rows(attribute(binary, library.owners, KERNELS))
    assert sum(found.values()) == len(library.headerless) < len(library.stripped)
    assert ("overhead", "section headers") not in found
    assert found["operator", "gemm"] == rows(library.attribution())["operator", "gemm"]


def test_mangled_owners_work(x86: Library) -> None:
    mangled = {"_ZN8minbuild4gemmIfEENS_6StatusERKNS_4CallE": "kernels/gemm.cc"}
    found = rows(attribute(x86.binary, owners.Owners(mangled), ()))
    assert found["runtime", "gemm"] > 0  # no selected kernel has this stem
    assert found["runtime", "functions of unknown source"] > 0
    found = rows(attribute(x86.binary, owners.Owners({}), KERNELS))
    assert found["operator", "gemm"] > 0  # a kernel is known by its name alone


def symbols_at(library: Library, *spans: tuple[str, int, int]) -> model.Binary:
    text = next(s for s in library.binary.sections if s.name == ".text")
    return replace(
        library.binary,
        symbols=tuple(model.Symbol(n, ".text", text.address + at, size) for n, at, size in spans),
    )


def test_overlapping_symbols_share_no_byte(x86: Library) -> None:
    """Nested and same-start symbols are listed with the one that has the bytes; later ones keep the rest."""
    spans = (("a", 16, 40), ("a2", 16, 8), ("nested", 20, 4), ("late", 50, 20), ("b", 400, 1 << 40))
    attribution = attribute(symbols_at(x86, *spans), owners.Owners({}), ())
    pieces = {p.names: p.bytes for s in attribution.shares for p in s.pieces if p.names}
    size = next(s.size for s in x86.binary.sections if s.name == ".text")
    expected = {("a", "a2", "nested"): 40, ("late",): 14}
    if size > 400:
        expected["b",] = size - 400
    assert pieces == expected
    assert attribution.total == len(x86.stripped)


def test_contradicting_sections_are_an_error(x86: Library) -> None:
    twice = (*x86.binary.sections, replace(x86.binary.sections[0], name=".again"))
    with pytest.raises(ToolchainFailed, match="libtrainer.so: .* inside"):
        attribute(replace(x86.binary, sections=twice), x86.owners, KERNELS)
    beyond = replace(x86.binary.sections[0], offset=len(x86.stripped) + 5)
    with pytest.raises(ToolchainFailed, match="libtrainer.so"):
        attribute(replace(x86.binary, sections=(*x86.binary.sections, beyond)), x86.owners, KERNELS)


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
