// A layer of units that see the inputs and their own outputs of the step before, and its gradients.
#include "lib/nn/recurrent.h"

namespace minbuild {

constexpr bool kAny = MB_RNN_ACTIVATIONS;

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
    activate_limited<T, kAny>(f.activations[0], row, hidden, f.limit);
    copy_bytes(h, row, hidden * sizeof(T));
  }
}

// y, h; x, w, r, bias, lengths, h0; scratch
template <class T>
Status rnn(const Call& call) {
  Forward<T> f;
  Status status = f.read(&call[2], call.params, 1, 1);
  if (status != Status::kOk) return status;
  Scratch scratch(call[8]);
  f.gates = scratch.of<T>(call[0], f.states() * f.steps);
  f.h = scratch.of<T>(call[1], f.states());
  if (!f.gates || !f.h) return Status::kBadPlan;
  f.y = nullptr;
  f.cell = rnn_cell<T>;
  f.run(nullptr);
  return Status::kOk;
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
    multiply_by_limited_slope<T, kAny>(b.activations[0], y, d, hidden, b.limit);
    clear_bytes(dh, hidden * sizeof(T));
  }
}

// dx, dw, dr, db, dh0; x, w, r, bias, lengths, h0; y, dy, dy_last; scratch
template <class T>
Status rnn_grad(const Call& call) {
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
  b.clear(call);
  b.cell = rnn_cell_grad<T>;
  b.run(nullptr);
  return Status::kOk;
}

MB_INSTANTIATE_RNN

}  // namespace minbuild
