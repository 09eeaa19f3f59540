// One instance of the WebAssembly module: its memory, its structs, and functions of the host that it can call.
import { MB_OK, OPTIONS, PARAMETER } from "./header.js";
import { Threads, sharedMemory } from "./threads.js";

const PAGE = 65536;
const NO_FILE =
  "the server answered with a page (text/html), as many do where they have no file. Put the file there, or give its address.";
const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** A call that the module refused. `code` is an mb_status of trainer.h. */
export class TrainerError extends Error {
  constructor(code, text) {
    super(text);
    this.name = "TrainerError";
    this.code = code;
  }
}

/** Bytes of anything that has some: arrays, buffers, responses, addresses. Files can be read in Node only. */
export async function bytesOf(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (typeof Response !== "undefined" && source instanceof Response) {
    if (!source.ok) throw new Error(`${source.url}: ${source.status} ${source.statusText}`);
    if (source.headers.get("content-type")?.startsWith("text/html")) throw new Error(`${source.url}: ${NO_FILE}`);
    return new Uint8Array(await source.arrayBuffer());
  }
  const address = String(source);
  if (globalThis.process?.versions?.node && !/^(https?|data|blob):/.test(address)) {
    const files = "node:fs/promises"; // by a name that bundlers for browsers do not look for
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ files);
    return readFile(source);
  }
  return bytesOf(await fetch(source));
}

const compiled = new Map(); // by address, so that sessions share code

/** A compiled module; one from an address is compiled once. */
export async function compile(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (typeof source !== "string" && !(source instanceof URL)) return WebAssembly.compile(await bytesOf(source));
  const address = String(source);
  if (!compiled.has(address)) compiled.set(address, bytesOf(source).then((bytes) => WebAssembly.compile(bytes)));
  try {
    return await compiled.get(address);
  } catch (error) {
    compiled.delete(address); // the next one may find the network up again
    throw error;
  }
}

export class Module {
  #free = 0;
  #end = 0;

  /**
   * `module` is a WebAssembly.Module; one that shares its memory gets `threads`, or as many as the machine has, each a
   * worker of the script `worker`, or of worker.js.
   */
  static async instantiate(module, threads, worker) {
    const memory = sharedMemory(module);
    const made = new Module(await WebAssembly.instantiate(module, { env: { memory } }), memory);
    if (memory && threads !== 1) made.#share(await Threads.start(module, made, threads, worker));
    return made;
  }

  constructor(instance, shared) {
    const { memory, __indirect_function_table: table, ...api } = instance.exports;
    this.memory = shared ?? memory;
    this.table = table;
    this.api = api;
    this.found = this.allocate(PARAMETER.size);
    this.options = this.allocate(OPTIONS.size);
  }

  #share(threads) {
    this.threads = threads;
    this.setWord(this.options + OPTIONS.threads, threads.count);
    const run = (user, task, work, count) => threads.run(task, work, count);
    this.setWord(this.options + OPTIONS.parallel, this.#callable(run, []));
  }

  /** The memory as it is now; growing it makes older views void. */
  get view() {
    return new DataView(this.memory.buffer);
  }

  bytes(at, size) {
    return new Uint8Array(this.memory.buffer, at, size);
  }

  word(at) {
    return this.view.getUint32(at, true);
  }

  setWord(at, value) {
    this.view.setUint32(at, value, true);
  }

  /** Memory that stays, at a multiple of 64. The module itself asks for none, so pages follow each other. */
  allocate(size) {
    const rounded = (size + 63) & ~63;
    if (this.#free + rounded > this.#end) {
      const pages = Math.ceil(rounded / PAGE);
      this.#free = this.memory.grow(pages) * PAGE;
      this.#end = this.#free + pages * PAGE;
    }
    this.#free += rounded;
    return this.#free - rounded;
  }

  place(data) {
    const at = this.allocate(data.length);
    this.bytes(at, data.length).set(data);
    return at;
  }

  placeText(text) {
    return this.place(encoder.encode(`${text}\0`));
  }

  text(at) {
    if (at === 0) return "";
    const all = new Uint8Array(this.memory.buffer, at);
    return decoder.decode(all.slice(0, all.indexOf(0))); // a copy: decoders take no shared memory
  }

  /** The function of that name. Raises where the module was built without it, with the option that asks for it. */
  function(name, option) {
    if (this.api[name]) return this.api[name];
    throw new TrainerError(9, `${name}: the module was built without it. Reduce again with ${option}.`);
  }

  must(status, error) {
    if (status !== MB_OK) throw new TrainerError(status, this.text(error));
  }

  /** What a call that writes to a sink wrote: `call(sink)` returns its status. */
  written(call, error) {
    const pieces = [];
    this.receive = (user, at, size) => {
      pieces.push(this.bytes(at, size).slice());
      return 0;
    };
    this.sink ??= this.#callable((user, at, size) => this.receive(user, at, size));
    this.must(call(this.sink), error());
    const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    return whole;
  }

  // A table takes functions of modules only: this one does nothing but export what it imports.
  #callable(host, results = [127]) {
    const taken = Array(host.length).fill(127);
    const wasm = Uint8Array.of(
      0, 97, 115, 109, 1, 0, 0, 0,
      // type 0: i32 for each argument, to i32 or to nothing
      1, 4 + taken.length + results.length, 1, 96, taken.length, ...taken, results.length, ...results,
      2, 7, 1, 1, 101, 1, 102, 0, 0, // import "e" "f" as a function of type 0
      7, 5, 1, 1, 102, 0, 0, // export it as "f"
    );
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(wasm), { e: { f: host } });
    this.table.set(this.table.grow(1), exports.f);
    return this.table.length - 1;
  }
}
