// A module whose memory is shared, and one for wasm32 beside it: `compare` trains with both, in pages and in Node.
import { Tensor, TrainingSession } from "./index.js";
import { Threads } from "./threads.js";

const CLASSES = 10;

async function trained(folder, options) {
  const [plan, checkpoint] = ["trainer.plan", "checkpoint"].map((name) => new URL(`model/${name}`, folder));
  const session = await TrainingSession.create({
    trainModel: plan, checkpointState: checkpoint, sizes: [8], ...options,
  });
  let state = 7;
  const random = () => (state = (state * 1664525 + 1013904223) >>> 0) / 2 ** 32;
  const shape = session.describeInputs()[0].dims.with(0, 8);
  const pixels = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, random);
  const feeds = {
    input: new Tensor("float32", pixels, shape),
    labels: new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % CLASSES)), [8]),
  };
  for (let step = 0; step < 3; ++step) {
    session.runTrainStep(feeds);
    session.runOptimizerStep();
    session.lazyResetGrad();
  }
  const bytes = session.saveCheckpoint();
  session.release();
  return bytes.join();
}

// Calls of the module's threads, and those that this one makes, which takes its time.
let calls = 0, own = 0, spent = 0;
const { run } = Threads.prototype, { get } = WebAssembly.Table.prototype;
Threads.prototype.run = function (task, argument, count) {
  calls += count;
  run.call(this, task, argument, count);
};
WebAssembly.Table.prototype.get = function (index) {
  own += 1;
  for (let i = 0; i < 1e6; ++i) spent = Math.sqrt(spent + i);
  return get.call(this, index);
};

/**
 * "" where every number of threads gives the bytes that the module without threads gives, and workers make calls. `simd` names
 * the package's module with threads where it has two; `alone` is the file of the one without, `worker` the script of threads.
 */
export async function compare(folder, alone = "alone.wasm", simd = undefined, worker = undefined) {
  const expected = await trained(folder, { threads: 1, wasm: new URL(alone, folder) });
  for (const threads of [1, 2, 3, undefined]) {
    const found = await trained(folder, { threads, simd, worker });
    if (found !== expected) return `${threads} threads train something else`;
  }
  return own < calls ? "" : `this thread made all of ${calls} calls`;
}
