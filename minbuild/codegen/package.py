"""The files of a package besides its sources: how to build it, how to use it, what it is, and proof that it
is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from minbuild import __version__, assets
from minbuild.codegen.bindings import LANGUAGES, binding_files, wasm_modules
from minbuild.codegen.cmake import cmake_files
from minbuild.codegen.integrations import PackageParts, integration_files
from minbuild.codegen.library_builder import BuiltLibrary
from minbuild.codegen.ownership import MANIFEST, TOOL, sealed
from minbuild.codegen.package_docs import (
    CHECKPOINT,
    COMPACT_CHECKPOINT,
    EXPORT_TEMPLATE,
    PLAN,
    STAMP,
    PackagedModel,
    introduction,
    values_of,
)
from minbuild.codegen.package_layout import abi_version, folder_of, library_path
from minbuild.codegen.sbom import SBOM, sbom
from minbuild.escape import for_markdown
from minbuild.ir import Package
from minbuild.ir.mapped import FileBytes, sha256_of
from minbuild.ir.size_report import SizeReport, TargetReport
from minbuild.options.build_options import COMPILED, INTERPRETED, BuildOptions
from minbuild.planning import capabilities
from minbuild.planning.compiled_model import CompiledModel
from minbuild.planning.library_contents import LibraryContents
from minbuild.planning.plan_outline import PlanOutline
from minbuild.report import html, markdown
from minbuild.report import json as json_report
from minbuild.report.verdict import NOT_PROVEN, PROVEN, is_proven, reason
from minbuild.templating import render
from minbuild.toolchain import BuildOutput, Target

LICENSE = "LICENSE"  # of the generated sources
KITS = ("learning", "federated")  # headers of no source, so that no library is built anew when one changes


def emit_package(
    models: Sequence[PackagedModel],
    contents: LibraryContents,
    libraries: Mapping[Target, BuiltLibrary],
    report: SizeReport,
    *,
    bindings: Sequence[str] = (),
    build_options: BuildOptions = BuildOptions(),  # noqa: B008 (frozen)
    other_libraries: Mapping[str, bytes] = MappingProxyType({}),
    integrations: Sequence[str] = (),
) -> Package:
    """Every file of the package of these models; the same arguments give the same bytes. `libraries` were built of
    `contents` as `build_options` say; `bindings` are names of languages; `other_libraries`, by their paths, have
    other interfaces; `integrations` are names of INTEGRATIONS. `models` come with their plans and checkpoints;
    `report` is what was measured of them."""
    sources = next(iter(libraries.values())).sources
    samples = tuple(model.sample for model in models)
    files: dict[str, FileBytes] = {**sources, **cmake_files(sources, samples, build_options)}
    for target, library in libraries.items():
        files[library_path(target)] = library.built.shared
        files[f"lib/{folder_of(target)}/libminbuild.a"] = library.built.archive
    files |= other_libraries
    headers = (f"include/minbuild/{kit}.h" for kit in KITS)
    files |= {header: (assets.root("kernels") / header).read_bytes() for header in headers}
    files["report/report.json"] = json_report.render(report).encode()
    files["report/report.md"] = markdown.render(report).encode()
    files["report/report.html"] = html.render(report).encode()
    described = [values_of(model, contents) for model in models]
    for model, values in zip(models, described, strict=True):
        files |= _model_files(model, contents)
        files[f"sample/{model.sample}.c"] = render(values["template"], **values).encode()
    module, relaxed = wasm_modules({t: b.built.shared for t, b in libraries.items()})
    files |= binding_files(
        bindings,
        contents.optional,
        sources,
        module,
        relaxed=relaxed,
        plans=[packaged.model.plan_bytes for packaged in models],
        compiled=contents.compiled,
        error_messages=contents.error_messages,
    )
    parts = PackageParts(models[0].model, described[0], sources, contents, tuple(libraries))
    files |= integration_files(integrations, parts)
    files["README.md"] = render(
        "package/README.md.j2",
        **STAMP,
        **introduction(models, contents),
        models=described,
        targets=[_target(t, b.built, _report_of(t, report)) for t, b in libraries.items()],
        bindings=[(name, LANGUAGES[name]) for name in bindings],
    ).encode()
    manifest: dict[str, Any] = {
        "tool": TOOL,
        "minbuild": __version__,
        "abi": abi_version(),
        **_models(models),
    }
    manifest["targets"] = {
        str(t): {"library": library_path(t), "toolchain": b.built.toolchain, **_proof(_report_of(t, report))}
        for t, b in libraries.items()
    }
    manifest["flavor"] = COMPILED if contents.compiled else INTERPRETED
    if contents.compiled:
        manifest["plan"] = PlanOutline.of(contents.compiled_plan).as_dict()
    manifest["graphs"] = list(build_options.graphs)
    manifest["holds"] = capabilities.as_dict(capabilities.capabilities_of(contents))
    files[LICENSE] = (assets.root("templates") / "package" / LICENSE).read_bytes()
    files[SBOM] = sbom(manifest, files)
    files[MANIFEST] = _manifest(manifest, files)
    return Package(files)


def _model_files(packaged: PackagedModel, contents: LibraryContents) -> dict[str, FileBytes]:
    model, folder = packaged.model, packaged.folder
    files: dict[str, FileBytes] = {}
    if model.checkpoint:
        files[f"{folder}/{CHECKPOINT}"] = model.checkpoint
    if model.compact_checkpoint:
        files[f"{folder}/{COMPACT_CHECKPOINT}"] = model.compact_checkpoint
    if not contents.compiled:
        files[f"{folder}/{PLAN}"] = model.plan_bytes
    if model.export_template is not None:
        files[f"{folder}/{EXPORT_TEMPLATE}"] = model.export_template
    return files


def _manifest(manifest: Mapping[str, Any], files: Mapping[str, FileBytes]) -> bytes:
    """The manifest with the digests of all other files of the package."""
    digests = {name: {"bytes": len(data), "sha256": sha256_of(data)} for name, data in sorted(files.items())}
    return sealed({**manifest, "files": digests})


def _models(models: Sequence[PackagedModel]) -> dict[str, Any]:
    """The models as the manifest has them: the only one by itself, several by name."""
    if len(models) == 1:
        return _about(models[0].model)
    return {"models": {packaged.name: _about(packaged.model) for packaged in models}}


def _about(model: CompiledModel) -> dict[str, Any]:
    return {
        "model": dict(sorted(model.artifacts.digests.items())),
        "fixed": dict(sorted(model.fixed.items())),
        "largest": dict(model.largest),
    }


def _report_of(target: Target, report: SizeReport) -> TargetReport:
    return next(found for found in report.targets if found.target == str(target))


def _proof(target: TargetReport) -> dict[str, Any]:
    if is_proven(target):
        return {"proof": PROVEN}
    return {"proof": NOT_PROVEN, "reason": reason(target)}


def _target(target: Target, built: BuildOutput, report: TargetReport) -> dict[str, Any]:
    proof = PROVEN if is_proven(report) else f"**{NOT_PROVEN}**: {for_markdown(reason(report))}"
    return {
        "name": str(target),
        "folder": f"lib/{folder_of(target)}",
        "shared": library_path(target),
        "bytes": len(built.shared),
        "toolchain": built.toolchain,
        "proof": proof,
        "usage": target.traits.usage,
    }
