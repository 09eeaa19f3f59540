// Matrices of weights that stay in four or eight bits: they are dequantized block by block, into the panels of a matrix
// product or into a little scratch memory, and multiplied by the loops of gemm.h, in the order of additions that the
// same matrix in float has. No number depends on whether a weight is stored quantized.
#ifndef MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
#define MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_

#include "minbuild/kernel.h"
#include "lib/gemm/packed_gemm.h"

namespace minbuild {

// The features of matrices of a library; code for all others compiles away.
enum QuantizedParts : int { kFourBits = 1, kTables = 2, kZeroPoints = 4, kColumnScales = 8, kEightBits = 16 };

// Numbers of four-bit codes are taken from a table by two, where they then are in vectors; it has 2 KB.
#define MB_CODE_PAIRS (MB_SIMD && !MB_ONE_VARIANT)

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
#if MB_CODE_PAIRS
  int64_t pairs[(Parts & kFourBits) ? 256 : 1];  // by a byte of two four-bit codes: both numbers
#endif

  MB_INLINE bool is_four() const { return (Parts & kFourBits) && (!(Parts & kEightBits) || four); }
  // The number of a four-bit code.
  MB_INLINE float value(int code) const { return (Parts & kTables) && table ? table[code] : float(code ^ flip); }

  MB_NOINLINE bool read(const Tensor& q, const Tensor& scale, const Tensor& zero_point, const Tensor& values,
                        const int32_t* params, int row_count) {
    const int format = params[0];
    four = format & kIsFourBits;
    if (!(Parts & (four ? kFourBits : kEightBits))) return false;
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
    if (table && values.count != 16) return false;
#if MB_CODE_PAIRS
    for (int i = 0; four && i < 256; ++i) {
      const float both[] = {value(high_first ? i >> 4 : i & 15), value(high_first ? i & 15 : i >> 4)};
      __builtin_memcpy(pairs + i, both, sizeof both);
    }
#endif
    return scale.count == blocks && (!zeros || zero_point.count == blocks) &&
           elements <= int64_t(q.count) * (four ? 2 : 1);
  }
};

constexpr int kLanes = 8;  // elements that are dequantized at once

// `kLanes` codes from bytes, as numbers.
MB_INLINE Vec<float, kLanes> widened(const uint8_t* codes, int flip) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, codes, kLanes);
  return __builtin_convertvector(bytes ^ uint8_t(flip), Vec<float, kLanes>::Raw);
}

// out[r * step + c] = element (row + r, column + c), for r < rows and c < columns.
template <class T, int Parts>
MB_NOINLINE void dequantize_block(const QuantizedMatrix<Parts>& m, intptr_t row, intptr_t column, intptr_t rows,
                                  intptr_t columns, T* out, intptr_t step) {
  const bool each = (Parts & kColumnScales) && m.column_block == 1, four = m.is_four();
  const bool points = (Parts & kZeroPoints) && m.zeros;
  const intptr_t block_row = unsigned(row) / unsigned(m.row_block);
  // Columns of one block after the other; so that nothing is divided in the loop over rows.
  for (intptr_t run; columns > 0; columns -= run, column += run, out += run) {
    const intptr_t block = unsigned(column) / unsigned(m.column_block);
    run = (block + 1) * m.column_block - column;
    if (each || run > columns) run = columns;
    intptr_t first = block_row * m.across + block, element = row * m.stride + column;
    intptr_t left = (block_row + 1) * m.row_block - row;
    T* to = out;
    for (intptr_t r = 0; r < rows; ++r, to += step, element += m.stride) {
      const float* scales = m.scales + first;
      const uint8_t* zeros = points ? m.zeros + first : nullptr;
      const float zero = zeros ? float(*zeros ^ m.flip) : m.zero;
      intptr_t i = 0;
#if MB_CODE_PAIRS
      using V = Vec<float, kLanes>;
      // Without Vec's way to fill wide vectors, which takes instructions that gcc may not use here.
      V factor = *scales - typename V::Raw{}, nothing = zero - typename V::Raw{};
      for (; i <= run - kLanes; i += kLanes) {
        V x;
        const intptr_t at = element + i;
        if (four) {
          if (at & 1) break;
          const uint8_t* codes = m.codes + (at >> 1);
          typedef int64_t Pairs __attribute__((vector_size(sizeof(V))));
          const Pairs pairs = {m.pairs[codes[0]], m.pairs[codes[1]], m.pairs[codes[2]], m.pairs[codes[3]]};
          __builtin_memcpy(&x, &pairs, sizeof x);
        } else {
          x = widened(m.codes + at, m.flip);
        }
        if (each) {
          factor = V::load(scales + i);
          if (zeros) nothing = widened(zeros + i, m.flip);
        }
        x = (x - nothing) * factor;
        if constexpr (sizeof(T) == sizeof(float)) {
          x.store(to + i);
        } else {
          float lanes[kLanes];
          x.store(lanes);
          for (int lane = 0; lane < kLanes; ++lane) to[i + lane] = lanes[lane];
        }
      }
#endif
      for (; i < run; ++i) {
        const intptr_t at = element + i;
        const float value = four ? m.value(m.codes[at >> 1] >> (bool(at & 1) != m.high_first ? 4 : 0) & 15)
                                 : float(m.codes[at] ^ m.flip);
        to[i] = T((value - (each && zeros ? float(zeros[i] ^ m.flip) : zero)) * scales[each ? i : 0]);
      }
      if (--left == 0) left = m.row_block, first += m.across;
    }
  }
}

// The B of a product: the matrix or its transpose. `Packs`: in a library of packed products.
template <class T, int Parts, bool Packs>
struct QuantizedPanels {
  const QuantizedMatrix<Parts>& m;
  bool transposed;

  // Packs one panel after the other, for multiply() and for multiply_packed().
  static void pack(const void* packer, T* panel, int k, int depth, int j, int columns, int width) {
    const QuantizedPanels& b = *static_cast<const QuantizedPanels*>(packer);
    constexpr int kDepth = MINBUILD_SMALL_STACK ? 8 : 64;
    alignas(16) T rows[kMostTileBytes / sizeof(T) * kDepth];
    for (; columns > 0; columns -= width, j += width) {
      const int live = columns < width ? columns : width;
      for (int at = 0, now; at < depth; at += now, panel += now * width) {
        now = b.transposed && depth - at > kDepth ? kDepth : depth - at;
        if (!b.transposed) {
          dequantize_block(b.m, k, j, depth, live, panel, width);
        } else {
          dequantize_block(b.m, j, k + at, live, now, rows, kDepth);
          if constexpr (Packs) {  // by loops that are there anyway
            run_at<PackBody<T>>(vector_bytes(), static_cast<const T*>(rows), intptr_t(kDepth), intptr_t(1), panel,
                                intptr_t(width), intptr_t(live), intptr_t(now));
          } else {
            transpose<T>(rows, kDepth, panel, width, live, now);
          }
        }
      }
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
// the matrix, where products go along them; or where the product is packed, what gemm_at() has for floats of its sizes.
template <class T, int Parts, bool Packs>
MB_NOINLINE void multiply_quantized(const Gemm<T>& g, const QuantizedPanels<T, Parts, Packs>& b, const Tensor& room,
                                    bool packed) {
  const int bytes = vector_bytes();
  const bool large = Packs && packed && g.k > 0 && g.n >= kFewest, along = !large || b.transposed;
  T* scratch = room.scratch<T>();
  if constexpr (Packs) {
    if (large && (g.m >= kFewest || g.k <= kFewest))
      return multiply_packed<T>(g, bytes, scratch, QuantizedPanels<T, Parts, Packs>::pack, &b, nullptr);
  }
  if (along && !takes_dots(g, bytes)) return multiply<T>(g, bytes, false, QuantizedPanels<T, Parts, Packs>::pack, &b);
  // Pieces of B are dequantized and then read in place: for dot products some of its columns, else some of its rows.
  const intptr_t depth = along ? g.k : kStreams, fitting = intptr_t(room.count / (unsigned(depth) * sizeof(T)));
  const intptr_t near = along ? 8 : 256, most = fitting < near ? fitting : near, step = along ? depth : most;
  const bool adds_rows = Packs && !along && takes_rows(g);
  for (intptr_t k = 0; k < g.k; k += depth)
    for (intptr_t j = 0; j < g.n; j += most) {
      Gemm<T> part = g;
      part.k = g.k - k < depth ? g.k - k : depth;
      part.n = g.n - j < most ? g.n - j : most;
      part.a += k * g.a_col;
      part.b = scratch;
      part.c += j * g.c_col;
      part.accumulate = g.accumulate || k > 0;
      if (along) {
        dequantize_block(b.m, j, k, part.n, part.k, scratch, step);
      } else {
        dequantize_block(b.m, k, j, part.k, part.n, scratch, step);
        part.b_row = most;
      }
      if constexpr (Packs) {
        if (adds_rows) {
          add_rows(part);
          continue;
        }
      }
      multiply_strided(part);
    }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_QUANTIZED_MATRIX_H_
