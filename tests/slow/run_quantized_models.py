"""Outputs of models by onnxruntime, without its optimizations, for measure_packed_weights.py.

    PYTHON tests/slow/run_quantized_models.py FOLDER

Beside every model in FOLDER a file of the same stem has a batch `x` of 32 samples and the outputs: the first as
`logits`, others that measure_activation_codes.py asks for under their names with "|" for "/". PYTHON is an interpreter
with onnxruntime.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

BATCH, ROWS = 32, 4096  # of the table that whole numbers are rows of
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # more quantise the states of a part of the batch each
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
for path in Path(sys.argv[1]).glob("*.onnx"):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    shape, random = (BATCH, *given.shape[1:]), np.random.default_rng(7)
    x = random.standard_normal(shape).astype(np.float32)
    if given.type == "tensor(int64)":
        x = random.integers(0, ROWS, shape)
    logits, *others = session.run(None, {given.name: x})
    names = [output.name.replace("/", "|") for output in session.get_outputs()[1:]]
    np.savez(path.with_suffix(".npz"), x=x, logits=logits, **dict(zip(names, others, strict=True)))
