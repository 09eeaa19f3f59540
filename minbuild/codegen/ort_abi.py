"""`--abi ort`: a second library of the trainer, with ONNX Runtime's C interface for training and the model inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from minbuild import __version__, assets
from minbuild.codegen.bindings import model_inputs
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.codegen.package_layout import folder_of
from minbuild.errors import BadInput, ToolchainFailed
from minbuild.formats.detect import read_binary
from minbuild.ir.mapped import FileBytes
from minbuild.options.build_options import FUSED, ON, BuildOptions
from minbuild.planning.compiled_model import CompiledModel, with_components
from minbuild.planning.inference_export import template_outputs
from minbuild.templating import render
from minbuild.toolchain import BuildJob, Builds, Interface, Target
from minbuild.toolchain.zig import find_zig

ABIS: Mapping[str, str] = {
    "ort": "ONNX Runtime's C interface for training, for programs that were written for it"
}
ORT_VERSION = 21  # the newest that OrtGetApiBase()->GetApi answers, and all before it
INTERFACE = Interface("libonnxruntime.so", ("OrtGetApiBase",))
_COMPONENTS = (
    "properties",
    "buffers",
)  # what the interface cannot do without; and, where the model has any, export
_FOLDER = "src/abi/ort"


def check_abi(abi: str, models: int, build_options: BuildOptions, own_toolchain: bool) -> None:
    """Refuse what a library with another interface cannot be built with. `abi` names the interface, "" for none;
    `models` counts the models of the library; `own_toolchain` is True where the user named a compiler. Raises
    BadInput. `build_options` are those of the trainer's library."""
    if abi not in ABIS:
        raise BadInput(f"--abi {abi}: there is no such interface. Choose from {', '.join(ABIS)}.")
    if models > 1:
        raise BadInput(
            f"--abi {abi}: its library has one model inside, not {models}. Reduce them one by one."
        )
    if own_toolchain:
        raise BadInput(
            f"--abi {abi}: its library is linked by the default toolchain. Leave out --cxx and --cmake-toolchain."
        )
    if build_options.updates == FUSED:
        raise BadInput(
            f"--abi {abi}: has a call for training and one for updates, which --updates fused joins. Leave one out."
        )
    for name, value in (
        ("checkpoint-writing", build_options.checkpoint_writing),
        ("file-io", build_options.file_io),
    ):
        if value != ON:
            raise BadInput(
                f"--abi {abi}: saves checkpoints and reads files, which --{name} {value} leaves out."
            )


def abi_targets(abi: str, targets: Sequence[Target]) -> tuple[Target, ...]:
    """Those that have such a library: Linux. Raises BadInput where there is none."""
    found = tuple(t for t in targets if t.traits.is_elf and t.traits.os == "linux")
    if not found:
        raise BadInput(
            f"--abi {abi}: programs link with its library on Linux only. Add --target x86_64-linux-gnu."
        )
    return found


def with_abi(model: CompiledModel, components: Sequence[str], outputs: Sequence[str]) -> CompiledModel:
    """`model` with the optional `components` that were asked for and those that the interface has functions for:
    export of `outputs` only where the model has something to export."""
    try:
        return with_components(model, (*components, *_COMPONENTS, "export"), outputs)
    except BadInput:
        return with_components(model, (*components, *_COMPONENTS), outputs)


def build_abi(
    model: CompiledModel,
    libraries: Mapping[Target, BuiltLibrary],
    build_options: BuildOptions,
    files: Iterable[Path],
    builds: Builds,
) -> dict[str, bytes]:
    """The libraries with the interface, by their paths in the package, beside the trainer's own `libraries`. `files`
    are the model's, which programs name when they create a session. `model` is the library's only one, built as
    `build_options` say; `builds` keeps what was built. Raises ToolchainFailed."""
    toolchain = find_zig().with_build_options(build_options).with_interface(INTERFACE)
    made = {}
    for target, library in libraries.items():
        sources = {**library.sources, **abi_sources(model, library.compiled, files)}
        built = builds[BuildJob(sources, target, toolchain)]
        path = f"lib/{folder_of(target)}/{INTERFACE.soname}"
        exports = read_binary(path, str(target), built.shared, built.unstripped).exports
        if set(exports) != set(INTERFACE.exports):
            raise ToolchainFailed(
                f"{path}: exports {', '.join(sorted(exports))}, not {', '.join(INTERFACE.exports)}."
            )
        made[path] = built.shared
    return made


def abi_sources(model: CompiledModel, compiled: bool, files: Iterable[Path]) -> dict[str, bytes]:
    """The sources that come on top of the trainer's, which has its plan `compiled` in or not. `files` are those of
    `model`, whose bytes become a checksum each."""
    stamp = f"Generated by minbuild {__version__}; do not edit."
    plan, template = b"" if compiled else model.plan_bytes, model.export_template or b""
    digests = sorted({sha256(path.read_bytes()).digest() for path in files}) or [bytes(32)]
    values = {
        "stamp": stamp,
        "data": [
            (name, len(data), words_of(data)) for name, data in (("Plan", plan), ("ExportTemplate", template))
        ],
        "outputs": template_outputs(template) if template else (),
        "digests": ["".join(f"{byte}, " for byte in digest).rstrip() for digest in digests],
    }
    sources = {f"{_FOLDER}/ort_model.h": render("abi/ort_model.h.j2", **values).encode()}
    tables = {"stamp": stamp, "version": ORT_VERSION, "tables": tuple(ort_functions().items())}
    sources[f"{_FOLDER}/ort_functions.h"] = render("abi/ort_functions.h.j2", **tables).encode()
    sources[f"{_FOLDER}/model_inputs.h"] = model_inputs([model.plan_bytes]).encode()
    kernels = assets.root("kernels")
    for path in (*sorted((kernels / "abi/ort").iterdir()), kernels / "bindings/shared/refusal.h"):
        sources[f"{_FOLDER}/{path.name}"] = path.read_bytes()
    return sources


@lru_cache(maxsize=1)
def ort_functions() -> Mapping[str, tuple[str, ...]]:
    """The functions of each table of the interface, in order."""
    tables: dict[str, list[str]] = {}
    for line in (assets.root("schemas") / "ort_api.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            tables[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            tables[list(tables)[-1]].append(line)
    return {name: tuple(functions) for name, functions in tables.items()}


def words_of(data: FileBytes) -> list[str]:
    """Lines of eight words each, of little-endian bytes; one word of nothing."""
    padded = bytes(data) + bytes(-len(data) % 8) or bytes(8)
    words = [f"0x{int.from_bytes(padded[at : at + 8], 'little'):x}," for at in range(0, len(padded), 8)]
    return [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
