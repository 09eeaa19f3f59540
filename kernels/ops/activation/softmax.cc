// Softmax and log-softmax over one axis, and their gradients.
#include "minbuild/kernel.h"
#include "lib/types/bytes.h"
#include "lib/simd/math.h"

namespace minbuild {

constexpr int kWhole = 8;  // rows have whole vectors of every width: of 8 floats, or of fewer doubles

// One softmax, over elements next to each other.
template <class T>
struct SoftmaxOne {
  int count;
  bool is_log;
  T* to;
  const T *x, *dy;

  bool log() const { return MB_SOFTMAX_LOG && is_log; }
};

// y = e^(x - top) / sum of it, or its logarithm; top is the largest x, so that nothing overflows. y may be x.
template <class T>
struct SoftmaxBody {
  static constexpr T filler = -static_cast<T>(__builtin_inff());

  template <class W>
  static MB_INLINE void run(const SoftmaxOne<T>* row) {
    using V = typename W::template of<T>;
    const SoftmaxOne<T> r = *row;
    V tops = filler, sums = T(0);
    for (int c = 0; c < r.count; c += V::size) tops = max(V::load(r.x + c), tops);
    T lanes[V::size], top = filler;
    tops.store(lanes);
    for (T lane : lanes) top = lane > top ? lane : top;
    for (int c = 0; c < r.count; c += V::size) {
      V power = exp_of_negative(V::load(r.x + c) - V(top));
      sums = sums + power;
      if (!r.log()) power.store(r.to + c);
    }
    const T total = sum(sums);
    const V scale = r.log() ? V(minbuild::log(Vec<T, 1>(total)).v[0]) : V(T(1) / total);
    for (int c = 0; c < r.count; c += V::size) {
      V each = V::load((r.log() ? r.x : r.to) + c);
      (r.log() ? each - V(top) - scale : each * scale).store(r.to + c);
    }
  }
};

// dx = (dy - sum dy y) y, or with logarithms dy - e^y sum dy, where y is x of the row. dx may be dy or y.
template <class T>
struct SoftmaxGradBody {
  static constexpr T filler = 0;

  template <class W>
  static MB_INLINE void run(const SoftmaxOne<T>* row) {
    using V = typename W::template of<T>;
    const SoftmaxOne<T> r = *row;
    V sums = T(0);
    for (int c = 0; c < r.count; c += V::size) {
      V each = V::load(r.dy + c);
      sums = r.log() ? sums + each : muladd(each, V::load(r.x + c), sums);
    }
    const V total = sum(sums);
    for (int c = 0; c < r.count; c += V::size) {
      V each = V::load(r.dy + c), y = V::load(r.x + c);
      (r.log() ? each - exp(y) * total : (each - total) * y).store(r.to + c);
    }
  }
};

// Tensors [A,C,B], and a softmax over C for each of A and B: its elements lie B apart. Where that is not 1, or C no number
// of whole vectors, they are copied together, into `apart`, and back. Arguments: the output, `inputs` of the same size,
// the sizes, `apart`.
template <class T, class Body>
MB_INLINE Status each_softmax(const Call& call, int inputs) {
  const Tensor &out = call[0], &groups = call[inputs + 1], &apart = call[inputs + 2];
  if (groups.rank != 3 || groups.count != out.count) return Status::kBadPlan;
  for (int i = 1; i <= inputs; ++i)
    if (call[i].count != out.count) return Status::kBadPlan;
  if (out.count == 0) return Status::kOk;
  const int count = groups.dims[1], stride = groups.dims[2];
  const bool copies = MB_SOFTMAX_APART && apart;
  SoftmaxOne<T> row;
  row.is_log = call.params[0] != 0;
  row.count = copies ? apart.count / inputs : count;
  if (row.count % kWhole != 0 || (copies ? row.count < count : stride != 1)) return Status::kBadPlan;
  for (int a = 0; a < groups.dims[0]; ++a) {
    for (int b = 0; b < stride; ++b) {
      T* at[3];
      for (int i = 0; i <= inputs; ++i) at[i] = call[i].as<T>() + a * count * stride + b;
      for (int i = 1; copies && i <= inputs; ++i) {
        T* together = apart.as<T>() + (i - 1) * row.count;
#if MB_SOFTMAX_ROWS
        if (stride == 1) {
          copy_bytes(together, at[i], count * sizeof(T));
          for (int c = count; c < row.count; ++c) together[c] = Body::filler;
          at[i] = together;
          continue;
        }
#endif
        for (int c = 0; c < row.count; ++c) together[c] = c < count ? at[i][c * stride] : Body::filler;
        at[i] = together;
      }
      row.x = at[inputs], row.dy = at[1], row.to = copies ? at[inputs] : at[0];
      dispatch<Body>(&row);
#if MB_SOFTMAX_ROWS
      if (copies && stride == 1) {
        copy_bytes(at[0], row.to, count * sizeof(T));
        continue;
      }
#endif
      for (int c = 0; copies && c < count; ++c) at[0][c * stride] = row.to[c];
    }
  }
  return Status::kOk;
}

template <class T>
Status softmax(const Call& call) {
  return each_softmax<T, SoftmaxBody<T>>(call, 1);
}

template <class T>
Status softmax_grad(const Call& call) {
  return each_softmax<T, SoftmaxGradBody<T>>(call, 2);
}

MB_INSTANTIATE_SOFTMAX

}  // namespace minbuild
