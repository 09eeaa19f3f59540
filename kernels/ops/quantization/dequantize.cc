// Dequantize: weights in 4, 8 or 16 bits as real numbers; and products with such weights, which never have them as a
// whole (lib/gemm/quantized_product.h); and rows of tables of them.
#include "lib/gemm/quantized_product.h"

#include "lib/indexing/slices.h"
#include "lib/loops/blas1.h"

namespace minbuild {

constexpr int kParts = (MB_DEQUANTIZE_PACKED ? kFetches : 0) | (MB_DEQUANTIZE_FOUR_BITS ? kFourBits : 0) |
                       (MB_DEQUANTIZE_TABLE ? kTables : 0) | (MB_DEQUANTIZE_ZERO_POINTS ? kZeroPoints : 0) |
                       (MB_DEQUANTIZE_COLUMN_SCALES ? kColumnScales : 0) | (MB_DEQUANTIZE_EIGHT_BITS ? kEightBits : 0) |
                       (MB_DEQUANTIZE_OFFSETS ? kOffsets : 0) | (MB_DEQUANTIZE_COLUMN_BLOCKS ? kBlocks : 0) |
                       (MB_DEQUANTIZE_TRANSPOSED ? kTransposes : 0) | (MB_DEQUANTIZE_SIXTEEN_BITS ? kSixteenBits : 0) |
                       (MB_DEQUANTIZE_BYTE_TABLE ? kByteTables : 0);
using Matrix = QuantizedMatrix<kParts>;

// y: [rows...,columns]  q: bytes of codes  scale: one a block  zero_point: beside scale  table: [16], or [256] of bytes
template <class T>
Status dequantize(const Call& call) {
  const Tensor& y = call[0];
  const int columns = call.params[1];
  if (y.count == 0) return Status::kOk;
  Matrix m;
  if (columns < 1 || y.count % columns != 0) return Status::kBadPlan;
  if (!m.read(call[1], call[2], call[3], call[4], call.params, y.count / columns)) return Status::kTooLarge;
  dequantize_block(m, 0, 0, m.rows, columns, y.as<T>(), columns);
  return Status::kOk;
}

// The rows of w at the indices. y: [indices,columns]
template <class T, class I>
Status dequantize_gather(const Call& call) {
  const Tensor &y = call[0], &indices = call[5];
  Matrix w;
  if (!w.read(call[1], call[2], call[3], call[4], call.params + 1, call.params[0])) return Status::kBadPlan;
  if (y.count != int64_t(indices.count) * w.columns) return Status::kBadPlan;
  const Slices<I> rows = {1, w.rows, 1, indices.count, indices.as<I>()};
  const Status status = rows.checked();
  if (status != Status::kOk) return status;
  return rows.each_in_parts(call, y.count * int64_t(sizeof(T)), [&](int i, int row) MB_LAMBDA {
    dequantize_block(w, row, 0, 1, w.columns, y.as<T>() + intptr_t(i) * w.columns, w.columns);
  });
}

// y += bias on every row, or y = bias
template <class T>
MB_NOINLINE void add_bias(const Gemm<T>& g, const Tensor& bias, bool adds) {
  T* row = g.c;
  for (intptr_t i = 0; i < g.m; ++i, row += g.n) {
    if (adds) add_range(row, bias.as<T>(), int(g.n));
    else copy_bytes(row, bias.data, size_t(g.n) * sizeof(T));
  }
}

// y = alpha * a * w + bias, or with the transpose of w. y: [m,n]  a: [m,k], or [k,m] if transposed  bias: [n], added
// before the product or after it, as contraction and gemm have it.
template <class T>
Status dequantize_product(const Call& call) {
  const Tensor &y = call[0], &a = call[1], &bias = call[6], &room = call[7];
  const bool transposed_a = call.params[0] != 0, transposed = MB_DEQUANTIZE_TRANSPOSED && (call.params[1] & 1),
             bias_after = call.params[3] != 0;
  const bool packed = MB_DEQUANTIZE_PACKED && (call.params[1] & 2);
  Matrix w;
  if (!w.read(call[2], call[3], call[4], call[5], call.params + 5, call.params[4])) return Status::kBadPlan;
  const int n = transposed ? w.rows : w.columns, k = transposed ? w.columns : w.rows, m = y.count / n;
  if (y.count != m * n || int64_t(m) * k != a.count) return Status::kBadPlan;
  if (MB_DEQUANTIZE_BIAS && bias && bias.count != n) return Status::kBadPlan;
  // clang-format off: sizes, then each operand with its steps
  Gemm<T> g = {m, n, k, a.as<T>(), transposed_a ? 1 : k, transposed_a ? m : 1,
               a.as<T>(), transposed ? 1 : n, transposed ? k : 1, y.as<T>(), n};
  // clang-format on
  g.alpha = static_cast<T>(call.real(2));
  g.accumulate = call.adds(0);
  if (takes_dots(g, vector_bytes()) && (!transposed || size_t(room.count) < k * sizeof(T))) return Status::kBadPlan;
  intptr_t needed = kStreams * 16;
  if (packed) needed = QuantizedBlocks<T>(g, widest_bytes()).elements * intptr_t(sizeof(T));
  if (packed && room.count < (needed < kStreams * 16 ? kStreams * 16 : needed)) return Status::kBadPlan;
  if (MB_DEQUANTIZE_BIAS && bias && !bias_after) {
    add_bias(g, bias, g.accumulate);
    g.accumulate = true;
  }
#if MB_THREADS > 1
  if (packed) divide_among(g, call.team, room.count, needed / intptr_t(sizeof(T)));
#endif
  const QuantizedPanels<T, kParts, MB_DEQUANTIZE_PACKED> panels = {w, transposed};
  multiply_quantized(g, panels, room, packed);
  if (MB_DEQUANTIZE_BIAS && bias && bias_after) add_bias(g, bias, true);
  return Status::kOk;
}

MB_INSTANTIATE_DEQUANTIZE

}  // namespace minbuild
