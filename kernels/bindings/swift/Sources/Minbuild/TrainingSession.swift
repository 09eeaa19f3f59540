import CMinbuild
import Foundation

/// One model in training. Sessions share nothing; one session belongs to one thread at a time.
public final class TrainingSession {
    /// Evaluation may have other inputs and outputs than training.
    public enum Graph: Int32 { case train = 0, evaluate, optimize, initialize, trainAndUpdate }

    private let session: UnsafeMutablePointer<mb_session>
    private let plan: UnsafeMutableRawBufferPointer
    private var checkpoint: UnsafeMutableRawBufferPointer
    private let largest: [Int32]  // of free dimensions, that the session was created with
    private var schedule: mb_linear_schedule?

    /// A session of a package's trainer.plan, nil where the library has it compiled in, and a checkpoint. `sizes` are the largest sizes of free dimensions in plan
    /// order; without, those the package was made with.
    public convenience init(plan: URL?, checkpoint: URL, sizes: [Int] = []) throws {
        try self.init(plan: plan.map { try Data(contentsOf: $0) } ?? Data(), checkpoint: Data(contentsOf: checkpoint), sizes: sizes)
    }

    public init(plan: Data, checkpoint: Data, sizes: [Int] = []) throws {
        self.plan = aligned(plan)
        self.checkpoint = aligned(checkpoint)
        largest = sizes.map(Int32.init)
        var options = mb_options()
        var made: UnsafeMutablePointer<mb_session>?
        let (planBytes, checkpointBytes) = (self.plan, self.checkpoint)
        let status: mb_status = largest.withUnsafeBufferPointer { symbols in
            options.symbols = sizes.isEmpty ? nil : symbols.baseAddress
            options.symbol_count = sizes.count
            return mb_create(
                planBytes.baseAddress, planBytes.count, checkpointBytes.baseAddress, checkpointBytes.count, &options, &made)
        }
        guard status == 0, let session = made else {
            planBytes.deallocate()
            checkpointBytes.deallocate()
            let text = withUnsafeBytes(of: options.error) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
            throw TrainerError(code: Int(status), description: text)
        }
        self.session = session
    }

    deinit {
        mb_destroy(session)
        plan.deallocate()
        checkpoint.deallocate()
    }

    /// Forward and backward on a batch, inputs in the order of `inputNames`: the outputs, of which the first is the
    /// loss. Adds to the gradients, or replaces them after `lazyResetGrad`.
    public func trainStep(_ inputs: [Tensor]) throws -> [Tensor] { try run(.train, inputs) }

    /// Forward, backward and updates in one pass, of libraries reduced with `--updates fused`, which do not train
    /// otherwise. After a gradient that is not finite only `loadCheckpoint` goes on.
    public func trainAndUpdate(_ inputs: [Tensor]) throws -> [Tensor] { try run(.trainAndUpdate, inputs) }

    public func evalStep(_ inputs: [Tensor]) throws -> [Tensor] { try run(.evaluate, inputs) }

    /// Updates the parameters from the gradients.
    public func optimizerStep() throws { try must(mb_optimizer_step(session)) }

    /// New first values for parameters and state, of models that bring their own.
    public func initialize() throws { try must(mb_initialize(session)) }

    public func lazyResetGrad() { mb_lazy_reset_grad(session) }

    public var learningRate: Float {
        get { mb_learning_rate(session) }
        set { _ = mb_set_learning_rate(session, newValue) }  // one that is not finite changes nothing
    }

    public var seed: Int64 {
        get { mb_seed(session) }
        set { mb_set_seed(session, newValue) }
    }

    /// Optimizer steps taken, restored from checkpoints.
    public var stepCount: Int64 { mb_step_count(session) }

    /// From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`; starts with `initial`.
    public func registerLinearLRScheduler(warmup: Int64, total: Int64, initial: Float) {
        var made = mb_linear_schedule()
        mb_schedule_linear(session, &made, warmup, total, initial)
        schedule = made
    }

    /// Sets the rate for the next optimizer step.
    public func schedulerStep() {
        guard var schedule = schedule else { preconditionFailure("call registerLinearLRScheduler first") }
        mb_schedule_step(session, &schedule)
    }

    public func inputNames(of graph: Graph = .train) -> [String] { names(2 * graph.rawValue + Int32(MB_INPUTS)) }

    public func outputNames(of graph: Graph = .train) -> [String] { names(2 * graph.rawValue + Int32(MB_OUTPUTS)) }

    /// Dimensions of the inputs, -1 where they are free.
    public func inputDims(of graph: Graph = .train) -> [[Int]] {
        all(2 * graph.rawValue + Int32(MB_INPUTS)).map { sizes(of: $0.value) }
    }

    public var parameterNames: [String] { names(Int32(MB_PARAMETERS)) }

    /// A copy of a parameter.
    public func parameter(_ name: String) throws -> Tensor { Tensor(copying: try find(name).value) }

    public func update(_ name: String, with tensor: Tensor) throws {
        let value = try find(name).value
        guard value.type == tensor.type, sizes(of: value) == tensor.dims else {
            throw TrainerError(code: Int(MB_BAD_SHAPE), description: "'\(name)' is \(sizes(of: value)) of type \(value.type)")
        }
        tensor.bytes.withUnsafeBytes { value.data.copyMemory(from: $0.baseAddress!, byteCount: $0.count) }
    }

    #if MB_WITH_CHECKPOINT_WRITING
    /// Writes a checkpoint of ONNX Runtime's kind; an older file there survives any failure.
    public func saveCheckpoint(to file: URL, includeOptimizer: Bool = true) throws {
        try must(mb_save_checkpoint(session, file.path, includeOptimizer ? 1 : 0))
    }
    #endif

    /// `acceptAny` takes the checkpoint of another model whose parameters have the same names, types and shapes.
    public func loadCheckpoint(_ bytes: Data, acceptAny: Bool = false) throws {
        var copy = aligned(bytes)
        defer { copy.deallocate() }
        let load = acceptAny ? mb_load_any_checkpoint : mb_load_checkpoint
        try must(load(session, copy.baseAddress, copy.count))
        // Frozen parameters are read where their checkpoint is.
        if mb_reads_from(session, copy.baseAddress, copy.count) != 0 { swap(&copy, &checkpoint) }
    }

    #if MB_WITH_EXPORT
    /// Writes an ONNX model for inference, made from the package's inference.template.
    public func exportModel(template: URL, to file: URL) throws {
        try must(mb_export_to_file(session, template.path, file.path))
    }
    #endif

    #if MB_WITH_BUFFERS
    /// The parameters one after the other.
    public func parameterBuffer(trainableOnly: Bool) throws -> [Float] {
        var count = 0
        try must(mb_parameters_size(session, trainableOnly ? 1 : 0, &count))
        var buffer = [Float](repeating: 0, count: count)
        try must(mb_copy_parameters_to_buffer(session, &buffer, count, trainableOnly ? 1 : 0))
        return buffer
    }

    public func setParameters(_ buffer: [Float], trainableOnly: Bool) throws {
        try must(mb_copy_buffer_to_parameters(session, buffer, buffer.count, trainableOnly ? 1 : 0))
    }
    #endif

    #if MB_WITH_PROPERTIES
    /// A number or a text that travels in checkpoints.
    public enum Property: Equatable { case integer(Int64), real(Float), text(String) }

    /// The property of that name; setting nothing removes it.
    public func property(_ name: String) -> Property? {
        var found = mb_property()
        guard mb_find_property(session, name, &found) == 0 else { return nil }
        switch Int(found.type) {
        case Int(MB_INT64): return .integer(found.integer)
        case Int(MB_FLOAT): return .real(found.real)
        default: return .text(String(cString: found.text))
        }
    }

    public func setProperty(_ name: String, _ value: Property?) throws {
        var property = mb_property()
        var text = ""
        switch value {
        case .integer(let number): (property.type, property.integer) = (Int32(MB_INT64), number)
        case .real(let number): (property.type, property.real) = (Int32(MB_FLOAT), number)
        case .text(let words): (property.type, text) = (Int32(MB_STRING), words)
        case nil: property.type = 0
        }
        try name.withCString { name in
            try text.withCString { text in
                (property.name, property.text) = (name, text)
                try must(mb_set_property(session, &property))
            }
        }
    }
    #endif

    private func must(_ status: mb_status) throws {
        if status != 0 { throw TrainerError(code: Int(status), description: String(cString: mb_last_error(session))) }
    }

    private func all(_ list: Int32) -> [mb_parameter] {
        var (found, all) = (mb_parameter(), [mb_parameter]())
        while mb_get(session, list, all.count, &found) == 0 { all.append(found) }
        return all
    }

    private func names(_ list: Int32) -> [String] { all(list).map { String(cString: $0.name) } }

    private func find(_ name: String) throws -> mb_parameter {
        var found = mb_parameter()
        guard mb_find_parameter(session, name, &found) == 0 else {
            throw TrainerError(
                code: Int(MB_INVALID_ARGUMENT), description: "there is no parameter '\(name)'; there are \(parameterNames)")
        }
        return found
    }

    private func run(_ graph: Graph, _ inputs: [Tensor]) throws -> [Tensor] {
        let memory = inputs.map { aligned(Data($0.bytes)) }
        defer { memory.forEach { $0.deallocate() } }
        let tensors = zip(inputs, memory).map { mb_tensor($0, at: $1.baseAddress) }
        let status = mb_run(session, graph.rawValue, tensors, tensors.count)
        let ports: Graph = graph == .trainAndUpdate ? .train : graph  // the graph whose inputs and outputs it has
        if status != 0 {
            largest.withUnsafeBufferPointer { sizes in
                mb_explain_refusal(
                    session, ports.rawValue, status, tensors, tensors.count, largest.isEmpty ? nil : sizes.baseAddress)
            }
        }
        try must(status)
        return all(2 * ports.rawValue + Int32(MB_OUTPUTS)).map { Tensor(copying: $0.value) }
    }
}

/// A copy of bytes at a multiple of 16.
private func aligned(_ data: Data) -> UnsafeMutableRawBufferPointer {
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: data.count, alignment: 16)
    data.copyBytes(to: memory)
    return memory
}
