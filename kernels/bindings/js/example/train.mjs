// Trains an image classifier of this package, such as LeNet, in Node: node train.mjs [FOLDER [STEPS]]
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { TrainingSession } from "../index.js";
import { train } from "./images.js";

const [folder = "../../..", steps = "60"] = process.argv.slice(2);
const plan = join(folder, "model/trainer.plan"); // not there where it is compiled in
const session = await TrainingSession.create({
  trainModel: existsSync(plan) ? plan : undefined,
  checkpointState: join(folder, "model/checkpoint"),
});
await train(session, Number(steps), (step, loss) => console.log(loss.toFixed(6)));
writeFileSync("trained.checkpoint", session.saveCheckpoint());
session.release();
