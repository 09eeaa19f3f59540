// Frozen parameters are read where their checkpoint is: one that was loaded has to outlast the calls after it.
import { TrainingSession, Tensor } from "./index.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const files = { trainModel: "../../model/trainer.plan", checkpointState: "../../model/checkpoint" };
const checkpoint = readFileSync("../../model/checkpoint");
const [session, fresh] = [await TrainingSession.create(files), await TrainingSession.create(files)];
const batch = Object.fromEntries(
  JSON.parse(readFileSync("batch.json")).map(([name, type, data, dims]) =>
    [name, new Tensor(type, type === "int64" ? data.map(BigInt) : data, dims)]));
for (let i = 0; i < 3; ++i) {
  session.loadCheckpoint(checkpoint);
  const [found, expected] = [session, fresh].map((each) => {
    each.lazyResetGrad();
    return each.runTrainStep(batch);
  });
  assert.deepEqual(found, expected);
}
assert.throws(() => session.loadCheckpoint(new Uint8Array(0)), (error) => error.code === 4);
assert.throws(() => session.loadCheckpoint(checkpoint.subarray(0, -64)), (error) => error.code === 4);
assert.deepEqual(session.runTrainStep(batch), fresh.runTrainStep(batch));
