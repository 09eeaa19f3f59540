// The interface of onnxruntime-web/training over the session of index.js: programs written for that run with their import
// changed. Models are in this package, so the .onnx files that such a program names are not read.
import { Tensor as DenseTensor, TrainerError, TrainingSession as Session } from "./index.js";
import { MB_EVAL, MB_OUT_OF_MEMORY, MB_TRAIN } from "./header.js";
import { MODELS } from "./models.js";
import { PLAN } from "./plan.js";

export { TrainerError };

const TYPES = new Map([
  [Float32Array, "float32"], [Float64Array, "float64"], [Int8Array, "int8"], [Int16Array, "int16"], [Int32Array, "int32"],
  [BigInt64Array, "int64"], [Uint8Array, "uint8"], [Uint8ClampedArray, "uint8"], [Uint16Array, "uint16"],
  [Uint32Array, "uint32"], [BigUint64Array, "uint64"],
]);

/** Type, data and dims of `new Tensor(type, data, dims)` or `new Tensor(data, dims)`. */
function typed(given) {
  if (typeof given[0] === "string") return given;
  const [data, dims] = given;
  const type = Array.isArray(data) && typeof data[0] === "boolean" ? "bool" : TYPES.get(data?.constructor);
  if (!type) throw new TypeError("a tensor's data is a typed array, or an array of booleans; or give its type first");
  return [type, Array.from(data), dims];
}

/** A dense tensor, as onnxruntime-web makes them. */
export class Tensor extends DenseTensor {
  constructor(...given) {
    super(...typed(given));
  }

  get location() {
    return "cpu";
  }

  async getData() {
    return this.data;
  }

  reshape(dims) {
    return new Tensor(this.type, this.data, dims);
  }

  dispose() {}
}

const wrapped = ({ type, data, dims }) => new Tensor(type, data, dims);

export class TrainingSession {
  #session;
  #sources;
  #sizes;
  #evaluates;
  #optimizes;
  #gradients = false; // some that a new session would not have

  /**
   * `checkpointState` is a checkpoint or its address. `trainModel`, `evalModel` and `optimizerModel` say what the session is
   * for; the models themselves are the package's. `freeDimensionOverrides` of the second argument are the largest sizes of
   * free dimensions by name.
   */
  static async create({ checkpointState, trainModel, evalModel, optimizerModel } = {}, options = {}) {
    if (!checkpointState || !trainModel) throw new Error("TrainingSession.create: give checkpointState and trainModel");
    const made = new TrainingSession();
    const plan = PLAN === undefined ? trainModel : (PLAN ?? undefined); // of several models, it says which
    made.#sources = { checkpointState, trainModel: plan };
    made.#sizes = largest(options.freeDimensionOverrides);
    made.#session = await Session.create({ ...made.#sources, sizes: made.#sizes, threads: threads() });
    made.#evaluates = evalModel !== undefined;
    made.#optimizes = optimizerModel !== undefined;
    return made;
  }

  get trainingInputNames() {
    return this.#session.trainingInputNames;
  }

  get trainingOutputNames() {
    return this.#session.trainingOutputNames;
  }

  get evalInputNames() {
    return this.#evaluates ? this.#session.evalInputNames : [];
  }

  get evalOutputNames() {
    return this.#evaluates ? this.#session.evalOutputNames : [];
  }

  /** The session of index.js, which saves checkpoints, schedules the learning rate and exports models. */
  get session() {
    return this.#session;
  }

  /** Outputs by name: all, or those that `fetches` names. A tensor given there receives the values. */
  async runTrainStep(feeds, fetches) {
    const outputs = await this.#run(MB_TRAIN, feeds);
    this.#gradients = true;
    return fetched(outputs, fetches, this.trainingOutputNames);
  }

  async runEvalStep(feeds, fetches) {
    if (!this.#evaluates) throw new Error("runEvalStep: the session was created without evalModel");
    return fetched(await this.#run(MB_EVAL, feeds), fetches, this.evalOutputNames);
  }

  async runOptimizerStep() {
    if (!this.#optimizes) throw new Error("runOptimizerStep: the session was created without optimizerModel");
    this.#session.runOptimizerStep();
  }

  async lazyResetGrad() {
    this.#session.lazyResetGrad();
    this.#gradients = false;
  }

  async getParametersSize(trainableOnly = true) {
    return this.#session.getParametersSize(trainableOnly);
  }

  async getContiguousParameters(trainableOnly = true) {
    return wrapped(this.#session.getContiguousParameters(trainableOnly));
  }

  async loadParametersBuffer(buffer, trainableOnly = true) {
    this.#session.loadParametersBuffer(buffer, trainableOnly);
  }

  async release() {
    this.#session.release();
  }

  async #run(graph, feeds) {
    const step = () => (graph === MB_EVAL ? this.#session.runEvalStep(feeds) : this.#session.runTrainStep(feeds));
    try {
      return step();
    } catch (error) {
      if (error.code !== MB_OUT_OF_MEMORY || this.#gradients || !(await this.#grow(graph, feeds))) throw error;
      return step();
    }
  }

  /** Memory for larger inputs, as programs for onnxruntime-web name no sizes: a new session that goes on from here. */
  async #grow(graph, feeds) {
    if (MODELS.length !== 1 || !MODELS[0].symbols.length) return false;
    const sizes = Array.from(this.#sizes ?? largest({}));
    for (const { name, dims } of MODELS[0].graphs[graph])
      dims.forEach((dim, axis) => {
        if (dim <= -2) sizes[-2 - dim] = Math.max(sizes[-2 - dim], feeds[name].dims[axis]);
      });
    const checkpointState = this.#session.saveCheckpoint();
    const larger = await Session.create({ ...this.#sources, checkpointState, sizes, threads: threads() });
    this.#session.release();
    this.#session = larger;
    this.#sizes = sizes;
    return true;
  }
}

const threads = () => env.wasm.numThreads || undefined; // 0 is onnxruntime-web's default

/** Sizes in the order of the plan; the package's own for dimensions that are not named. */
function largest(overrides) {
  if (!overrides || MODELS.length !== 1) return undefined;
  return MODELS[0].symbols.map((symbol) => overrides[symbol.name] ?? symbol.largest);
}

function fetched(outputs, fetches, names) {
  const wanted = Array.isArray(fetches) ? fetches : Object.keys(fetches ?? {}).filter((name) => names.includes(name));
  for (const name of wanted)
    if (!names.includes(name)) throw new Error(`'${name}' is no output; there are ${names.join(", ")}`);
  return Object.fromEntries((wanted.length ? wanted : names).map((name) => {
    const place = Array.isArray(fetches) ? undefined : fetches?.[name];
    if (!(place instanceof DenseTensor)) return [name, wrapped(outputs[name])];
    place.data.set(outputs[name].data);
    return [name, place];
  }));
}

/** Settings of onnxruntime-web. Of these, `wasm.numThreads` means something here, to modules with threads. */
export const env = { logLevel: "warning", wasm: {}, webgl: {}, webgpu: {}, versions: {} };

export const InferenceSession = {
  async create() {
    throw new Error(
      "InferenceSession: this package trains and evaluates one model; use runEvalStep, or onnxruntime-web with an exported model",
    );
  },
};

export default { InferenceSession, Tensor, TrainerError, TrainingSession, env };
