// Matrices of weights that stay in four or eight bits: they are dequantized block by block, into the panels of a matrix
// product or into a little scratch memory, and multiplied by the loops of gemm.h, in the order of additions that the
// same matrix in float has. No number depends on whether a weight is stored quantized.
#ifndef MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
#define MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_

#include "minbuild/kernel.h"
#include "lib/gemm/packed_gemm.h"

namespace minbuild {

// The features of matrices of a library; code for all others compiles away.
enum QuantizedParts : int { kFourBits = 1, kTables = 2, kZeroPoints = 4, kColumnScales = 8 };

// Parameters of a kernel, in this order: bits of the format, columns of the matrix, elements from one row to the next,
// rows and columns that share a scale.
constexpr int kQuantizedParams = 5;
// Bits of the format: four-bit elements, the first of two in the high half; from bit 8 on what the bits of an element
// are changed by to become a number from 0 on, and from bit 16 on the zero point where all blocks have the same.
enum QuantizedFormat : int { kIsFourBits = 1, kHighFirst = 2 };

// Element (row, column) is (code - zero point) * scale, or (table[code] - zero point) * scale.
template <int Parts>
struct QuantizedMatrix {
  const uint8_t *codes, *zeros;                                // zeros: a zero point beside each scale, or null
  const float *scales, *table;                                 // table: 16 numbers, or null
  int rows, columns, stride, row_block, column_block, across;  // across: scales of a row
  int flip;
  float zero;
  bool four, high_first;

  MB_NOINLINE bool read(const Tensor& q, const Tensor& scale, const Tensor& zero_point, const Tensor& values,
                        const int32_t* params, int row_count) {
    const int format = params[0];
    four = (Parts & kFourBits) && (format & kIsFourBits);
    high_first = format & kHighFirst;
    flip = format >> 8 & 255;
    zero = float(format >> 16 & 255);
    rows = row_count, columns = params[1], stride = params[2], row_block = params[3], column_block = params[4];
    constexpr int kMost = 1 << 28;
    if (unsigned(rows - 1) >= kMost || unsigned(columns - 1) >= kMost || unsigned(stride - columns) >= kMost ||
        unsigned(row_block - 1) >= kMost || unsigned(column_block - 1) >= kMost) {
      return false;
    }
    across = (columns + column_block - 1) / column_block;
    const int64_t blocks = int64_t((rows + row_block - 1) / row_block) * across;
    const int64_t elements = int64_t(rows - 1) * stride + columns;
    codes = q.as<uint8_t>(), scales = scale.as<float>();
    zeros = (Parts & kZeroPoints) ? zero_point.as<uint8_t>() : nullptr;
    table = (Parts & kTables) && four ? values.as<float>() : nullptr;
    return scale.count == blocks && (!zeros || zero_point.count == blocks) && (!table || values.count == 16) &&
           elements <= int64_t(q.count) * (four ? 2 : 1);
  }
};

constexpr int kCodes = 64;  // four-bit elements that are spread to bytes at once

// to[i] = four-bit element `at` + i.
MB_INLINE void spread_halves(const uint8_t* codes, intptr_t at, bool high_first, uint8_t* to, int count) {
  int i = 0;
#if MB_SHUFFLES
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  if ((at & 1) == 0) {
    for (; i <= count - 16; i += 16) {
      Bytes both = {};
      __builtin_memcpy(&both, codes + ((at + i) >> 1), 8);
      Bytes low = both & 15, high = both >> 4;
      if (high_first) exchange(low, high);
      const Bytes pairs = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      __builtin_memcpy(to + i, &pairs, 16);
    }
  }
#endif
  for (; i < count; ++i) {
    const intptr_t e = at + i;
    to[i] = uint8_t(codes[e >> 1] >> (bool(e & 1) != high_first ? 4 : 0) & 15);
  }
}

// out[r * step + c] = element (row + r, column + c), for r < rows and c < columns.
template <class T, int Parts>
struct DequantizeBody {
  template <class W>
  static MB_INLINE void run(const QuantizedMatrix<Parts>* m, intptr_t row, intptr_t column, intptr_t rows,
                            intptr_t columns, T* out, intptr_t step) {
    const bool each = (Parts & kColumnScales) && m->column_block == 1, four = (Parts & kFourBits) && m->four;
    const bool points = (Parts & kZeroPoints) && m->zeros;
    const intptr_t block_row = unsigned(row) / unsigned(m->row_block);
    // Columns of one block after the other; so that nothing is divided in the loop over rows.
    for (intptr_t run; columns > 0; columns -= run, column += run, out += run) {
      const intptr_t block = unsigned(column) / unsigned(m->column_block);
      run = (block + 1) * m->column_block - column;
      if (each || run > columns) run = columns;
      if (four && run > kCodes) run = kCodes;
      intptr_t first = block_row * m->across + block, element = row * m->stride + column;
      intptr_t left = (block_row + 1) * m->row_block - row;
      T* to = out;
      for (intptr_t r = 0; r < rows; ++r, to += step, element += m->stride) {
        uint8_t spread[kCodes];
        const uint8_t* codes = m->codes + element;
        if (four) {
          spread_halves(m->codes, element, m->high_first, spread, int(run));
          codes = spread;
        }
        numbers<W>(*m, each, codes, m->scales + first, points ? m->zeros + first : nullptr, run, to);
        if (--left == 0) left = m->row_block, first += m->across;
      }
    }
  }

  // `run` elements of a row, with one scale and zero point, or with one for each.
  template <class W>
  static MB_INLINE void numbers(const QuantizedMatrix<Parts>& m, bool each, const uint8_t* codes, const float* scales,
                                const uint8_t* zeros, intptr_t run, T* to) {
    using V = typename W::template of<float>;
    const float zero = zeros ? float(*zeros ^ m.flip) : m.zero;
    const bool listed = (Parts & kTables) && m.table;
    intptr_t i = 0;
    if (!listed) {
      V factor = *scales, nothing = zero;
      for (; i <= run - V::size; i += V::size) {
        if (each) {
          factor = V::load(scales + i);
          if (zeros) nothing = widened<V>(zeros + i, m.flip);
        }
        write((widened<V>(codes + i, m.flip) - nothing) * factor, to + i);
      }
    }
    for (; i < run; ++i) {
      const int code = codes[i] ^ m.flip;
      const float value = listed ? m.table[code & 15] : float(code);
      to[i] = T((value - (each && zeros ? float(zeros[i] ^ m.flip) : zero)) * scales[each ? i : 0]);
    }
  }

  template <class V>
  static MB_INLINE V widened(const uint8_t* codes, int flip) {
    typedef uint8_t Bytes __attribute__((vector_size(V::size)));
    Bytes bytes;
    __builtin_memcpy(&bytes, codes, V::size);
    return __builtin_convertvector(bytes ^ uint8_t(flip), typename V::Raw);
  }
  template <class V>
  static MB_INLINE void write(V x, T* to) {
    if constexpr (sizeof(T) == sizeof(float)) {
      x.store(to);
    } else {
      float lanes[V::size];
      x.store(lanes);
      for (int i = 0; i < V::size; ++i) to[i] = lanes[i];
    }
  }
};

template <class T, int Parts>
MB_NOINLINE void dequantize_block(const QuantizedMatrix<Parts>& m, intptr_t row, intptr_t column, intptr_t rows,
                                  intptr_t columns, T* out, intptr_t step) {
  dispatch_or_single<DequantizeBody<T, Parts>, float>(&m, row, column, rows, columns, out, step);
}

// The B of a product: the matrix or its transpose, from row `start` of B on.
template <class T, int Parts>
struct QuantizedPanels {
  const QuantizedMatrix<Parts>& m;
  bool transposed;
  intptr_t start;

  MB_INLINE void operator()(T* panel, int k, int depth, int j, int columns, int width) const {
    if (!transposed) return dequantize_block(m, start + k, j, depth, columns, panel, width);
    constexpr int kDepth = MINBUILD_SMALL_STACK ? 8 : 32;
    alignas(16) T rows[kMostTileBytes / sizeof(T) * kDepth];
    for (int at = 0; at < depth; at += kDepth, panel += kDepth * width) {
      const int now = depth - at < kDepth ? depth - at : kDepth;
      dequantize_block(m, j, start + k + at, columns, now, rows, kDepth);
      transpose<T>(rows, kDepth, panel, width, columns, now);
    }
  }
};

// The A of packed products: rows of the matrix, or of its transpose, from the element on that a pointer would point to if
// the matrix began at `base` and had no gaps.
template <class T, int Parts>
struct QuantizedRows {
  const QuantizedMatrix<Parts>* m;
  const T* base;
  bool transposed;

  MB_INLINE void operator()(T* to, intptr_t step, const T* from, intptr_t count, intptr_t depth) const {
    const intptr_t at = (reinterpret_cast<intptr_t>(from) - reinterpret_cast<intptr_t>(base)) / intptr_t(sizeof(T));
    const intptr_t row = at / m->columns, column = at % m->columns;
    if (!transposed) return dequantize_block(*m, row, column, count, depth, to, step);
    constexpr int kSide = 16;
    alignas(16) T rows[kSide * kSide];
    for (intptr_t d = 0; d < depth; d += kSide)
      for (intptr_t c = 0; c < count; c += kSide) {
        const intptr_t deep = depth - d < kSide ? depth - d : kSide, wide = count - c < kSide ? count - c : kSide;
        dequantize_block(*m, row + d, column + c, deep, wide, rows, kSide);
        transpose<T>(rows, kSide, to + c * step + d, step, deep, wide);
      }
  }
};

// C = alpha * A * B, for a B whose elements are dequantized; g.b is not read. `room`: scratch memory for some rows of
// the matrix, where products go along them.
template <class T, int Parts>
MB_NOINLINE void multiply_quantized(const Gemm<T>& g, const QuantizedPanels<T, Parts>& b, const Tensor& room) {
  const int bytes = vector_bytes();
  if (!takes_dots(g, bytes)) return multiply<T>(g, bytes, false, pack_with<T, QuantizedPanels<T, Parts>>, &b);
  constexpr intptr_t kNear = 8;  // rows that stay in the nearest cache
  intptr_t most = intptr_t(room.count / (unsigned(g.k) * sizeof(T)));
  if (most > kNear) most = kNear;
  Gemm<T> part = g;
  part.b = room.scratch<T>();
  for (intptr_t j = 0; j < g.n; j += most, part.c += most * part.c_col) {
    Gemm<T> some = part;
    some.n = g.n - j < most ? g.n - j : most;
    dequantize_block(b.m, j, b.start, some.n, g.k, room.scratch<T>(), g.k);
    multiply_strided(some);
  }
}

// The same as gemm_at() has it for floats of these sizes, by packed blocks in `room`.
template <class T, int Parts>
MB_NOINLINE void multiply_quantized_packed(const Gemm<T>& g, const QuantizedPanels<T, Parts>& b, const Tensor& room) {
  if (g.k < 1 || g.n < kFewest) return multiply_quantized(g, b, room);
  T* scratch = room.scratch<T>();
  if (g.m >= kFewest || g.k <= kFewest) {
    return multiply_packed<T>(g, vector_bytes(), scratch, pack_panels<T, QuantizedPanels<T, Parts>>, &b);
  }
  if (b.transposed) return multiply_quantized(g, b, room);
  // Rows of B are dequantized in pieces, which are then read in place.
  constexpr intptr_t kColumns = 256;
  const intptr_t fitting = intptr_t(room.count / (kStreams * sizeof(T))),
                 most = fitting < kColumns ? fitting : kColumns;
  const bool adds_rows = takes_rows(g);
  if (adds_rows) clear_sums(g);
  for (intptr_t k = 0; k < g.k; k += kStreams)
    for (intptr_t j = 0; j < g.n; j += most) {
      Gemm<T> part = g;
      part.k = g.k - k < kStreams ? g.k - k : kStreams;
      part.n = g.n - j < most ? g.n - j : most;
      dequantize_block(b.m, b.start + k, j, part.k, part.n, scratch, most);
      part.a += k * g.a_col;
      part.b = scratch, part.b_row = most;
      part.c += j * g.c_col;
      if (adds_rows) {
        add_rows(part);
        continue;
      }
      part.accumulate = g.accumulate || k > 0;
      multiply_strided(part);
    }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
