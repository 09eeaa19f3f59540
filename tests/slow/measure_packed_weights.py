"""Flash, memory, bits and time of trainers whose frozen weights are quantized, beside float weights.

    python tests/slow/measure_packed_weights.py --reference PYTHON [--write] [NAME...]

PYTHON is an interpreter with onnx, torch and a current onnxruntime, whose quantizers make the models: static QDQ and
QOperator, dynamic, MatMulNBits, GatherBlockQuantized and four-bit QDQ; for the rows of torch, which torchao quantizes
and torch.onnx.export writes, it has onnxscript and torchao as well. Low-rank adapters train beside dense layers, the
head behind convolutions and tables.
Columns: bytes of the quantized initializers; those of the constants in the plan, and their ratio; the largest arena
at batch 32 with quantized weights, with the same graph's weights dequantized beforehand, and of the float model;
whether losses and parameters after three steps have the same bits as with dequantized weights; the largest difference
of an output from that of onnxruntime without optimizations, relative to its largest output; time of a step relative
to dequantized weights (least processor times of interleaved steps, the median of five processes); bytes of code that
it takes more. --write renews reports/baseline/packed_weights.md: all rows, or those of NAMEs.
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
from onnx import numpy_helper  # noqa: E402
from planned_models import peak  # noqa: E402
from quantized_models import Pair  # noqa: E402

from minbuild.authoring import Recipe  # noqa: E402
from minbuild.authoring.recipe import LoraOptions  # noqa: E402

RESULT = TESTS.parent / "reports/baseline/packed_weights.md"
BATCH, ROUNDS, PLACES, PROCESSES = 32, 40, 3, 5
SHAPES = {"mlp": (784,), "matmul": (784,), "lstm": (20, 40), "cnn": (1, 28, 28), "table": (16,)}
ROWS = {"table": 4096}
LORA = Recipe(loss="cross-entropy", lora=LoraOptions(("*weight*",), 4))
HEAD = Recipe(loss="cross-entropy", train=("head.*",))
LORA_ALL = Recipe(loss="cross-entropy", lora=LoraOptions(("*",), 4))
BIAS = Recipe(loss="cross-entropy", train=("fc*.bias",))
MODELS = {  # what makes it, the float model, what trains
    "mlp_static": ("quantize_static, int8 a row", "mlp", LORA),
    "mlp_uint8": ("quantize_static, uint8", "mlp", LORA),
    "mlp_int16": ("quantize_static, int16 a row", "mlp", LORA),
    "matmul_uint16": ("quantize_static, uint16", "matmul", LORA),
    "mlp_qoperator": ("quantize_static, QOperator, int8 a row", "mlp", LORA),
    "matmul_dynamic": ("quantize_dynamic, int8", "matmul", BIAS),
    "matmul_dynamic_lora": ("quantize_dynamic, int8", "matmul", LORA),
    "matmul_nbits4": ("MatMulNBits, 4 bits", "matmul", LORA),
    "matmul_nbits8": ("MatMulNBits, 8 bits", "matmul", LORA),
    "matmul_qdq4": ("four-bit QDQ, blocks of 32", "matmul", LORA),
    "matmul_hqq": ("MatMulNBits, HQQ, 4 bits", "matmul", LORA),
    "matmul_nf4": ("MatMulBnb4, NF4", "matmul", LORA),
    "table_gather4": ("GatherBlockQuantized, 4 bits", "table", HEAD),
    "lstm_dynamic": ("quantize_dynamic, int8, an LSTM", "lstm", HEAD),
    "cnn_static": ("quantize_static, int8 a row", "cnn", HEAD),
    "cnn_int16": ("quantize_static, int16 a row", "cnn", HEAD),
    "cnn_qoperator": ("quantize_static, QOperator, int8 a row", "cnn", HEAD),
    "cnn_dynamic": ("quantize_dynamic, uint8", "cnn", HEAD),
    "mlp_torch": ("torchao and torch.onnx.export, int8 a row", "mlp", LORA_ALL),
    "cnn_torch": ("torchao and torch.onnx.export, int8 a row", "cnn", HEAD),
}
FILES = {"matmul_dynamic_lora": "matmul_dynamic"}  # that several rows are of
MAKER = TESTS / "slow" / "make_quantized_models.py"
RUNNER = TESTS / "slow" / "run_quantized_models.py"
TORCH_MAKER = TESTS / "slow" / "make_torch_quantized_models.py"


def initializer_bytes(path: Path) -> int:
    """Bytes of the initializers of a model; two four-bit numbers take one."""
    found = 0
    for tensor in onnx.load(path).graph.initializer:
        found += len(tensor.raw_data) or numpy_helper.to_array(tensor).nbytes
    return found


def rows(folder: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """Names and rows of models."""
    for name in names:
        maker, base, recipe = MODELS[name]
        model = folder / f"{FILES.get(name, name)}.onnx"
        pair = Pair.of(model, recipe, BATCH)
        plain = Pair.of(folder / f"{base}.onnx", recipe, BATCH).packed
        own = folder / name  # a library that is loaded must not be written again
        (own / "outputs").mkdir(parents=True, exist_ok=True)
        libraries = pair.libraries(own)
        data = quantized_models.batches((BATCH, *SHAPES[base]), 10, 3, ROWS.get(base, 0))
        # Times depend on where memory lies.
        both = [
            [quantized_models.session(m, library, BATCH) for _ in range(PLACES)]
            for m, library in zip((pair.packed, pair.floats), libraries, strict=True)
        ]
        equal = quantized_models.trained(both[0][0], data) == quantized_models.trained(both[1][0], data)
        ratio = quantized_models.step_ratio(*both, data[0], ROUNDS)
        code = [path.stat().st_size for path in quantized_models.paths(libraries)]
        packed, flash = initializer_bytes(model), len(pair.packed.plan.constants)
        wanted = np.load(model.with_suffix(".npz"))
        found = quantized_models.outputs(model, recipe, wanted["x"], own / "outputs")
        difference = np.abs(found - wanted["logits"]).max() / np.abs(wanted["logits"]).max()
        yield (
            name,
            f"| {name} | {maker} | {packed:,} | {flash:,} | {flash / packed:.3f} | "
            f"{len(pair.floats.plan.constants):,} | "
            f"{peak(pair.packed):,} | {peak(pair.floats):,} | {peak(plain):,} | {'equal' if equal else 'DIFFER'} | "
            f"{difference:.0e} | {ratio:.2f} | {code[0] - code[1]:+,} |",
        )


def step_of(row: str) -> float:
    """The relative time of a step, of a row."""
    return float(row.split("|")[-3])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--reference", help="an interpreter with onnx and onnxruntime")
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--made", type=Path, help=argparse.SUPPRESS
    )  # a folder of models: prints rows of NAMEs
    options = parser.parse_args()
    if options.made:
        for _, row in rows(options.made, options.names):
            print(row)
        return 0
    if not options.reference:
        parser.error("--reference PYTHON makes the models")
    with tempfile.TemporaryDirectory() as name:
        names = options.names or list(MODELS)
        for maker in (MAKER, TORCH_MAKER) if any(n.endswith("torch") for n in names) else (MAKER,):
            subprocess.run([options.reference, str(maker), name], check=True, capture_output=True)
        subprocess.run([options.reference, str(RUNNER), name], check=True, capture_output=True)
        titles = (
            *("Model", "Made by", "Packed", "Constants", "Ratio", "Constants, folded"),
            *("Arena", "Arena, folded", "Arena, float model", "Bits", "Outputs", "Step", "Code"),
        )
        lines = ["| " + " | ".join(titles) + " |", "|---|---|" + "--:|" * 7 + "---|--:|--:|--:|"]
        print(*lines, sep="\n")
        found = {n: r for r in RESULT.read_text().splitlines() for n in MODELS if r.startswith(f"| {n} |")}
        for model in names:  # times depend on where a process has its stack
            command = [sys.executable, __file__, "--made", name, model]
            runs = [
                subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(PROCESSES)
            ]
            row = sorted((run.stdout.strip() for run in runs), key=step_of)[PROCESSES // 2]
            print(row, flush=True)
            found[model] = row
        lines += [found[n] for n in MODELS if n in found]
    if options.write:
        head = "Quantized weights that stay packed, measured by `python tests/slow/measure_packed_weights.py --write`: "
        head += "bytes, and a step of batch 32 relative to weights dequantized beforehand. Dynamic quantization needs "
        head += "the extremes of a whole batch: cnn_dynamic computes the first two convolutions again behind them, "
        head += "sample by sample; so does the graph with folded weights, with which its step is compared. Twelve "
        head += "numbers of it, in 16 bytes each, stand beside the largest convolution, and its arena is larger than "
        head += (
            "the float model's by these; its trained bias alone has moments, so that its RAM is below. Where outputs "
            "differ by 1e-3 and more, some activations have the neighbouring code: activation_codes.md counts them.\n\n"
        )
        RESULT.write_text(head + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
