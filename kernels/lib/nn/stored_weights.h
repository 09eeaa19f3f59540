// Weights of convolutions that stay in 4, 8 or 16 bits (lib/gemm/quantized_matrix.h), a row for each filter: some of
// them at a time are dequantized onto the stack, as products need them.
#ifndef MINBUILD_LIB_NN_STORED_WEIGHTS_H_
#define MINBUILD_LIB_NN_STORED_WEIGHTS_H_

#include "lib/gemm/packed_rows.h"
#include "lib/gemm/quantized_matrix.h"
#include "lib/indexing/disjoint.h"

namespace minbuild {

// Of a convolution over planes, in libraries without such weights.
template <class T, class Features, bool = Features::kDequantize>
struct StoredWeights {
  MB_INLINE T* weights(const Tensor& w) const { return w.as<T>(); }
};

template <class T, class Features>
struct StoredWeights<T, Features, true> {
  using Matrix = QuantizedMatrix<Features::kParts>;
  const Matrix* matrix = nullptr;  // null where weights are plain numbers
  const Tensor* row = nullptr;     // scratch memory for a row of products that are dot products
  T* base;                         // where the weights would be, for calls that count their elements; nothing is there

  MB_INLINE T* weights(const Tensor& w) const { return matrix ? base : w.as<T>(); }

  // True if there is scratch memory for a row of so many elements.
  bool has_row(const Tensor& written, intptr_t elements) const {
    return row->count / intptr_t(sizeof(T)) >= elements && disjoint(written, sizeof(T), *row, 1);
  }

#if !MB_WRITTEN_ROWS
  // The product of W with rows that are packed.
  MB_INLINE void multiply_outputs(const Gemm<T>& g, Pack<T> pack, const void* packer) const {
    multiply_rows<T>(g, pack, packer, write, this);
  }
#endif
  // Rows of W for products, `weights` being this.
  static void write(const void* weights, T* to, const T* from, intptr_t count, intptr_t depth) {
    const StoredWeights& w = *static_cast<const StoredWeights*>(weights);
    const intptr_t at = from - w.base;
    dequantize_block(*w.matrix, at / w.matrix->columns, at % w.matrix->columns, count, depth, to, depth);
  }

  // The product of W with rows in memory; or of its transpose, whose rows are `taps` elements apart.
  MB_NOINLINE void multiply_pieces(const Gemm<T>& g, bool transposed, int taps) const {
    alignas(16) T some[kStackRowBytes / sizeof(T)];
    const intptr_t at = g.a - base, first = at / matrix->columns, column = at % matrix->columns;
    T* piece = some;
    intptr_t size = sizeof some / sizeof(T), deepest = panel_depth<T>(vector_bytes());
    if (takes_dots(g, vector_bytes()))
      piece = row->scratch<T>(), size = row->count / intptr_t(sizeof(T)), deepest = g.k;
    for (intptr_t k = 0; k < g.k; k += deepest) {
      Gemm<T> part = g;
      const intptr_t depth = g.k - k < deepest ? g.k - k : deepest, most = size / depth;
      for (intptr_t i = 0; i < g.m; i += most) {
        part = g;
        part.m = g.m - i < most ? g.m - i : most;
        part.k = depth;
        part.a = piece;
        part.b += k * g.b_row;
        part.c += i * g.c_row;
        part.accumulate = g.accumulate || k > 0;
        if (transposed) {
          part.a_row = 1, part.a_col = part.m;
          dequantize_block(*matrix, first + k, column + i * taps, depth, part.m, piece, part.m, taps);
        } else {
          part.a_row = depth, part.a_col = 1;
          dequantize_block(*matrix, first + i, column + k, part.m, depth, piece, depth);
        }
        if (taps > 1) minbuild::multiply<T>(part, vector_bytes(), true, pack_strided<T>, &part);  // whole tiles
        else multiply_strided(part);
      }
    }
  }

  // work(weights, first, count) for all of the `taps` of one filter that is its channel's own.
  template <class Work>
  MB_INLINE void each_piece(const T* w, int taps, const Work& work) const {
    constexpr int kMost = kStackRowBytes / sizeof(T);
    alignas(16) T some[kMost];
    for (int first = 0; first < taps; first += kMost) {
      const int count = taps - first < kMost ? taps - first : kMost;
      dequantize_block(*matrix, (w - base) / matrix->columns, first, 1, count, some, count);
      work(some, first, count);
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_STORED_WEIGHTS_H_
