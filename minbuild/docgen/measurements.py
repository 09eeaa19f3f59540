"""docs/reference/measurements.md: the recorded tables of reports/baseline/, each with the command that makes it."""

from __future__ import annotations

from pathlib import Path

_HEAD = """# Measurements

Every table was recorded by the command above it and is not edited. Sizes are exact and reproducible; times were taken
on a shared machine, so compare ratios within one table only. The first {golden} cases are those of `tests/golden/`, the
others were exported by ONNX Runtime's own tool.

"""
_SECTIONS = (
    (
        "Library size by case",
        "measure_sizes.py",
        "sizes.md",
        "Bytes of the stripped shared library on x86-64 Linux, with session, checkpoint reading and "
        "writing. `full` contains "
        "every kernel. The last column compares the arena with the least that the order of steps needs in any layout.",
    ),
    (
        "Library size by target",
        "measure_targets.py",
        "targets.md",
        "Bytes of the file, and in brackets those of its loaded segments.",
    ),
    (
        "Step time and memory beside ONNX Runtime",
        "bench_ort.py",
        "speed.md",
        "One training step with its optimizer step on one thread, ONNX Runtime 1.19.2 and minbuild in one "
        "run, and the memory that training adds to a process; the last two columns are of `--profile fastest`.",
    ),
    ("Step time and memory at real size", "bench_large.py", "large.md", ""),
    ("Gradients at real size", "large_gradients.py", "large_gradients.md", ""),
    ("Threads", "measure_threads.py", "threads.md", ""),
    ("WebAssembly beside native code", "measure_wasm.py", "wasm.md", ""),
    ("Memory by budget", "measure_memory.py", "memory.md", ""),
    ("Profiles", "measure_profiles.py", "profiles.md", "Bytes and step times of the three profiles."),
    ("Duration of `minbuild reduce`", "measure_reduce.py", "reduce_time.md", ""),
    (
        "Artifacts made here and by ONNX Runtime",
        "compare_artifacts.py",
        "artifacts.md",
        "",
    ),
    ("Training information and artifacts", "compare_training_info.py", "training_info.md", ""),
    ("Gradients of single operators", "probe_gradients.py", "gradient_probe.md", ""),
    ("Models exported from PyTorch", "field_models.py", "field.md", ""),
    ("Families of models exported from PyTorch", "field_families.py", "field_families.md", ""),
    ("Invariants on families of models", "field_invariants.py", "field_invariants.md", ""),
)


def measurements_page(root: Path) -> str:
    """Markdown: all recorded tables of the checkout at `root`."""
    golden = len(list((root / "tests" / "golden").glob("*/reference.npz")))
    parts = [_HEAD.format(golden=golden)]
    for title, script, table, text in _SECTIONS:
        recorded = (root / "reports" / "baseline" / table).read_text("utf-8")
        if recorded.startswith("# "):  # a page of its own: the section has its title
            recorded = recorded.partition("\n\n")[2]
        introduction = f"{text}\n\n" if text else ""
        parts.append(f"## {title}\n\n`python tests/slow/{script}`\n\n{introduction}{recorded}\n")
    return "".join(parts).rstrip() + "\n"
