// Matrix products of 16-bit numbers by the arithmetic that processors have for them, with results in float:
//
//   float16    chains of kChain multiply-adds in float16, rounded once each; chains are added up in float
//   bfloat16   pairs of products added to a float: every sum is rounded to odd, as BFDOT of aarch64 does
//
// Where the processor lacks the instructions, as on the machine that proves a trainer for another one, the same sums are
// computed number by number, with the same bits.
#ifndef MINBUILD_LIB_GEMM_HALF_GEMM_H_
#define MINBUILD_LIB_GEMM_HALF_GEMM_H_

#include "lib/simd/vec.h"
#include "lib/threads/parallel.h"
#include "lib/types/half.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define MB_NATIVE_FLOAT16 1
#else
#define MB_NATIVE_FLOAT16 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MB_NATIVE_BFLOAT16 1
#else
#define MB_NATIVE_BFLOAT16 0
#endif
#if MB_NATIVE_FLOAT16 || MB_NATIVE_BFLOAT16
#include <arm_neon.h>
#endif

namespace minbuild {

// As Gemm, of operands of type T.
template <class T>
struct HalfGemm {
  intptr_t m, n, k;
  const T* a;
  intptr_t a_row, a_col;
  const T* b;
  intptr_t b_row, b_col;
  float* c;
  intptr_t c_row, c_col;
  float alpha;
  bool accumulate;
#if MB_THREADS > 1
  Team* team = nullptr;
#endif
};

// A tile has so many rows; the depth of a block is a multiple of a chain, and of the numbers that a load takes of a row.
constexpr int kHalfRows = 8, kHalfDepth = 128, kChain = 16, kHalfStrip = 64;

// The columns of a tile; how many numbers of a column stand side by side in a panel; and the sums of a tile, to which
// `depth` products each are added. Row r of A is at a + r * a_row, with its numbers side by side.
template <class T>
struct HalfTile;

template <>
struct HalfTile<half> {
  static constexpr int kColumns = 16, kGroup = 1;
  static constexpr bool kNative = MB_NATIVE_FLOAT16;

  // A group of whole rows of B, of which this one has a single row.
  static MB_INLINE void pack(const half* from, intptr_t, half* to) {
    __builtin_memcpy(to, from, kColumns * sizeof *to);
  }

  static MB_INLINE void add(const half* a, intptr_t a_row, const half* b, intptr_t depth, float* sums) {
#if MB_NATIVE_FLOAT16
    const auto* panel = reinterpret_cast<const float16_t*>(b);
    for (; depth > 0; depth -= kChain, a += kChain) {
      float16x8_t x[kHalfRows][2];
      unroll<kHalfRows>([&](auto r) MB_LAMBDA { x[r][0] = x[r][1] = vdupq_n_f16(0); });
      for (int k = 0; k < kChain; k += 8) {
        float16x8_t row[kHalfRows];
        unroll<kHalfRows>([&](auto r)
                              MB_LAMBDA { row[r] = vld1q_f16(reinterpret_cast<const float16_t*>(a + r * a_row + k)); });
        unroll<8>([&](auto i) MB_LAMBDA {
          const float16x8_t first = vld1q_f16(panel), second = vld1q_f16(panel + 8);
          panel += kColumns;
          unroll<kHalfRows>([&](auto r) MB_LAMBDA {
            x[r][0] = vfmaq_laneq_f16(x[r][0], first, row[r], int(i));
            x[r][1] = vfmaq_laneq_f16(x[r][1], second, row[r], int(i));
          });
        });
      }
      unroll<2 * kHalfRows>([&](auto i) MB_LAMBDA {
        float* const to = sums + 8 * i;
        const float16x8_t chain = x[i / 2][i % 2];
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vcvt_f32_f16(vget_low_f16(chain))));
        vst1q_f32(to + 4, vaddq_f32(vld1q_f32(to + 4), vcvt_high_f32_f16(chain)));
      });
    }
#else
    for (int r = 0; r < kHalfRows; ++r)
      for (int j = 0; j < kColumns; ++j)
        for (intptr_t k = 0; k < depth;) {
          half chain = 0.f;
          do {
            const double product = double(a[r * a_row + k]) * double(b[k * kColumns + j]);
            chain = rounded_to_odd(product + double(chain));
          } while (++k % kChain != 0);
          sums[r * kColumns + j] += chain;
        }
#endif
  }
};

template <>
struct HalfTile<bfloat16> {
  static constexpr int kColumns = 8, kGroup = 2;
  static constexpr bool kNative = MB_NATIVE_BFLOAT16;

  static MB_INLINE void pack(const bfloat16* from, intptr_t row, bfloat16* to) {
#if MB_NATIVE_BFLOAT16
    const uint16x8_t even = vld1q_u16(&from->bits), odd = vld1q_u16(&from[row].bits);
    vst1q_u16(&to->bits, vzip1q_u16(even, odd));
    vst1q_u16(&to[8].bits, vzip2q_u16(even, odd));
#else
    for (int j = 0; j < kColumns; ++j, to += kGroup) to[0] = from[j], to[1] = from[row + j];
#endif
  }

#if MB_NATIVE_BFLOAT16
  // sum + pairs of `column` * pair `Lane` of `row`. Of the intrinsic, clang copies the pair into a register first.
  template <int Lane>
  static MB_INLINE float32x4_t add_pairs(float32x4_t sum, bfloat16x8_t column, bfloat16x8_t row) {
    __asm__("bfdot %0.4s, %1.8h, %2.2h[%3]" : "+w"(sum) : "w"(column), "w"(row), "i"(Lane));
    return sum;
  }
#endif

  static MB_INLINE void add(const bfloat16* a, intptr_t a_row, const bfloat16* b, intptr_t depth, float* sums) {
#if MB_NATIVE_BFLOAT16
    const auto* panel = reinterpret_cast<const bfloat16_t*>(b);
    float32x4_t x[kHalfRows][2];
    unroll<2 * kHalfRows>([&](auto i) MB_LAMBDA { x[i / 2][i % 2] = vld1q_f32(sums + 4 * i); });
    for (; depth > 0; depth -= 8, a += 8) {
      bfloat16x8_t row[kHalfRows];
      unroll<kHalfRows>([&](auto r)
                            MB_LAMBDA { row[r] = vld1q_bf16(reinterpret_cast<const bfloat16_t*>(a + r * a_row)); });
      unroll<4>([&](auto i) MB_LAMBDA {
        const bfloat16x8_t first = vld1q_bf16(panel), second = vld1q_bf16(panel + 8);
        panel += kColumns * kGroup;
        unroll<kHalfRows>([&](auto r) MB_LAMBDA {
          x[r][0] = add_pairs<i>(x[r][0], first, row[r]);
          x[r][1] = add_pairs<i>(x[r][1], second, row[r]);
        });
      });
    }
    unroll<2 * kHalfRows>([&](auto i) MB_LAMBDA { vst1q_f32(sums + 4 * i, x[i / 2][i % 2]); });
#else
    for (int r = 0; r < kHalfRows; ++r)
      for (int j = 0; j < kColumns; ++j)
        for (intptr_t k = 0; k < depth; k += 2) {
          const bfloat16 *x = a + r * a_row + k, *y = b + k * kColumns + 2 * j;
          const float pair = rounded_to_odd(double(x[0]) * double(y[0]) + double(x[1]) * double(y[1]));
          float& sum = sums[r * kColumns + j];
          sum = rounded_to_odd(double(sum) + double(pair));
        }
#endif
  }
};

// Packs the columns of B, `depth` deep, into panels of `whole` rows; zeros fill up both.
template <class T>
MB_NOINLINE void pack_halves(const HalfGemm<T>& g, intptr_t depth, intptr_t whole, T* to) {
  constexpr intptr_t kColumns = HalfTile<T>::kColumns, kGroup = HalfTile<T>::kGroup;
  for (intptr_t first = 0; first < g.n; first += kColumns, to += whole * kColumns) {
    const intptr_t columns = g.n - first < kColumns ? g.n - first : kColumns;
    const T* from = g.b + first * g.b_col;
    intptr_t k = 0;
    if (g.b_col == 1 && columns == kColumns)
      for (; k <= depth - kGroup; k += kGroup, from += kGroup * g.b_row)
        HalfTile<T>::pack(from, g.b_row, to + k * kColumns);
    if (columns < kColumns || k < whole) clear_bytes(to + k * kColumns, size_t((whole - k) * kColumns) * sizeof(T));
    for (; k < depth; ++k, from += g.b_row) {
      const T* x = from;
      T* y = to + k / kGroup * kGroup * kColumns + k % kGroup;
      for (intptr_t j = columns; j > 0; --j, x += g.b_col, y += kGroup) *y = *x;
    }
  }
}

// C of up to kHalfStrip columns. A is read in place where its rows lie side by side and are whole. The build finds out by
// the name of this function whether it is `Native` (codegen/native_arithmetic.py).
template <class T, bool Native>
MB_NOINLINE void multiply_halves(HalfGemm<T> g) {
  constexpr intptr_t kColumns = HalfTile<T>::kColumns;
  alignas(16) T panels[kHalfStrip * kHalfDepth], rows[kHalfRows * kHalfDepth];
  alignas(16) float sums[kHalfRows * kColumns];
  for (intptr_t k = 0; k < g.k; k += kHalfDepth) {
    const intptr_t depth = g.k - k < kHalfDepth ? g.k - k : kHalfDepth, whole = (depth + kChain - 1) & -kChain;
    pack_halves(g, depth, whole, panels);
    for (intptr_t i = 0; i < g.m; i += kHalfRows) {
      const intptr_t live = g.m - i < kHalfRows ? g.m - i : kHalfRows;
      const T* a = g.a + i * g.a_row;
      intptr_t a_row = g.a_row;
      if (g.a_col != 1 || depth != whole || live != kHalfRows) {
        clear_bytes(rows, sizeof rows);
        for (intptr_t r = 0; r < live; ++r)
          for (intptr_t d = 0; d < depth; ++d) rows[r * kHalfDepth + d] = a[r * g.a_row + d * g.a_col];
        a = rows, a_row = kHalfDepth;
      }
      for (intptr_t j = 0; j < g.n; j += kColumns) {
        clear_bytes(sums, sizeof sums);
        HalfTile<T>::add(a, a_row, panels + j * whole, whole, sums);
        float* c = g.c + i * g.c_row + j * g.c_col;
        const float* sum = sums;
        const bool by_vectors = g.c_col == 1 && g.n - j >= kColumns;
        for (intptr_t r = live; r > 0; --r, c += g.c_row, sum += kColumns) {
          if (by_vectors) {
            using V = Vec<float, 4>;
            for (intptr_t s = 0; s < kColumns; s += V::size) {
              const V old = g.accumulate ? V::load(c + s) : V(0.f);
              (old + V(g.alpha) * V::load(sum + s)).store(c + s);
            }
            continue;
          }
          for (intptr_t s = 0; s < kColumns && j + s < g.n; ++s) {
            const float part = g.alpha * sum[s];
            c[s * g.c_col] = (g.accumulate ? c[s * g.c_col] : 0) + part;
          }
        }
      }
    }
    g.a += kHalfDepth * g.a_col;
    g.b += kHalfDepth * g.b_row;
    g.accumulate = true;
  }
}

// The rows of C from `i` on, so many at most, and a strip of its columns from `j` on.
template <class T>
MB_INLINE void multiply_strip(HalfGemm<T> g, intptr_t i, intptr_t rows, intptr_t j) {
  g.m = g.m - i < rows ? g.m - i : rows;
  g.n = g.n - j < kHalfStrip ? g.n - j : kHalfStrip;
  g.a += i * g.a_row;
  g.b += j * g.b_col;
  g.c += i * g.c_row + j * g.c_col;
  multiply_halves<T, HalfTile<T>::kNative>(g);
}

// The product, strip by strip; by the threads of a call where that pays.
template <class T>
MB_INLINE void gemm(const HalfGemm<T>& g) {
  const intptr_t strips = (g.n + kHalfStrip - 1) / kHalfStrip;
#if MB_THREADS > 1
  if (members_of(g.team) > 1 && int64_t(g.m) * g.n * g.k >= kLeastWork) {
    const intptr_t down = strips < 2 * g.team->members ? 2 : 1;
    const intptr_t rows = (g.m + down * kHalfRows - 1) / (down * kHalfRows) * kHalfRows;
    return for_parts(g.team, g.team->members, strips * down, [&](int32_t part, int32_t) {
      const intptr_t i = part / strips * rows;
      if (i < g.m) multiply_strip(g, i, rows, part % strips * kHalfStrip);
    });
  }
#endif
  for (intptr_t j = 0; j < strips; ++j) multiply_strip(g, 0, g.m, j * kHalfStrip);
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_HALF_GEMM_H_
