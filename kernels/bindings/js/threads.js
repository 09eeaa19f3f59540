// Threads of a module whose memory is shared: workers that sleep until a call of the module has work for all of them.

const STACK = 1 << 16; // bytes, of a thread
// Words in shared memory that announce work: a function in the table and its first argument; how many of its calls nobody
// has taken, and how many have not returned; works so far; whether a call has failed.
const TASK = 0, WORK = 1, UNTAKEN = 2, LEFT = 3, WORKS = 4, FAILED = 5, WORDS = 6;
// Looks at a word before a thread sleeps: the next work of a training step often comes sooner than a thread wakes.
const LOOKS = 1000;

export const inNode = typeof process !== "undefined" && Boolean(process.versions?.node);
const nodeModule = (name) => import(/* webpackIgnore: true */ /* @vite-ignore */ name); // which bundlers do not look for

/** The memory of a module that shares it; undefined for all others. Sizes are those that the module was linked with. */
export function sharedMemory(module) {
  if (!WebAssembly.Module.imports(module).some(({ kind }) => kind === "memory")) return undefined;
  if (typeof SharedArrayBuffer === "undefined" || globalThis.crossOriginIsolated === false)
    throw new Error(
      "this page may not share memory with workers: serve it with the headers Cross-Origin-Opener-Policy: same-origin and " +
        "Cross-Origin-Embedder-Policy: require-corp, or reduce for wasm32, which makes a module without threads",
    );
  for (let maximum = 65536; ; maximum /= 2)
    try {
      return new WebAssembly.Memory({ initial: 16, maximum, shared: true });
    } catch (error) {
      if (maximum <= 1024) throw error; // a machine that has few addresses may have some for less
    }
}

/** How many threads to take where the program does not say. */
async function usualThreads() {
  const machine = inNode ? (await nodeModule("node:os")).availableParallelism() : navigator.hardwareConcurrency;
  return Math.min(machine || 1, 8); // libraries have at most 8 unless --threads says otherwise
}

/** Waits until the word has another value than this one. */
function waitForChange(words, at, value, sleeps) {
  for (let i = 0; i < LOOKS; ++i) if (Atomics.load(words, at) !== value) return;
  while (Atomics.load(words, at) === value) if (sleeps) Atomics.wait(words, at, value);
}

/** Makes those calls of the announced function that nobody has taken. Nothing is announced before all have returned. */
function takeCalls(words, table) {
  for (let i; (i = Atomics.sub(words, UNTAKEN, 1)) > 0; ) {
    try {
      table.get(Atomics.load(words, TASK))(Atomics.load(words, WORK), i - 1);
    } catch (error) {
      console.error(error);
      Atomics.store(words, FAILED, 1);
    }
    if (Atomics.sub(words, LEFT, 1) === 1) Atomics.notify(words, LEFT);
  }
}

/** Works for a module as one of its threads, for ever. */
export function work({ module, memory, block, stackEnd }) {
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  exports.__stack_pointer.value = stackEnd;
  const words = new Int32Array(memory.buffer, block, WORDS);
  for (let seen = 0; ; ) {
    waitForChange(words, WORKS, seen, true);
    seen = Atomics.load(words, WORKS);
    takeCalls(words, exports.__indirect_function_table);
  }
}

/** The threads of one module: the caller's and workers. */
export class Threads {
  #workers = [];
  #words;
  #table;
  #sleeps = true; // whether the caller may, as all may but the main thread of a page

  /** `count` threads in all, or as many as the machine has, for `module`, whose instance the Module `host` has. */
  static async start(module, host, count) {
    const made = new Threads(), block = host.allocate(4 * WORDS);
    made.count = count ?? (await usualThreads());
    made.#words = new Int32Array(host.memory.buffer, block, WORDS);
    made.#table = host.table;
    try {
      Atomics.wait(made.#words, WORKS, 1, 0);
    } catch {
      made.#sleeps = false;
    }
    const Worker = inNode ? (await nodeModule("node:worker_threads")).Worker : globalThis.Worker;
    const ready = [];
    for (let i = 1; i < made.count; ++i) {
      const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
      const stackEnd = host.allocate(STACK) + STACK;
      made.#workers.push(worker);
      ready.push(new Promise((resolve, reject) => {
        const listen = (event, then) => (inNode ? worker.once(event, then) : worker.addEventListener(event, then, { once: true }));
        listen("message", resolve);
        listen("error", (error) => reject(new Error(`a thread does not start: ${error.message}`)));
      }));
      worker.postMessage({ module, memory: host.memory, block, stackEnd });
    }
    try {
      await Promise.all(ready);
    } catch (error) {
      made.end();
      throw error;
    }
    if (inNode) for (const worker of made.#workers) worker.unref(); // the process may end
    return made;
  }

  /** Calls the function in the table with `argument` and each number below `count`; returns when all calls have. */
  run(task, argument, count) {
    const words = this.#words;
    Atomics.store(words, TASK, task);
    Atomics.store(words, WORK, argument);
    Atomics.store(words, LEFT, count);
    Atomics.store(words, UNTAKEN, count);
    Atomics.add(words, WORKS, 1);
    Atomics.notify(words, WORKS);
    takeCalls(words, this.#table);
    for (let left; (left = Atomics.load(words, LEFT)) > 0; ) waitForChange(words, LEFT, left, this.#sleeps);
    if (Atomics.load(words, FAILED)) throw new Error("a thread of the module has failed; its error was logged");
  }

  end() {
    for (const worker of this.#workers.splice(0)) worker.terminate();
  }
}
