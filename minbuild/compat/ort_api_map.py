"""ONNX Runtime's C interface for training, function by function, with what does the same here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_DECLARED = re.compile(r"^(?:MB_API|static inline) [\w ]+?[ *]+(mb_\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """A function of OrtTrainingApi (1.19.2). `c` are functions of trainer.h, `python` names below
    minbuild.training.api; `component` is what the library must have been built with; `note` says how ours differs, or
    why there is none."""

    ort: str
    c: tuple[str, ...]
    python: str = ""
    note: str = ""
    component: str = ""


_SHARED = "state, models and session are one: a session is made of a plan and a checkpoint"
_FREE = "inputs and outputs are counted by asking for the next"
ROWS = (
    Row("LoadCheckpoint", ("mb_create_from_files", "mb_load_checkpoint"), "CheckpointState.load_checkpoint", _SHARED),
    Row("SaveCheckpoint", ("mb_save_checkpoint", "mb_write_checkpoint"), "CheckpointState.save_checkpoint",
        "atomic; the second writes through a callback"),
    Row("CreateTrainingSession", ("mb_create_from_files",), "Module", "models are in the plan"),
    Row("CreateTrainingSessionFromBuffer", ("mb_create",), "", "models and checkpoint are read in place"),
    Row("TrainingSessionGetTrainingModelOutputCount", ("mb_output_count",), "Module.output_names", _FREE),
    Row("TrainingSessionGetEvalModelOutputCount", ("mb_output_count",), "Module.output_names", _FREE),
    Row("TrainingSessionGetTrainingModelOutputName", ("mb_output",), "Module.output_names", "with type and shape"),
    Row("TrainingSessionGetEvalModelOutputName", ("mb_output",), "Module.output_names", "with type and shape"),
    Row("LazyResetGrad", ("mb_lazy_reset_grad",), "Module.lazy_reset_grad"),
    Row("TrainStep", ("mb_train_step",), "Module.__call__", "outputs stay in the session until the next step"),
    Row("EvalStep", ("mb_eval_step",), "Module.__call__", "outputs stay in the session until the next step"),
    Row("SetLearningRate", ("mb_set_learning_rate",), "Optimizer.set_learning_rate"),
    Row("GetLearningRate", ("mb_learning_rate",), "Optimizer.get_learning_rate",
        "restored from checkpoints that a trainer saved with optimizer state; from others by libraries with "
        "properties, and in Python"),
    Row("OptimizerStep", ("mb_optimizer_step",), "Optimizer.step"),
    Row("RegisterLinearLRScheduler", ("mb_schedule_linear",), "LinearLRScheduler",
        "counts mean what they are called, in Python too"),
    Row("SchedulerStep", ("mb_schedule_step",), "LinearLRScheduler.step"),
    Row("GetParametersSize", ("mb_parameters_size",), "Module.get_parameters_size", component="buffers"),
    Row("CopyParametersToBuffer", ("mb_copy_parameters_to_buffer",), "Module.get_contiguous_parameters",
        component="buffers"),
    Row("CopyBufferToParameters", ("mb_copy_buffer_to_parameters",), "Module.copy_buffer_to_parameters",
        "fills nominal checkpoints", "buffers"),
    Row("ReleaseTrainingSession", ("mb_destroy",), "", "Python does it by itself"),
    Row("ReleaseCheckpointState", ("mb_destroy",), "", "the state is the session's"),
    Row("ExportModelForInferencing", ("mb_export_to_file", "mb_export_model"), "Module.export_model_for_inferencing",
        "outputs are chosen when the trainer is built (--export-output); in Python, of artifacts, any", "export"),
    Row("SetSeed", ("mb_set_seed",), "Module.set_seed", "of a session"),
    Row("TrainingSessionGetTrainingModelInputCount", ("mb_input_count",), "Module.input_names", _FREE),
    Row("TrainingSessionGetEvalModelInputCount", ("mb_input_count",), "Module.input_names", _FREE),
    Row("TrainingSessionGetTrainingModelInputName", ("mb_input",), "Module.input_names", "with type and shape"),
    Row("TrainingSessionGetEvalModelInputName", ("mb_input",), "Module.input_names", "with type and shape"),
    Row("AddProperty", ("mb_set_property",), "CheckpointState.properties", "also removes", "properties"),
    Row("GetProperty", ("mb_find_property", "mb_get_property"), "CheckpointState.properties",
        "no copy is made, so there is nothing to free", "properties"),
    Row("LoadCheckpointFromBuffer", ("mb_create", "mb_load_checkpoint"), "CheckpointState.load_checkpoint_from_buffer",
        _SHARED),
    Row("GetParameterTypeAndShape", ("mb_find_parameter",), "CheckpointState.parameters"),
    Row("UpdateParameter", ("mb_update_parameter",), "CheckpointState.parameters"),
    Row("GetParameter", ("mb_read_parameter", "mb_find_parameter"), "CheckpointState.parameters",
        "the second gives the memory itself"),
)  # fmt: skip


# Tests of onnxruntime 1.21 that do not pass with minbuild.training in place of onnxruntime.training, and why.
FAILING_TESTS = {
    "test_ort_custom_ops": "it loads a library of compiled operators, which says nothing about shapes and gradients; "
    "operators of one's own are a folder with `<stem>.py` beside `<stem>.cc`",
    "test_string_inputs": "it feeds texts; a trainer has no strings. Convert them to numbers before",
}

# Of columns that are no component.
_LABELS = {"all of them": "all components", "check-loss": "`--finite-checks loss`"}


def declared(header: str) -> tuple[str, ...]:
    """The functions that trainer.h declares."""
    return tuple(_DECLARED.findall(header))


def table(header: str, measured: Mapping[str, Mapping[str, int]]) -> str:
    """Markdown: the rows, the functions of the C `header` beyond them, and the bytes of components as `measured` by
    target."""
    lines = ["| OrtTrainingApi | trainer.h | Python | component | remark |", "|---|---|---|---|---|"]
    for row in ROWS:
        ours = ", ".join(f"`{name}`" for name in row.c)
        lines.append(
            f"| {row.ort} | {ours} | {row.python and f'`{row.python}`'} | {row.component} | {row.note} |"
        )
    matched = {name for row in ROWS for name in row.c}
    beyond = ", ".join(f"`{name}`" for name in sorted(set(declared(header)) - matched))
    lines += ["", f"What `trainer.h` has beside these: {beyond}.", ""]
    lines += [
        "ONNX Runtime's own tests of its training API run by `tests/slow/ort_api_tests.py`; the result is in",
        "`reports/baseline/ort_tests.md`. Those that do not pass:",
        "",
        *(f"- `{name}`: {reason}." for name, reason in FAILING_TESTS.items()),
        "",
    ]
    first = next(iter(measured.values()))
    names = ["default", *sorted(first.keys() - {"default"}, key=lambda name: (name in _LABELS, name))]
    lines += [
        "Bytes of the shared library of `artifacts/`, and those that components and a build option add, as linked:",
        "",
    ]
    lines += [f"| target | {' | '.join(_LABELS.get(n, n) for n in names)} |", f"|---{'|--:' * len(names)}|"]
    for target, figures in sorted(measured.items()):
        lines.append(f"| {target} | {' | '.join(f'{figures[name]:,}' for name in names)} |")
    return "\n".join(lines) + "\n"
