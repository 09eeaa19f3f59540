// Times training steps of a package's WebAssembly module: node wasm_steps.mjs PACKAGE MODULE FEEDS STEPS prints the
// shortest in milliseconds of processor time. FEEDS is JSON: name -> {type, dims, data}. measure_wasm.py calls it.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, wasm, feeds, steps] = process.argv.slice(2);
const { Tensor, TrainingSession } = await import(pathToFileURL(join(folder, "bindings/js/index.js")));
const inputs = Object.fromEntries(
  Object.entries(JSON.parse(readFileSync(feeds, "utf8"))).map(([name, { type, dims, data }]) => [
    name,
    new Tensor(type, type === "int64" ? data.map(BigInt) : data, dims),
  ]),
);
const session = await TrainingSession.create({
  trainModel: join(folder, "model/trainer.plan"),
  checkpointState: join(folder, "model/checkpoint"),
  wasm,
});
const milliseconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};
let shortest = Infinity;
for (let step = 0; step < Number(steps); ++step) {
  const since = milliseconds();
  session.runTrainStep(inputs);
  session.runOptimizerStep();
  session.lazyResetGrad();
  shortest = Math.min(shortest, milliseconds() - since);
}
console.log(shortest);
