// Which of a package's two modules a session runs on; then its losses on each of them, as JSON: node simd.mjs BATCH STEPS.
// For the model with the inputs `input` [batch, 12] and `labels` below 5. The engine has to have relaxed SIMD.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Tensor, TrainingSession } from "./index.js";
import ort from "./training.js";

const [batch, steps] = process.argv.slice(2).map(Number);
const [trainModel, checkpointState] = ["../../model/trainer.plan", "../../model/checkpoint"];
const files = new Map([["fixed", "minbuild.wasm"], ["relaxed", "minbuild-relaxed-simd.wasm"]]);

// The kind of the module that was instantiated last, by its bytes.
let running;
const kinds = new Map();
const { compile, instantiate } = WebAssembly;
WebAssembly.compile = async (bytes) => {
  const module = await compile(bytes);
  kinds.set(module, [...files.keys()].find((kind) => readFileSync(files.get(kind)).equals(bytes)));
  return module;
};
WebAssembly.instantiate = (module, imports) => {
  running = kinds.get(module);
  return instantiate(module, imports);
};

let state = 1;
const bits = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) >>> 8; // 24, the same on every machine
const feeds = (rows) => ({
  input: new Tensor("float32", Float32Array.from({ length: 12 * rows }, () => bits() / 2 ** 24 - 0.5), [rows, 12]),
  labels: new Tensor("int64", Array.from({ length: rows }, () => bits() % 5), [rows]),
});
const create = (options) => TrainingSession.create({ trainModel, checkpointState, ...options });

async function loaded(options) {
  const session = await create(options);
  session.release();
  return [session.simd, running];
}

async function loadedByPrograms(simd) {
  ort.env.wasm.simd = simd;
  const files = { checkpointState, trainModel: "training_model.onnx" };
  const made = await ort.TrainingSession.create(files, { freeDimensionOverrides: { batch: 2 } });
  const first = [made.session, running];
  ort.env.wasm.simd = running === "fixed" ? "relaxed" : "fixed"; // for the sessions that follow, not for this one
  await made.runTrainStep(feeds(3)); // grows
  assert.notEqual(made.session, first[0]);
  assert.deepEqual([made.session.simd, running], [first[1], first[1]]);
  await made.release();
  return running;
}

for (const able of [true, false]) {
  let asked = 0;
  WebAssembly.validate = () => ((asked += 1), able);
  const usual = able ? "relaxed" : "fixed";
  assert.deepEqual(await loaded(), [usual, usual]);
  assert.ok(asked);
  assert.deepEqual(await loaded({ simd: "fixed" }), ["fixed", "fixed"]);
  if (able) assert.deepEqual(await loaded({ simd: "relaxed" }), ["relaxed", "relaxed"]);
  else await assert.rejects(loaded({ simd: "relaxed" }), /^Error: simd: 'relaxed' needs instructions that this engine lacks/);
  await assert.rejects(loaded({ simd: "wasm32" }), /^TypeError: simd: 'wasm32' is no kind .* fixed, relaxed$/);
  for (const [kind, file] of files) assert.deepEqual(await loaded({ wasm: file }), [undefined, kind]);
  for (const simd of [undefined, true, "none"]) assert.equal(await loadedByPrograms(simd), usual);
  assert.equal(await loadedByPrograms("fixed"), "fixed");
  if (able) assert.equal(await loadedByPrograms("relaxed"), "relaxed");
}

WebAssembly.validate = () => true;
const losses = {}, checkpoints = {};
for (const simd of files.keys()) {
  const session = await create({ simd });
  state = 1;
  const taught = feeds(batch);
  losses[simd] = Array.from({ length: steps }, () => {
    const outputs = session.runTrainStep(taught);
    session.runOptimizerStep();
    session.lazyResetGrad();
    return outputs[session.trainingOutputNames[0]].data[0];
  });
  checkpoints[simd] = session.saveCheckpoint();
  session.release();
}
const other = await create({ simd: "relaxed" });
other.loadCheckpoint(checkpoints.fixed);
assert.deepEqual(other.saveCheckpoint(), checkpoints.fixed);
console.log(JSON.stringify(losses));
