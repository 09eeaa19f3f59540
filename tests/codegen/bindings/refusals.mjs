// Makes every mistake with a batch, and prints the words of each refusal.
import { TrainingSession, Tensor } from "./index.js";

const model = "../../model/";
const create = (sizes) =>
  TrainingSession.create({ trainModel: model + "trainer.plan", checkpointState: model + "checkpoint", sizes });
const session = await create(), small = await create([4]);
const image = (batch, { type = "float32", side = 28 } = {}) =>
  new Tensor(type, new Array(batch * 28 * side).fill(0), [batch, 1, 28, side]);
const labels = (...classes) => new Tensor("int64", classes.map(BigInt), [classes.length]);
const zeros = (batch) => labels(...new Array(batch).fill(0));

function refused(call) {
  try {
    call();
  } catch (error) {
    return console.log(`${error.code} ${error.message}`);
  }
  throw new Error("it was not refused");
}
const train = (input, labels, by = session) => refused(() => by.runTrainStep({ input, labels }));

train(image(2, { type: "float64" }), zeros(2));
train(image(2, { side: 27 }), zeros(2));
train(image(2), zeros(3));
train(image(0), zeros(0));
train(image(4), labels(0, 9, 1, 10));
train(image(5), zeros(5), small);
train(image(33), zeros(33));
refused(() => session.runEvalStep({ input: image(1), labels: labels(-1) }));
session.runTrainStep({ input: image(2), labels: zeros(2) }); // the session goes on
