// Shared by RNN, GRU and LSTM: sizes, directions and lengths, the products over all time steps, and the walk through
// time, forwards and backwards. A cell brings what happens in one time step.
//
// x: [S,N,I]  w: [D,G*H,I]  r: [D,G*H,H]  bias: [D,2*G*H]  lengths: [N]  states: [D,N,H]  y: [S,D,N,H]
// gates: [S,D,N,G*H]
// S time steps, N sequences, D directions, H units, G gates per unit.
#ifndef MINBUILD_LIB_NN_RECURRENT_H_
#define MINBUILD_LIB_NN_RECURRENT_H_

#include "lib/nn/activation.h"
#include "lib/loops/blas1.h"
#include "lib/gemm/gemm.h"

namespace minbuild {

// Scratch memory handed out piece by piece, for what a call does not name.
struct Scratch {
  char* at;
  int64_t left;

  explicit Scratch(const Tensor& bytes) : at(bytes.scratch<char>()), left(bytes.count) {}

  // The tensor's own memory or a piece of the room; null where neither has `count` elements.
  template <class T>
  MB_INLINE T* of(const Tensor& tensor, int64_t count) {
    if (tensor) return tensor.count == count ? tensor.as<T>() : nullptr;
    return take<T>(count);
  }
  template <class T>
  MB_INLINE T* take(int64_t count) {
    char* piece = at;
    left -= count * int64_t(sizeof(T));
    if (left < 0) return nullptr;
    at += count * sizeof(T);
    return reinterpret_cast<T*>(piece);
  }
};

template <class T>
struct ProductBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* a, const T* b) {
    (V::load(a + i) * V::load(b + i)).store(y + i);
  }
};
template <class T>
struct AddProductBody {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* a, const T* b) {
    muladd(V::load(a + i), V::load(b + i), V::load(y + i)).store(y + i);
  }
};

// y = a * b and y += a * b, element by element.
template <class T>
MB_NOINLINE void multiply_range(T* y, const T* a, const T* b, int count) {
  for_range<kBaseline, T, ProductBody<T>>(count, y, a, b);
}
template <class T>
MB_NOINLINE void add_product(T* y, const T* a, const T* b, int count) {
  for_range<kBaseline, T, AddProductBody<T>>(count, y, a, b);
}

enum Direction : int32_t { kForward, kReverse, kBidirectional };

template <class T>
struct Recurrence {
  int steps, batch, features, hidden, width, directions;  // width: of a row of gates
  int recurrent;                                          // how many of its columns are a plain product with the state
  Direction course;
  const int32_t* lengths;
  const T *x, *w, *r, *bias, *h0;
  const int32_t* words;  // limit of what goes into activations, then the activations of each direction
  int functions;         // activations of one direction
  Activation activations[3];
  float limit;
  int direction, t;  // where the walk is
#if MB_THREADS > 1
  int first = 0, later = 0;  // sequences before and after those of a part (packed_recurrent.h)
  int begin() const { return first; }
  int end() const { return batch - later; }
#else
  static constexpr int begin() { return 0; }
  int end() const { return batch; }
#endif

  bool reversed() const { return course == kReverse || direction == 1; }
  int64_t states() const { return int64_t(directions) * batch * hidden; }
  // Where a tensor with a row of `size` per sequence begins at the present time and direction.
  MB_INLINE intptr_t place(int size) const { return (intptr_t(t) * directions + direction) * batch * size; }
  // True if sequence n has ended, or has not begun when walking from the end.
  bool pads(int n) const { return lengths && t >= lengths[n]; }
  // True if the state before the present step is the initial one.
  bool begins(int n) const {
    if (!reversed()) return t == 0;
    return t + 1 == steps || (lengths && t + 1 >= lengths[n]);
  }

  // params: course, limit, activations.
  MB_NOINLINE Status read(const Tensor* tensors, const int32_t* params, int gates, int count) {
    const Tensor &x_ = tensors[0], &w_ = tensors[1], &r_ = tensors[2], &b_ = tensors[3];
    const Tensor &l_ = tensors[4], &h_ = tensors[5];
    course = Direction(params[0]);
    if (unsigned(course) > kBidirectional || x_.rank != 3 || w_.rank != 3 || r_.rank != 3) return Status::kBadPlan;
    directions = course == kBidirectional ? 2 : 1;
    steps = x_.dims[0], batch = x_.dims[1], features = x_.dims[2], hidden = r_.dims[2], width = w_.dims[1];
    recurrent = width;
    constexpr unsigned kMost = 1 << 21;  // so that no product of sizes overflows
    if (unsigned(steps | batch) >= kMost || hidden < 1) return Status::kTooLarge;
    if (w_.dims[0] != directions || r_.dims[0] != directions || w_.dims[2] != features || r_.dims[1] != width ||
        int64_t(hidden) * gates != width)
      return Status::kBadPlan;
    if ((b_ && b_.count != int64_t(2) * directions * width) || (h_ && h_.count != states())) return Status::kBadPlan;
    if (l_ && l_.count != batch) return Status::kBadPlan;
    x = x_.as<T>(), w = w_.as<T>(), r = r_.as<T>(), bias = b_.as<T>(), h0 = h_.as<T>(), lengths = l_.as<int32_t>();
    if (lengths)
      for (int n = 0; n < batch; ++n)
        if (lengths[n] < 0 || lengths[n] > steps) return Status::kBadValue;
    __builtin_memcpy(&limit, params + 1, sizeof limit);
    words = params + 2;
    functions = count;
    return Status::kOk;
  }

  MB_NOINLINE void turn(int to) {
    direction = to;
    for (int i = 0; i < functions; ++i)
      copy_bytes(activations + i, words + (to * functions + i) * 3, sizeof(Activation));
  }
  const T* weights() const { return w + intptr_t(direction) * width * features; }
  const T* recurrent_weights() const { return r + intptr_t(direction) * width * hidden; }
  // The part of a tensor of states that belongs to the direction.
  template <class X>
  MB_INLINE X* own(X* state) const {
    return state + intptr_t(direction) * batch * hidden;
  }
  // state = initial, or zero
  MB_NOINLINE void start(T* state, const T* initial) const {
    const size_t bytes = size_t(batch) * hidden * sizeof(T);
    if (!initial) return clear_bytes(own(state), bytes);
    if (own(initial) != own(state)) copy_bytes(own(state), own(initial), bytes);
  }
};

template <class T>
struct Forward : Recurrence<T> {
  T *gates, *y, *h;  // y: null if nobody wants it
  void (*cell)(Forward<T>& f, T* gates, T* h);

  // Adds both biases to the first `second` columns, only the first one to the others.
  MB_INLINE void add_bias(T* row, int second) const {
    if (!this->bias) return;
    const T* bias = this->bias + 2 * intptr_t(this->direction) * this->width;
    add_range(row, bias, this->width);
    add_range(row, bias + this->width, second);
  }
  MB_INLINE T* output(int n) const { return y + this->place(this->hidden) + intptr_t(n) * this->hidden; }

  // Writes the row of a sequence that is over.
  MB_NOINLINE void pad(T* row, int n) const {
    clear_bytes(row, this->width * sizeof(T));
    if (y) clear_bytes(output(n), this->hidden * sizeof(T));
  }
  MB_NOINLINE void put(const T* state, int n) const {
    if (y) copy_bytes(output(n), state, this->hidden * sizeof(T));
  }

  // `start` is called at the beginning of each direction, unless it is null.
  MB_NOINLINE void run(void (*start)(Forward<T>&)) {
    const int once = this->directions == 1 ? this->steps : 1, rows = this->batch * once;
    const int width = this->width, features = this->features, hidden = this->hidden;
    for (int d = 0; d < this->directions; ++d) {
      this->turn(d);
      for (int t = 0; t < this->steps; t += once) {  // one product for all steps, unless directions alternate
        this->t = t;
        const T* x = this->x + intptr_t(t) * this->batch * features;
        gemm(Gemm<T>{rows, width, features, x, features, 1, this->weights(), 1, features, gates + this->place(width),
                     width});
      }
      this->start(h, this->h0);
      if (start) start(*this);
      for (int k = 0; k < this->steps; ++k) {
        this->t = this->reversed() ? this->steps - 1 - k : k;
        T *now = gates + this->place(width), *state = this->own(h);
        Gemm<T> product = {this->batch, this->recurrent, hidden, state, hidden, 1, this->recurrent_weights(),
                           1,           hidden,          now,    width};
        product.accumulate = true;
        gemm(product);
        cell(*this, now, state);
      }
    }
  }
};

template <class T>
struct Backward : Recurrence<T> {
  T *dx, *dw, *dr, *db, *dh;          // gradients; all but dh may be null
  const T *y, *gates, *dy, *dy_last;  // dy, dy_last: null where nothing flows
  T *dgates, *before;                 // [S,N,G*H] of what goes into activations, [N,H] states before the step
  int second;                         // columns of gates that the second bias has in common with the first
  bool adds_w, adds_r;                // packed layers: dw and dr hold sums already
  void (*cell)(Backward<T>& b, const T* gates, T* dgates, T* dh);

  // to = the states before the present step
  MB_NOINLINE void earlier(T* to, const T* all, const T* initial) const {
    const int hidden = this->hidden, step = this->reversed() ? 1 : -1;
    const T* from = all + this->place(hidden) + step * intptr_t(this->directions) * this->batch * hidden;
    const intptr_t before = intptr_t(this->begin()) * hidden;
    to += before, from += before;
    for (int n = this->begin(); n < this->end(); ++n, to += hidden, from += hidden) {
      if (!this->begins(n)) copy_bytes(to, from, hidden * sizeof(T));
      else if (initial) copy_bytes(to, this->own(initial) + intptr_t(n) * hidden, hidden * sizeof(T));
      else clear_bytes(to, hidden * sizeof(T));
    }
  }

  // dh += d * r and dr += d' * h for the rows of r from `column` on that belong to `columns` columns d with rows `row`
  // apart.
  MB_NOINLINE void flow(const T* d, int row, int column, int columns, const T* h, T* dh) const {
    const int hidden = this->hidden, batch = this->batch;
    const intptr_t part = intptr_t(column) * hidden;
    if (dh) {
      Gemm<T> product = {batch, hidden, columns, d, row, 1, this->recurrent_weights() + part, hidden, 1, dh, hidden};
      product.accumulate = true;
      gemm(product);
    }
    if (h && dr) {
      T* to = dr + intptr_t(this->direction) * this->width * hidden + part;
      Gemm<T> product = {columns, hidden, batch, d, 1, row, h, hidden, 1, to, hidden};
      product.accumulate = true;
      gemm(product);
    }
  }
  // Where the gradients of the second bias are, from `column` on; null if nobody wants them.
  T* second_bias(int column) const {
    return db ? db + (2 * this->direction + 1) * intptr_t(this->width) + column : nullptr;
  }

  MB_NOINLINE void step() {
    const int hidden = this->hidden, batch = this->batch, width = this->width;
    T *d = dgates + intptr_t(this->t) * batch * width, *state = this->own(dh);
    earlier(before, y, this->h0);
    for (int n = 0; n < batch; ++n)
      if (dy && !this->pads(n)) add_range(state + n * hidden, dy + this->place(hidden) + n * hidden, hidden);
    cell(*this, gates + this->place(width), d, state);
    flow(d, width, 0, this->recurrent, before, state);
  }

  MB_NOINLINE void inputs() {
    const int rows = this->steps * this->batch, width = this->width, features = this->features;
    if (dx) {
      Gemm<T> product = {rows, features, width, dgates, width, 1, this->weights(), features, 1, dx, features};
      product.accumulate = this->direction > 0;
      gemm(product);
    }
    if (dw) {
      T* to = dw + intptr_t(this->direction) * width * features;
      Gemm<T> product = {width, features, rows, dgates, 1, width, this->x, features, 1, to, features};
      product.accumulate = true;
      gemm(product);
    }
    if (db)
      for (int i = 0; i < rows; ++i) {
        const T* row = dgates + intptr_t(i) * width;
        add_range(db + 2 * this->direction * intptr_t(width), row, width);
        add_range(second_bias(0), row, second);
      }
  }

  MB_NOINLINE void run(void (*start)(Backward<T>&)) {
    for (int d = 0; d < this->directions; ++d) {
      this->turn(d);
      this->start(dh, dy_last);
      if (start) start(*this);
      for (int k = this->steps - 1; k >= 0; --k) {
        this->t = this->reversed() ? this->steps - 1 - k : k;
        step();
      }
      inputs();
    }
  }

  // outputs: dx, dw, dr, db; given: y, gates, dy, dy_last. False if sizes are not what they should be.
  MB_NOINLINE bool bind(const Call& call, const Tensor* given) {
    const int64_t all = this->states() * this->steps, rows = int64_t(this->directions) * this->width;
    const int64_t sizes[] = {int64_t(this->steps) * this->batch * this->features, rows * this->features,
                             rows * this->hidden, 2 * rows};
    for (int i = 0; i < 4; ++i)
      if (call[i] && call[i].count != sizes[i]) return false;
    if (given[0].count != all || given[1].count != rows * this->steps * this->batch ||
        (given[2] && given[2].count != all) || (given[3] && given[3].count != this->states()))
      return false;
    dx = call[0].as<T>(), dw = call[1].as<T>(), dr = call[2].as<T>(), db = call[3].as<T>();
    y = given[0].as<T>(), gates = given[1].as<T>(), dy = given[2].as<T>(), dy_last = given[3].as<T>();
    second = this->width;
    return true;
  }
  // Sums start at zero.
  MB_NOINLINE void clear(const Call& call) const {
    for (int i = 1; i < 4; ++i)
      if (call[i] && !call.adds(i)) clear_bytes(call[i].data, call[i].count * sizeof(T));
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_RECURRENT_H_
