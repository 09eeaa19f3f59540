package ai.onnxruntime;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;

/** One model in training. Sessions share nothing; one session belongs to one thread at a time. */
public final class OrtTrainingSession implements AutoCloseable {
  private static volatile long firstSeed;

  private long session;
  private ByteBuffer loaded; // a checkpoint whose frozen parameters are read where they are
  private final int[] sizes;
  private final Set<String>[] inputs;
  private final Set<String>[] outputs;
  private long warmup;
  private long total;
  private float initial = Float.NaN;

  @SuppressWarnings({"unchecked", "rawtypes"})
  OrtTrainingSession(String plan, String checkpoint, int[] sizes) throws OrtException {
    session = OnnxRuntime.create(plan, checkpoint, sizes);
    this.sizes = sizes == null ? null : sizes.clone();
    OnnxRuntime.setSeed(session, firstSeed);
    inputs = new Set[] {names(OnnxRuntime.TRAIN, OnnxRuntime.INPUTS), names(OnnxRuntime.EVAL, OnnxRuntime.INPUTS)};
    outputs = new Set[] {names(OnnxRuntime.TRAIN, OnnxRuntime.OUTPUTS), names(OnnxRuntime.EVAL, OnnxRuntime.OUTPUTS)};
  }

  /** The first seed of sessions created from here on. */
  public static void setSeed(long seed) {
    firstSeed = seed;
  }

  private Set<String> names(int graph, int what) {
    return new LinkedHashSet<>(Arrays.asList(OnnxRuntime.names(session, 2 * graph + what)));
  }

  private long open() {
    if (session == 0) throw new IllegalStateException("the session is closed");
    return session;
  }

  @Override
  public void close() {
    OnnxRuntime.destroy(open());
    session = 0;
  }

  public Set<String> getTrainInputNames() {
    return inputs[OnnxRuntime.TRAIN];
  }

  public Set<String> getTrainOutputNames() {
    return outputs[OnnxRuntime.TRAIN];
  }

  public Set<String> getEvalInputNames() {
    return inputs[OnnxRuntime.EVAL];
  }

  public Set<String> getEvalOutputNames() {
    return outputs[OnnxRuntime.EVAL];
  }

  /** Type and shape of an input of a training step, -1 for free dimensions. */
  public TensorInfo getTrainInputInfo(String name) throws OrtException {
    return describe(OnnxRuntime.INPUTS, indexOf(inputs[OnnxRuntime.TRAIN], name, "input"));
  }

  /** Forward and backward on a batch: adds to the gradients, or replaces them after {@link #lazyResetGrad}. */
  public OrtSession.Result trainStep(Map<String, ? extends OnnxTensorLike> batch) throws OrtException {
    return trainStep(batch, getTrainOutputNames());
  }

  public OrtSession.Result trainStep(Map<String, ? extends OnnxTensorLike> batch, Set<String> requestedOutputs)
      throws OrtException {
    return step(OnnxRuntime.TRAIN, OnnxRuntime.TRAIN, batch, requestedOutputs);
  }

  /**
   * Forward, backward and updates in one pass, of libraries reduced with --updates fused, which do not train otherwise.
   * After a gradient that is not finite the session takes nothing but a checkpoint.
   */
  public OrtSession.Result trainAndUpdate(Map<String, ? extends OnnxTensorLike> batch) throws OrtException {
    return step(OnnxRuntime.TRAIN, OnnxRuntime.TRAIN_AND_UPDATE, batch, getTrainOutputNames());
  }

  public OrtSession.Result evalStep(Map<String, ? extends OnnxTensorLike> batch) throws OrtException {
    return evalStep(batch, getEvalOutputNames());
  }

  public OrtSession.Result evalStep(Map<String, ? extends OnnxTensorLike> batch, Set<String> requestedOutputs)
      throws OrtException {
    return step(OnnxRuntime.EVAL, OnnxRuntime.EVAL, batch, requestedOutputs);
  }

  /** The next training step replaces the gradients. */
  public void lazyResetGrad() throws OrtException {
    OnnxRuntime.lazyResetGrad(open());
  }

  /** Updates the parameters from the gradients. */
  public void optimizerStep() throws OrtException {
    OnnxRuntime.run(open(), OnnxRuntime.OPTIMIZER, new ByteBuffer[0], new int[0], new int[0][], null);
  }

  /** New first values for parameters and state, of models that bring their own. */
  public void initialize() throws OrtException {
    OnnxRuntime.run(open(), OnnxRuntime.INITIALIZE, new ByteBuffer[0], new int[0], new int[0][], null);
  }

  public void setLearningRate(float rate) throws OrtException {
    OnnxRuntime.setLearningRate(open(), rate);
  }

  public float getLearningRate() throws OrtException {
    return OnnxRuntime.learningRate(open());
  }

  /** From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`; starts with `initial`. */
  public void registerLinearLRScheduler(long warmup, long total, float initial) throws OrtException {
    this.warmup = warmup;
    this.total = total;
    this.initial = initial;
    setLearningRate(initial);
  }

  /** Sets the rate for the next optimizer step. */
  public void schedulerStep() throws OrtException {
    if (Float.isNaN(initial)) throw new IllegalStateException("call registerLinearLRScheduler first");
    long done = OnnxRuntime.stepCount(open());
    long part = done < warmup ? done : Math.max(0, total - done);
    long whole = Math.max(1, done < warmup ? warmup : total - warmup);
    setLearningRate(initial * ((float) part / (float) whole));
  }

  /** Writes a checkpoint of ONNX Runtime's kind; an older file there survives any failure. */
  public void saveCheckpoint(Path path, boolean saveOptimizer) throws OrtException {
    OnnxRuntime.saveCheckpoint(open(), path.toString(), saveOptimizer);
  }

  /** Parameters, and optimizer state where the checkpoint has it. */
  public void loadCheckpoint(byte[] checkpoint) throws OrtException {
    loadCheckpoint(checkpoint, false);
  }

  /** With `acceptAny` also those of another model whose parameters have the same names, types and shapes. */
  public void loadCheckpoint(byte[] checkpoint, boolean acceptAny) throws OrtException {
    ByteBuffer bytes = ByteBuffer.allocateDirect(checkpoint.length);
    bytes.duplicate().put(checkpoint);
    if (OnnxRuntime.loadCheckpoint(open(), bytes, acceptAny)) loaded = bytes;
  }

  /**
   * Part `export`: writes an ONNX model for inference, made from the package's inference.template. The template has the outputs
   * chosen when the package was made.
   */
  public void exportModelForInference(Path template, Path path) throws OrtException {
    OnnxRuntime.exportModel(open(), template.toString(), path.toString());
  }

  /** Part `properties`: numbers and texts that travel in checkpoints. */
  public void addProperty(String name, int value) throws OrtException {
    OnnxRuntime.setProperty(open(), name, OnnxJavaType.INT64.value, value, 0, null);
  }

  public void addProperty(String name, float value) throws OrtException {
    OnnxRuntime.setProperty(open(), name, OnnxJavaType.FLOAT.value, 0, value, null);
  }

  public void addProperty(String name, String value) throws OrtException {
    OnnxRuntime.setProperty(open(), name, 8, 0, 0, value); // 8: a text
  }

  public int getIntProperty(String name) throws OrtException {
    return Math.toIntExact(property(name, Long.class));
  }

  public float getFloatProperty(String name) throws OrtException {
    return property(name, Float.class);
  }

  public String getStringProperty(String name) throws OrtException {
    return property(name, String.class);
  }

  /** Part `buffers`: number of elements of the parameters. */
  public long getParametersSize(boolean trainableOnly) throws OrtException {
    return OnnxRuntime.parametersSize(open(), trainableOnly);
  }

  /** The parameters one after the other. */
  public FloatBuffer getContiguousParameters(boolean trainableOnly) throws OrtException {
    ByteBuffer floats = ByteBuffer.allocateDirect(4 * (int) getParametersSize(trainableOnly));
    OnnxRuntime.copyParameters(open(), floats, trainableOnly, false);
    return floats.order(ByteOrder.nativeOrder()).asFloatBuffer();
  }

  public void copyBufferToParameters(FloatBuffer from, boolean trainableOnly) throws OrtException {
    ByteBuffer floats = ByteBuffer.allocateDirect(4 * from.remaining()).order(ByteOrder.nativeOrder());
    floats.asFloatBuffer().put(from.duplicate());
    OnnxRuntime.copyParameters(open(), floats, trainableOnly, true);
  }

  public Set<String> getParameterNames() {
    return new LinkedHashSet<>(Arrays.asList(OnnxRuntime.names(open(), OnnxRuntime.PARAMETERS)));
  }

  /** A copy of a parameter. */
  public OnnxTensor getParameter(String name) throws OrtException {
    return copy(OnnxRuntime.PARAMETERS, indexOf(getParameterNames(), name, "parameter"));
  }

  public void updateParameter(String name, OnnxTensor from) throws OrtException {
    int index = indexOf(getParameterNames(), name, "parameter");
    TensorInfo info = describe(OnnxRuntime.PARAMETERS, index);
    if (info.type != from.info.type || !Arrays.equals(info.shape, from.info.shape)) {
      throw new OrtException("'" + name + "' is " + info + ", not " + from.info);
    }
    OnnxRuntime.value(session, OnnxRuntime.PARAMETERS, index).put(from.getByteBuffer());
  }

  private <T> T property(String name, Class<T> kind) throws OrtException {
    Object found = OnnxRuntime.property(open(), name);
    if (!kind.isInstance(found)) {
      throw new OrtException("property '" + name + "': is " + (found == null ? "not there" : found));
    }
    return kind.cast(found);
  }

  private static int indexOf(Set<String> names, String name, String what) throws OrtException {
    int index = 0;
    for (String each : names) {
      if (each.equals(name)) return index;
      ++index;
    }
    throw new OrtException("there is no " + what + " '" + name + "'; there are " + names);
  }

  private TensorInfo describe(int list, int index) {
    int[] found = OnnxRuntime.describe(open(), list, index);
    long[] shape = new long[found.length - 1];
    for (int i = 0; i < shape.length; ++i) shape[i] = found[i + 1];
    return new TensorInfo(OnnxJavaType.of(found[0]), shape);
  }

  private OnnxTensor copy(int list, int index) {
    ByteBuffer value = OnnxRuntime.value(open(), list, index);
    ByteBuffer data = ByteBuffer.allocateDirect(value.remaining());
    data.duplicate().put(value);
    return new OnnxTensor(describe(list, index), data);
  }

  /** Runs graph `run` on a batch, with the inputs and outputs of `graph`. */
  private OrtSession.Result step(
      int graph, int run, Map<String, ? extends OnnxTensorLike> batch, Set<String> requested) throws OrtException {
    int count = inputs[graph].size();
    ByteBuffer[] data = new ByteBuffer[count];
    int[] types = new int[count];
    int[][] dims = new int[count][];
    int i = 0;
    for (String name : inputs[graph]) {
      OnnxTensorLike tensor = batch.get(name);
      if (tensor == null) throw new OrtException("inputs are " + inputs[graph] + "; '" + name + "' is not given");
      data[i] = tensor.data;
      types[i] = tensor.info.type.value;
      dims[i++] = Arrays.stream(tensor.info.shape).mapToInt(Math::toIntExact).toArray();
    }
    for (String name : requested) indexOf(outputs[graph], name, "output");
    OnnxRuntime.run(open(), run, data, types, dims, sizes);
    LinkedHashMap<String, OnnxValue> results = new LinkedHashMap<>();
    int index = 0;
    for (String name : outputs[graph]) {
      if (requested.contains(name)) results.put(name, copy(2 * graph + OnnxRuntime.OUTPUTS, index));
      ++index;
    }
    return new OrtSession.Result(results);
  }
}
