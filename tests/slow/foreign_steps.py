"""Training steps that JAX and onnxsim write, as trainers: reports/baseline/foreign_steps.md.

    python tests/slow/foreign_steps.py jax FOLDER        in an environment with jax2onnx and optax
    python tests/slow/foreign_steps.py onnxsim FOLDER    in one with onnxsim, whose training tools write steps
    python tests/slow/foreign_steps.py run FOLDER        in one with onnxruntime: its losses of the same graphs
    python tests/slow/foreign_steps.py compare FOLDER    in the environment of the project

The steps are the tools' own output, unchanged; `--state` gives their pairs. The table has the largest relative
difference of a loss from ONNX Runtime's over 100 steps, and the size of the library.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

STEPS, WITHIN, RATE, BATCH = 100, 1e-6, 0.02, 16
TABLE = Path(__file__).resolve().parents[2] / "reports" / "baseline" / "foreign_steps.md"
HEAD = """# Training steps of other tools

Steps that JAX (by `jax2onnx`) and `onnxsim` wrote, as trainers, against ONNX Runtime running the same graph on the same
batches, 100 steps each. Made by `tests/slow/foreign_steps.py`.

| step | nodes | states | first loss | last loss | largest relative difference | library, x86-64 |
|---|--:|--:|--:|--:|--:|--:|"""


def weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for s in shapes]


def batches(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    x = random.standard_normal((STEPS, BATCH, inputs)).astype(np.float32)
    classes = (x[..., :outputs] + random.standard_normal((STEPS, BATCH, outputs))).argmax(-1)
    return x, np.eye(outputs, dtype=np.float32)[classes]


def kept(
    folder: Path, name: str, model, state: dict[str, str], loss: str, arrays: dict[str, np.ndarray]
) -> None:
    """A step with its pairs, first values (first/...) and inputs of each step (feed/...)."""
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / f"{name}.json").write_text(json.dumps({"state": state, "loss": loss}))
    np.savez(folder / f"{name}.npz", **arrays)


def jax(folder: Path) -> None:
    import jax
    import jax.numpy as jnp
    import optax
    from jax2onnx import to_onnx

    @jax.custom_vjp
    def product(a, b):
        """jax2onnx writes a Gemm of wrong shapes for JAX's own gradient, which contracts first axes: ONNX Runtime
        cannot load it. Written with transposed matrices it can."""
        return a @ b

    product.defvjp(lambda a, b: (a @ b, (a, b)), lambda r, g: (g @ r[1].T, r[0].T @ g))

    def classifier(p, x):
        return product(jnp.tanh(product(x, p[0]) + p[1]), p[2]) + p[3]

    def deep(p, x):
        return product(jax.nn.gelu(product(jax.nn.relu(product(x, p[0]) + p[1]), p[2]) + p[3]), p[4]) + p[5]

    def entropy(y, t):
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(y) * t, -1))

    def squares(y, t):
        return jnp.mean((y - t) ** 2)

    nets = {
        "2 layers": (classifier, entropy, weights((8, 16), (16,), (16, 4), (4,))),
        "3 layers": (deep, squares, weights((8, 16), (16,), (16, 12), (12,), (12, 4), (4,))),
    }
    rules = {
        "sgd": optax.sgd(RATE),
        "momentum": optax.sgd(RATE, momentum=0.9),
        "adam": optax.adam(RATE),
        "adamw": optax.adamw(RATE, weight_decay=0.01),
        "rmsprop": optax.rmsprop(RATE),
    }
    x, t = batches(8, 4)
    for net, (forward, loss, first) in nets.items():
        for rule, optimizer in rules.items():
            begin, tree = jax.tree.flatten((first, optimizer.init(first)))

            def step(*values, forward=forward, loss=loss, optimizer=optimizer, tree=tree):
                (p, s), (a, b) = jax.tree.unflatten(tree, values[:-2]), values[-2:]
                value, gradients = jax.value_and_grad(lambda q: loss(forward(q, a), b))(p)
                changes, s = optimizer.update(gradients, s, p)
                return (*jax.tree.leaves((optax.apply_updates(p, changes), s)), value)

            begin = [np.asarray(a) for a in begin]
            kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*begin, x[0], t[0])]
            model = to_onnx(step, inputs=kinds, model_name="step")
            names, results = [i.name for i in model.graph.input], [o.name for o in model.graph.output]
            arrays = {f"first/{n}": a for n, a in zip(names, begin, strict=False)}
            arrays |= {f"feed/{names[-2]}": x, f"feed/{names[-1]}": t}
            pairs = dict(zip(names[: len(begin)], results[:-1], strict=True))
            kept(folder, f"jax {net} {rule}", model, pairs, results[-1], arrays)


def onnxsim(folder: Path) -> None:
    import onnx
    from onnx import numpy_helper
    from onnxsim import qat_graph
    from onnxsim.compile_training import compile_training_loop

    texts = {
        "2 layers": (
            "h = MatMul (x, w0) a = Add (h, w1) r = Tanh (a) g = MatMul (r, w2) y = Add (g, w3)",
            weights((8, 16), (16,), (16, 4), (4,)),
        ),
        "3 layers": (
            "h = Gemm (x, w0, w1) r = Relu (h) g = Gemm (r, w2, w3) e = Sigmoid (g) y = Gemm (e, w4, w5)",
            weights((8, 16), (16,), (16, 12), (12,), (12, 4), (4,)),
        ),
        "normalised": (
            "h = Gemm (x, w0, w1) n = LayerNormalization <axis = -1> (h, w4, w5) r = Relu (n) y = Gemm (r, w2, w3)",
            weights((8, 16), (16,), (16, 4), (4,), (16,), (16,)),
        ),
    }
    x, t = batches(8, 4)
    for net, (body, first) in texts.items():
        text = f"""<ir_version: 8, opset_import: ["" : 17]>
            m (float[{BATCH},8] x, float[{BATCH},4] t) => (float loss) {{
                {body} d = Sub (y, t) s = Mul (d, d) loss = ReduceMean <keepdims = 0> (s) }}"""
        model = onnx.parser.parse_model(text)
        model.graph.initializer.extend(numpy_helper.from_array(a, f"w{i}") for i, a in enumerate(first))
        for rule in ("adam", "sgd_momentum"):
            names = [f"w{i}" for i in range(len(first))]
            loop = compile_training_loop(model, loss_output="loss", params=names, optimizer=rule)
            step, begin = loop.step_graph, loop.initial_state
            arrays = {f"first/{n}": np.asarray(a) for n, a in begin.items()}
            feeds = {"x": x, "t": t, "lr": np.full(STEPS, RATE, np.float32)}
            if rule == "adam":
                found = [qat_graph.adam_bias_corrections(i + 1) for i in range(STEPS)]
                feeds |= {n: np.array([f[n] for f in found], np.float32) for n in found[0]}
            there = {i.name for i in step.model.graph.input}
            arrays |= {f"feed/{n}": a for n, a in feeds.items() if n in there}
            kept(folder, f"onnxsim {net} {rule}", step.model, dict(step.state), step.loss_name, arrays)


def run(folder: Path) -> None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    for path in sorted(folder.glob("*.onnx")):
        told, data = json.loads(path.with_suffix(".json").read_text()), np.load(path.with_suffix(".npz"))
        try:
            session, losses = onnxruntime.InferenceSession(path), []
        except Exception as error:  # jax2onnx writes steps that ONNX Runtime cannot load
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        state = {n: data[f"first/{n}"] for n in told["state"]}
        feeds = {n.removeprefix("feed/"): data[n] for n in data.files if n.startswith("feed/")}
        for i in range(STEPS):
            given = {**state, **{n: np.asarray(a[i]) for n, a in feeds.items()}}
            loss, *values = session.run([told["loss"], *told["state"].values()], given)
            state = dict(zip(told["state"], values, strict=True))
            losses.append(float(np.ravel(loss)[0]))
        np.save(path.with_suffix(".npy"), losses)


def compare(folder: Path) -> int:
    import onnx

    rows, failed = [], 0
    for path in sorted(folder.glob("*.onnx")):
        told, nodes = json.loads(path.with_suffix(".json").read_text()), len(onnx.load(path).graph.node)
        if not path.with_suffix(".npy").exists():
            rows.append(
                f"| {path.stem} | {nodes} | {len(told['state'])} | | | ONNX Runtime cannot load it | |"
            )
            continue
        wanted = np.load(path.with_suffix(".npy"))
        try:
            losses, size = _trained(path, told)
        except SystemExit as leaving:
            failed += 1
            rows.append(
                f"| {path.stem} | {nodes} | {len(told['state'])} | | | refused, exit {leaving.code} | |"
            )
            continue
        worst = np.max(np.abs(losses - wanted) / np.abs(wanted))
        failed += not worst <= WITHIN
        cells = f"{wanted[0]:.4f} | {wanted[-1]:.4f} | {worst:.1e} | {size:,} B"
        rows.append(f"| {path.stem} | {nodes} | {len(told['state'])} | {cells} |")
        print(rows[-1], file=sys.stderr, flush=True)
    TABLE.write_text("\n".join((HEAD, *rows, "")), encoding="utf-8")
    print(f"{len(rows)} steps, {failed} beyond {WITHIN}: {TABLE}", file=sys.stderr)
    return failed


def _trained(path: Path, told: dict) -> tuple[np.ndarray, int]:
    """The losses of the trainer, and the size of its library."""
    from minbuild.cli.main import app
    from minbuild.training.api import CheckpointState, Module

    data = np.load(path.with_suffix(".npz"))
    with tempfile.TemporaryDirectory() as out:
        first = Path(out) / "first.npz"
        np.savez(first, **{n: data[f"first/{n}"] for n in told["state"]})
        pairs = [f"--state={a}={b}" for a, b in told["state"].items()]
        command = ["reduce", str(path), *pairs, "--state-values", str(first), "--out", f"{out}/dist"]
        try:
            app([*command, "--no-analysis", "--json"], standalone_mode=False)
        except SystemExit as leaving:
            if leaving.code:
                raise
        package = Path(out) / "dist"
        module = Module(package, CheckpointState.load_checkpoint(package / "model" / "checkpoint"))
        names, losses = module.input_names(), []
        at = list(module.output_names()).index(told["loss"])
        for i in range(STEPS):
            found = module(*(data[f"feed/{n}"][i] for n in names))
            losses.append(float(np.ravel(found[at] if isinstance(found, tuple) else found)[0]))
        return np.array(losses), sum(f.stat().st_size for f in package.rglob("*.so"))


if __name__ == "__main__":
    command, where = sys.argv[1:]
    sys.exit({"jax": jax, "onnxsim": onnxsim, "run": run, "compare": compare}[command](Path(where)))
