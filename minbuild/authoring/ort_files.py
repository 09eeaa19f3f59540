"""Artifacts in ONNX Runtime's own format, each with the configuration of a build that holds its operators."""

from __future__ import annotations

from collections.abc import Mapping

from minbuild.compat.ort_config.grammar import render_config
from minbuild.compat.ort_config.requirements import Requirements, Types
from minbuild.frontend.onnx.opsets import since_version
from minbuild.frontend.ort_format.writer import with_stored_constants, write_ort_graph
from minbuild.ir import Graph, TensorType


def ort_files(
    graph: Graph, types: Mapping[str, TensorType], opsets: Mapping[str, int], prefix: str = ""
) -> dict[str, bytes]:
    """`<prefix><name>.ort` and `<prefix><name>.required_operators.config`, the names ONNX Runtime's converter gives
    them. `graph` is written with the `types` of its values, for the versions `opsets` of domains; `prefix` begins the
    names. Raises as `write_ort_graph`."""
    name = prefix + graph.source.rpartition(".")[0]
    data = write_ort_graph(graph, types, opsets)
    operators = {
        (n.domain or "ai.onnx", since_version(n.domain, n.op_type, opsets[n.domain]), n.op_type): Types()
        for n in with_stored_constants(graph).nodes
    }
    config = render_config(Requirements(operators), [f"{name}.ort"])
    return {f"{name}.ort": data, f"{name}.required_operators.config": config.encode()}
