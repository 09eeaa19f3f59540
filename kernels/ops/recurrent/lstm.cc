// Long short-term memory and its gradients. A row of gates holds i (input), o (output), f (forget) and the candidate g.
#include "lib/nn/packed_recurrent.h"

namespace minbuild {

constexpr bool kLstmAny = MB_LSTM_ACTIVATIONS, kLstmTurns = MB_LSTM_DIRECTIONS;

// c = f * c + i * g
template <class T>
struct MemoryBody {
  template <class V>
  static MB_INLINE void step(int k, T* c, const T* f, const T* i, const T* g) {
    muladd(V::load(f + k), V::load(c + k), V::load(i + k) * V::load(g + k)).store(c + k);
  }
};
template <class T>
struct OneMinusBody {
  template <class V>
  static MB_INLINE void step(int k, T* f, const T* i) {
    (V(T(1)) - V::load(i + k)).store(f + k);
  }
};

template <class T>
struct Lstm : Forward<T> {
  bool coupled;  // f = 1 - i
  T *c, *cells;  // [D,N,H]; [S,D,N,H] or null
  const T *c0, *peepholes;
};

template <class T>
void lstm_start(Forward<T>& forward) {
  Lstm<T>& l = static_cast<Lstm<T>&>(forward);
  l.start(l.c, l.c0);
}

// i = a(x Wi + h Ri + Pi * c + b), f and g alike (g without c); c = f * c + i * g; o = a(... + Po * c); h = o * a(c)
template <class T>
void lstm_cell(Forward<T>& forward, T* row, T* h) {
  Lstm<T>& l = static_cast<Lstm<T>&>(forward);
  const int hidden = l.hidden;
  const T* peepholes = MB_LSTM_PEEPHOLES && l.peepholes ? l.peepholes + intptr_t(3 * l.direction) * hidden : nullptr;
  T *c = l.own(l.c), *kept = l.cells + (l.cells ? l.place(hidden) : 0);
  const intptr_t before = intptr_t(l.begin()) * hidden;
  row += 4 * before, h += before, c += before, kept += l.cells ? before : 0;
  for (int n = l.begin(); n < l.end(); ++n, row += l.width, h += hidden, c += hidden, kept += l.cells ? hidden : 0) {
    if (l.pads(n)) {
      l.pad(row, n);
      if (l.cells) clear_bytes(kept, hidden * sizeof(T));
      continue;
    }
    T *i = row, *o = row + hidden, *f = row + 2 * hidden, *g = row + 3 * hidden;
    l.add_bias(row, l.width);
    if (MB_LSTM_PEEPHOLES && peepholes) {
      add_product(i, peepholes, c, hidden);
      add_product(f, peepholes + 2 * hidden, c, hidden);
      activate_limited<T, kLstmAny>(l.activations[0], i, hidden, l.limit);
      activate_limited<T, kLstmAny>(l.activations[0], f, hidden, l.limit);
    } else {
      activate_limited<T, kLstmAny>(l.activations[0], i, 3 * hidden, l.limit);
    }
    activate_limited<T, kLstmAny>(l.activations[1], g, hidden, l.limit);
    if (l.coupled) for_range<kBaseline, T, OneMinusBody<T>>(hidden, f, i);
    for_range<kBaseline, T, MemoryBody<T>>(hidden, c, f, i, g);
    if (MB_LSTM_PEEPHOLES && peepholes) {
      add_product(o, peepholes + hidden, c, hidden);
      activate_limited<T, kLstmAny>(l.activations[0], o, hidden, l.limit);
    }
    copy_bytes(h, c, hidden * sizeof(T));
    activate<T, kLstmAny>(l.activations[2], h, hidden);
    multiply_range(h, h, o, hidden);
    l.put(h, n);
    if (l.cells) copy_bytes(kept, c, hidden * sizeof(T));
  }
}

// All steps of a layer of real size.
template <class T>
MB_NOINLINE void lstm_steps(Lstm<T>& l, const Products<T, kLstmTurns>& products) {
  const intptr_t width = l.width, hidden = l.hidden, batch = l.batch;
  for (int d = 0; d < products.directions(l); ++d) {
    l.turn(d);
    multiply_inputs(l, products);
    l.start(l.h, l.h0);
    lstm_start<T>(l);
    const Strided<T> weights = products.recurrent_columns(l);
    for (int k = 0; k < l.steps; ++k) {
      l.t = products.time(l, k);
      T *now = l.gates + l.place(l.width), *h = products.own(l, l.h);
      products.multiply(
          {batch, width, hidden, h, hidden, 1, weights.at, weights.row, weights.column, now, width, 1, 1, true});
      products.in_sequences(l, true, [&](Lstm<T>& some) { lstm_cell<T>(some, now, h); });
    }
  }
}

// y, h, c, cells, gates; x, w, r, bias, lengths, h0; c0, peepholes; scratch. params: coupled, then as everywhere.
template <class T, bool Packed>
MB_INLINE Status lstm_of(const Call& call) {
  Lstm<T> l;
  Status status = l.read(&call[5], call.params + 1, 4, 3);
  if (status != Status::kOk) return status;
  const int64_t states = l.states(), all = states * l.steps;
  const Tensor &c0 = call[11], &peepholes = call[12];
  Scratch scratch(call[13]);
  if ((call[0] && call[0].count != all) || (call[3] && call[3].count != all) || (c0 && c0.count != states) ||
      (peepholes && (!MB_LSTM_PEEPHOLES || peepholes.count != int64_t(3) * l.directions * l.hidden)))
    return Status::kBadPlan;
  l.y = call[0].as<T>(), l.cells = call[3].as<T>(), l.c0 = c0.as<T>(), l.peepholes = peepholes.as<T>();
  l.h = scratch.of<T>(call[1], states);
  l.c = scratch.of<T>(call[2], states);
  l.gates = scratch.of<T>(call[4], all * 4);
  if (!l.h || !l.c || !l.gates) return Status::kBadPlan;
  l.coupled = call.params[0] != 0;
  if constexpr (Packed) {
    const Products<T, kLstmTurns> products(call, scratch, &l);
    if (!products.packing || (!kLstmTurns && l.course != kForward)) return Status::kBadPlan;
    lstm_steps(l, products);
    return Status::kOk;
  }
  l.cell = lstm_cell<T>;
  l.run(lstm_start<T>);
  return Status::kOk;
}

template <class T>
Status lstm(const Call& call) {
  return lstm_of<T, false>(call);
}

// The same for sizes that ask for packing.
template <class T>
Status lstm_packed(const Call& call) {
  return lstm_of<T, true>(call);
}

template <class T>
struct LstmGrad : Backward<T> {
  bool coupled;
  T *dc, *c_before;  // [D,N,H]; [N,H]: memories before the step
  const T *cells, *c0, *dc_last, *peepholes;
  T* d_peepholes;
};

template <class T>
void lstm_start_grad(Backward<T>& b) {
  LstmGrad<T>& l = static_cast<LstmGrad<T>&>(b);
  l.start(l.dc, l.dc_last);
}

// y -= x
template <class T>
struct SubtractBody {
  template <class V>
  static MB_INLINE void step(int k, T* y, const T* x) {
    (V::load(y + k) - V::load(x + k)).store(y + k);
  }
};

// One row: d = gradients of what goes into the gates, dc becomes that of the memory before the step.
template <class T>
MB_NOINLINE void lstm_row_grad(LstmGrad<T>& l, const T* gates, T* d, const T* dh, T* dc, const T* c, const T* before) {
  const int hidden = l.hidden;
  const T *i = gates, *o = gates + hidden, *f = gates + 2 * hidden, *g = gates + 3 * hidden;
  T *di = d, *d_o = d + hidden, *df = d + 2 * hidden, *dg = d + 3 * hidden;
  const T* peepholes = MB_LSTM_PEEPHOLES && l.peepholes ? l.peepholes + intptr_t(3 * l.direction) * hidden : nullptr;
  T* d_peepholes = MB_LSTM_PEEPHOLES && l.d_peepholes ? l.d_peepholes + intptr_t(3 * l.direction) * hidden : nullptr;
  copy_bytes(d_o, c, hidden * sizeof(T));
  activate<T, kLstmAny>(l.activations[2], d_o, hidden);
  multiply_range(di, dh, o, hidden);
  multiply_by_slope<T, kLstmAny>(l.activations[2], d_o, di, hidden);
  add_range(dc, di, hidden);
  multiply_range(d_o, d_o, dh, hidden);
  multiply_by_limited_slope<T, kLstmAny>(l.activations[0], o, d_o, hidden, l.limit);
  if (peepholes) add_product(dc, peepholes + hidden, d_o, hidden);
  multiply_range(di, dc, g, hidden);
  multiply_range(df, dc, before, hidden);
  if (l.coupled) {
    for_range<kBaseline, T, SubtractBody<T>>(hidden, di, df);
    clear_bytes(df, hidden * sizeof(T));
  }
  multiply_range(dg, dc, i, hidden);
  multiply_by_limited_slope<T, kLstmAny>(l.activations[0], i, di, hidden, l.limit);
  multiply_by_limited_slope<T, kLstmAny>(l.activations[0], f, df, hidden, l.limit);
  multiply_by_limited_slope<T, kLstmAny>(l.activations[1], g, dg, hidden, l.limit);
  multiply_range(dc, dc, f, hidden);
  if (peepholes) {
    add_product(dc, peepholes, di, hidden);
    add_product(dc, peepholes + 2 * hidden, df, hidden);
  }
  if (d_peepholes) {
    add_product(d_peepholes, di, before, hidden);
    add_product(d_peepholes + hidden, d_o, c, hidden);
    add_product(d_peepholes + 2 * hidden, df, before, hidden);
  }
}

template <class T>
void lstm_cell_grad(Backward<T>& b, const T* gates, T* d, T* dh) {
  LstmGrad<T>& l = static_cast<LstmGrad<T>&>(b);
  const int hidden = l.hidden;
  l.earlier(l.c_before, l.cells, l.c0);
  const T *c = l.cells + l.place(hidden), *before = l.c_before;
  T* dc = l.own(l.dc);
  gates += intptr_t(l.begin()) * l.width, d += intptr_t(l.begin()) * l.width;
  for (int n = l.begin(); n < l.end(); ++n, gates += l.width, d += l.width) {
    const intptr_t at = intptr_t(n) * hidden;
    if (l.pads(n)) {
      clear_bytes(d, l.width * sizeof(T));
      continue;
    }
    lstm_row_grad(l, gates, d, static_cast<const T*>(dh + at), dc + at, c + at, before + at);
    clear_bytes(dh + at, hidden * sizeof(T));
  }
}

// All steps of a layer of real size.
template <class T>
MB_NOINLINE void lstm_steps_grad(LstmGrad<T>& l, const Products<T, kLstmTurns>& products) {
  const intptr_t width = l.width, hidden = l.hidden, batch = l.batch;
  for (int direction = 0; direction < products.directions(l); ++direction) {
    l.turn(direction);
    l.start(l.dh, l.dy_last);
    lstm_start_grad<T>(l);
    const T* weights = products.recurrent_weights(l);
    for (int k = l.steps - 1; k >= 0; --k) {
      l.t = products.time(l, k);
      T *d = l.dgates + l.t * batch * width, *dh = products.own(l, l.dh);
      products.in_sequences(l, !l.d_peepholes, [&](LstmGrad<T>& some) {
        const intptr_t first = some.begin() * hidden, count = some.end() * hidden - first;
        if (some.dy) add_range(dh + first, some.dy + some.place(some.hidden) + first, int(count));
        lstm_cell_grad<T>(some, some.gates + some.place(some.width), d, dh);
      });
      products.multiply({batch, hidden, width, d, width, 1, weights, hidden, 1, dh, hidden, 1, 1, true});
    }
    if (l.dr) add_recurrent_gradients(l, products, l.dgates, width, l.dr + direction * width * hidden, width);
    add_input_gradients(l, products);
  }
}

// dx, dw, dr, db, dh0; dc0, d_peepholes; x, w, r, bias, lengths, h0; y, gates, dy, dy_last; cells, dc_last, c0,
// peepholes; scratch
template <class T, bool Packed>
MB_INLINE Status lstm_grad_of(const Call& call) {
  LstmGrad<T> l;
  Status status = l.read(&call[7], call.params + 1, 4, 3);
  if (status != Status::kOk) return status;
  const int64_t states = l.states(), weights = int64_t(3) * l.directions * l.hidden;
  const Tensor &d_peepholes = call[6], &cells = call[17], &dc_last = call[18], &c0 = call[19], &peepholes = call[20];
  Scratch scratch(call[21]);
  if (!l.bind(call, &call[13]) || cells.count != states * l.steps || (dc_last && dc_last.count != states) ||
      (c0 && c0.count != states))
    return Status::kBadPlan;
  if ((peepholes && (!MB_LSTM_PEEPHOLES || peepholes.count != weights)) ||
      (d_peepholes && (!MB_LSTM_PEEPHOLES || d_peepholes.count != weights)))
    return Status::kBadPlan;
  l.dh = scratch.of<T>(call[4], states);
  l.dc = scratch.of<T>(call[5], states);
  l.dgates = scratch.take<T>(int64_t(l.steps) * l.batch * l.width);
  l.before = scratch.take<T>(int64_t(l.batch) * l.hidden);
  l.c_before = scratch.take<T>(int64_t(l.batch) * l.hidden);
  if (!l.dh || !l.dc || !l.dgates || !l.before || !l.c_before) return Status::kBadPlan;
  l.cells = cells.as<T>(), l.c0 = c0.as<T>(), l.dc_last = dc_last.as<T>(), l.peepholes = peepholes.as<T>();
  l.d_peepholes = d_peepholes.as<T>();
  if constexpr (Packed) start_gradients(l, call);
  else l.clear(call);
  if (d_peepholes && !call.adds(6)) clear_bytes(d_peepholes.data, weights * sizeof(T));
  l.coupled = call.params[0] != 0;
  if constexpr (Packed) {
    const Products<T, kLstmTurns> products(call, scratch);
    if (!products.packing || (!kLstmTurns && l.course != kForward) || l.lengths) return Status::kBadPlan;
    lstm_steps_grad(l, products);
    return Status::kOk;
  }
  l.cell = lstm_cell_grad<T>;
  l.run(lstm_start_grad<T>);
  return Status::kOk;
}

template <class T>
Status lstm_grad(const Call& call) {
  return lstm_grad_of<T, false>(call);
}

// The same for sizes that ask for packing, without lengths.
template <class T>
Status lstm_grad_packed(const Call& call) {
  return lstm_grad_of<T, true>(call);
}

MB_INSTANTIATE_LSTM

}  // namespace minbuild
