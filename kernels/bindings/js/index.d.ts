/** Element types and the arrays that hold them; halves are kept as their bits. */
export interface Arrays {
  float32: Float32Array; float64: Float64Array; float16: Uint16Array; bfloat16: Uint16Array;
  int8: Int8Array; int16: Int16Array; int32: Int32Array; int64: BigInt64Array;
  uint8: Uint8Array; uint16: Uint16Array; uint32: Uint32Array; uint64: BigUint64Array; bool: Uint8Array;
}
export type ElementType = keyof Arrays;

/** A dense tensor in row-major order. */
export class Tensor<T extends ElementType = ElementType> {
  constructor(type: T, data: Arrays[T] | readonly (number | bigint)[], dims?: readonly number[]);
  readonly type: T;
  readonly data: Arrays[T];
  readonly dims: readonly number[];
  readonly size: number;
}

/** A call that the module refused; `code` is an mb_status of trainer.h. */
export class TrainerError extends Error {
  readonly code: number;
}

/** Bytes, or where to get them: a URL, or in Node the path of a file. */
export type Source = ArrayBuffer | ArrayBufferView | Response | URL | string;
export type Feeds = Readonly<Record<string, Tensor>>;
export type Outputs = Readonly<Record<string, Tensor>>;

export interface CreateOptions {
  /** The package's trainer.plan; left out where the library has it compiled in. */
  trainModel?: Source;
  /** A checkpoint of ONNX Runtime's kind; left out, parameters start at zero. */
  checkpointState?: Source;
  /** The package's inference.template, for exportModel. */
  exportTemplate?: Source;
  /** The module, by default the one beside this file. */
  wasm?: Source | WebAssembly.Module;
  /** Largest sizes of the free dimensions, in plan order. */
  sizes?: readonly number[];
  /** Threads of a module for wasm32-threads, by default as many as the machine has, at most 8. */
  threads?: number;
}

export interface InputDescription {
  readonly name: string;
  readonly type: ElementType;
  /** -1 is a free dimension. */
  readonly dims: readonly number[];
}

/** One model in training. What fails throws TrainerError and leaves the session as it was. */
export class TrainingSession {
  private constructor();
  static create(options: CreateOptions): Promise<TrainingSession>;

  readonly trainingInputNames: readonly string[];
  readonly trainingOutputNames: readonly string[];
  readonly evalInputNames: readonly string[];
  readonly evalOutputNames: readonly string[];
  readonly parameterNames: readonly string[];
  describeInputs(evaluation?: boolean): InputDescription[];

  /** Forward and backward. Adds to the gradients, or replaces them after lazyResetGrad. */
  runTrainStep(feeds: Feeds): Outputs;
  /** Forward, backward and updates in one pass, of modules reduced with --updates fused. */
  runTrainAndUpdate(feeds: Feeds): Outputs;
  runEvalStep(feeds: Feeds): Outputs;
  runOptimizerStep(): void;
  lazyResetGrad(): void;
  /** New first values, of models that carry their own training. */
  initialize(): void;

  learningRate: number;
  readonly stepCount: number;
  get seed(): bigint;
  set seed(seed: bigint | number);
  /** From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`. */
  registerLinearLRScheduler(warmup: number, total: number, initial: number): void;
  schedulerStep(): void;

  getParameter(name: string): Tensor;
  updateParameter(name: string, tensor: Tensor): void;
  saveCheckpoint(includeOptimizer?: boolean): Uint8Array;
  loadCheckpoint(checkpoint: Uint8Array, acceptAny?: boolean): void;

  /** Part `export`: an ONNX model for inference. */
  exportModel(): Uint8Array;
  /** Part `buffers`. */
  getParametersSize(trainableOnly?: boolean): number;
  getContiguousParameters(trainableOnly?: boolean): Tensor<"float32">;
  loadParametersBuffer(buffer: Float32Array | Uint8Array, trainableOnly?: boolean): void;
  /** Part `properties`. */
  getProperty(name: string): bigint | number | string | undefined;
  setProperty(name: string, value: bigint | number | string | undefined): void;

  release(): void;
}
