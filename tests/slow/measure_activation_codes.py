"""Codes of quantized activations, beside those of onnxruntime.

    python tests/slow/measure_activation_codes.py --reference PYTHON [--write]

PYTHON is as for measure_packed_weights.py, whose models these are. Columns: quantized activations of a batch of 32;
those whose code differs from onnxruntime's; the largest difference in codes; that of an output, relative to the
largest output. --write renews reports/baseline/activation_codes.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import quantized_models  # noqa: E402
from measure_packed_weights import MAKER, MODELS, RUNNER  # noqa: E402
from onnx import helper  # noqa: E402

RESULT = TESTS.parent / "reports/baseline/activation_codes.md"
HEAD = """Codes of quantized activations beside onnxruntime's without optimizations, counted by \
`python tests/slow/measure_activation_codes.py --write`. Trainers add products up as floats; onnxruntime does so for \
pairs of quantizers, in another order, and adds up integers, which is exact, for dynamic quantization and QOperator. \
A float sum next to a tie of two codes can round to either, and one such code moves the outputs behind it.

"""
RESULTS = {
    "QuantizeLinear": 1,
    "QLinearConv": 6,
    "QGemm": 7,
    "QLinearGlobalAveragePool": 3,
}  # inputs with the scale


def quantized_activations(model: onnx.ModelProto) -> Iterator[tuple[str, str, str, str]]:
    """Quantized values, their scale and zero point, and the domain of the quantizer."""
    for node in model.graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            yield (*node.output, node.domain)
        elif (i := RESULTS.get(node.op_type)) and len(node.input) > i + 1:
            domain = node.domain if node.op_type == "QuantizeLinear" else ""
            yield node.output[0], node.input[i], node.input[i + 1], domain


def with_activations(path: Path) -> int:
    """The number of quantized activations that the model at `path` returns from now on, as real values."""
    model = onnx.load(path)
    found = list(quantized_activations(model))
    for quantized, scale, point, domain in found:
        real = f"{quantized}/real"
        node = helper.make_node("DequantizeLinear", [quantized, scale, point], [real], domain=domain)
        model.graph.node.append(node)
        model.graph.output.append(helper.make_tensor_value_info(real, onnx.TensorProto.FLOAT, None))
    onnx.save(model, path)
    return len(found)


def row(path: Path) -> str:
    """The row of a model beside whose file onnxruntime's values are."""
    maker, _, recipe = MODELS[path.stem]
    with np.load(path.with_suffix(".npz")) as file:
        wanted = {name.replace("|", "/"): array for name, array in file.items()}
    x, logits = wanted.pop("x"), wanted.pop("logits")
    own = path.with_suffix("")
    own.mkdir()
    ours = quantized_models.all_outputs(path, recipe, x, own)
    count = differing = 0
    most = 0.0
    for name, theirs in wanted.items():
        codes = np.abs(ours[name].reshape(theirs.shape) - theirs) / np.diff(np.unique(theirs)).min()
        count, differing = count + codes.size, differing + int((codes > 0.5).sum())
        most = max(most, float(codes.max()))
    output = np.abs(ours["logits"] - logits).max() / np.abs(logits).max()
    return f"| {path.stem} | {maker} | {count:,} | {differing:,} | {most:.0f} | {output:.0e} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", required=True, help="an interpreter with onnx and onnxruntime")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    titles = ("Model", "Made by", "Activations", "Differ", "By codes", "Outputs")
    lines = ["| " + " | ".join(titles) + " |", "|---|---|--:|--:|--:|--:|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([options.reference, str(MAKER), name], check=True, capture_output=True)
        for path in folder.glob("*.onnx"):
            if path.stem not in MODELS or not with_activations(path):
                path.unlink()
        subprocess.run([options.reference, str(RUNNER), name], check=True, capture_output=True)
        lines += [row(path) for model in MODELS if (path := folder / f"{model}.onnx").exists()]
    print(*lines, sep="\n")
    if options.write:
        RESULT.write_text(HEAD + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
