// What the Kotlin extensions are for.
import ai.onnxruntime.OrtTrainingSession
import ai.onnxruntime.tensorOf
import ai.onnxruntime.trainOn

fun step(session: OrtTrainingSession, pixels: FloatArray, classes: LongArray): Float =
    session.trainOn("input" to tensorOf(pixels, 8, 1, 28, 28), "labels" to tensorOf(classes, 8))
