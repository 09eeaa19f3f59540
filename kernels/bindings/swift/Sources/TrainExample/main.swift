// Trains an image classifier of this package, such as LeNet, on made-up images: class k is a bright square at place k.
// Arguments: the package's folder and the number of steps.
import Foundation
import Minbuild

let (batch, classes) = (8, 10)
var state: UInt32 = 1

// 24 random bits, the same on every machine.
func randomBits() -> Int {
    state = state &* 1_664_525 &+ 1_013_904_223
    return Int(state >> 8)
}

func makeBatch(channels: Int, side: Int) -> [Tensor] {
    let square = side / 5
    var pixels = (0..<batch * channels * side * side).map { _ in Float(randomBits()) / 16_777_216 }
    var labels = [Int64]()
    for n in 0..<batch {
        let k = randomBits() % classes
        labels.append(Int64(k))
        for c in 0..<channels {
            for y in 0..<square {
                for x in 0..<square {
                    let (row, column) = (k / 5 * 2 * square + y, k % 5 * square + x)
                    pixels[((n * channels + c) * side + row) * side + column] += 2
                }
            }
        }
    }
    return [Tensor(pixels, dims: [batch, channels, side, side]), Tensor(labels)]
}

let arguments = CommandLine.arguments
let model = URL(fileURLWithPath: arguments.count > 1 ? arguments[1] : ".").appendingPathComponent("model")
let steps = arguments.count > 2 ? Int(arguments[2])! : 60
let plan = model.appendingPathComponent("trainer.plan") // not there where it is compiled in
let session = try TrainingSession(
    plan: FileManager.default.fileExists(atPath: plan.path) ? plan : nil, checkpoint: model.appendingPathComponent("checkpoint"))
let dims = session.inputDims()[0] // [batch, channels, side, side]
guard dims.count == 4, dims[2] == dims[3], dims[2] >= 5 else {
    print("This example is for classifiers of square images; the first input of this model is \(dims).")
    exit(2)
}
session.registerLinearLRScheduler(warmup: 5, total: Int64(2 * steps), initial: 0.002)
for _ in 0..<steps {
    let outputs = try session.trainStep(makeBatch(channels: dims[1], side: dims[2]))
    print(outputs[0].elements(as: Float.self)![0])
    try session.optimizerStep()
    session.lazyResetGrad()
    session.schedulerStep()
}
try session.saveCheckpoint(to: URL(fileURLWithPath: "trained.checkpoint"))
