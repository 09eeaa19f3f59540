// Made-up images: class k of ten is a bright square at place k, on noise.
import { Tensor } from "../index.js";

export const CLASSES = 10;
let state = 1;

// 24 random bits, the same on every machine.
function randomBits() {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state >>> 8;
}

/** A batch for a session whose first input are images [batch, channels, side, side] and whose second are labels. */
export function makeBatch(session, count) {
  const [image, label] = session.describeInputs();
  const [, channels, side] = image.dims, square = Math.floor(side / 5);
  const pixels = Float32Array.from({ length: count * channels * side * side }, () => randomBits() / 2 ** 24);
  const labels = Array.from({ length: count }, () => randomBits() % CLASSES);
  labels.forEach((k, n) => {
    for (let c = 0; c < channels; ++c)
      for (let y = 0; y < square; ++y)
        for (let x = 0; x < square; ++x) {
          const row = Math.floor(k / 5) * 2 * square + y, column = (k % 5) * square + x;
          pixels[((n * channels + c) * side + row) * side + column] += 2;
        }
  });
  return {
    [image.name]: new Tensor(image.type, pixels, [count, channels, side, side]),
    [label.name]: new Tensor(label.type, labels, [count]),
  };
}

/** Trains for `steps` batches; `report(step, loss)` may return a promise to wait for. */
export async function train(session, steps, report) {
  session.registerLinearLRScheduler(5, 2 * steps, 0.002);
  for (let step = 0; step < steps; ++step) {
    const outputs = session.runTrainStep(makeBatch(session, 8));
    await report(step, outputs[session.trainingOutputNames[0]].data[0]);
    session.runOptimizerStep();
    session.lazyResetGrad();
    session.schedulerStep();
  }
}
