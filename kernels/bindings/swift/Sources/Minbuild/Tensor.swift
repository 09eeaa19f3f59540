import CMinbuild

/// A call that the trainer refused; `code` is an mb_status of trainer.h.
public struct TrainerError: Error, CustomStringConvertible {
    public let code: Int
    public let description: String
}

/// A type that tensors have elements of.
public protocol Element {
    static var onnxType: Int32 { get }
}

extension Float: Element { public static var onnxType: Int32 { 1 } }
extension UInt8: Element { public static var onnxType: Int32 { 2 } }
extension Int8: Element { public static var onnxType: Int32 { 3 } }
extension UInt16: Element { public static var onnxType: Int32 { 4 } }
extension Int16: Element { public static var onnxType: Int32 { 5 } }
extension Int32: Element { public static var onnxType: Int32 { 6 } }
extension Int64: Element { public static var onnxType: Int32 { 7 } }
extension Bool: Element { public static var onnxType: Int32 { 9 } }
extension Double: Element { public static var onnxType: Int32 { 11 } }
extension UInt32: Element { public static var onnxType: Int32 { 12 } }
extension UInt64: Element { public static var onnxType: Int32 { 13 } }

/// A dense tensor in row-major order.
public struct Tensor {
    /// The number that ONNX gives the element type.
    public let type: Int32
    public let dims: [Int]
    var bytes: [UInt8]

    /// `dims` are those of all elements; without, the tensor is a vector.
    public init<T: Element>(_ elements: [T], dims: [Int]? = nil) {
        self.dims = dims ?? [elements.count]
        precondition(self.dims.reduce(1, *) == elements.count, "\(self.dims) is no shape of \(elements.count) elements")
        precondition(self.dims.count <= Int(MB_MAX_RANK), "a tensor has at most \(MB_MAX_RANK) dimensions")
        type = T.onnxType
        bytes = elements.withUnsafeBytes { Array($0) }
    }

    /// A copy of what a session has.
    init(copying tensor: mb_tensor) {
        type = tensor.type
        dims = sizes(of: tensor)
        let count = dims.reduce(1, *) * bytesOfElement(tensor.type)
        bytes = count == 0 ? [] : Array(UnsafeRawBufferPointer(start: tensor.data, count: count))
    }

    /// The elements; nothing where they are of another type.
    public func elements<T: Element>(as kind: T.Type = T.self) -> [T]? {
        guard kind.onnxType == type else { return nil }
        return bytes.withUnsafeBytes { raw in
            (0..<raw.count / MemoryLayout<T>.stride).map {
                number(in: raw, at: $0 * MemoryLayout<T>.stride, as: kind)
            }
        }
    }
}

/// A number in an array of bytes, where it has no alignment.
private func number<T: Element>(in bytes: UnsafeRawBufferPointer, at offset: Int, as kind: T.Type) -> T {
    let room = UnsafeMutablePointer<T>.allocate(capacity: 1)
    defer { room.deallocate() }
    UnsafeMutableRawPointer(room).copyMemory(from: bytes.baseAddress! + offset, byteCount: MemoryLayout<T>.size)
    return room.pointee
}

func bytesOfElement(_ type: Int32) -> Int {
    let sizes = [0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2]
    return sizes[Int(type)]
}

func sizes(of tensor: mb_tensor) -> [Int] {
    withUnsafeBytes(of: tensor.dims) { raw in raw.bindMemory(to: Int32.self).prefix(Int(tensor.rank)).map(Int.init) }
}

extension mb_tensor {
    /// A tensor over memory that lasts as long as the call it is for.
    init(_ tensor: Tensor, at data: UnsafeMutableRawPointer?) {
        self.init()
        self.data = data
        type = tensor.type
        rank = Int32(tensor.dims.count)
        withUnsafeMutableBytes(of: &dims) { raw in
            let room = raw.bindMemory(to: Int32.self)
            for (axis, size) in tensor.dims.enumerated() { room[axis] = Int32(size) }
        }
    }
}
