"""Trains every case with the address and undefined-behaviour sanitizers of g++, from C as a device would.

    python tests/slow/sanitizers.py [--threads] [--packing] [--dense 1|2|3|4 | --compiled] [NAME...]

The sources of each trimmed trainer and a driver that evaluates, trains and updates three times, saves and
loads are built with g++ into one program. "packed" and "recurrent" are models of real size beside the artifact sets,
for packed products, convolutions and recurrent layers, "rows" has normalizations, "narrow" convolutions over small
images, "groups" others of few channels or one each, "adapters" products of low rank, "points" windows of one element,
"halves" has products of halves in native arithmetic, number by number on this machine; "quantized-..." have weights in
4, 8 and 16 bits, or quantized activations. --threads: libraries with four threads, and the thread sanitizer instead.
--packing: as with `--packing all`. --dense: with dense plans, 2 and 4: with 8-bit indices, from 3 on: with shared
names; --compiled: with plans compiled in. Ends with 1 if any program reports anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from case_sets import EVAL, TRAIN, CaseSet, Trainer, folders, load, trainer  # noqa: E402
from packed_model import MODELS as LARGE  # noqa: E402
from packed_model import packed_set  # noqa: E402
from quantized_activation_nets import MODELS as ACTIVATIONS  # noqa: E402
from quantized_nets import MODELS, artifact_set  # noqa: E402

from minbuild.codegen.sources import emit_sources  # noqa: E402
from minbuild.errors import Unsupported  # noqa: E402
from minbuild.ops import registry  # noqa: E402

FLAGS = ("-std=c++17", "-g", "-O1", "-fno-exceptions", "-fno-rtti", "-fno-omit-frame-pointer", "-w")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Of kernels that are unrolled so far that their checks take compilers ten minutes: no checks of pointers to what is
# always there, of variables on the stack, nor places of these for debuggers; checks are calls.
UNROLLED = ("groups",)
SANITIZE_UNROLLED = (
    *SANITIZE,
    "-fno-sanitize=null,alignment,object-size",
    *("--param=asan-stack=0", "--param=asan-instrumentation-with-call-threshold=0"),
    *("-g1", "-fno-var-tracking"),
)
SANITIZE_THREADS = ("-fsanitize=thread", "-pthread")
STEPS = 3

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "minbuild/trainer.h"

static void* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) exit(3);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  void* data = malloc(*size); /* exactly as large, so that a byte too far is found */
  if (fread(data, 1, *size, file) != *size) exit(3);
  fclose(file);
  return data;
}

static void check(mb_session* s, mb_status status, const char* what) {
  if (status == MB_OK) return;
  fprintf(stderr, "%s: status %d: %s\n", what, status, s == NULL ? "" : mb_last_error(s));
  exit(2);
}

/* argv: plan, checkpoint, then per input "graph type rank dims... file" */
int main(int argc, char** argv) {
  size_t plan_size, checkpoint_size, bytes = 0;
  void* plan = read_file(argv[1], &plan_size);
  void* checkpoint = read_file(argv[2], &checkpoint_size);
  mb_tensor inputs[2][16];
  size_t counts[2] = {0, 0}, ignored;
  for (int i = 3; i < argc;) {
    int graph = atoi(argv[i++]);
    mb_tensor* tensor = &inputs[graph][counts[graph]++];
    tensor->type = atoi(argv[i++]);
    tensor->rank = atoi(argv[i++]);
    for (int k = 0; k < tensor->rank; ++k) tensor->dims[k] = atoi(argv[i++]);
    tensor->data = read_file(argv[i++], &ignored);
  }
  check(NULL, mb_arena_size(plan, plan_size, NULL, 0, &bytes), "arena size");
  for (int own = 0; own < 2; ++own) {
    mb_options options;
    memset(&options, 0, sizeof options);
    options.threads = 4; /* where the library has any, whatever the machine has */
    if (own) {
      options.arena = aligned_alloc(16, (bytes + 15) / 16 * 16);
      options.arena_size = bytes;
      memset(options.arena, 0xff, bytes);
    }
    mb_session* s = NULL;
    mb_status status = mb_create(plan, plan_size, checkpoint, checkpoint_size, &options, &s);
    if (status != MB_OK) fprintf(stderr, "%s\n", options.error);
    check(NULL, status, "create");
    for (int step = 0; step < 3; ++step) {
      if (counts[1] > 0) check(s, mb_eval_step(s, inputs[1], counts[1]), "evaluate");
      check(s, mb_train_step(s, inputs[0], counts[0]), "train");
      check(s, mb_optimizer_step(s), "update");
      if (step == 1) mb_lazy_reset_grad(s);
    }
    const char* name;
    mb_tensor loss;
    check(s, mb_output(s, MB_TRAIN, 0, &name, &loss), "output");
    printf("%.9g\n", ((float*)loss.data)[0]);
    check(s, mb_save_checkpoint(s, "saved", 1), "save");
    size_t saved_size;
    void* saved = read_file("saved", &saved_size);
    check(s, mb_load_checkpoint(s, saved, saved_size), "load");
    check(s, mb_train_step(s, inputs[0], counts[0]), "train after loading");
    mb_destroy(s);
    free(saved);
    if (own) free(options.arena);
  }
  free(plan);
  free(checkpoint);
  for (int graph = 0; graph < 2; ++graph)
    for (size_t i = 0; i < counts[graph]; ++i) free(inputs[graph][i].data);
  return 0;
}
"""


def write_sources(built: Trainer, folder: Path) -> list[str]:
    """All sources of a trainer below `folder`; the paths of those to compile."""
    files = emit_sources(built.contents, registry())
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return [name for name in files if name.endswith(".cc")]


def compiled(built: Trainer) -> Trainer:
    """The trainer with its plan compiled in, and no plan to read. Raises Unsupported."""
    contents = replace(built.contents, compiled_plan=built.data, dense=0)
    emit_sources(contents, registry())
    return replace(built, contents=contents, data=b"")


def shared_library(built: Trainer, path: Path) -> Path:
    """The trainer as a sanitized shared library at `path`. Its process must be started with `preload`."""
    with tempfile.TemporaryDirectory() as name:
        sources = write_sources(built, Path(name))
        command = [
            "g++",
            *FLAGS,
            *SANITIZE,
            "-fPIC",
            "-shared",
            "-Iinclude",
            "-Isrc",
            *sources,
            "-o",
            str(path),
        ]
        subprocess.run(command, cwd=name, check=True)
    return path


def preload() -> dict[str, str]:
    """Environment for a program that loads sanitized libraries."""
    libraries = []
    for library in ("libasan.so", "libubsan.so"):
        asked = subprocess.run(
            ["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True
        )
        libraries.append(asked.stdout.strip())
    return {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}


def run(case: CaseSet, built: Trainer, folder: Path, sanitize: tuple[str, ...] = SANITIZE) -> str:
    """What is wrong with a case, or nothing."""
    sources = write_sources(built, folder)
    (folder / "driver.c").write_text(DRIVER)
    (folder / "plan").write_bytes(built.data)
    (folder / "checkpoint").write_bytes(case.checkpoint)
    arguments: list[str] = []
    for graph, arrays in (
        (TRAIN, case.batch(0)),
        (EVAL, case.eval_batch() if case.artifacts.evaluation else []),
    ):
        for i, array in enumerate(arrays):
            element = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float64": 11}[array.dtype.name]
            (folder / f"input{graph}{i}").write_bytes(np.ascontiguousarray(array).tobytes())
            arguments += map(str, (graph, element, array.ndim, *array.shape, f"input{graph}{i}"))
    compiled = subprocess.run(
        ["g++", *FLAGS, *sanitize, "-Iinclude", "-Isrc", *sources, "-x", "c++", "driver.c", "-o", "driver"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if compiled.returncode:
        return compiled.stderr
    environment = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(
        ["./driver", "plan", "checkpoint", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode == 0 and len(set(done.stdout.split())) != 1:
        return f"the two sessions disagree: {done.stdout}"
    return done.stderr if done.returncode or done.stderr else ""


def main() -> int:
    if shutil.which("g++") is None:
        print("skipped: there is no g++ on this machine")
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--packing", action="store_true")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--dense", type=int, choices=(1, 2, 3, 4), default=0)
    forms.add_argument("--compiled", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    chosen, threads = given.names, 4 if given.threads else 1
    failed = []
    with tempfile.TemporaryDirectory() as place:
        quantized = [artifact_set(Path(place), name) for name in MODELS]
        quantized += [artifact_set(Path(place), name, models=ACTIVATIONS) for name in ACTIVATIONS]
        sets = [*folders(), *(packed_set(Path(place), name=name) for name in LARGE), *quantized]
        if unknown := set(chosen) - {path.name for path in sets}:
            parser.error(f"no such set: {', '.join(sorted(unknown))}")
        for path in sets:
            if chosen and path.name not in chosen:
                continue
            try:
                halves = path.name == "halves"
                built = trainer(
                    path, threads=threads, dense=given.dense, native_halves=halves, packs_all=given.packing
                )
                built = compiled(built) if given.compiled else built
            except Unsupported as error:
                print(f"{path.name}: not supported: {str(error)[:150]}", flush=True)
                failed.append(path.name)
                continue
            sanitize = SANITIZE_UNROLLED if path.name in UNROLLED else SANITIZE
            sanitize = SANITIZE_THREADS if given.threads else sanitize
            with tempfile.TemporaryDirectory() as name:
                problem = run(load(path), built, Path(name), sanitize)
            print(f"{path.name}: {problem or 'clean'}", flush=True)
            failed += [path.name] if problem else []
    print(f"{len(failed)} with findings: {' '.join(failed)}" if failed else "all clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
