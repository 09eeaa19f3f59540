"""PyTorch modules and saved `torch.export` programs into ONNX models. The only module that imports torch.

torch is an optional extra: it is imported when a module or a program is read, never before. The exporter's metadata
hold the parameters by the names that the module has for them.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnx import AttributeProto, ModelProto, ValueInfoProto, helper

from minbuild.errors import BadInput, Unsupported

SUFFIXES = (".pt2", ".pt", ".pth")
BATCH = "batch"
_INSTALL = "Run pip install 'torch>=2.9' 'onnxscript>=0.5'."
_BATCH_NORM, _TRAINS = "aten.batch_norm", 5  # the operator, and the position of its argument `training`


def read_program(path: Path) -> ModelProto:
    """The ONNX model of a program that `torch.export.save` wrote. Raises BadInput when torch is missing or the file is
    no such program, Unsupported when it cannot become ONNX."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file. Write it with torch.export.save(program, {str(path)!r}).")
    if path.suffix != SUFFIXES[0]:
        raise BadInput(
            f"{path}: a {path.suffix} file holds weights, or a module that only its own code can read. Write "
            "torch.export.save(torch.export.export(module, example_inputs), 'model.pt2'), and give that."
        )
    torch = _torch(f"{path}: a torch.export program")
    try:
        with _quiet():
            program = torch.export.load(path)
    except Exception as error:  # of a library that documents none
        raise BadInput(
            f"{path}: torch {torch.__version__} cannot read it as a torch.export program: {_line(error)}. Write it "
            "with torch.export.save(torch.export.export(module, example_inputs), path)."
        ) from error
    return _model(torch, program, str(path))


def read_module(
    module: Any, example_inputs: Any, dynamic_shapes: Any = None
) -> tuple[ModelProto, tuple[str, ...]]:
    """The ONNX model of a `torch.nn.Module` or of a `torch.export.ExportedProgram`, and notes.

    `example_inputs` is the tuple of tensors that `module(*example_inputs)` takes; a program has its own. Dimension 0
    of every input is free and called batch, unless the module's code depends on its size; `dynamic_shapes` are those
    of `torch.export.export`, where others are free. A module is exported in the mode that it is in: in training mode,
    dropout draws and batch normalisation uses the batch. Raises BadInput and Unsupported."""
    torch = _torch("minbuild.torch")
    if isinstance(module, torch.export.ExportedProgram):
        return _model(torch, module, "the program"), ()
    if not isinstance(module, torch.nn.Module):
        raise BadInput(
            f"module is {type(module).__name__}. Give a torch.nn.Module, or what torch.export.export made."
        )
    if not any(True for _ in module.parameters()):
        raise BadInput(f"{type(module).__name__}: the module has no parameters, so nothing can train.")
    inputs = _checked_inputs(torch, module, example_inputs)
    program, notes = _exported(torch, module, inputs, dynamic_shapes)
    read = {node.name for node in program.graph.nodes if node.users}
    if not read & set(program.graph_signature.inputs_to_parameters):
        raise BadInput(
            f"{type(module).__name__}: the module's code does not read its parameters from the module, so the exported "
            "program holds constants in their place. A Keras model exports itself: model.export('model.onnx', "
            "format='onnx'), then minbuild reduce model.onnx --loss cross-entropy."
        )
    return _model(torch, program, type(module).__name__), notes


def _torch(what: str) -> Any:
    """The library. Raises BadInput with the command that installs it; onnxscript is what its exporter needs."""
    try:
        import onnxscript  # noqa: F401
        import torch
    except ImportError as error:
        raise BadInput(f"{what} needs the package {error.name}, which is not installed. {_INSTALL}") from None
    if not hasattr(torch, "export") or not hasattr(torch.onnx, "ONNXProgram"):
        raise BadInput(f"torch {torch.__version__} is too old: its exporter has no ONNXProgram. {_INSTALL}")
    return torch


def _checked_inputs(torch: Any, module: Any, example_inputs: Any) -> tuple[Any, ...]:
    """The example inputs as a tuple that the module takes. Raises BadInput."""
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    for place, value in enumerate(given):
        if not isinstance(value, torch.Tensor):
            raise BadInput(
                f"example_inputs[{place}] is {type(value).__name__}. Give the tuple of tensors that module(...) takes."
            )
    # A copy runs: what runs in training mode moves the statistics of its batch normalisation.
    try:
        with torch.no_grad(), _quiet():
            copy.deepcopy(module)(*given)
    except Exception as error:
        shapes = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in given)
        raise BadInput(
            f"example_inputs: {type(module).__name__} refuses ({shapes}): {_line(error)}. Give the tuple of tensors "
            "that module(...) takes."
        ) from error
    return tuple(given)


def _exported(torch: Any, module: Any, inputs: Sequence[Any], shapes: Any) -> tuple[Any, tuple[str, ...]]:
    """The program of a module, with a free batch where that can be, and a note where it cannot."""
    if shapes is not None:
        return _tried(torch, module, inputs, shapes), ()
    sizes = {x.shape[0] for x in inputs if x.dim()}
    if len(sizes) != 1:
        return _tried(torch, module, inputs, None), (
            "dimension 0 of the example inputs differs, so all sizes are fixed. Name free ones with dynamic_shapes.",
        )
    # The exporter takes a size of 1 for a constant.
    several = [torch.cat([x, x]) if x.dim() and sizes == {1} else x for x in inputs]
    batch = torch.export.Dim(BATCH)
    try:
        return _tried(torch, module, several, tuple({0: batch} if x.dim() else {} for x in inputs)), ()
    except Unsupported as error:
        program = _tried(torch, module, inputs, None)
        (size,) = sizes
        return program, (f"the batch is fixed at {size}: with a free one, {error}",)


def _tried(torch: Any, module: Any, inputs: Sequence[Any], shapes: Any) -> Any:
    try:
        with _quiet():
            return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    except Exception as error:
        raise Unsupported(
            [
                f"{type(module).__name__}: torch.export.export says {_line(error)}. Rewrite what it names: it cannot "
                "follow code that depends on values."
            ]
        ) from error


def _model(torch: Any, program: Any, name: str) -> ModelProto:
    """The ONNX model of a program, unoptimized: parameters keep their names and shapes."""
    try:
        with _quiet():
            made = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
    except Exception as error:
        raise Unsupported([f"{name}: PyTorch's exporter cannot write it as ONNX: {_line(error)}."]) from error
    model: ModelProto = made.model_proto
    _name_batch(model)
    _restore_training_mode(model, program)
    return model


def _name_batch(model: ModelProto) -> None:
    """Call the first free dimension that inputs begin with `batch`, in place: exporters number symbols."""
    graph = model.graph
    firsts = [d[0].dim_param for i in graph.input if (d := _dims(i)) and d[0].dim_param.isidentifier()]
    if not firsts:
        return
    symbol = re.compile(rf"\b{re.escape(firsts[0])}\b")
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in _dims(value):
            if dim.dim_param:
                dim.dim_param = symbol.sub(BATCH, dim.dim_param)


def _dims(value: ValueInfoProto) -> Sequence[Any]:
    return value.type.tensor_type.shape.dim


def _restore_training_mode(model: ModelProto, program: Any) -> None:
    """Give nodes of batch normalisation the mode that the program has them in, in place: the exporter writes all of
    them for inference."""
    modes = [
        bool(node.args[_TRAINS])
        for node in program.graph.nodes
        if node.op == "call_function" and str(node.target).startswith(_BATCH_NORM)
    ]
    nodes = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    if len(nodes) != len(modes):  # in functions, or decomposed
        if any(modes):
            raise Unsupported(
                ["batch normalisation in training mode inside a function: call module.eval() first."]
            )
        return
    for node, trains in zip(nodes, modes, strict=True):
        if trains and not any(a.name == "training_mode" for a in node.attribute):
            attribute: AttributeProto = helper.make_attribute("training_mode", 1)
            node.attribute.append(attribute)
            node.output.extend(f"{node.output[0]}.running_{what}" for what in ("mean", "var"))


def _line(error: BaseException) -> str:
    """The first line of what went wrong, without the sentence's end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith("!") else (lines[0] if lines else "")
    return f"{type(error).__name__}: {text}".rstrip(".: ")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch prints about packages that are not there, and the traces of what it tries."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
