/** The interface of onnxruntime-web/training. */
import { Tensor as DenseTensor, TrainerError, TrainingSession as Session } from "./index.js";
import type { Arrays, ElementType } from "./index.js";

export { TrainerError };

/** A dense tensor in row-major order. */
export class Tensor<T extends ElementType = ElementType> extends DenseTensor<T> {
  constructor(type: T, data: Arrays[T] | readonly (number | bigint | boolean)[], dims?: readonly number[]);
  constructor(data: Arrays[T] | readonly boolean[], dims?: readonly number[]);
  readonly location: "cpu";
  getData(releaseData?: boolean): Promise<Arrays[T]>;
  reshape(dims: readonly number[]): Tensor<T>;
  dispose(): void;
}

export type OnnxValue = Tensor;

export namespace InferenceSession {
  type OnnxValueMapType = { readonly [name: string]: OnnxValue };
  type FeedsType = { readonly [name: string]: DenseTensor };
  type FetchesType = readonly string[] | { readonly [name: string]: DenseTensor | null };
  type ReturnType = OnnxValueMapType;
  /** Taken and ignored. */
  type RunOptions = { readonly [option: string]: unknown };
  type SessionOptions = {
    /** Largest sizes of free dimensions by name. */
    readonly freeDimensionOverrides?: { readonly [dimension: string]: number };
    readonly [option: string]: unknown;
  };
}
/** There is none: `create` rejects and says what to use. */
export const InferenceSession: { create(...given: unknown[]): Promise<never> };

export namespace TrainingSession {
  type UriOrBuffer = string | Uint8Array;
}

export interface TrainingSessionCreateOptions {
  checkpointState: TrainingSession.UriOrBuffer;
  /** Not read, as the model is in the package; in a package of several models, the plan of one. */
  trainModel: TrainingSession.UriOrBuffer;
  /** Not read; without it the session does not evaluate. */
  evalModel?: TrainingSession.UriOrBuffer;
  /** Not read; without it the session does not update parameters. */
  optimizerModel?: TrainingSession.UriOrBuffer;
}

export interface TrainingSession {
  readonly trainingInputNames: readonly string[];
  readonly trainingOutputNames: readonly string[];
  readonly evalInputNames: readonly string[];
  readonly evalOutputNames: readonly string[];
  /** The session of index.js, which saves checkpoints, schedules the learning rate and exports models. */
  readonly session: Session;

  runTrainStep(feeds: InferenceSession.FeedsType, options?: InferenceSession.RunOptions): Promise<InferenceSession.ReturnType>;
  runTrainStep(
    feeds: InferenceSession.FeedsType,
    fetches: InferenceSession.FetchesType,
    options?: InferenceSession.RunOptions,
  ): Promise<InferenceSession.ReturnType>;
  runEvalStep(feeds: InferenceSession.FeedsType, options?: InferenceSession.RunOptions): Promise<InferenceSession.ReturnType>;
  runEvalStep(
    feeds: InferenceSession.FeedsType,
    fetches: InferenceSession.FetchesType,
    options?: InferenceSession.RunOptions,
  ): Promise<InferenceSession.ReturnType>;
  runOptimizerStep(options?: InferenceSession.RunOptions): Promise<void>;
  lazyResetGrad(): Promise<void>;

  /** These three need a package made with --with buffers. */
  getParametersSize(trainableOnly?: boolean): Promise<number>;
  getContiguousParameters(trainableOnly?: boolean): Promise<Tensor>;
  loadParametersBuffer(buffer: Uint8Array, trainableOnly?: boolean): Promise<void>;

  release(): Promise<void>;
}

export interface TrainingSessionFactory {
  create(trainingOptions: TrainingSessionCreateOptions, sessionOptions?: InferenceSession.SessionOptions): Promise<TrainingSession>;
}
export const TrainingSession: TrainingSessionFactory;

/** Settings of onnxruntime-web, which mean nothing here. */
export const env: Record<"wasm" | "webgl" | "webgpu" | "versions", Record<string, unknown>> & { logLevel: string };

declare const everything: {
  InferenceSession: typeof InferenceSession;
  Tensor: typeof Tensor;
  TrainerError: typeof TrainerError;
  TrainingSession: typeof TrainingSession;
  env: typeof env;
};
export default everything;
