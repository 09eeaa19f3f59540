// Training in browsers and Node. Names and shapes follow onnxruntime-web's training session.
import {
  ELEMENTS, MB_BAD_VALUE, MB_COUNT_PARAMETERS, MB_EVAL, MB_FLOAT, MB_FROM_PARAMETERS, MB_INITIALIZE, MB_INPUTS, MB_INT64, MB_OK,
  MB_OPTIMIZER, MB_OUTPUTS, MB_PARAMETERS, MB_STRING, MB_TO_PARAMETERS, MB_TRAIN, MB_TRAIN_AND_UPDATE,
  OPTIONS, PARAMETER, PROGRESS, PROPERTY, SESSION, TENSOR,
} from "./header.js";
import { Module, TrainerError, bytesOf, compile } from "./module.js";
import { modelOf, refusal } from "./refusal.js";

export { TrainerError };

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array,
};
const NAMES = Object.fromEntries(Object.entries(ELEMENTS).map(([name, number]) => [number, name]));

/** A dense tensor: type, data in row-major order, dimensions. */
export class Tensor {
  constructor(type, data, dims) {
    const array = ARRAYS[type];
    if (!array) throw new TypeError(`'${type}' is no element type; there are ${Object.keys(ARRAYS).join(", ")}`);
    this.type = type;
    this.data = data instanceof array ? data : array.from(data, array.name.startsWith("Big") ? BigInt : Number);
    this.dims = dims ? Array.from(dims) : [this.data.length];
    const count = this.dims.reduce((product, dim) => product * dim, 1);
    if (count !== this.data.length)
      throw new RangeError(`[${this.dims}] are ${count} elements, not ${this.data.length}`);
  }

  get size() {
    return this.data.length;
  }
}

export class TrainingSession {
  #module;
  #session = 0;
  #staged = { at: 0, room: 0 };
  #template = { at: 0, size: 0 };
  #schedule = null;
  #sizes = undefined;

  /**
   * `trainModel` is the package's trainer.plan, left out where the library has it compiled in; `checkpointState` a
   * checkpoint, left out to start from zeros; `exportTemplate` its inference.template, for exportModel. Each is bytes, a Response, or an address. `sizes` are the largest sizes of
   * free dimensions in plan order. Every session has memory of its own and shares compiled code. A module for wasm32-threads
   * works with as many `threads`, by default as the machine has, at most 8: workers, which `release` ends.
   */
  static async create({ trainModel, checkpointState, exportTemplate, wasm, sizes, threads }) {
    const source = wasm ?? new URL("./minbuild.wasm", import.meta.url);
    const [code, plan, checkpoint, cast] = await Promise.all([
      compile(source), ...[trainModel, checkpointState, exportTemplate].map((given) => given && bytesOf(given)),
    ]);
    const made = new TrainingSession();
    const module = await Module.instantiate(code, threads);
    try {
      made.#start(module, plan, checkpoint, sizes);
    } catch (error) {
      module.threads?.end();
      throw error;
    }
    if (cast) made.#template = { at: made.#module.place(cast), size: cast.length };
    return made;
  }

  #start(module, plan, checkpoint, sizes) {
    const { api, options } = module;
    const planAt = plan ? module.place(plan) : 0;
    const checkpointAt = checkpoint ? module.place(checkpoint) : 0;
    if (sizes) {
      const list = module.allocate(4 * sizes.length);
      sizes.forEach((size, i) => module.setWord(list + 4 * i, size));
      module.setWord(options + OPTIONS.symbols, list);
      module.setWord(options + OPTIONS.symbol_count, sizes.length);
    }
    const create = (data, size, slot) =>
      module.must(api.mb_create(planAt, plan?.length ?? 0, data, size, options, slot), options + OPTIONS.error);
    create(0, 0, 0); // leaves how much memory is needed
    module.setWord(options + OPTIONS.arena, module.allocate(module.word(options + OPTIONS.arena_size)));
    create(checkpointAt, checkpoint?.length ?? 0, module.found);
    this.#module = module;
    this.#session = module.word(module.found);
    this.#sizes = sizes && Array.from(sizes);
    this.trainingInputNames = this.#names(MB_TRAIN, MB_INPUTS);
    this.trainingOutputNames = this.#names(MB_TRAIN, MB_OUTPUTS);
    this.evalInputNames = this.#names(MB_EVAL, MB_INPUTS);
    this.evalOutputNames = this.#names(MB_EVAL, MB_OUTPUTS);
  }

  /** Forward and backward on a batch: outputs by name. Adds to the gradients, or replaces them after lazyResetGrad. */
  runTrainStep(feeds) {
    return this.#run(MB_TRAIN, this.trainingInputNames, feeds);
  }

  /**
   * Forward, backward and updates in one pass, of modules reduced with --updates fused, which do not train otherwise. After a
   * gradient that is not finite the session takes nothing but loadCheckpoint.
   */
  runTrainAndUpdate(feeds) {
    return this.#run(MB_TRAIN_AND_UPDATE, this.trainingInputNames, feeds);
  }

  runEvalStep(feeds) {
    return this.#run(MB_EVAL, this.evalInputNames, feeds);
  }

  /** Updates the parameters from the gradients. */
  runOptimizerStep() {
    this.#must(this.#module.api.mb_run(this.#session, MB_OPTIMIZER, 0, 0));
  }

  /** New first values for parameters and state, of models that bring their own. */
  initialize() {
    this.#must(this.#module.api.mb_run(this.#session, MB_INITIALIZE, 0, 0));
  }

  lazyResetGrad() {
    this.#module.setWord(this.#session + SESSION.replaces_gradients, 1);
  }

  /** Type and dimensions of an input or a parameter are told by the session; -1 is a free dimension. */
  describeInputs(evaluation = false) {
    return this.#all(2 * (evaluation ? MB_EVAL : MB_TRAIN) + MB_INPUTS).map(({ name, type, dims }) => ({ name, type, dims }));
  }

  get learningRate() {
    return this.#module.view.getFloat32(this.#progress + PROGRESS.learning_rate, true);
  }

  /** A number that is not finite is refused. */
  set learningRate(rate) {
    if (!Number.isFinite(Math.fround(rate))) throw new TrainerError(MB_BAD_VALUE, "not finite: learning rate");
    this.#module.view.setFloat32(this.#progress + PROGRESS.learning_rate, rate, true);
  }

  /** Optimizer steps taken, restored from checkpoints. */
  get stepCount() {
    return Number(this.#module.view.getBigInt64(this.#progress + PROGRESS.step, true));
  }

  get seed() {
    return this.#module.view.getBigInt64(this.#progress + PROGRESS.seed, true);
  }

  set seed(seed) {
    this.#module.view.setBigInt64(this.#progress + PROGRESS.seed, BigInt(seed), true);
  }

  /** From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`; starts with `initial`. */
  registerLinearLRScheduler(warmup, total, initial) {
    this.#schedule = { warmup, total, initial };
    this.learningRate = initial;
  }

  /** Sets the rate for the next optimizer step. */
  schedulerStep() {
    if (!this.#schedule) throw new Error("schedulerStep: call registerLinearLRScheduler first");
    const { warmup, total, initial } = this.#schedule, done = this.stepCount;
    const [part, whole] = done < warmup ? [done, warmup] : [total - done, total - warmup];
    this.learningRate = initial * (Math.max(0, part) / Math.max(1, whole));
  }

  get parameterNames() {
    return this.#all(MB_PARAMETERS).map(({ name }) => name);
  }

  /** A copy of a parameter. */
  getParameter(name) {
    return this.#copied(this.#parameter(name));
  }

  updateParameter(name, tensor) {
    const { type, dims, data } = this.#parameter(name);
    if (tensor.type !== type || String(tensor.dims) !== String(dims))
      throw new RangeError(`'${name}' is ${type}[${dims}], not ${tensor.type}[${tensor.dims}]`);
    new ARRAYS[type](this.#module.memory.buffer, data, tensor.size).set(tensor.data);
  }

  /** The bytes of an ONNX Runtime checkpoint. */
  saveCheckpoint(includeOptimizer = true) {
    const call = this.#module.function("mb_write_checkpoint", "--checkpoint-writing on");
    return this.#written((sink) => call(this.#session, includeOptimizer ? 1 : 0, sink, 0));
  }

  /** `acceptAny` takes the checkpoint of another model whose parameters have the same names, types and shapes. */
  loadCheckpoint(checkpoint, acceptAny = false) {
    const at = this.#stage(checkpoint.length), flag = this.#session + SESSION.accepts_any_checkpoint;
    this.#module.bytes(at, checkpoint.length).set(checkpoint);
    this.#module.setWord(flag, acceptAny ? 1 : 0);
    const status = this.#module.api.mb_load_checkpoint(this.#session, at, checkpoint.length);
    this.#module.setWord(flag, 0);
    this.#must(status);
  }

  /** The bytes of an ONNX model for inference, with the parameters as they are. */
  exportModel() {
    const call = this.#module.function("mb_export_model", "--with export");
    if (!this.#template.at) throw new Error("exportModel: give create() the package's inference.template");
    return this.#written((sink) => call(this.#session, this.#template.at, this.#template.size, sink, 0));
  }

  getParametersSize(trainableOnly = true) {
    this.#buffer(trainableOnly, MB_COUNT_PARAMETERS, 0);
    return this.#module.word(this.#module.found);
  }

  getContiguousParameters(trainableOnly = true) {
    const count = this.getParametersSize(trainableOnly), at = this.#stage(4 * count);
    this.#buffer(trainableOnly, MB_FROM_PARAMETERS, at, count);
    return new Tensor("float32", new Float32Array(this.#module.memory.buffer, at, count).slice(), [count]);
  }

  loadParametersBuffer(buffer, trainableOnly = true) {
    const data = buffer instanceof Float32Array ? buffer : new Float32Array(buffer.buffer, buffer.byteOffset, buffer.byteLength / 4);
    const at = this.#stage(data.byteLength);
    new Float32Array(this.#module.memory.buffer, at, data.length).set(data);
    this.#buffer(trainableOnly, MB_TO_PARAMETERS, at, data.length);
  }

  /** A bigint, a number or a string; undefined where there is no such property. */
  getProperty(name) {
    const module = this.#module, get = module.function("mb_get_property", "--with properties"), found = module.found;
    for (let i = 0; get(this.#session, i, found) === MB_OK; ++i) {
      if (module.text(module.word(found + PROPERTY.name)) !== name) continue;
      const type = module.word(found + PROPERTY.type);
      if (type === MB_INT64) return module.view.getBigInt64(found + PROPERTY.integer, true);
      if (type === MB_FLOAT) return module.view.getFloat32(found + PROPERTY.real, true);
      return module.text(module.word(found + PROPERTY.text));
    }
    return undefined;
  }

  /** Keeps a bigint (int64), a number (float) or a string with the model; undefined removes the property. */
  setProperty(name, value) {
    const module = this.#module, set = module.function("mb_set_property", "--with properties");
    const texts = [name, typeof value === "string" ? value : ""].map((text) => new TextEncoder().encode(`${text}\0`));
    const at = this.#stage(PROPERTY.size + texts[0].length + texts[1].length);
    const name_ = at + PROPERTY.size, text = name_ + texts[0].length;
    module.bytes(name_, texts[0].length).set(texts[0]);
    module.bytes(text, texts[1].length).set(texts[1]);
    module.bytes(at, PROPERTY.size).fill(0);
    module.setWord(at + PROPERTY.name, name_);
    module.setWord(at + PROPERTY.text, text);
    if (typeof value === "bigint") module.view.setBigInt64(at + PROPERTY.integer, value, true);
    if (typeof value === "number") module.view.setFloat32(at + PROPERTY.real, value, true);
    const type = { bigint: MB_INT64, number: MB_FLOAT, string: MB_STRING, undefined: 0 }[typeof value];
    if (type === undefined) throw new TypeError(`a property is a bigint, a number or a string, not ${typeof value}`);
    module.setWord(at + PROPERTY.type, type);
    this.#must(set(this.#session, at));
  }

  /** Lets go of the memory, and ends threads. The session is of no use after this. */
  release() {
    if (this.#module) this.#module.api.mb_destroy(this.#session);
    this.#module?.threads?.end();
    this.#module = null;
    this.#session = 0;
  }

  get #progress() {
    return this.#module.word(this.#session + SESSION.progress);
  }

  get #error() {
    return this.#module.word(this.#session + SESSION.error);
  }

  #must(status) {
    if (status !== MB_OK) this.#module.must(status, this.#error);
  }

  #written(call) {
    return this.#module.written(call, () => this.#error);
  }

  #names(graph, what) {
    return this.#all(2 * graph + what).map(({ name }) => name);
  }

  /** Everything of a list: name, type, dims and where the data is. */
  #all(list) {
    const module = this.#module, value = module.found + PARAMETER.value, all = [];
    for (let i = 0; module.api.mb_get(this.#session, list, i, module.found) === MB_OK; ++i) {
      const rank = module.word(value + TENSOR.rank);
      all.push({
        name: module.text(module.word(module.found + PARAMETER.name)),
        type: NAMES[module.word(value + TENSOR.type)],
        dims: Array.from(new Int32Array(module.memory.buffer, value + TENSOR.dims, rank)),
        data: module.word(value + TENSOR.data),
      });
    }
    return all;
  }

  #parameter(name) {
    const found = this.#all(MB_PARAMETERS).find((parameter) => parameter.name === name);
    if (!found) throw new RangeError(`there is no parameter '${name}'; there are ${this.parameterNames.join(", ")}`);
    return found;
  }

  #copied({ type, dims, data }) {
    const count = dims.reduce((product, dim) => product * dim, 1);
    return new Tensor(type, new ARRAYS[type](this.#module.memory.buffer, data, count).slice(), dims);
  }

  /** Memory for one call; the next call may have the same. */
  #stage(size) {
    if (size > this.#staged.room) this.#staged = { at: this.#module.allocate(size), room: size };
    return this.#staged.at;
  }

  #run(graph, names, feeds) {
    const module = this.#module, tensors = names.map((name) => feeds[name]);
    const missing = names.filter((name) => !(feeds[name] instanceof Tensor));
    if (missing.length) throw new TypeError(`inputs are ${names.join(", ")}; no tensor is given for ${missing.join(", ")}`);
    const sizes = tensors.map((tensor) => (tensor.data.byteLength + 15) & ~15);
    const header = (tensors.length * TENSOR.size + 15) & ~15;
    let at = this.#stage(header + sizes.reduce((sum, size) => sum + size, 0));
    const list = at;
    at += header;
    tensors.forEach((tensor, i) => {
      const row = list + i * TENSOR.size;
      module.setWord(row + TENSOR.data, at);
      module.setWord(row + TENSOR.type, ELEMENTS[tensor.type]);
      module.setWord(row + TENSOR.rank, tensor.dims.length);
      tensor.dims.slice(0, 8).forEach((dim, axis) => module.setWord(row + TENSOR.dims + 4 * axis, dim));
      new ARRAYS[tensor.type](module.memory.buffer, at, tensor.size).set(tensor.data);
      at += sizes[i];
    });
    const status = module.api.mb_run(this.#session, graph, list, tensors.length);
    if (graph === MB_TRAIN_AND_UPDATE) graph = MB_TRAIN; // whose inputs and outputs it has
    if (status !== MB_OK) throw new TrainerError(status, this.#refusal(graph, status, tensors) || module.text(this.#error));
    return Object.fromEntries(this.#all(2 * graph + MB_OUTPUTS).map((output) => [output.name, this.#copied(output)]));
  }

  /** The reason in a step's inputs, in words; "" where they do not explain it. */
  #refusal(graph, status, tensors) {
    const lists = [2 * MB_TRAIN + MB_INPUTS, 2 * MB_EVAL + MB_INPUTS, MB_PARAMETERS];
    return refusal(modelOf(lists.flatMap((list) => this.#all(list))), graph, status, tensors, this.#sizes);
  }

  #buffer(trainableOnly, what, at, count = 0) {
    const module = this.#module, call = module.function("mb_parameter_buffer", "--with buffers");
    module.setWord(module.found, count);
    this.#must(call(this.#session, trainableOnly ? 1 : 0, what, at, module.found));
  }
}
