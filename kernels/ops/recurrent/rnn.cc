// A layer of units that see the inputs and their own outputs of the step before, and its gradients.
#include "lib/nn/packed_recurrent.h"

namespace minbuild {

constexpr bool kRnnAny = MB_RNN_ACTIVATIONS, kRnnTurns = MB_RNN_DIRECTIONS;

// gates: what the activation makes of them is the output, so they are computed in its place.
template <class T>
void rnn_cell(Forward<T>& f, T* row, T* h) {
  const int hidden = f.hidden;
  for (int n = 0; n < f.batch; ++n, row += hidden, h += hidden) {
    if (f.pads(n)) {
      f.pad(row, n);
      continue;
    }
    f.add_bias(row, hidden);
    activate_limited<T, kRnnAny>(f.activations[0], row, hidden, f.limit);
    copy_bytes(h, row, hidden * sizeof(T));
  }
}

// All steps of a layer of real size.
template <class T>
MB_NOINLINE void rnn_steps(Forward<T>& f, const Products<T, kRnnTurns>& products) {
  const intptr_t hidden = f.hidden, batch = f.batch;
  for (int d = 0; d < products.directions(f); ++d) {
    f.turn(d);
    multiply_inputs(f, products);
    f.start(f.h, f.h0);
    const Strided<T> weights = products.recurrent_columns(f);
    for (int k = 0; k < f.steps; ++k) {
      f.t = products.time(f, k);
      T *now = f.gates + f.place(f.width), *h = products.own(f, f.h);
      products.multiply(
          {batch, hidden, hidden, h, hidden, 1, weights.at, weights.row, weights.column, now, hidden, 1, 1, true});
      rnn_cell<T>(f, now, h);
    }
  }
}

// y, h; x, w, r, bias, lengths, h0; scratch
template <class T, bool Packed>
MB_INLINE Status rnn_of(const Call& call) {
  Forward<T> f;
  Status status = f.read(&call[2], call.params, 1, 1);
  if (status != Status::kOk) return status;
  Scratch scratch(call[8]);
  f.gates = scratch.of<T>(call[0], f.states() * f.steps);
  f.h = scratch.of<T>(call[1], f.states());
  if (!f.gates || !f.h) return Status::kBadPlan;
  f.y = nullptr;
  if constexpr (Packed) {
    const Products<T, kRnnTurns> products(call, scratch, &f);
    if (!products.packing || (!kRnnTurns && f.course != kForward)) return Status::kBadPlan;
    rnn_steps(f, products);
    return Status::kOk;
  }
  f.cell = rnn_cell<T>;
  f.run(nullptr);
  return Status::kOk;
}

template <class T>
Status rnn(const Call& call) {
  return rnn_of<T, false>(call);
}

// The same for sizes that ask for packing.
template <class T>
Status rnn_packed(const Call& call) {
  return rnn_of<T, true>(call);
}

template <class T>
void rnn_cell_grad(Backward<T>& b, const T* y, T* d, T* dh) {
  const int hidden = b.hidden;
  for (int n = 0; n < b.batch; ++n, y += hidden, d += hidden, dh += hidden) {
    if (b.pads(n)) {
      clear_bytes(d, hidden * sizeof(T));
      continue;
    }
    copy_bytes(d, dh, hidden * sizeof(T));
    multiply_by_limited_slope<T, kRnnAny>(b.activations[0], y, d, hidden, b.limit);
    clear_bytes(dh, hidden * sizeof(T));
  }
}

// All steps of a layer of real size.
template <class T>
MB_NOINLINE void rnn_steps_grad(Backward<T>& b, const Products<T, kRnnTurns>& products) {
  const intptr_t hidden = b.hidden, batch = b.batch;
  for (int direction = 0; direction < products.directions(b); ++direction) {
    b.turn(direction);
    b.start(b.dh, b.dy_last);
    const T* weights = products.recurrent_weights(b);
    T* dh = products.own(b, b.dh);
    for (int k = b.steps - 1; k >= 0; --k) {
      b.t = products.time(b, k);
      T* d = b.dgates + b.t * batch * hidden;
      if (b.dy) add_range(dh, b.dy + b.place(b.hidden), int(batch * hidden));
      rnn_cell_grad<T>(b, b.gates + b.place(b.width), d, dh);
      products.multiply({batch, hidden, hidden, d, hidden, 1, weights, hidden, 1, dh, hidden, 1, 1, true});
    }
    if (b.dr) add_recurrent_gradients(b, products, b.dgates, hidden, b.dr + direction * hidden * hidden, hidden);
    add_input_gradients(b, products);
  }
}

// dx, dw, dr, db, dh0; x, w, r, bias, lengths, h0; y, dy, dy_last; scratch
template <class T, bool Packed>
MB_INLINE Status rnn_grad_of(const Call& call) {
  Backward<T> b;
  Status status = b.read(&call[5], call.params, 1, 1);
  if (status != Status::kOk) return status;
  const Tensor given[] = {call[11], call[11], call[12], call[13]};
  Scratch scratch(call[14]);
  if (!b.bind(call, given)) return Status::kBadPlan;
  b.dh = scratch.of<T>(call[4], b.states());
  b.dgates = scratch.take<T>(int64_t(b.steps) * b.batch * b.width);
  b.before = scratch.take<T>(int64_t(b.batch) * b.hidden);
  if (!b.dh || !b.dgates || !b.before) return Status::kBadPlan;
  if constexpr (Packed) start_gradients(b, call);
  else b.clear(call);
  if constexpr (Packed) {
    const Products<T, kRnnTurns> products(call, scratch);
    if (!products.packing || (!kRnnTurns && b.course != kForward) || b.lengths) return Status::kBadPlan;
    rnn_steps_grad(b, products);
    return Status::kOk;
  }
  b.cell = rnn_cell_grad<T>;
  b.run(nullptr);
  return Status::kOk;
}

template <class T>
Status rnn_grad(const Call& call) {
  return rnn_grad_of<T, false>(call);
}

// The same for sizes that ask for packing, without lengths.
template <class T>
Status rnn_grad_packed(const Call& call) {
  return rnn_grad_of<T, true>(call);
}

MB_INSTANTIATE_RNN

}  // namespace minbuild
