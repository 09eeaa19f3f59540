"""Models as PyTorch's exporter writes them, with its metadata, and what `minbuild artifacts` makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from authored import stepped
from onnx import helper, numpy_helper

from minbuild.authoring import Recipe, artifacts_of, read_source
from minbuild.ops import registry
from minbuild.reference.interpreter import ReferenceTrainer

RANDOM = np.random.default_rng(2)
X, T = RANDOM.standard_normal((5, 4)), RANDOM.standard_normal((5, 4))
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SCOPES = "pkg.torch.onnx.name_scopes"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
W = RANDOM.standard_normal((4, 4)).astype(np.float32)


def made_of(folder: Path, nodes, arrays, folded=None, parameters=(), buffers=(), **recipe):
    """The artifacts of a file as PyTorch writes it. `nodes` are (operator, inputs, output,
    submodule)."""
    folded = folded or {}
    written = []
    for op, inputs, output, scope in nodes:
        attributes = {"axis": -1} if op == "LayerNormalization" else {}
        node = helper.make_node(op, inputs.split(), [output], **attributes)
        helper.set_metadata_props(node, {SCOPES: repr(["", scope, output])})
        written.append(node)
    ends = [helper.make_tensor_value_info(n, 1, ("batch", 4)) for n in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(written, "g", ends[:1], ends[1:], tensors)
    for name, array in arrays.items():
        info = helper.make_tensor_value_info(name, 1, np.shape(array))
        said = {FOLDED: repr(folded[name])} if name in folded else {KIND: "PARAMETER"}
        helper.set_metadata_props(info, said)
        graph.value_info.append(info)
    lines = [f"p_{i}: PARAMETER target='{n}'" for i, n in enumerate(parameters)]
    lines += [f"b_{i}: BUFFER target='{n}' persistent=True" for i, n in enumerate(buffers)]
    helper.set_metadata_props(graph, {SIGNATURE: "\n".join(("", "# inputs", *lines))})
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return artifacts_of(read_source(folder / "m.onnx"), Recipe(loss="mse", **recipe), registry())


def gradients_of(artifacts):
    trainer = ReferenceTrainer(artifacts)
    stepped(trainer, X, T)
    return trainer.gradients


def trained(artifacts) -> set[str]:
    return {p.name for p in artifacts.checkpoint.parameters if p.trainable}
