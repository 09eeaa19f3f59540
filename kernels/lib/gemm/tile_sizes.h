// A matrix product, and the sizes of the register tiles that compute it (microkernel.h).
#ifndef MINBUILD_LIB_GEMM_TILE_SIZES_H_
#define MINBUILD_LIB_GEMM_TILE_SIZES_H_

#include "lib/simd/vec.h"
#include "lib/threads/parallel.h"

namespace minbuild {

// True where products have rows of A that are no matrix in memory: weights of convolutions that stay in 4, 8 or 16 bits.
#if defined(MB_CONV_DEQUANTIZE)
#define MB_WRITTEN_ROWS (MB_CONV_DEQUANTIZE && MB_SIMD && !MB_ONE_VARIANT)
#else
#define MB_WRITTEN_ROWS 0
#endif
// Writes `count` rows of `depth` elements, one after the other, from where the element `a` would be.
template <class T>
using WriteRows = void (*)(const void* source, T* to, const T* a, intptr_t count, intptr_t depth);

// True where the last panel of a convolution may be half as wide: one vector of AVX-512.
#if defined(MB_CONV_HALF_PANELS) && MINBUILD_AVX512
#define MB_HALF_PANELS MB_CONV_HALF_PANELS
#else
#define MB_HALF_PANELS 0
#endif

// C[m,n] = alpha * A[m,k] * B[k,n], added to C if `accumulate`. Element (i,j) of X is x[i*x_row + j*x_col].
template <class T>
struct Gemm {
  intptr_t m, n, k;
  const T* a;
  intptr_t a_row, a_col;
  const T* b;
  intptr_t b_row, b_col;
  T* c;
  intptr_t c_row, c_col = 1;
  T alpha = 1;
  bool accumulate = false;
#if defined(MB_PRODUCT_TYPES)
  bool wide = false;  // scratch memory has room for wide blocks of columns (block_sizes.h)
#else
  static constexpr bool wide = false;
#endif
#if MB_WRITTEN_ROWS
  WriteRows<T> rows = nullptr;  // for multiply(), of an A that is no matrix in memory
  const void* source = nullptr;
#endif
#if MB_THREADS > 1
  Team* team = nullptr;  // the threads among which packed products are divided; member m packs into scratch + m * share
  int32_t members = 1;
  intptr_t share = 0;
  intptr_t all_rows = 0;  // of the product that this is a part of; 0: it is none
#endif
};

// Register tiles of kTileVectors columns of vectors: as many accumulators as hide the latency of a multiply-add.
// Without vector registers sixteen scalars are what a register file holds.
constexpr int kTileVectors = MB_SIMD && !MB_ONE_VARIANT ? 2 : 1;
// Packed products with vectors of 64 bytes have three, of which registers hold as many sums as need fewer loads: where
// another thread shares the processor, loads and broadcasts are what it is short of.
constexpr int kWideVectors = 3;
constexpr int kMostTileBytes = MINBUILD_AVX512 ? 64 * kWideVectors : 32 * kTileVectors;  // of one row
#if defined(__aarch64__)
constexpr int kMostTileRows = 8;
MB_INLINE constexpr int tile_rows(int) { return 8; }
#elif MB_HELIUM  // six sums and two columns are all eight registers
constexpr int kMostTileRows = 3;
MB_INLINE constexpr int tile_rows(int) { return 3; }
#else
constexpr int kMostTileRows = 4;
MB_INLINE constexpr int tile_rows(int bytes) { return MINBUILD_AVX512 && bytes == 64 ? 8 : 4; }
#endif

// Packed products have taller tiles where registers are left for them: two loads then serve twelve multiply-adds. Only they
// have tiles of AVX-512, all of them tall.
constexpr int kMostPackedRows = MINBUILD_AVX512 || kMostTileRows > 6 ? 8 : 6;
MB_INLINE constexpr int packed_tile_rows(int bytes) { return MB_SIMD && bytes == 32 ? 6 : tile_rows(bytes); }
// True where packed rows are loaded as vectors, of which multiply-adds take one element each. On other processors a load
// broadcasts an element, and products of rows that are contiguous read them in place.
#if defined(__aarch64__)
constexpr bool kRowVectors = true;
#else
constexpr bool kRowVectors = false;
#endif

// True where a width of this library has both.
#if MB_DISPATCHES
constexpr bool kTallerTiles = true;
#else
constexpr bool kTallerTiles = packed_tile_rows(kNativeBytes) != tile_rows(kNativeBytes);
#endif

// True where a step in depth moves the pointers to rows, as loads of single floats of Cortex-M take no index register.
constexpr bool kMovesRows = MB_TIGHT_LOOPS && !MB_SIMD;

// True where rows of a tile are read at distances from the first.
#if defined(__wasm_simd128__)
constexpr bool kRowsApart = !MB_ONE_VARIANT;
#else
constexpr bool kRowsApart = false;
#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_TILE_SIZES_H_
