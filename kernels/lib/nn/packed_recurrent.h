// Recurrent layers of real size, forwards in time: what does not depend on the step before is one product over all time
// steps, and all products are packed (lib/gemm/packed_gemm.h).
#ifndef MINBUILD_LIB_NN_PACKED_RECURRENT_H_
#define MINBUILD_LIB_NN_PACKED_RECURRENT_H_

#include "lib/gemm/packed_gemm.h"
#include "lib/nn/recurrent.h"

namespace minbuild {

// Products of a layer of real size, packed, and divided among the threads that there is scratch memory for.
template <class T>
struct Products {
  T* packing;
#if MB_THREADS > 1
  int64_t bytes;
  Team* team;
#endif

  MB_INLINE Products(const Call& call, Scratch& scratch) {
    packing = scratch.take<T>((kRowBytes + kColumnBytes) / intptr_t(sizeof(T)));
#if MB_THREADS > 1
    bytes = kRowBytes + kColumnBytes + scratch.left;
    team = call.team;
#else
    (void)call;
#endif
  }
  MB_NOINLINE void multiply(Gemm<T> g) const {
#if MB_THREADS > 1
    divide_among(g, team, bytes);
#endif
    gemm_at(g, packing);
  }
  // body(layer) for the sequences of a layer: parts have some of them each, if it `divides`.
  template <class Layer, class Body>
  MB_INLINE void in_sequences(Layer& layer, [[maybe_unused]] bool divides, const Body& body) const {
#if MB_THREADS > 1
    const int64_t size = int64_t(layer.batch) * layer.width * sizeof(T);
    if (divides)
      return for_ranges(team, layer.batch, size, 1, [&](intptr_t first, intptr_t count) {
        Layer some = layer;
        some.first = int(first), some.later = int(layer.batch - first - count);
        body(some);
      });
#endif
    body(layer);
  }
};

// Gates of all steps = x * W'
template <class T>
MB_NOINLINE void multiply_inputs(const Forward<T>& f, const Products<T>& products) {
  const intptr_t width = f.width, features = f.features, rows = intptr_t(f.batch) * f.steps;
  products.multiply({rows, width, features, f.x, features, 1, f.w, 1, features, f.gates, width});
}

// dr += d' * states before the step, summed over all steps: one product in place of one that reads and writes dr, which
// does not fit the caches, at each. d: [S*N,columns] in rows `row` apart.
template <class T>
MB_NOINLINE void add_recurrent_gradients(const Backward<T>& b, const Products<T>& products, const T* d, intptr_t row,
                                         T* dr, intptr_t columns) {
  const intptr_t hidden = b.hidden, batch = b.batch, rows = batch * b.steps;
  const T* later = d + batch * row;
  if (b.steps > 1)
    products.multiply({columns, hidden, rows - batch, later, 1, row, b.y, hidden, 1, dr, hidden, 1, 1, true});
  if (b.h0) products.multiply({columns, hidden, batch, d, 1, row, b.h0, hidden, 1, dr, hidden, 1, 1, true});
}

// Gradients of inputs, their weights and the bias, from those of all gates.
template <class T>
MB_NOINLINE void add_input_gradients(Backward<T>& b, const Products<T>& products) {
  const intptr_t width = b.width, features = b.features, rows = intptr_t(b.batch) * b.steps;
  const T* d = b.dgates;
  if (b.dx) products.multiply({rows, features, width, d, width, 1, b.w, features, 1, b.dx, features});
  if (b.dw) products.multiply({width, features, rows, d, 1, width, b.x, features, 1, b.dw, features, 1, 1, true});
  b.dx = b.dw = nullptr;
#if MB_THREADS > 1
  if (b.db)
    return for_ranges(products.team, width, rows * width * int64_t(sizeof(T)), 64, [&](intptr_t first, intptr_t count) {
      const intptr_t second = b.second - first < count ? b.second - first : count;
      for (const T *row = d + first, *end = row + rows * width; row != end; row += width) {
        add_range(b.db + first, row, int(count));
        if (second > 0) add_range(b.second_bias(int(first)), row, int(second));
      }
    });
#endif
  b.inputs();  // the bias
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PACKED_RECURRENT_H_
