// Batch normalization: training, inference, and the gradient of training.
#include "minbuild/kernel.h"
#include "shared/math.h"

namespace minbuild {

// One channel of tensors [N,C,S]: `rows` runs of `length` elements, `stride` apart.
template <class T>
struct Channel {
  const T *u, *x;
  T* y;
  int rows, length, stride;
  T shift, mean;   // taken off u and x
  T a, b, c;       // y = a (u - shift) + b (x - mean) + c
  T sum, product;  // of u - shift, and of (u - shift)(x - mean)
};

// sum and product over the whole channel. Every row has its own partial sums, so that long sums lose little.
template <class T>
struct ChannelSums {
  template <class W>
  static MB_INLINE void run(Channel<T>* channel) {
    using V = typename W::template of<T>;
    const Channel<T> ch = *channel;
    V shift = ch.shift, mean = ch.mean, wide_sum = T(0), wide_product = T(0);
    T all = 0, all_products = 0;
    for (int n = 0; n < ch.rows; ++n) {
      const T *u = ch.u + n * ch.stride, *x = ch.x + n * ch.stride;
      int i = 0;
      if constexpr (V::size > 1) {
        V sums[2] = {T(0), T(0)}, products[2] = {T(0), T(0)};  // two, because additions wait for each other
        for (; i <= ch.length - 2 * V::size; i += 2 * V::size) {
          unroll<2>([&](auto k) MB_LAMBDA {
            V each = V::load(u + i + k * V::size) - shift;
            sums[k] = sums[k] + each;
            products[k] = muladd(each, V::load(x + i + k * V::size) - mean, products[k]);
          });
        }
        if (i <= ch.length - V::size) {
          V each = V::load(u + i) - shift;
          sums[0] = sums[0] + each;
          products[0] = muladd(each, V::load(x + i) - mean, products[0]);
          i += V::size;
        }
        wide_sum = wide_sum + (sums[0] + sums[1]);
        wide_product = wide_product + (products[0] + products[1]);
      }
      for (; i < ch.length; ++i) {
        T each = u[i] - ch.shift;
        all += each;
        all_products += each * (x[i] - ch.mean);
      }
    }
    if constexpr (V::size > 1) {
      all += sum(wide_sum);
      all_products += sum(wide_product);
    }
    channel->sum = all;
    channel->product = all_products;
  }
};

// y over the whole channel; y may be u or x.
template <class T>
struct ChannelMap {
  template <class V>
  static MB_INLINE void step(int at, const Channel<T>& ch) {
    V inner = muladd(V(ch.b), V::load(ch.x + at) - V(ch.mean), V(ch.c));
    muladd(V(ch.a), V::load(ch.u + at) - V(ch.shift), inner).store(ch.y + at);
  }
  template <class W>
  static MB_INLINE void run(Channel<T>* channel) {
    using V = typename W::template of<T>;
    const Channel<T> ch = *channel;
    for (int n = 0; n < ch.rows; ++n) {
      int at = n * ch.stride, end = at + ch.length;
      if constexpr (V::size > 1)
        for (; at <= end - V::size; at += V::size) step<V>(at, ch);
      for (; at < end; ++at) step<Vec<T, 1>>(at, ch);
    }
  }
};

// Wide vectors where the processor has them; else single elements, so that no third width costs room.
template <class Body, class T>
MB_INLINE void each_channel_row(Channel<T>* channel) {
#if MB_DISPATCHES
  if (vector_bytes() >= 32) return run_avx2<Body>(channel);
  Body::template run<Width<sizeof(T)>>(channel);
#else
  dispatch<Body>(channel);
#endif
}

template <class T>
MB_NOINLINE void sum_channel(Channel<T>* channel) {
  each_channel_row<ChannelSums<T>>(channel);
}
template <class T>
MB_NOINLINE void map_channel(Channel<T>* channel) {
  each_channel_row<ChannelMap<T>>(channel);
}

// Reads the layout of x; false where it is empty or has no channels.
template <class T>
bool read_layout(Channel<T>* channel, const Tensor& x) {
  if (x.rank < 2 || x.count == 0) return false;
  channel->rows = x.dims[0];
  channel->stride = x.count / x.dims[0];
  channel->length = channel->stride / x.dims[1];
  return true;
}

// y = scale (x - mean) / sqrt(variance + epsilon) + bias of channel c. As x stands for u too, each has half the factor.
template <class T>
MB_INLINE void normalize(Channel<T>* ch, const Tensor& y, const Tensor& x, int c, T scale, T bias) {
  ch->x = ch->u = x.as<T>() + c * ch->length;
  ch->y = y.as<T>() + c * ch->length;
  ch->shift = ch->mean;
  ch->a = ch->b = scale / 2;
  ch->c = bias;
  map_channel(ch);
}

template <class T>
MB_INLINE T inverse_root(T x) {
  T root;
  (Vec<T, 1>(T(1)) / sqrt(Vec<T, 1>(x))).store(&root);
  return root;
}

// x, y: [N,C,...]; all others: [C]. The running statistics become momentum * old + (1 - momentum) * batch, with the
// variance that divides by the count.
template <class T>
Status batch_norm_train(const Call& call) {
  const Tensor &y = call[0], &x = call[5];
  Channel<T> ch;
  if (!read_layout(&ch, x) || y.count != x.count) return Status::kBadPlan;
  int channels = x.dims[1];
  for (int i = 1; i < 8; ++i)
    if (i != 5 && call[i] && call[i].count != channels) return Status::kBadPlan;
  if (!call[1] != !call[2]) return Status::kBadPlan;

  T epsilon = static_cast<T>(call.real(0)), keep = static_cast<T>(call.real(1));
  int rows = ch.rows;
  T count = static_cast<T>(rows * ch.length);
  for (int c = 0; c < channels; ++c) {
    ch.x = ch.u = x.as<T>() + c * ch.length;
    // One pass over all rows, around the mean of the first: it lies near enough to the mean of all (within sqrt(N)
    // standard deviations) for the difference of squares below to be harmless.
    ch.shift = ch.mean = 0;
    ch.rows = 1;
    sum_channel(&ch);
    ch.shift = ch.mean = ch.sum / static_cast<T>(ch.length);
    ch.rows = rows;
    sum_channel(&ch);
    T off = ch.sum / count, variance = ch.product / count - off * off;
    if (variance < 0) variance = 0;
    ch.mean += off;
    T inverse = inverse_root<T>(variance + epsilon);
    if (call[1]) {
      T *mean = call[1].as<T>() + c, *running = call[2].as<T>() + c;
      *mean = keep * *mean + (1 - keep) * ch.mean;
      *running = keep * *running + (1 - keep) * variance;
    }
    if (call[3]) call[3].as<T>()[c] = ch.mean;
    if (call[4]) call[4].as<T>()[c] = inverse;
    normalize(&ch, y, x, c, call[6].as<T>()[c] * inverse, call[7].as<T>()[c]);
  }
  return Status::kOk;
}

// x, y: [N,C,...]; scale, bias, mean, variance: [C]
template <class T>
Status batch_norm(const Call& call) {
  const Tensor &y = call[0], &x = call[1];
  Channel<T> ch;
  if (!read_layout(&ch, x) || y.count != x.count) return Status::kBadPlan;
  for (int i = 2; i < 6; ++i)
    if (call[i].count != x.dims[1]) return Status::kBadPlan;
  for (int c = 0; c < x.dims[1]; ++c) {
    ch.mean = call[4].as<T>()[c];
    T inverse = inverse_root<T>(call[5].as<T>()[c] + static_cast<T>(call.real(0)));
    normalize(&ch, y, x, c, call[2].as<T>()[c] * inverse, call[3].as<T>()[c]);
  }
  return Status::kOk;
}

// dx, dy, x: [N,C,...]; all others: [C]. With m elements per channel and x' = (x - mean) inv_std:
// d_bias = sum dy;  d_scale = sum dy x';  dx = scale inv_std (dy - d_bias / m - x' d_scale / m)
template <class T>
Status batch_norm_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[3], &x = call[4];
  Channel<T> ch;
  if (!read_layout(&ch, x) || dy.count != x.count || (dx && dx.count != x.count)) return Status::kBadPlan;
  for (int i = 1; i < 8; ++i)
    if (i != 3 && i != 4 && call[i] && call[i].count != x.dims[1]) return Status::kBadPlan;

  T count = static_cast<T>(ch.rows * ch.length);
  for (int c = 0; c < x.dims[1]; ++c) {
    ch.u = dy.as<T>() + c * ch.length;
    ch.x = x.as<T>() + c * ch.length;
    ch.mean = call[6].as<T>()[c];
    ch.shift = 0;
    sum_channel(&ch);
    T inverse = call[7].as<T>()[c], factor = call[5].as<T>()[c] * inverse;
    T results[] = {ch.product * inverse, ch.sum};
    for (int i = 1; i < 3; ++i) {
      if (!call[i]) continue;
      T* to = call[i].as<T>() + c;
      *to = call.adds(i) ? *to + results[i - 1] : results[i - 1];
    }
    if (!dx) continue;
    ch.y = dx.as<T>() + c * ch.length;
    ch.shift = ch.sum / count;
    ch.a = factor;
    ch.b = -factor * inverse * results[0] / count;
    ch.c = 0;
    map_channel(&ch);
  }
  return Status::kOk;
}

MB_INSTANTIATE_BATCH_NORMALIZATION

}  // namespace minbuild
