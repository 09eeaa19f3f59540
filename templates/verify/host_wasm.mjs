// Runs a module of runner.c with host_wasm.c: node runner.mjs MODULE, in the folder of the files it asks for.
import { spawnSync } from "node:child_process";
import { openSync, readFileSync, readSync, writeSync } from "node:fs";

let memory;
const bytes = (at, size) => new Uint8Array(memory.buffer, at, size);

function text(at) {
  const all = new Uint8Array(memory.buffer, at);
  return new TextDecoder().decode(all.subarray(0, all.indexOf(0)));
}

const files = {};
const file = (at) => (files[text(at)] ??= readFileSync(text(at)));
let trace;

const host = {
  size: (name) => file(name).length,
  read: (name, to) => bytes(to, file(name).length).set(file(name)),
  next(to, size) {
    trace ??= openSync("trace");
    const expected = bytes(to, size);
    for (let at = 0; at < size; ) {
      const count = readSync(trace, expected, at, size - at);
      if (count === 0) throw new Error("trace: ends too early");
      at += count;
    }
  },
  write(from, size) {
    const data = bytes(from, size).slice();
    for (let at = 0; at < size; ) at += writeSync(1, data, at);
  },
  fail(what, why) {
    console.error(`${text(what)}: ${text(why)}`);
    process.exit(3);
  },
  stop: () => process.exit(0),
};

const image = readFileSync(process.argv[2]);
const flag = "--experimental-wasm-relaxed-simd"; // of Node before 22, for some instructions
if (!WebAssembly.validate(image) && !process.execArgv.includes(flag))
  process.exit(spawnSync(process.execPath, [flag, ...process.argv.slice(1)], { stdio: "inherit" }).status ?? 1);
const { instance } = await WebAssembly.instantiate(image, { host });
memory = instance.exports.memory;
process.exit(instance.exports.start());
