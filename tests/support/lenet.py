"""LeNet on images of 28 by 28, and packages of it with bindings: shared by tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from minbuild.authoring import Recipe, generate_artifacts
from minbuild.codegen.bindings import LANGUAGES, binding_files
from minbuild.codegen.library_builder import build_checked
from minbuild.codegen.package_layout import library_path
from minbuild.codegen.sources import emit_sources
from minbuild.options.build_options import BuildOptions
from minbuild.planning.compile import compile_models
from minbuild.planning.compiled_model import with_compact_checkpoint, with_components
from minbuild.planning.kernel_selection import contents_of
from minbuild.toolchain import find_toolchain, host_target, parse_target

COMPONENTS = ("properties", "buffers", "export")
_SHAPES = {
    **{"conv1.weight": (6, 1, 5, 5), "conv1.bias": (6,), "conv2.weight": (16, 6, 5, 5), "conv2.bias": (16,)},
    **{"fc1.weight": (120, 400), "fc1.bias": (120,), "fc2.weight": (84, 120), "fc2.bias": (84,)},
    **{"fc3.weight": (10, 84), "fc3.bias": (10,)},
}
_ONE_LAYER = {"fc3.weight": (10, 784), "fc3.bias": (10,)}


def write_forward(path: Path, one_layer: bool = False) -> None:
    """The forward model, with a free batch; or for the same images, one that is quick to build."""
    random = np.random.default_rng(5)
    shapes = _ONE_LAYER if one_layer else _SHAPES
    parameters = [_parameter(name, shape, random) for name, shape in shapes.items()]
    nodes, value = [], "input"

    def node(operator: str, *more: str, **attributes: object) -> None:
        nonlocal value
        inputs, value = [value, *more], f"{operator.lower()}{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [value], **attributes))

    for layer, pads in () if one_layer else (("conv1", [2, 2, 2, 2]), ("conv2", [0, 0, 0, 0])):
        node("Conv", f"{layer}.weight", f"{layer}.bias", kernel_shape=[5, 5], pads=pads)
        node("Relu")
        node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    node("Flatten")
    for layer in ("fc3",) if one_layer else ("fc1", "fc2", "fc3"):
        node("Gemm", f"{layer}.weight", f"{layer}.bias", transB=1)
        if layer != "fc3":
            node("Relu")
    nodes[-1].output[0] = "output"
    graph = helper.make_graph(
        nodes,
        "lenet",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 10])],
        parameters,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))


def _parameter(name: str, shape: tuple[int, ...], random: np.random.Generator) -> TensorProto:
    spread = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.05
    return numpy_helper.from_array(random.uniform(-spread, spread, shape).astype(np.float32), name)


def write_artifacts(folder: Path, one_layer: bool = False) -> Path:
    """Training artifacts of LeNet, or of one layer."""
    write_forward(folder / "lenet.onnx", one_layer)
    generate_artifacts(folder / "lenet.onnx", folder / "artifacts", Recipe(loss="cross-entropy"))
    return folder / "artifacts"


def write_package(artifacts: Path, folder: Path, compiled: bool = False) -> Path:
    """Plan, checkpoint, template, sources, the library for this machine and the WebAssembly module, and all
    bindings; or with the plan compiled in, and with a compact checkpoint to start from."""
    (planned,) = compile_models((artifacts,), {}, {}, (), lambda line: None)
    model = with_components(planned, COMPONENTS, ())
    model = with_compact_checkpoint(model) if compiled else model
    contents = contents_of(
        (model,), build_options=BuildOptions(flavor="compiled" if compiled else "interpreted")
    )
    files = {} if compiled else {"model/trainer.plan": model.plan_bytes}
    files["model/checkpoint"] = model.initial_checkpoint
    files["model/inference.template"] = model.export_template or b""
    module, sources = b"", emit_sources(contents, model.registry)
    for target in (host_target(), parse_target("wasm32")):
        library = build_checked(contents, model.registry, target, find_toolchain())
        module = library.built.shared
        files[library_path(target)] = module
        files[str(Path(library_path(target)).with_name("libminbuild.a"))] = library.built.archive
    files |= {
        **sources,
        **binding_files(
            LANGUAGES, contents.optional, sources, module, plans=[model.plan_bytes], compiled=compiled
        ),
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder
