// A program for onnxruntime-web/training, beside the session of index.js.
import * as ort from "./training.js";
import everything from "./training.js";
import { Tensor, TrainingSession } from "./index.js";
import assert from "node:assert/strict";
import { existsSync } from "node:fs";

const checkpointState = "../../model/checkpoint";
const models = { trainModel: "training_model.onnx", evalModel: "eval_model.onnx", optimizerModel: "optimizer_model.onnx" };
const file = "../../model/trainer.plan";
const plain = await TrainingSession.create({ trainModel: existsSync(file) ? file : undefined, checkpointState, sizes: [40] });
const session = await ort.TrainingSession.create({ checkpointState, ...models }, { freeDimensionOverrides: { batch: 2 } });
assert.deepEqual(session.trainingInputNames, plain.trainingInputNames);
assert.deepEqual(session.evalOutputNames, plain.evalOutputNames);
assert.equal(everything.TrainingSession, ort.TrainingSession);
ort.env.wasm.numThreads = 1;

let state = 7;
const random = () => (state = (state * 1664525 + 1013904223) >>> 0) / 2 ** 32;
const batch = (Kind, count) => ({
  input: new Kind("float32", Float32Array.from({ length: count * 784 }, random), [count, 1, 28, 28]),
  labels: new Kind("int64", BigInt64Array.from({ length: count }, () => BigInt(Math.floor(10 * random()))), [count]),
});
const [loss] = session.trainingOutputNames;
// More samples than there is memory for: the session grows and goes on where it was.
for (const count of [2, 5, 3, 40]) {
  const feeds = batch(ort.Tensor, count);
  const results = await session.runTrainStep(feeds);
  assert.ok(results[loss] instanceof ort.Tensor && results[loss].size === 1 && Number.isFinite(parseFloat(results[loss].data)));
  await session.runOptimizerStep();
  await session.lazyResetGrad();
  const expected = plain.runTrainStep(feeds);
  plain.runOptimizerStep();
  plain.lazyResetGrad();
  assert.deepEqual(results[loss].data, expected[loss].data, `batch ${count}`);
}
const feeds = batch(ort.Tensor, 4), evaluated = await session.runEvalStep(feeds);
assert.deepEqual(evaluated[loss].data, plain.runEvalStep(feeds)[loss].data);
assert.deepEqual(Object.keys(await session.runEvalStep(feeds, [loss])), [loss]);
const place = new ort.Tensor("float32", [0], []);
assert.equal((await session.runEvalStep(feeds, { [loss]: place }))[loss], place);
assert.deepEqual(place.data, evaluated[loss].data);
assert.deepEqual(Object.keys(await session.runEvalStep(feeds, { logSeverityLevel: 2 })), Object.keys(evaluated));
await assert.rejects(session.runEvalStep(feeds, ["nothing"]), /'nothing' is no output; there are /);

const count = await session.getParametersSize(true), parameters = await session.getContiguousParameters(true);
assert.equal(parameters.size, count);
await session.loadParametersBuffer(new Uint8Array(new Float32Array(count).buffer), true);
assert.ok((await session.getContiguousParameters()).data.every((value) => value === 0));

// Gradients that a larger session would not have: the step is refused, nothing changes.
await session.runTrainStep(feeds);
await assert.rejects(session.runTrainStep(batch(ort.Tensor, 41)), /batch 41 is above the 40/);
await session.lazyResetGrad();
await session.runTrainStep(batch(ort.Tensor, 41));

const trains = await ort.TrainingSession.create({ checkpointState, trainModel: models.trainModel });
assert.deepEqual(trains.evalInputNames, []);
await assert.rejects(trains.runEvalStep(feeds), /without evalModel/);
await assert.rejects(trains.runOptimizerStep(), /without optimizerModel/);
await assert.rejects(ort.TrainingSession.create({ trainModel: models.trainModel }), /checkpointState and trainModel/);
await assert.rejects(ort.InferenceSession.create("model.onnx"), /runEvalStep/);

const made = new ort.Tensor(new Float32Array([1, 2, 3, 4]), [2, 2]);
assert.equal(made.type, "float32");
assert.deepEqual(made.reshape([4]).dims, [4]);
assert.deepEqual(await new ort.Tensor([true, false]).getData(), Uint8Array.of(1, 0));
assert.throws(() => new ort.Tensor(["text"]), /a typed array/);
await session.release();
console.log("passed");
