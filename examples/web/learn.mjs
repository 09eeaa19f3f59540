// Teaches the learner two spirals in Node, and goes on from what it saved: node learn.mjs
import { readFileSync, writeFileSync } from "node:fs";

import { Learner, spirals } from "./learner.js";

const held = spirals(151); // other places on the same spirals
const right = (learner) => learner.judge(held).filter((sure, i) => (sure > 0.5) === (held[i].colour === 1)).length;

let learner = await Learner.create("dist/model");
for (const { x, y, colour } of spirals(96)) learner.add(x, y, colour);
console.log(`before: ${right(learner)} of ${held.length} right`);
for (let step = 1; step <= 1500; ++step) {
  const loss = learner.step();
  if (step % 500 === 0) console.log(`step ${step}: loss ${loss.toFixed(4)}`);
}
writeFileSync("learned.checkpoint", learner.save());

learner = await Learner.create("dist/model", new Uint8Array(readFileSync("learned.checkpoint")));
const after = right(learner);
console.log(`after: ${after} of ${held.length} right`);
process.exitCode = after >= 0.95 * held.length ? 0 : 1;
