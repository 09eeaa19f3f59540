// Learns the colour of points of the plane from examples that come one by one. Page and Node program use it alike.
import { Tensor, TrainingSession } from "./dist/bindings/js/index.js";

const BATCH = 32;

export class Learner {
  /** `from` is where the package's model folder is: an address, or in Node a path. */
  static async create(from, checkpoint) {
    const session = await TrainingSession.create({
      trainModel: `${from}/trainer.plan`,
      checkpointState: checkpoint ?? `${from}/checkpoint`,
      sizes: [BATCH],
    });
    session.learningRate = 0.01;
    return new Learner(session);
  }

  constructor(session) {
    this.session = session;
    this.points = []; // {x, y, colour}: coordinates from -1 to 1, colour 0 or 1
    this.place = 0;
  }

  add(x, y, colour) {
    this.points.push({ x, y, colour });
  }

  /** One step on the next batch of all points, in turn; the loss, or null while one colour is missing. */
  step() {
    if (new Set(this.points.map((p) => p.colour)).size < 2) return null;
    const batch = Array.from({ length: BATCH }, () => this.points[this.place++ % this.points.length]);
    const outputs = this.session.runTrainStep(this.#feeds(this.session.trainingInputNames, batch));
    this.session.runOptimizerStep();
    this.session.lazyResetGrad();
    return outputs[this.session.trainingOutputNames[0]].data[0];
  }

  /** For each point how sure it is that the colour is 1, from 0 to 1. */
  judge(points) {
    const sure = [];
    for (let first = 0; first < points.length; first += BATCH) {
      const some = points.slice(first, first + BATCH).map((p) => ({ colour: 0, ...p }));
      const { scores } = this.session.runEvalStep(this.#feeds(this.session.evalInputNames, some));
      for (let i = 0; i < some.length; ++i) sure.push(1 / (1 + Math.exp(scores.data[2 * i] - scores.data[2 * i + 1])));
    }
    return sure;
  }

  /** What to keep for the next visit. */
  save() {
    return this.session.saveCheckpoint();
  }

  #feeds([point, labels], batch) {
    return {
      [point]: new Tensor("float32", batch.flatMap((p) => [p.x, p.y]), [batch.length, 2]),
      [labels]: new Tensor("int64", batch.map((p) => p.colour), [batch.length]),
    };
  }
}

/** `count` points of two spirals, one for each colour. */
export function spirals(count) {
  return Array.from({ length: count }, (_, i) => {
    const colour = i % 2, along = (i >> 1) / (count / 2), angle = 1.25 * 2 * Math.PI * along + Math.PI * colour;
    return { x: (0.1 + 0.85 * along) * Math.cos(angle), y: (0.1 + 0.85 * along) * Math.sin(angle), colour };
  });
}
