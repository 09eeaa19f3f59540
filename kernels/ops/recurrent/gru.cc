// Gated recurrent units and their gradients. A row of gates holds z (update), r (reset) and the candidate state c.
#include "lib/nn/packed_recurrent.h"

namespace minbuild {

constexpr bool kGruAny = MB_GRU_ACTIVATIONS, kGruTurns = MB_GRU_DIRECTIONS;

// h = c + z * (h - c)
template <class T>
struct BlendBody {
  template <class V>
  static MB_INLINE void step(int i, T* h, const T* z, const T* c) {
    V candidate = V::load(c + i);
    muladd(V::load(z + i), V::load(h + i) - candidate, candidate).store(h + i);
  }
};

template <class T>
struct Gru : Forward<T> {
  bool reset_after;  // the recurrent product of the candidate is reset, not the state that goes into it
  T* part;           // [N,H]: that product, or the state after the reset
};

template <class T>
struct PackedGru : Gru<T> {
  const Products<T, kGruTurns>* products;
  Strided<T> weights;
};

// z = f(x Wz + h Rz + b), r = f(x Wr + h Rr + b), then the candidate
//   reset_after: c = g(x Wc + b + r * (h Rc + b'))   else: c = g(x Wc + b + (r * h) Rc + b')
template <class T, bool Packed>
void gru_cell(Forward<T>& f, T* gates, T* h) {
  auto multiply = [&](const Gemm<T>& g) MB_LAMBDA {
    if constexpr (Packed) static_cast<PackedGru<T>&>(f).products->multiply(g);
    else gemm(g);
  };
  Gru<T>& u = static_cast<Gru<T>&>(f);
  const int hidden = f.hidden, width = f.width;
  const T* candidate_weights = f.recurrent_weights() + intptr_t(2) * hidden * hidden;
  Gemm<T> product = {f.batch, hidden, hidden, h, hidden, 1, candidate_weights, 1, hidden, u.part, hidden};
  if constexpr (Packed) {
    const Strided<T>& weights = static_cast<PackedGru<T>&>(f).weights;
    product.b = weights.at + 2 * hidden * weights.column;
    product.b_row = weights.row, product.b_col = weights.column;
  }
  if (u.reset_after) multiply(product);
  const T* bias = f.bias ? f.bias + intptr_t(2 * f.direction + 1) * width + 2 * hidden : nullptr;
  T *row = gates, *part = u.part;
  for (int n = 0; n < f.batch; ++n, row += width, part += hidden) {
    f.add_bias(row, u.reset_after ? 2 * hidden : width);
    activate_limited<T, kGruAny>(f.activations[0], row, 2 * hidden, f.limit);
    if (u.reset_after) {
      if (bias) add_range(part, bias, hidden);
      add_product(row + 2 * hidden, row + hidden, part, hidden);
    } else {
      multiply_range(part, row + hidden, h + intptr_t(n) * hidden, hidden);
    }
  }
  if (!u.reset_after) {
    product.a = u.part, product.c = gates + 2 * hidden, product.c_row = width;
    product.accumulate = true;
    multiply(product);
  }
  row = gates;
  for (int n = 0; n < f.batch; ++n, row += width, h += hidden) {
    if (f.pads(n)) {
      f.pad(row, n);
      continue;
    }
    activate_limited<T, kGruAny>(f.activations[1], row + 2 * hidden, hidden, f.limit);
    for_range<kBaseline, T, BlendBody<T>>(hidden, h, row, row + 2 * hidden);
    f.put(h, n);
  }
}

// All steps of a layer of real size.
template <class T>
MB_NOINLINE void gru_steps(PackedGru<T>& u) {
  const intptr_t width = u.width, hidden = u.hidden, batch = u.batch;
  const Products<T, kGruTurns>& products = *u.products;
  for (int d = 0; d < products.directions(u); ++d) {
    u.turn(d);
    multiply_inputs(u, products);
    u.start(u.h, u.h0);
    const Strided<T> weights = u.weights = products.recurrent_columns(u);
    for (int k = 0; k < u.steps; ++k) {
      u.t = products.time(u, k);
      T *now = u.gates + u.place(u.width), *h = products.own(u, u.h);
      products.multiply(
          {batch, u.recurrent, hidden, h, hidden, 1, weights.at, weights.row, weights.column, now, width, 1, 1, true});
      gru_cell<T, true>(u, now, h);
    }
  }
}

// y, h, gates; x, w, r, bias, lengths, h0; scratch. params: reset_after, then those of every recurrence.
template <class T, bool Packed, class Layer>
MB_INLINE Status gru_of(const Call& call, Layer& u) {
  Status status = u.read(&call[3], call.params + 1, 3, 2);
  if (status != Status::kOk) return status;
  Scratch scratch(call[9]);
  if (call[0] && call[0].count != u.states() * u.steps) return Status::kBadPlan;
  u.y = call[0].as<T>();
  u.h = scratch.of<T>(call[1], u.states());
  u.gates = scratch.of<T>(call[2], u.states() * u.steps * 3);
  u.part = scratch.take<T>(int64_t(u.batch) * u.hidden);
  if (!u.h || !u.gates || !u.part) return Status::kBadPlan;
  u.reset_after = call.params[0] != 0;
  u.recurrent = 2 * u.hidden;
  if constexpr (Packed) {
    const Products<T, kGruTurns> products(call, scratch, &u);
    if (!products.packing || (!kGruTurns && u.course != kForward)) return Status::kBadPlan;
    u.products = &products;
    gru_steps(u);
    return Status::kOk;
  } else {
    u.cell = gru_cell<T, false>;
    u.run(nullptr);
    return Status::kOk;
  }
}

template <class T>
Status gru(const Call& call) {
  Gru<T> u;
  return gru_of<T, false>(call, u);
}

// The same for sizes that ask for packing.
template <class T>
Status gru_packed(const Call& call) {
  PackedGru<T> u;
  return gru_of<T, true>(call, u);
}

// dz = dh * (before - c), dc = dh * (1 - z), and dh * z flows on.
template <class T>
struct UnblendBody {
  template <class V>
  static MB_INLINE void step(int i, T* dh, T* dz, T* dc, const T* z, const T* c, const T* before) {
    V d = V::load(dh + i), update = V::load(z + i);
    (d * (V::load(before + i) - V::load(c + i))).store(dz + i);
    (d - d * update).store(dc + i);
    (d * update).store(dh + i);
  }
};

template <class T>
struct GruGrad : Backward<T> {
  bool reset_after;
  T* part;  // [N,H]

  // The way of the candidate's gradient through the reset: into the row's dr, and into what was multiplied with it.
  MB_NOINLINE void reset(const T* gates, T* dgates, T* dh) {
    const int hidden = this->hidden, width = this->width, batch = this->batch, at = 2 * hidden;
    const T *weights = this->recurrent_weights() + intptr_t(at) * hidden, *before = this->before;
    Gemm<T> product = {batch, hidden, hidden, before, hidden, 1, weights, 1, hidden, part, hidden};
    if (!reset_after) {
      product.a = dgates + at, product.a_row = width;
      product.b_row = hidden, product.b_col = 1;
    }
    gemm(product);
    const T* bias = this->bias ? this->bias + intptr_t(2 * this->direction + 1) * width + at : nullptr;
    T *row = part, *d = dgates, *d_bias = this->second_bias(at);
    for (int n = 0; n < batch; ++n, row += hidden, d += width, gates += width, before += hidden) {
      const T* r = gates + hidden;
      if (reset_after) {  // row = h Rc + b'
        if (bias) add_range(row, bias, hidden);
        multiply_range(d + hidden, d + at, row, hidden);
        multiply_range(row, d + at, r, hidden);
        if (d_bias) add_range(d_bias, static_cast<const T*>(row), hidden);
      } else {  // row = dc Rc'
        multiply_range(d + hidden, static_cast<const T*>(row), before, hidden);
        add_product(dh + intptr_t(n) * hidden, static_cast<const T*>(row), r, hidden);
        multiply_range(row, r, before, hidden);
      }
      multiply_by_limited_slope<T, kGruAny>(this->activations[0], r, d + hidden, hidden, this->limit);
    }
    if (reset_after) this->flow(part, hidden, at, hidden, this->before, dh);
    else this->flow(dgates + at, width, at, hidden, part, nullptr);
  }
};

template <class T>
void gru_cell_grad(Backward<T>& b, const T* gates, T* dgates, T* dh) {
  const int hidden = b.hidden, width = b.width;
  const T *before = b.before, *row = gates;
  T *d = dgates, *state = dh;
  for (int n = 0; n < b.batch; ++n, row += width, d += width, before += hidden, state += hidden) {
    if (b.pads(n)) {
      clear_bytes(d, width * sizeof(T));
      continue;
    }
    const T* c = row + 2 * hidden;
    for_range<kBaseline, T, UnblendBody<T>>(hidden, state, d, d + 2 * hidden, row, c, before);
    multiply_by_limited_slope<T, kGruAny>(b.activations[0], row, d, hidden, b.limit);
    multiply_by_limited_slope<T, kGruAny>(b.activations[1], c, d + 2 * hidden, hidden, b.limit);
  }
  static_cast<GruGrad<T>&>(b).reset(gates, dgates, dh);
}

// All steps of a direction of a layer of real size. `through`: [S,N,H], what recurrent weights of the candidate are
// multiplied with, or the gradients of that product where it is reset afterwards.
template <class T>
MB_NOINLINE void gru_steps_grad(GruGrad<T>& b, T* through, const Products<T, kGruTurns>& products) {
  const intptr_t width = b.width, hidden = b.hidden, batch = b.batch, gates = b.recurrent, rows = batch * b.steps;
  b.start(b.dh, b.dy_last);
  const bool back = kGruTurns && b.reversed();
  const T *weights = b.recurrent_weights(), *candidate = weights + gates * hidden;
  T* dh = products.own(b, b.dh);
  // What is reset is a product of states that are known: of all steps at once, to where the gradients of r will be.
  if (b.reset_after) {
    T *first = b.dgates + hidden, *later = back ? first : first + batch * width;
    const T *y = back ? b.y + b.states() : b.y, *h0 = products.own(b, b.h0);
    first += products.time(b, 0) * batch * width;
    if (b.steps > 1)
      products.in_rows(b, b.steps - 1, [&](intptr_t count, intptr_t at, intptr_t step, intptr_t wide, intptr_t apart) {
        products.multiply({count, hidden, hidden, y + wide * hidden, apart * hidden, 1, candidate, 1, hidden,
                           later + at * width, step * width});
      });
    if (b.h0) products.multiply({batch, hidden, hidden, h0, hidden, 1, candidate, 1, hidden, first, width});
    for (intptr_t n = 0; !b.h0 && n < batch; ++n) clear_bytes(first + n * width, hidden * sizeof(T));
  }
  const T* bias = b.bias ? b.bias + (kGruTurns ? 2 * b.direction + 1 : 1) * width + gates : nullptr;
  for (int k = b.steps - 1; k >= 0; --k) {
    b.t = products.time(b, k);
    const T* now = b.gates + b.place(b.width);
    T *d = b.dgates + b.t * batch * width, *own = through + b.t * batch * hidden, *d_bias = b.second_bias(int(gates));
    b.earlier(b.before, b.y, b.h0);
    if (b.dy) add_range(dh, b.dy + b.place(b.hidden), int(batch * hidden));
    for (intptr_t n = 0; n < batch; ++n) {
      const T* row = now + n * width;
      T *z = d + n * width, *state = dh + n * hidden;
      for_range<kBaseline, T, UnblendBody<T>>(b.hidden, state, z, z + gates, row, row + gates, b.before + n * hidden);
      multiply_by_limited_slope<T, kGruAny>(b.activations[0], row, z, b.hidden, b.limit);
      multiply_by_limited_slope<T, kGruAny>(b.activations[1], row + gates, z + gates, b.hidden, b.limit);
    }
    if (!b.reset_after)
      products.multiply({batch, hidden, hidden, d + gates, width, 1, candidate, hidden, 1, b.part, hidden});
    for (intptr_t n = 0; n < batch; ++n, own += hidden) {
      const T *r = now + n * width + hidden, *before = b.before + n * hidden, *carried = b.part + n * hidden;
      T *dr = d + n * width + hidden, *dc = dr + hidden;
      if (b.reset_after) {
        if (bias) add_range(dr, bias, b.hidden);
        multiply_range(dr, dr, dc, b.hidden);
        multiply_range(own, dc, r, b.hidden);
        if (d_bias) add_range(d_bias, static_cast<const T*>(own), b.hidden);
      } else {
        multiply_range(dr, carried, before, b.hidden);
        add_product(dh + n * hidden, carried, r, b.hidden);
        multiply_range(own, r, before, b.hidden);
      }
      multiply_by_limited_slope<T, kGruAny>(b.activations[0], r, dr, b.hidden, b.limit);
    }
    products.multiply({batch, hidden, gates, d, width, 1, weights, hidden, 1, dh, hidden, 1, 1, true});
    own = through + b.t * batch * hidden;
    if (b.reset_after)
      products.multiply({batch, hidden, hidden, own, hidden, 1, candidate, hidden, 1, dh, hidden, 1, 1, true});
  }
  if (b.dr) {
    T *dr = kGruTurns ? b.dr + b.direction * width * hidden : b.dr, *to = dr + gates * hidden;
    const T* dc = b.dgates + gates;
    add_recurrent_gradients(b, products, b.dgates, width, dr, gates);
    if (b.reset_after) add_recurrent_gradients(b, products, through, hidden, to, hidden);
    else products.multiply({hidden, hidden, rows, dc, 1, width, through, hidden, 1, to, hidden, 1, 1, b.adds_r});
  }
  add_input_gradients(b, products);
}

// dx, dw, dr, db, dh0; x, w, r, bias, lengths, h0; y, gates, dy, dy_last; scratch
template <class T, bool Packed>
MB_INLINE Status gru_grad_of(const Call& call) {
  GruGrad<T> b;
  Status status = b.read(&call[5], call.params + 1, 3, 2);
  if (status != Status::kOk) return status;
  Scratch scratch(call[15]);
  if (!b.bind(call, &call[11])) return Status::kBadPlan;
  b.dh = scratch.of<T>(call[4], b.states());
  b.dgates = scratch.take<T>(int64_t(b.steps) * b.batch * b.width);
  b.before = scratch.take<T>(int64_t(b.batch) * b.hidden);
  b.part = scratch.take<T>(int64_t(b.batch) * b.hidden);
  if (!b.dh || !b.dgates || !b.before || !b.part) return Status::kBadPlan;
  if constexpr (Packed) start_gradients(b, call);
  else b.clear(call);
  b.reset_after = call.params[0] != 0;
  b.recurrent = 2 * b.hidden;
  if (b.reset_after) b.second = 2 * b.hidden;
  if constexpr (Packed) {
    T* through = scratch.take<T>(int64_t(b.steps) * b.batch * b.hidden);
    const Products<T, kGruTurns> products(call, scratch);
    if (!through || !products.packing || (!kGruTurns && b.course != kForward) || b.lengths) return Status::kBadPlan;
    for (int d = 0; d < products.directions(b); ++d) b.turn(d), gru_steps_grad(b, through, products);
    return Status::kOk;
  }
  b.cell = gru_cell_grad<T>;
  b.run(nullptr);
  return Status::kOk;
}

template <class T>
Status gru_grad(const Call& call) {
  return gru_grad_of<T, false>(call);
}

// The same for sizes that ask for packing, without lengths.
template <class T>
Status gru_grad_packed(const Call& call) {
  return gru_grad_of<T, true>(call);
}

MB_INSTANTIATE_GRU

}  // namespace minbuild
