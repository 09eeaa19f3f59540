"""Headers of static functions, compiled so that a linker sees them: for calls from Python, and for their size."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

from minbuild.formats.elf_format import SYMTAB, ElfSymbol, parse

INCLUDE = ROOT / "kernels/include"
M4F = ("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4+vfp4d16sp")
SMALL = ("-Os", "-ffunction-sections", "-fno-unwind-tables", "-c")


def functions(header: str, marker: str) -> list[tuple[str, str, str]]:
    """Result, name and parameters of each function that `marker` begins."""
    text = (INCLUDE / header).read_text("utf-8")
    return re.findall(rf"^{marker} ([\w ]+\w) (mb_\w+)\(([^)]*)\)", text, re.MULTILINE)


def wrappers(header: str, marker: str) -> str:
    """A program with each function of the header under the name `out_` and its own."""
    lines = [f'#include "{header}"']
    for result, name, parameters in functions(header, marker):
        names = [part.replace("*", " ").split()[-1] for part in parameters.split(",")]
        back = "" if result == "void" else "return "
        lines.append(f"{result} out_{name}({parameters}) {{ {back}{name}({', '.join(names)}); }}")
    return "\n".join(lines) + "\n"


def compiled(program: str, out: Path, *flags: str) -> Path:
    """A C program compiled to `out`."""
    source = out.with_suffix(".c")
    source.write_text(program, "utf-8")
    command = (
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{INCLUDE}",
    )
    subprocess.run((*command, *flags, str(source), "-o", str(out)), check=True)
    return out


def symbols(path: Path) -> tuple[ElfSymbol, ...]:
    """The symbols of an ELF file."""
    return parse(path.name, path.read_bytes()).symbols(SYMTAB)
