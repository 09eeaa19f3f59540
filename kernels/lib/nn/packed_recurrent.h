// Recurrent layers of real size: what does not depend on the step before is one product over all time steps, and all
// products are packed (lib/gemm/packed_gemm.h).
#ifndef MINBUILD_LIB_NN_PACKED_RECURRENT_H_
#define MINBUILD_LIB_NN_PACKED_RECURRENT_H_

#include "lib/gemm/packed_gemm.h"
#include "lib/nn/recurrent.h"

namespace minbuild {

// From so many sequences on, products with states read the columns of recurrent weights as rows, which are transposed
// for it once for all steps where they fit the caches. Rows are so many elements longer, as those that lie a power of two
// apart would share a few places of the caches.
constexpr intptr_t kLeastTurned = 5, kMostTurned = intptr_t(1) << 22, kBetween = 16;

// A matrix and how far apart its rows and columns are.
template <class T>
struct Strided {
  const T* at;
  intptr_t row, column;
};

// Products of a layer of real size, packed, and divided among the threads that there is scratch memory for. `Turns`: a
// layer may walk backwards in time, or both ways; without it, nothing is there for that.
template <class T, bool Turns>
struct Products {
  T *packing, *turned = nullptr;
#if MB_THREADS > 1
  int64_t bytes;
  Team* team;
#endif

  // `r`: of a layer whose weights may be transposed, or null.
  MB_INLINE Products(const Call& call, Scratch& scratch, const Recurrence<T>* r = nullptr) {
    if (r && r->batch >= kLeastTurned) {
      const int64_t count = int64_t(r->width + kBetween) * r->hidden;
      if (count * int64_t(sizeof(T)) <= kMostTurned) turned = scratch.take<T>(count);
    }
    packing = scratch.take<T>((kRowBytes + kColumnBytes) / intptr_t(sizeof(T)));
#if MB_THREADS > 1
    bytes = kRowBytes + kColumnBytes + scratch.left;
    team = call.team;
#else
    (void)call;
#endif
  }
  // The directions of a layer, its time at step `k` of a walk, and what belongs to its present direction: of states,
  // and of weights.
  static int directions(const Recurrence<T>& r) { return Turns ? r.directions : 1; }
  static int time(const Recurrence<T>& r, int k) { return Turns && r.reversed() ? r.steps - 1 - k : k; }
  template <class X>
  static MB_INLINE X* own(const Recurrence<T>& r, X* state) {
    return Turns ? r.own(state) : state;
  }
  static const T* recurrent_weights(const Recurrence<T>& r) { return Turns ? r.recurrent_weights() : r.r; }
  // The recurrent weights of the present direction as columns of gates.
  MB_NOINLINE Strided<T> recurrent_columns(const Recurrence<T>& r) const {
    const T* weights = recurrent_weights(r);
    if (!turned) return {weights, 1, r.hidden};
    transpose(weights, r.hidden, turned, r.width + kBetween, r.width, r.hidden);
    return {turned, r.width + kBetween, 1};
  }
  // body(count, first, step, wide, wide_step) for all rows of `steps` times: a `count` of them begin at row `first` of a
  // tensor [steps,N] and at row `wide` of one [steps,D,N], and are as far apart as the steps say.
  template <class Body>
  static MB_INLINE void in_rows(const Recurrence<T>& r, intptr_t steps, const Body& body) {
    const intptr_t batch = r.batch;
    if (!Turns || r.directions == 1) return body(batch * steps, 0, 1, 0, 1);
    const intptr_t wide = r.directions * batch, own = r.direction * batch;
    if (batch <= steps)
      for (intptr_t n = 0; n < batch; ++n) body(steps, n, batch, own + n, wide);
    else
      for (intptr_t t = 0; t < steps; ++t) body(batch, t * batch, 1, t * wide + own, 1);
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
template <class T, bool Turns>
MB_NOINLINE void multiply_inputs(const Forward<T>& f, const Products<T, Turns>& products) {
  const intptr_t width = f.width, features = f.features;
  const T* weights = Turns ? f.weights() : f.w;
  products.in_rows(f, f.steps, [&](intptr_t rows, intptr_t first, intptr_t step, intptr_t wide, intptr_t wide_step) {
    products.multiply({rows, width, features, f.x + first * features, step * features, 1, weights, 1, features,
                       f.gates + wide * width, wide_step * width});
  });
}

// Which gradients of weights are added to: the first product of the others writes them. Sums of the bias start at zero.
template <class T>
MB_NOINLINE void start_gradients(Backward<T>& b, const Call& call) {
  b.adds_w = call.adds(1), b.adds_r = call.adds(2);
  if (b.db && !call.adds(3)) clear_bytes(b.db, call[3].count * sizeof(T));
}

// dr += d' * states before the step, summed over all steps: one product in place of one that reads and writes dr, which
// does not fit the caches, at each; or dr = that. d: [S*N,columns] in rows `row` apart.
template <class T, bool Turns>
MB_NOINLINE void add_recurrent_gradients(const Backward<T>& b, const Products<T, Turns>& products, const T* d,
                                         intptr_t row, T* dr, intptr_t columns) {
  const intptr_t hidden = b.hidden, batch = b.batch;
  const bool back = Turns && b.reversed();
  const T *later = back ? d : d + batch * row, *y = back ? b.y + b.states() : b.y;
  bool adds = b.adds_r;
  if (b.steps > 1)
    products.in_rows(b, b.steps - 1, [&](intptr_t rows, intptr_t first, intptr_t step, intptr_t wide, intptr_t apart) {
      products.multiply({columns, hidden, rows, later + first * row, 1, step * row, y + wide * hidden, apart * hidden,
                         1, dr, hidden, 1, 1, adds});
      adds = true;
    });
  d += products.time(b, 0) * batch * row;
  if (b.h0)
    products.multiply({columns, hidden, batch, d, 1, row, products.own(b, b.h0), hidden, 1, dr, hidden, 1, 1, adds});
  else if (!adds) clear_bytes(dr, columns * hidden * sizeof(T));
}

// Gradients of inputs, their weights and the bias, from those of all gates.
template <class T, bool Turns>
MB_NOINLINE void add_input_gradients(Backward<T>& b, const Products<T, Turns>& products) {
  const intptr_t width = b.width, features = b.features, rows = intptr_t(b.batch) * b.steps;
  const intptr_t direction = Turns ? b.direction : 0;
  const T *d = b.dgates, *weights = b.w + direction * width * features;
  T *dx = b.dx, *dw = b.dw;
  if (dx)
    products.multiply({rows, features, width, d, width, 1, weights, features, 1, dx, features, 1, 1, direction > 0});
  if (dw)
    products.multiply({width, features, rows, d, 1, width, b.x, features, 1, dw + direction * width * features,
                       features, 1, 1, b.adds_w});
#if MB_THREADS > 1
  if (b.db) {
    T* to = b.db + 2 * direction * width;
    return for_ranges(products.team, width, rows * width * int64_t(sizeof(T)), 64, [&](intptr_t first, intptr_t count) {
      const intptr_t second = b.second - first < count ? b.second - first : count;
      for (const T *row = d + first, *end = row + rows * width; row != end; row += width) {
        add_range(to + first, row, int(count));
        if (second > 0) add_range(b.second_bias(int(first)), row, int(second));
      }
    });
  }
#endif
  b.dx = b.dw = nullptr;
  b.inputs();  // the bias
  if (Turns) b.dx = dx, b.dw = dw;
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PACKED_RECURRENT_H_
