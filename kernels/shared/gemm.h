// One strided matrix product for every dense layer and convolution. A is never packed: its elements are broadcast
// through row pointers, whatever its strides. B is read in place when its rows are contiguous and few rows of A use it,
// else packed panel by panel on the stack. Products along a contiguous K (the forward pass of a Linear layer) are dot
// products and pack nothing, or pack the smaller operand. The tiles exist once per vector width and element type; only
// the thin driver multiply() is compiled per packer.
#ifndef MINBUILD_SHARED_GEMM_H_
#define MINBUILD_SHARED_GEMM_H_

#include "shared/gemm_tiles.h"

#ifndef MINBUILD_SMALL_STACK
#define MINBUILD_SMALL_STACK 0  // 1: panels of 2 KB instead of 16 KB, for microcontrollers
#endif

namespace minbuild {

constexpr int kPanelBytes = MINBUILD_SMALL_STACK ? 2048 : 16384;

// Packs a panel of a strided B. Any type with this call operator may stand for B, such as an image under convolution.
template <class T>
struct StridedPacker {
  const T* b;
  intptr_t b_row, b_col;

  // panel[i*width + j] = B(k + i, j0 + j) for i < depth, j < columns. Width is a multiple of
  // 16 bytes; columns from `columns` up to it may be left alone: the caller has zeroed them.
  MB_INLINE void operator()(T* panel, int k, int depth, int j0, int columns, int width) const {
    using V = Width<16>::of<T>;
    const T* at = b + k * b_row + j0 * b_col;
    if (b_col == 1) {
      for (; depth > 0; --depth, at += b_row, panel += width) {
        int j = 0;
        for (; j <= columns - V::size; j += V::size) V::load(at + j).store(panel + j);
        for (; j < columns; ++j) panel[j] = at[j];
      }
      return;
    }
    for (; columns > 0; columns -= V::size, panel += V::size) {
      const T* column[V::size];
      at = point_at_rows(column, at, b_col, columns) + b_col;
      T* to = panel;
      intptr_t offset = 0;
      for (int i = depth; i > 0; --i, to += width, offset += b_row) {
        V x;
        unroll<V::size>([&](auto s) MB_LAMBDA { x.v[int(s)] = column[s][offset]; });
        x.store(to);
      }
    }
  }
};

enum class Walk : uint8_t { kPack, kDirect, kDots };  // how a product reads B

// The product, panel after panel. kDirect: full panels of g.b are read in place. kDots: A and B are contiguous along
// k, and `bytes`, the vector width to use, has dot products. Uses `g` up: it becomes one panel after the other.
template <class T, class Packer>
MB_NOINLINE void multiply(Gemm<T>& g, const Packer& pack, Walk walk, int bytes) {
  constexpr int kPanel = kPanelBytes / int(sizeof(T));
  alignas(16) T panel[kPanel];
  const T *a = g.a, *b = g.b;
  const int n = g.n, depth = g.k;
  const intptr_t b_row = g.b_row;
  const bool accumulate = g.accumulate, dots = walk == Walk::kDots;
  int width = bytes / int(sizeof(T)) * kTileVectors;
  if (dots) width = g.m == 1 ? kOneRowDots : kDotColumns;
  for (int j = 0; j < n; j += width) {
    g.n = n - j < width ? n - j : width;
    bool packs = walk == Walk::kPack || (g.n < width && !dots);
    int deepest = packs ? kPanel / width : depth;
    if (packs && g.n < width) __builtin_memset(panel, 0, sizeof panel);
    g.a = a;
    g.b = b;
    g.b_row = b_row;
    g.accumulate = accumulate;
    int k = 0;
    do {  // at least once: an empty sum is zero
      g.k = depth - k < deepest ? depth - k : deepest;
      if (packs) {
        pack(panel, k, g.k, j, g.n, width);
        g.b = panel;
        g.b_row = width;
      }
      run_at<PanelBody<T>, 64>(bytes, static_cast<const Gemm<T>*>(&g), dots);
      g.a += g.k * g.a_col;
      g.accumulate = true;
      k += deepest;
    } while (k < depth);
    g.c += width * g.c_col;
    b += width * g.b_col;
  }
}

// The product with B seen through a packer; b, b_row and b_col are not read.
template <class T, class Packer>
MB_INLINE void gemm(Gemm<T> g, const Packer& pack) {
  multiply(g, pack, Walk::kPack, vector_bytes());
}

template <class X>
MB_INLINE void exchange(X& x, X& y) {
  X was = x;
  x = y;
  y = was;
}

// Chooses the walk; may take the product from its transpose, C' = B' * A'. Uses `g` up.
template <class T>
MB_NOINLINE void multiply_strided(Gemm<T>& g) {
  int bytes = vector_bytes();
  int lanes = bytes / int(sizeof(T));
  int least = g.m < g.n ? g.m : g.n;
  Walk walk = Walk::kPack;
  bool swap = g.n < g.m && g.n < lanes;
  if (g.a_col == 1 && g.b_row == 1) {
    // Dot products need depth to pay for their last additions, and have no third width.
    if ((bytes > 16 || !MB_DISPATCHES) && (least == 1 || (g.k >= 8 * lanes && (bytes < 64 || least < lanes)))) {
      walk = Walk::kDots;
      if (bytes > 32) bytes = 32;
    } else {
      swap = g.m < g.n;  // pack the smaller
    }
  }
  if (swap) {
    exchange(g.m, g.n);
    exchange(g.a, g.b);
    exchange(g.a_row, g.b_col);
    exchange(g.a_col, g.b_row);
    exchange(g.c_row, g.c_col);
  }
  // Few tiles of rows read a panel too seldom to pay for a copy; many would meet the cache and store-forwarding
  // conflicts of power-of-two rows each time.
  if (walk == Walk::kPack && g.b_col == 1 && g.m <= (bytes == 64 ? 16 : 8)) walk = Walk::kDirect;
  multiply(g, StridedPacker<T>{g.b, g.b_row, g.b_col}, walk, bytes);
}

template <class T>
MB_INLINE void gemm(Gemm<T> g) {
  multiply_strided(g);
}

}  // namespace minbuild
#endif  // MINBUILD_SHARED_GEMM_H_
