// Performs a script with a WebAssembly module: node runner.mjs MODULE reads `plan`, `script` and checkpoints from the current
// folder, does what the script says, and writes what is to be recorded to standard output, each piece with its size in front, and
// last how deep the stack in the module's memory was in each kind of call; what else calls take, the engine has.
// The script is written by minbuild/verify/runner_protocol.py; offsets are those of the structs in minbuild/trainer.h at 32 bits.
// It shares no code with the module's binding (kernels/bindings/js), so that a fault of that cannot hide one of the module.
import { spawnSync } from "node:child_process";
import { readFileSync, writeSync } from "node:fs";

const PAGE = 65536;
const TENSOR = { data: 0, type: 4, rank: 8, dims: 12, size: 44 };
const PARAMETER = { value: 4, gradient: 48, size: 56 };
const OPTIONS = { arena: 0, arenaSize: 4, symbols: 8, symbolCount: 12, error: 16, parallel: 184, size: 192 };
const SESSION = { progress: 0, error: 4, replaces: 8 };
const RATE = 16; // in mb_progress
const TRAIN = 0, EVALUATE = 1, OPTIMIZER = 2, INITIALIZE = 3, OUTPUTS = 1, PARAMETERS = 4, TRAIN_AND_UPDATE = 4;
const ELEMENT_BYTES = [0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2];

const VERB = { create: 0, train: 2, evaluate: 3, optimize: 4, save: 8, initialize: 9, update: 11, count: 12 }; // runner.c's
const PAINT = 0xb5;

const file = readFileSync(process.argv[2]);
const flag = "--experimental-wasm-relaxed-simd"; // of Node before 22, for some instructions
if (!WebAssembly.validate(file) && !process.execArgv.includes(flag))
  process.exit(spawnSync(process.execPath, [flag, ...process.argv.slice(1)], { stdio: "inherit" }).status ?? 1);
const module = new WebAssembly.Module(file);
const threads = WebAssembly.Module.imports(module).length > 0; // the memory, which is shared
const shared = threads ? new WebAssembly.Memory({ initial: 16, maximum: 65536, shared: true }) : undefined;
const instance = new WebAssembly.Instance(module, { env: { memory: shared } });
const { memory = shared, __indirect_function_table: table, ...api } = instance.exports;

const view = () => new DataView(memory.buffer); // growing the memory makes older views void
const bytes = (at, size) => new Uint8Array(memory.buffer, at, size);
const word = (at) => view().getUint32(at, true);
const setWord = (at, value) => view().setUint32(at, value, true);

// The stack grows down from what the module's first global is at the start, to address 0.
function stackTop() {
  const number = (at) => {
    let value = 0, shift = 0, byte;
    do {
      byte = file[at++];
      value += (byte & 127) * 2 ** shift;
      shift += 7;
    } while (byte & 128);
    return [value, at];
  };
  for (let at = 8; at < file.length; ) {
    const id = file[at], [size, start] = number(at + 1);
    if (id === 6) {
      const [, global] = number(start); // i32, variable, i32.const
      return file[global] === 0x7f && file[global + 1] === 1 && file[global + 2] === 0x41 ? number(global + 3)[0] : 0;
    }
    at = start + size;
  }
  return 0;
}

const top = stackTop();
const depths = new Uint32Array(VERB.count);

// The result of a call; records the depth of the stack that it reached.
function measured(verb, call) {
  const stack = bytes(0, top).fill(PAINT), status = call();
  const deepest = bytes(0, top).findIndex((byte) => byte !== PAINT);
  depths[verb] = Math.max(depths[verb], deepest < 0 ? 0 : stack.length - deepest);
  return status;
}

let free = 0, end = 0; // what is left of the last pages

function allocate(size) {
  const rounded = (size + 63) & ~63;
  if (free + rounded > end) {
    const pages = Math.ceil(rounded / PAGE);
    free = memory.grow(pages) * PAGE;
    end = free + pages * PAGE;
  }
  free += rounded;
  return free - rounded;
}

function place(data) {
  const at = allocate(data.length + 1);
  bytes(at, data.length).set(data);
  return at;
}

function text(at) {
  const all = new Uint8Array(memory.buffer, at);
  return new TextDecoder().decode(all.slice(0, all.indexOf(0)));
}

function must(status, what, error) {
  if (status === 0) return;
  console.error(`${what}: ${text(error)}`);
  process.exit(3);
}

function write(data) {
  for (let at = 0; at < data.length; ) at += writeSync(1, data, at);
}

function record(data) {
  write(new Uint8Array(Uint32Array.of(data.length).buffer));
  write(data);
}

function tensorBytes(at) {
  let size = ELEMENT_BYTES[word(at + TENSOR.type)];
  for (let i = 0; i < word(at + TENSOR.rank); ++i) size *= word(at + TENSOR.dims + 4 * i);
  return size;
}

// A function of the host where the module can call it: a module that does nothing but export what it imports.
function callable(host, results = [127]) {
  const taken = Array(host.length).fill(127);
  const wasm = Uint8Array.of(
    0, 97, 115, 109, 1, 0, 0, 0,
    // type 0: i32 for each of the function's, to i32 or nothing
    1, 4 + taken.length + results.length, 1, 96, taken.length, ...taken, results.length, ...results,
    2, 7, 1, 1, 101, 1, 102, 0, 0, // import "e" "f" as a function of type 0
    7, 5, 1, 1, 102, 0, 0, // export it as "f"
  );
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(wasm), { e: { f: host } });
  table.set(table.grow(1), exports.f);
  return table.length - 1;
}

let saved = [];
const sink = callable((user, at, size) => {
  saved.push(bytes(at, size).slice());
  return 0;
});

// Stands for workers: all members of a pool, one after the other.
const pool = threads && callable((user, task, work, count) => {
  for (let i = 0; i < count; ++i) table.get(task)(work, i);
}, []);

const script = readFileSync("script");
let at = 0;
const next = () => script.readUInt32LE((at += 4) - 4);

function blob() {
  const size = next();
  at += size;
  return place(script.subarray(at - size, at));
}

const planData = readFileSync("plan");
const plan = planData.length ? place(planData) : 0; // 0 where it is compiled in
const options = allocate(OPTIONS.size);
const slot = allocate(4);
const found = allocate(PARAMETER.size);
let session = 0;

function create(garbage, sizes, count) {
  const file = readFileSync(`checkpoint.${next()}`), size = file.length, checkpoint = place(file);
  if (session) api.mb_destroy(session);
  bytes(options, OPTIONS.size).fill(0);
  setWord(options + OPTIONS.symbols, sizes);
  setWord(options + OPTIONS.symbolCount, count);
  setWord(options + OPTIONS.parallel, threads ? pool : 0);
  must(api.mb_create(plan, planData.length, 0, 0, options, 0), "mb_create", options + OPTIONS.error);
  const arena = allocate(word(options + OPTIONS.arenaSize));
  bytes(arena, word(options + OPTIONS.arenaSize)).fill(garbage);
  setWord(options + OPTIONS.arena, arena);
  const status = measured(VERB.create, () => api.mb_create(plan, planData.length, checkpoint, size, options, slot));
  must(status, "mb_create", options + OPTIONS.error);
  session = word(slot);
}

// A batch for a graph that takes one; `ports` is the graph whose outputs it has.
function run(verb, graph, ports, recorded) {
  const count = next();
  const tensors = allocate(count * TENSOR.size + 4);
  for (let i = 0; i < count; ++i) {
    const tensor = tensors + i * TENSOR.size;
    for (let field = TENSOR.type; field < TENSOR.size; field += 4) setWord(tensor + field, next());
    setWord(tensor + TENSOR.data, blob());
  }
  const status = measured(verb, () => api.mb_run(session, graph, tensors, count));
  must(status, "mb_run", word(session + SESSION.error));
  if (!recorded) return;
  each(2 * ports + OUTPUTS, (value) => record(bytes(word(value + TENSOR.data), tensorBytes(value))));
}

function step(graph) {
  const status = measured(graph === OPTIMIZER ? VERB.optimize : VERB.initialize, () => api.mb_run(session, graph, 0, 0));
  must(status, "mb_run", word(session + SESSION.error));
}

function each(list, use) {
  for (let i = 0; api.mb_get(session, list, i, found) === 0; ++i) use(found + PARAMETER.value);
}

function parameters(gradients) {
  each(PARAMETERS, (value) => {
    const data = word(gradients ? found + PARAMETER.gradient : value + TENSOR.data);
    if (data) record(bytes(data, tensorBytes(value)));
  });
}

// Values become their own gradients.
function copyToGradients() {
  each(PARAMETERS, (value) => {
    const gradient = word(found + PARAMETER.gradient);
    if (gradient) bytes(gradient, tensorBytes(value)).set(bytes(word(value + TENSOR.data), tensorBytes(value)));
  });
}

function save() {
  saved = [];
  const status = measured(VERB.save, () => api.mb_write_checkpoint(session, 1, sink, 0));
  must(status, "mb_write_checkpoint", word(session + SESSION.error));
  record(Buffer.concat(saved));
}

const garbage = next();
next(); // what runner.c does at each step
const count = next();
const sizes = allocate(4 * count + 4);
for (let i = 0; i < count; ++i) setWord(sizes + 4 * i, next());
while (at < script.length) {
  const verb = next(), recorded = next();
  [
    () => create(garbage, sizes, count),
    () => setWord(word(session + SESSION.progress) + RATE, next()),
    () => run(VERB.train, TRAIN, TRAIN, recorded),
    () => run(VERB.evaluate, EVALUATE, EVALUATE, recorded),
    () => step(OPTIMIZER),
    () => setWord(session + SESSION.replaces, 1),
    () => parameters(true),
    () => parameters(false),
    save,
    () => step(INITIALIZE),
    copyToGradients,
    () => run(VERB.update, TRAIN_AND_UPDATE, TRAIN, recorded),
  ][verb]();
}
record(new Uint8Array(depths.buffer));
