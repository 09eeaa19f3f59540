"""Bindings of a package for other languages: the files of kernels/bindings, and those made from templates/bindings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from posixpath import normpath
from typing import Any

from minbuild import __version__, assets
from minbuild.errors import BadInput
from minbuild.ir import ElementType
from minbuild.ir.mapped import FileBytes
from minbuild.planning.library_contents import OPTIONAL
from minbuild.planning.plan_inputs import PlanInput, read_plan_inputs
from minbuild.templating import render
from minbuild.toolchain import Target

LANGUAGES: Mapping[str, str] = {
    "cpp": "C++17",
    "csharp": "C#",
    "java": "Java and Kotlin",
    "js": "JavaScript and TypeScript",
    "swift": "Swift and Objective-C",
}
WASM = "js"  # the language that runs on a WebAssembly module
_FROM_SOURCE = ("swift", "Sources/CMinbuild")  # whose package manager compiles only what is inside its folder
_FROM_FILES = ("java", "swift")  # whose sessions, some at least, are made by mb_create_from_files
_ALSO = {"c++": "cpp", "c#": "csharp", "kotlin": "java", "javascript": "js", "typescript": "js", "ts": "js"} | {
    "objective-c": "swift", "objc": "swift"
}  # fmt: skip
_GENERATED = {
    "cpp": ("model_inputs.h",),
    "csharp": ("Header.cs", "Models.cs"),
    "java": ("src/main/cpp/components.h", "src/main/cpp/model_inputs.h"),
    "js": (
        *("README.md", "header.js", "index.d.ts", "index.js", "models.js", "package.json", "plan.js"),
        *("threads.js", "training.d.ts", "training.js", "worker.js"),
    ),
    "swift": ("Package.swift", "Sources/CMinbuild/include/model_inputs.h"),
}  # from the templates of the same names
_CHOICE = "simd.js"  # of two WebAssembly modules
_SHARED = {
    "cpp": ".",
    "java": "src/main/cpp",
    "swift": "Sources/CMinbuild/include",
}  # where languages have C headers
_COMMENT = re.compile(r"/\*.*?\*/|^#.*?$", re.DOTALL | re.MULTILINE)
_ENUM = re.compile(r"enum \{(.*?)\}", re.DOTALL)
_STRUCT = re.compile(r"typedef struct \w+ \{(.*?)\} (mb_\w+);", re.DOTALL)
_MEMBER = re.compile(r"((?:const )?\w+\s?\*?)\s*(\w+)(?:\[(\w+)\])?")
_RANK = re.compile(r"#define MB_MAX_RANK (\d+)")
_CSHARP = {
    "char": "byte",
    "int32_t": "int",
    "int64_t": "long",
    "float": "float",
    "size_t": "UIntPtr",
    "mb_parallel": "IntPtr",
}
_SIZES = {"char": 1, "int32_t": 4, "float": 4, "int64_t": 8, "size_t": 4, "mb_parallel": 4}  # at 32 bits


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct; `count` is 0 where it is no array."""

    name: str
    type: str
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class CStruct:
    """A struct of trainer.h as it lies in memory at 32 bits."""

    name: str
    members: tuple[Member, ...]
    size: int
    align: int


@dataclass(frozen=True, slots=True)
class Header:
    """The declarations of trainer.h that bindings need besides the functions."""

    constants: tuple[tuple[str, int], ...]
    structs: tuple[CStruct, ...]
    max_rank: int


def parse_languages(names: Iterable[str], files: bool = True) -> tuple[str, ...]:
    """Languages as the user writes them, `java,js` or one by one, in the order of the table, for a library that has
    `files` or not. Raises BadInput."""
    given = {name.strip().lower() for text in names for name in text.split(",")}
    found = {_ALSO.get(name, name) for name in given}
    for name in sorted(found - set(LANGUAGES)):
        raise BadInput(f"--bindings {name}: unknown. There are {', '.join(sorted({*LANGUAGES, *_ALSO}))}.")
    for name in () if files else _FROM_FILES:
        if name in found:
            raise BadInput(
                f"--bindings {name}: makes sessions from files, which the library lacks with --file-io off. Leave out "
                "one of the two."
            )
    return tuple(name for name in LANGUAGES if name in found)


def binding_files(
    languages: Iterable[str],
    components: frozenset[str],
    sources: Mapping[str, bytes],
    module: bytes | None = None,
    *,
    relaxed: bytes | None = None,
    plans: Sequence[FileBytes] = (),
    compiled: bool = False,
    error_messages: bool = True,
) -> dict[str, FileBytes]:
    """Files below `bindings/` by their paths in the package, for a library with these `components`, of OPTIONAL.
    Swift carries the library's sources with it, JavaScript its WebAssembly modules. Errors about the inputs of models
    with these `plans`, which may be `compiled` into the library, are in words; in C++ only where the library's own,
    `error_messages`, are. `languages` are names of LANGUAGES, `sources` the library's sources by path, `module` the
    WebAssembly module, where it was built, `relaxed` the one for engines with relaxed SIMD, where there are two."""
    files: dict[str, FileBytes] = {}
    plan = "none" if compiled else "file" if len(plans) == 1 else "given"
    values = {
        "plan": plan,
        "stamp": f"Generated by minbuild {__version__} from trainer.h; do not edit.",
        "header": read_header(),
        "csharp": _CSHARP,
        "elements": [(element.dtype.name, int(element)) for element in ElementType if element.dtype],
        "components": [(name, name.upper(), name in components) for name in OPTIONAL],
        **_models(plans),
        "words": int(error_messages),
        "relaxed": relaxed is not None,
    }
    for language in languages:
        folder = assets.root("kernels") / "bindings" / language
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            files[f"bindings/{language}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        for path in sorted((folder.parent / "shared").iterdir()) if language in _SHARED else ():
            files[normpath(f"bindings/{language}/{_SHARED[language]}/{path.name}")] = path.read_bytes()
        for name in _GENERATED.get(language, ()):
            text = render(f"bindings/{name.split('/')[-1]}.j2", **values)
            files[f"bindings/{language}/{name}"] = text.encode()
        if language == _FROM_SOURCE[0]:
            files |= {f"bindings/{'/'.join(_FROM_SOURCE)}/{path}": data for path, data in sources.items()}
        if language == WASM and module is not None:
            files[f"bindings/{language}/minbuild.wasm"] = module
        if language == WASM and relaxed is not None:
            files[f"bindings/{language}/minbuild-relaxed-simd.wasm"] = relaxed
            files[f"bindings/{language}/{_CHOICE}"] = render(f"bindings/{_CHOICE}.j2", **values).encode()
        if language == WASM and plan == "file":
            files[f"bindings/{language}/trainer.plan"] = plans[0]
    return files


def wasm_modules(libraries: Mapping[Target, bytes]) -> tuple[bytes | None, bytes | None]:
    """The arguments `module` and `relaxed` of `binding_files`: the module of the first WebAssembly target in
    `libraries`, shared ones; both where that target was built with relaxed SIMD and without."""
    built = [(target.traits, data) for target, data in libraries.items() if target.traits.format == "wasm"]
    if not built:
        return None, None
    first, module = built[0]
    for other, data in built[1:]:
        if other.shares_memory == first.shares_memory and other.relaxed_simd != first.relaxed_simd:
            return (data, module) if first.relaxed_simd else (module, data)
    return module, None


def model_inputs(plans: Iterable[FileBytes]) -> str:
    """The header with the inputs of models with these plans, for kernels/bindings/shared/refusal.h."""
    stamp = f"Generated by minbuild {__version__}; do not edit."
    return render("bindings/model_inputs.h.j2", stamp=stamp, words=1, **_models(plans))


def _models(plans: Iterable[FileBytes]) -> dict[str, object]:
    """The inputs of models as the templates have them; a key that two of them share is the first one's."""
    models: list[dict[str, Any]] = []
    for inputs in {
        found.key: found for found in reversed([read_plan_inputs(plan) for plan in plans])
    }.values():
        at = {symbol: -2 - n for n, symbol in enumerate(inputs.symbols)}
        graphs = [[_input(each, at) for each in graph] for graph in (inputs.train, inputs.evaluate)]
        models.append({"key": inputs.key, "symbols": list(inputs.symbols.items()), "graphs": graphs})
    symbols = [len(found["symbols"]) for found in models]
    return {"models": models[::-1], "most_symbols": max(symbols, default=0) or 1}


def _input(each: PlanInput, symbols: Mapping[str, int]) -> dict[str, object]:
    dims = [symbols[s] if isinstance(s, str) else -1 if s is None else s for s in each.sizes]
    classes, ignored = (each.labels.classes, each.labels.ignored) if each.labels else (0, None)
    found: dict[str, object] = {"name": each.name, "type": int(each.type), "dims": dims, "classes": classes}
    return found | {"ignores": int(ignored is not None), "ignored": ignored or 0}


@lru_cache(maxsize=1)
def read_header() -> Header:
    """Constants and structs of trainer.h."""
    source = (assets.root("kernels") / "include/minbuild/trainer.h").read_text("utf-8")
    rank = _RANK.search(source)
    assert rank is not None, "trainer.h says how many dimensions there may be"
    text = _COMMENT.sub("", source)
    entries = [entry.split("=") for body in _ENUM.findall(text) for entry in body.split(",") if entry.strip()]
    constants = tuple((name.strip(), int(value)) for name, value in entries)
    structs: dict[str, CStruct] = {}
    for body, name in _STRUCT.findall(text):
        structs[name] = _laid_out(name, body, structs, {"MB_MAX_RANK": int(rank[1])})
    return Header(constants, tuple(structs.values()), int(rank[1]))


def _laid_out(name: str, body: str, known: Mapping[str, CStruct], numbers: Mapping[str, int]) -> CStruct:
    members: list[Member] = []
    end, widest = 0, 1
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = declaration.split(",")
        match = _MEMBER.fullmatch(first.strip())
        assert match is not None, f"{name}: '{first}' is no member this reads"
        kind = match[1].replace(" *", "*").strip()
        for member, length in ((match[2], match[3]), *((other.strip(), None) for other in others)):
            size, align = _size_of(kind, known)
            count = numbers.get(length, 0) or int(length) if length else 0
            offset = (end + align - 1) // align * align
            members.append(Member(member, kind, count, offset))
            end, widest = offset + size * max(1, count), max(widest, align)
    return CStruct(name, tuple(members), (end + widest - 1) // widest * widest, widest)


def _size_of(kind: str, known: Mapping[str, CStruct]) -> tuple[int, int]:
    """Bytes and alignment of a type at 32 bits."""
    if kind in known:
        return known[kind].size, known[kind].align
    size = 4 if kind.endswith("*") else _SIZES[kind]
    return size, size
