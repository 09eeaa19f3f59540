package ai.onnxruntime

import java.nio.FloatBuffer
import java.nio.LongBuffer

/** A tensor of floats. */
fun tensorOf(values: FloatArray, vararg shape: Long): OnnxTensor =
    OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), FloatBuffer.wrap(values), shape)

/** A tensor of whole numbers, such as class labels. */
fun tensorOf(values: LongArray, vararg shape: Long): OnnxTensor =
    OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), LongBuffer.wrap(values), shape)

/** The first output as one number: the loss. */
val OrtSession.Result.loss: Float
    get() = get(0).value as Float

/** Forward, backward and update on one batch; the next one starts with fresh gradients. Returns the loss. */
fun OrtTrainingSession.trainOn(vararg batch: Pair<String, OnnxTensor>): Float {
    val loss = trainStep(mapOf(*batch)).loss
    optimizerStep()
    lazyResetGrad()
    return loss
}
