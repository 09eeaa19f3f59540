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
        V sums[2] = {T(0), T(0)}, products[2] = {T(0), T(0)};  // in turn, because additions wait for each other
        for (; i <= ch.length - V::size; i += V::size) {
          V each = V::load(u + i) - shift, next = sums[1] + each;
          sums[1] = sums[0], sums[0] = next;
          next = muladd(each, V::load(x + i) - mean, products[1]);
          products[1] = products[0], products[0] = next;
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

// Reads the layout of x = args[at]; false where it is empty, a tensor in `like` is not as large, or one in `channels`
// has not one element per channel. Both are sets of arguments, which may be absent.
template <class T>
MB_NOINLINE bool read_layout(Channel<T>* channel, const Call& call, int at, unsigned like, unsigned channels) {
  const Tensor& x = call[at];
  if (x.rank < 2 || x.count == 0) return false;
  channel->rows = x.dims[0];
  channel->stride = x.count / x.dims[0];
  channel->length = channel->stride / x.dims[1];
  for (int i = 0; like >> i | channels >> i; ++i) {
    int wanted = like >> i & 1 ? x.count : x.dims[1];
    if ((like | channels) >> i & 1 && call[i] && call[i].count != wanted) return false;
  }
  return true;
}

// y = scale (x - mean) / sqrt(variance + epsilon) + bias of channel c; the answer is 1 / sqrt(variance + epsilon).
// As x stands for u too, each takes half the factor.
template <class T>
MB_NOINLINE T normalize(Channel<T>* ch, const Tensor& y, const Tensor* x_scale_bias, int c, T variance, T epsilon) {
  T inverse;
  (Vec<T, 1>(T(1)) / sqrt(Vec<T, 1>(variance + epsilon))).store(&inverse);
  ch->u = ch->x = x_scale_bias[0].as<T>() + c * ch->length;
  ch->y = y.as<T>() + c * ch->length;
  ch->shift = ch->mean;
  ch->a = ch->b = x_scale_bias[1].as<T>()[c] * inverse / 2;
  ch->c = x_scale_bias[2].as<T>()[c];
  map_channel(ch);
  return inverse;
}

// Element c of an output becomes keep times what it was plus `value`; absent outputs stay so.
template <class T>
MB_NOINLINE void blend(const Tensor& output, int c, T keep, T value) {
  if (!output) return;
  T* to = output.as<T>() + c;
  *to = keep != 0 ? keep * *to + value : value;  // what was there may be garbage
}

// x, y: [N,C,...]; all others: [C]. The running statistics become momentum * old + (1 - momentum) * batch, with the
// variance that divides by the count.
template <class T>
Status batch_norm_train(const Call& call) {
  const Tensor* x = call.args + 5;
  Channel<T> ch;
  if (!read_layout(&ch, call, 5, 1u << 0, 0xdeu)) return Status::kBadPlan;
  T keep = static_cast<T>(call.real(1));
  int rows = ch.rows;
  T count = static_cast<T>(rows * ch.length);
  for (int c = 0; c < x->dims[1]; ++c) {
    ch.x = ch.u = x->as<T>() + c * ch.length;
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
    T inverse = normalize(&ch, call[0], x, c, variance, static_cast<T>(call.real(0)));
    blend(call[1], c, keep, (1 - keep) * ch.mean);
    blend(call[2], c, keep, (1 - keep) * variance);
    blend(call[3], c, T(0), ch.mean);
    blend(call[4], c, T(0), inverse);
  }
  return Status::kOk;
}

// x, y: [N,C,...]; scale, bias, mean, variance: [C]
template <class T>
Status batch_norm(const Call& call) {
  Channel<T> ch;
  if (!read_layout(&ch, call, 1, 1u << 0, 0x3cu)) return Status::kBadPlan;
  for (int c = 0; c < call[1].dims[1]; ++c) {
    ch.mean = call[4].as<T>()[c];
    normalize(&ch, call[0], call.args + 1, c, call[5].as<T>()[c], static_cast<T>(call.real(0)));
  }
  return Status::kOk;
}

// dx, dy, x: [N,C,...]; all others: [C]. With m elements per channel and x' = (x - mean) inv_std:
// d_bias = sum dy;  d_scale = sum dy x';  dx = scale inv_std (dy - d_bias / m - x' d_scale / m)
template <class T>
Status batch_norm_grad(const Call& call) {
  const Tensor &dx = call[0], &dy = call[3], &x = call[4];
  Channel<T> ch;
  if (!read_layout(&ch, call, 4, 1u << 0 | 1u << 3, 0xe6u)) return Status::kBadPlan;
  T count = static_cast<T>(ch.rows * ch.length);
  for (int c = 0; c < x.dims[1]; ++c) {
    ch.u = dy.as<T>() + c * ch.length;
    ch.x = x.as<T>() + c * ch.length;
    ch.mean = call[6].as<T>()[c];
    ch.shift = 0;
    sum_channel(&ch);
    T inverse = call[7].as<T>()[c], factor = call[5].as<T>()[c] * inverse;
    T d_scale = ch.product * inverse;
    blend(call[1], c, T(call.adds(1)), d_scale);
    blend(call[2], c, T(call.adds(2)), ch.sum);
    if (!dx) continue;
    ch.y = dx.as<T>() + c * ch.length;
    ch.shift = ch.sum / count;
    ch.a = factor;
    ch.b = -factor * inverse * d_scale / count;
    ch.c = 0;
    map_channel(&ch);
  }
  return Status::kOk;
}

MB_INSTANTIATE_BATCH_NORMALIZATION

}  // namespace minbuild
