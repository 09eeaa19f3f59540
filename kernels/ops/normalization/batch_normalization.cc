// Batch normalization: training, inference, and the gradient of training.
#include "minbuild/kernel.h"
#include "lib/simd/math.h"

namespace minbuild {

// One channel of tensors [N,C,S]: `rows` runs of `length` elements, `stride` apart.
template <class T>
struct Channel {
  T shift, mean;   // taken off u and x
  T a, b, c;       // y = a (u - shift) + b (x - mean) + c
  T sum, product;  // of u - shift, and of (u - shift)(x - mean)
  int rows, length, stride;
  T* at[8];  // where the channel begins in every argument; null where that is absent

  // Makes y, which may be u or x; without y, the sums. Every row has its own partial sums, so that long sums stay precise.
  struct Pass {
    template <class W>
    static MB_INLINE void run(Channel* channel, const T* u, const T* x, T* y) {
      using V = typename W::template of<T>;
      constexpr int kTogether = V::size > 1 ? 2 : 1;  // additions of one do not wait for those of the other
      const Channel ch = *channel;
      const V shift = ch.shift, mean = ch.mean, a = ch.a, b = ch.b, c = ch.c;
      V all = T(0), all_products = T(0);
      for (int n = 0, i = 0; n < ch.rows; ++n, i += ch.stride - ch.length) {
        V sums[kTogether], products[kTogether];
        unroll<kTogether>([&](auto k) MB_LAMBDA { sums[k] = products[k] = V(T(0)); });
        const int end = i + ch.length;
        for (; i <= end - kTogether * V::size; i += kTogether * V::size) {
          unroll<kTogether>([&](auto k) MB_LAMBDA {
            V from_u = V::load(u + i + k * V::size) - shift, from_x = V::load(x + i + k * V::size) - mean;
            if (y) {
              muladd(a, from_u, muladd(b, from_x, c)).store(y + i + k * V::size);
            } else {
              sums[k] = sums[k] + from_u;
              products[k] = muladd(from_u, from_x, products[k]);
            }
          });
        }
        for (; i < end; ++i) {
          T from_u = u[i] - ch.shift, from_x = x[i] - ch.mean;
          if (y) {
            y[i] = ch.a * from_u + (ch.b * from_x + ch.c);
          } else {
            sums[0] = sums[0] + V(typename V::Raw{from_u});
            products[0] = products[0] + V(typename V::Raw{from_u * from_x});
          }
        }
        unroll<kTogether>([&](auto k) MB_LAMBDA {
          all = all + sums[k];
          all_products = all_products + products[k];
        });
      }
      channel->sum = minbuild::sum(all);
      channel->product = minbuild::sum(all_products);
    }
  };

#if MB_FAST_WASM
  // The same, with a loop for each use: engines of WebAssembly keep constants in registers around loops that jump at
  // their end alone. A whole vector is not left to single elements. Where u is x, y = (a + b) (x - mean) + c.
  template <bool kSame, bool kWrites>
  MB_NOINLINE void pass_over(const T* u, const T* x, T* y) {
    using V = Vec<T, 16 / int(sizeof(T))>;
    constexpr int kTogether = 2;
    const T factor = kSame ? a + b : b;
    const V all_shift = shift, all_mean = mean, from_a = a, from_b = factor, from_c = c;
    V all = T(0), all_products = T(0);
    for (int n = 0; n < rows; ++n) {
      V sums[kTogether], products[kTogether];
      unroll<kTogether>([&](auto k) MB_LAMBDA { sums[k] = products[k] = V(T(0)); });
      const auto step = [&](auto count) MB_LAMBDA {
        unroll<count>([&](auto k) MB_LAMBDA {
          const V of_x = V::load(x + k * V::size) - all_mean;
          const V of_u = kSame ? of_x : V::load(u + k * V::size) - all_shift;
          if constexpr (kWrites) {
            V result = muladd(from_b, of_x, from_c);
            if (!kSame) result = muladd(from_a, of_u, result);
            result.store(y + k * V::size);
          } else {
            sums[k] = sums[k] + of_u;
            products[k] = muladd(of_u, of_x, products[k]);
          }
        });
        x += count * V::size;
        if (!kSame) u += count * V::size;
        if (kWrites) y += count * V::size;
      };
      int left = length;
      if (left >= kTogether * V::size) {
        do step(Constant<kTogether>{});
        while ((left -= kTogether * V::size) >= kTogether * V::size);
      }
      if (left >= V::size) {
        step(Constant<1>{});
        left -= V::size;
      }
      for (; left > 0; --left) {
        const T of_x = *x++ - mean, of_u = kSame ? of_x : *u++ - shift;
        if constexpr (kWrites) {
          *y++ = (kSame ? T(0) : a * of_u) + (factor * of_x + c);
        } else {
          sums[0] = sums[0] + V(typename V::Raw{of_u});
          products[0] = products[0] + V(typename V::Raw{of_u * of_x});
        }
      }
      unroll<kTogether>([&](auto k) MB_LAMBDA {
        all = all + sums[k];
        all_products = all_products + products[k];
      });
      const int between = stride - length;
      x += between;
      if (!kSame) u += between;
      if (kWrites) y += between;
    }
    if constexpr (!kWrites) sum = minbuild::sum(all), product = minbuild::sum(all_products);
  }
  MB_NOINLINE void pass(const T* u, const T* x, T* y) {
    if (u == x && shift == mean) y ? pass_over<true, true>(u, x, y) : pass_over<true, false>(u, x, y);
    else y ? pass_over<false, true>(u, x, y) : pass_over<false, false>(u, x, y);
  }
#else
  MB_NOINLINE void pass(const T* u, const T* x, T* y) { dispatch_or_single<Pass, T>(this, u, x, y); }
#endif

  // y = scale (x - mean) inverse + bias. x, scale and bias follow each other. As x stands for u too, each takes half the
  // factor.
  MB_NOINLINE void normalize(T* const* x_scale_bias, T inverse) {
    shift = mean;
    a = b = *x_scale_bias[1] * inverse / 2;
    c = *x_scale_bias[2];
    pass(x_scale_bias[0], x_scale_bias[0], at[0]);
  }
};

// 1 / sqrt(x)
template <class T>
MB_NOINLINE T inverse_root(T x) {
  (Vec<T, 1>(T(1)) / sqrt(Vec<T, 1>(x))).store(&x);
  return x;
}

// `work` on every channel. Argument `x` has the layout, those in the set `whole` are as large, and the others among
// the first `count` have one element per channel.
template <class T>
MB_NOINLINE Status each_channel(const Call& call, int x, int count, int whole, void (*work)(Channel<T>&, const Call&)) {
  const Tensor& layout = call[x];
  if (layout.rank < 2 || layout.count == 0) return Status::kBadPlan;
  Channel<T> ch;
  ch.rows = layout.dims[0];
  ch.stride = layout.count / ch.rows;
  int channels = layout.dims[1];
  ch.length = ch.stride / channels;
  int steps[8] = {};
  for (int i = 0; i < count; ++i) {
    const Tensor& each = call[i];
    bool is_whole = whole >> i & 1;
    ch.at[i] = each.as<T>();
    if (!each) continue;
    if (each.count != (is_whole ? layout.count : channels)) return Status::kBadPlan;
    steps[i] = is_whole ? ch.length : 1;
  }
#if MB_THREADS > 1
  for_ranges(call.team, channels, layout.count * int64_t(sizeof(T)), 1, [&](intptr_t first, intptr_t some) {
    for (intptr_t c = first; c < first + some; ++c) {
      Channel<T> one = ch;  // `work` changes it
      const int* step = steps;
      for (T*& each : one.at) each += c * *step++;  // steps of what is not there are 0
      work(one, call);
    }
  });
#else
  for (int c = 0; c < channels; ++c) {
    work(ch, call);
    for (int i = 0; i < count; ++i) ch.at[i] += steps[i];
  }
#endif
  return Status::kOk;
}

template <class T>
void train_channel(Channel<T>& ch, const Call& call) {
  T keep = static_cast<T>(call.real(1)), variance = 0;
  const int some_rows[] = {1, ch.rows};
  ch.mean = 0;
  // First the mean of the first row: it lies near enough to the mean of all (within sqrt(N) standard deviations) for
  // the difference of squares around it to be harmless.
  for (int n : some_rows) {
    ch.rows = n;
    ch.shift = ch.mean;
    T share = 1 / static_cast<T>(n * ch.length);  // before the sums are there: divisions take long
    ch.pass(ch.at[5], ch.at[5], nullptr);
    T off = ch.sum * share;
    variance = ch.product * share - off * off;
    ch.mean += off;
  }
  if (variance < 0) variance = 0;
  T inverse = inverse_root(variance + static_cast<T>(call.real(0)));
  ch.normalize(ch.at + 5, inverse);
  const T found[] = {ch.mean, variance, ch.mean, inverse};
  for (int i = 0; i < 4; ++i)
    if (T* to = ch.at[i + 1]) *to = i < 2 ? keep * *to + (1 - keep) * found[i] : found[i];
}

// x, y: [N,C,...]; all others: [C]. The running statistics become momentum * old + (1 - momentum) * batch, with the
// variance that divides by the count.
template <class T>
Status batch_norm_train(const Call& call) {
  return each_channel<T>(call, 5, 8, 1 << 0 | 1 << 5, train_channel<T>);
}

template <class T>
void infer_channel(Channel<T>& ch, const Call& call) {
  ch.mean = *ch.at[4];
  T spread = *ch.at[5];
  bool saved = MB_BATCH_NORMALIZATION_SAVED && call.params[1] != 0;
  ch.normalize(ch.at + 1, saved ? spread : inverse_root(spread + static_cast<T>(call.real(0))));
}

// x, y: [N,C,...]; scale, bias, mean, variance: [C]. When a training step normalises again, what it saved of the first
// time, 1 / sqrt(variance + epsilon), stands in for the variance: the same bits come out.
template <class T>
Status batch_norm(const Call& call) {
  return each_channel<T>(call, 1, 6, 1 << 0 | 1 << 1, infer_channel<T>);
}

template <class T>
void gradient_of_channel(Channel<T>& ch, const Call& call) {
  ch.shift = 0;
  ch.mean = *ch.at[6];
  ch.pass(ch.at[3], ch.at[4], nullptr);
  T inverse = *ch.at[7], d_scale = ch.product * inverse, share = 1 / static_cast<T>(ch.rows * ch.length);
  const T found[] = {d_scale, ch.sum};
  for (int i = 0; i < 2; ++i)
    if (T* to = ch.at[i + 1]) *to = call.adds(i + 1) ? *to + found[i] : found[i];
  ch.shift = ch.sum * share;
  ch.a = *ch.at[5] * inverse;
  ch.b = -ch.a * inverse * d_scale * share;
  ch.c = 0;
  if (ch.at[0]) ch.pass(ch.at[3], ch.at[4], ch.at[0]);
}

// dx, dy, x: [N,C,...]; all others: [C]. With m elements per channel and x' = (x - mean) inv_std:
// d_bias = sum dy;  d_scale = sum dy x';  dx = scale inv_std (dy - d_bias / m - x' d_scale / m)
template <class T>
Status batch_norm_grad(const Call& call) {
  return each_channel<T>(call, 4, 8, 1 << 0 | 1 << 3 | 1 << 4, gradient_of_channel<T>);
}

MB_INSTANTIATE_BATCH_NORMALIZATION

}  // namespace minbuild
