// Matrix products of real size, in the way that suits their sizes: packed (packed_blocks.h), or with B in place
// (few_rows.h); in parts, where threads share them (product_parts.h).
#ifndef MINBUILD_LIB_GEMM_PACKED_GEMM_H_
#define MINBUILD_LIB_GEMM_PACKED_GEMM_H_

#include "lib/gemm/product_parts.h"

namespace minbuild {

// With fewer rows or columns packing costs more than it saves; with a few more rows too, where wide vectors read rows of
// B in place. Without those, and where columns of a B that is near are contiguous, it is packed for less.
constexpr intptr_t kFewest = 16, kFewRows = MB_DISPATCHES ? 24 : kFewest, kLeastRows = 4;

// Prepares a product of a call for the scratch memory of its kernel: threads share it, and blocks of columns are wide
// where there is room for those of all threads. False if it is not enough.
template <class T, class Call, class Tensor>
MB_NOINLINE bool take_scratch(Gemm<T>& g, const Call& call, const Tensor* scratch) {
  intptr_t members = 1;
#if MB_THREADS > 1
  members = members_of(call.team);
#endif
  const auto needed = [&]() MB_LAMBDA { return Blocks<T>(g, widest_bytes()).elements(g) * intptr_t(sizeof(T)); };
  if (g.k < 1) return true;
  g.wide = true;
  g.wide = needed() * members <= scratch->count;
  if (needed() > scratch->count) return false;
#if MB_THREADS > 1
  divide_among(g, call.team, scratch->count);
#else
  (void)call;
#endif
  return true;
}

// True of few rows of a transposed A that are copied to scratch memory, as rows, where columns of B would be: they are dot
// products with those.
template <class T>
MB_NOINLINE bool turns_rows(const Gemm<T>& g) {
  Gemm<T> turned = g;
  turned.a_col = 1;
  return g.m < kFewRows && g.m >= kLeastRows && g.a_row == 1 && g.a_col != 1 && takes_dots(turned, vector_bytes()) &&
         g.m * g.k <= Blocks<T>(g, vector_bytes()).at_most(g.n, kColumnBytes / intptr_t(sizeof(T)));
}

// True if the product is packed; else it goes as it suits its sizes.
template <class T>
MB_NOINLINE bool takes_packing(const Gemm<T>& g) {
  if (g.k < 1 || g.n < kFewest) return false;
  if (g.k <= kFewest || g.m >= (g.b_row == 1 && !is_far(g) ? kFewest : kFewRows)) return true;
  return g.m >= kLeastRows && !takes_rows(g) && !takes_dots(g, vector_bytes()) && !turns_rows(g);
}

// True of outer products, such as gradients of weights at batch 1: C is written once, along its rows.
template <class T>
MB_INLINE bool is_outer(const Gemm<T>& g) {
  return g.k == 1 && takes_rows(g);
}

// The product, packed or as it suits its sizes; `scratch` has what Blocks says, kRowBytes + kColumnBytes at most.
// `start`: as in TileSteps, of a product that takes packing.
template <class T>
MB_NOINLINE void gemm_at(const Gemm<T>& g, T* scratch, const T* start = nullptr) {
  if (is_outer(g) && !start) return add_rows_in_parts(g);
  if (takes_packing(g))
    return multiply_in_parts<T>(g, widest_bytes(), scratch, pack_columns<T>, &g, start, costs_of(g, widest_bytes()));
  Gemm<T> product = g;
  if (g.k < 1 || g.n < kFewest) return multiply_narrow_in_parts(product);
  if (turns_rows(g)) {
    transpose(g.a, g.a_col, scratch, g.k, g.k, g.m);
    product.a = scratch, product.a_row = g.k, product.a_col = 1;
  }
  multiply_few_in_parts(product);
}

// The same in the scratch memory of a kernel.
template <class T, class Tensor>
MB_INLINE void gemm_in(const Gemm<T>& g, const Tensor* scratch, const T* start = nullptr) {
  gemm_at(g, scratch->template scratch<T>(), start);
}

// The functions that packed_gemm.cc compiles for all kernels of a library with packed products: to compile them again in
// each file takes longer than the rest of most files. `kind`: template, or extern template.
#if MB_THREADS > 1
#define MB_PRODUCTS_IN_PARTS(kind, T)                                                \
  kind void divide_among(Gemm<T>&, Team*, int64_t, intptr_t);                        \
  kind Partition partition_of(const Gemm<T>&, int, int32_t, const PartCosts&, bool); \
  kind void multiply_in_parts<T>(const Gemm<T>&, int, T*, PackPanels<T>, const void*, const T*, const PartCosts&);
#else
#define MB_PRODUCTS_IN_PARTS(kind, T)
#endif
#if MB_ONE_VARIANT
#define MB_STRIDED_PRODUCTS(kind, T)
#else
#define MB_STRIDED_PRODUCTS(kind, T) kind void multiply_strided(Gemm<T>&);
#endif
#define MB_PACKED_PRODUCTS(kind, T)                                                            \
  MB_PRODUCTS_IN_PARTS(kind, T)                                                                \
  MB_STRIDED_PRODUCTS(kind, T)                                                                 \
  kind void gemm_at(const Gemm<T>&, T*, const T*);                                             \
  kind void multiply_packed<T>(const Gemm<T>&, int, T*, PackPanels<T>, const void*, const T*); \
  kind void multiply_panel<T, TileSteps<T>>(const Gemm<T>&, int, T*, const TileSteps<T>&);     \
  kind void multiply_panel<T>(const Gemm<T>&, int, T*);                                        \
  kind void multiply<T>(const Gemm<T>&, int, bool, Pack<T>, const void*);                      \
  kind void multiply_few(const Gemm<T>&, bool);                                                \
  kind void add_rows(Gemm<T>);                                                                 \
  kind void pack_columns<T>(const void*, T*, int, int, int, int, int, PanelCopies<T>*);        \
  kind void pack_strided<T>(const void*, T*, int, int, int, int, int);
#if defined(MB_PRODUCT_TYPES)
#define MB_DECLARE_PRODUCTS(T) MB_PACKED_PRODUCTS(extern template, T)
MB_PRODUCT_TYPES(MB_DECLARE_PRODUCTS)
#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PACKED_GEMM_H_
