"""The texts that decide the object of a source: all that its compiler may see of headers, and nothing else."""

from __future__ import annotations

import pytest
from places import ROOT

from minbuild.toolchain.include_scan import include_closure

pytestmark = pytest.mark.unit

KERNELS = ROOT / "kernels"
CONFIG = "src/minbuild/config.h"
FOLDERS = ("include", "src")


def closure(text: str, table: str) -> tuple[str | bytes, ...]:
    source = f'#include "minbuild/config.h"\n{text}\n'
    return include_closure("src/a.cc", {"src/a.cc": source.encode(), CONFIG: table.encode()}, FOLDERS)


def counts(text: str, macro: str) -> bool:
    """True if the value of a macro decides what the text compiles to."""
    return closure(text, f"#define {macro} 1\n") != closure(text, f"#define {macro} 2\n")


def test_macros_count_that_are_named():
    assert counts("int a = MB_A;", "MB_A")
    assert not counts("int a = MB_A;", "MB_B")


def test_macros_count_that_a_counted_one_names():
    table = "#define MB_A (MB_B + 1)\n#define MB_B {}\n#define MB_C {}\n"
    assert closure("int a = MB_A;", table.format(1, 1)) != closure("int a = MB_A;", table.format(2, 1))
    assert closure("int a = MB_A;", table.format(1, 1)) == closure("int a = MB_A;", table.format(1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "#define TAKE(name) int name = MB_HAS_##name;\nTAKE(x)",
        "#define TAKE(name) int name = MB_HAS_ ## name ## _now;\nTAKE(x)",
        "#define TAKE(name) \\\n  int name = MB_HAS_##name;\nTAKE(x)",
        "#if A\n  #define TAKE(name) int name = MB_HAS_##name;\n#endif",
    ],
)
def test_macros_count_whose_names_may_be_put_together(text):
    assert counts(text, "MB_HAS_x") and counts(text, "MB_HAS_y")
    assert not counts(text, "MB_HELD_x")


@pytest.mark.parametrize(
    "text",
    [
        "#define TAKE(name) int a = name##_x;",
        "#define TAKE(a, b) int c = a##b;",
        "#define TAKE(...) int c = __VA_ARGS__##_x;",
        "#define TAKE(a, ...) f(a, ##__VA_ARGS__)",
        "int a = MB_##x;  // a macro's, by other means",
        "// ## a title",
    ],
)
def test_every_macro_counts_where_a_name_may_be_any(text):
    assert counts(text, "MB_B")


UNITS = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cc"))


@pytest.fixture(scope="module")
def library() -> dict[str, bytes]:
    """The sources of the library, in the folders of a package."""
    paths = [path for path in KERNELS.rglob("*") if path.suffix in (".cc", ".h")]
    return {f"src/{path.relative_to(KERNELS).as_posix()}": path.read_bytes() for path in paths}


def test_what_only_other_models_ask_for_compiles_nothing_of_the_library_again(library):
    """One macro that might be named anyhow, in a header that all include, and no model shares objects with another."""

    def closures(value: bytes) -> list[tuple[str | bytes, ...]]:
        sources = {**library, CONFIG: b"#define MB_OF_ANOTHER_MODEL " + value + b"\n"}
        return [include_closure(f"src/{unit}", sources, FOLDERS) for unit in UNITS]

    again = [unit for unit, a, b in zip(UNITS, closures(b"1"), closures(b"2"), strict=True) if a != b]
    assert len(UNITS) > 100 and again == []


def test_what_a_source_of_the_library_asks_for_compiles_it_again(library):
    sources = [{**library, CONFIG: b"#define MB_THREADS " + value} for value in (b"1", b"2")]
    found = [include_closure("src/runtime/threads.cc", texts, FOLDERS) for texts in sources]
    assert found[0] != found[1]
