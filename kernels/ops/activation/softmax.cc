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
#if MB_SOFTMAX_ROWS
  const SoftmaxOne* rest;  // what is left of a row behind its whole vectors, copied and filled up
#endif

  bool log() const { return MB_SOFTMAX_LOG && is_log; }
};

// work(row, c) for the first elements c of all vectors of the row. `first` is a copy of it.
template <class V, class T, class Work>
MB_INLINE void each_vector([[maybe_unused]] const SoftmaxOne<T>* row, const SoftmaxOne<T>& first, const Work& work) {
#if MB_SOFTMAX_ROWS
  for (SoftmaxOne<T> r = first;; r = *row) {
    for (int c = 0; c < r.count; c += V::size) work(r, c);
    row = r.rest;
    if (row == nullptr) return;
  }
#else
  for (int c = 0; c < first.count; c += V::size) work(first, c);
#endif
}

// y = e^(x - top) / sum of it, or its logarithm; top is the largest x, so that nothing overflows. y may be x.
template <class T>
struct SoftmaxBody {
  static constexpr bool kTogether = false;
  static constexpr T filler = -static_cast<T>(__builtin_inff());

  template <class W>
  static MB_INLINE void run(const SoftmaxOne<T>* row) {
    using V = typename W::template of<T>;
    const SoftmaxOne<T> r = *row;
    V tops = filler, sums = T(0);
    each_vector<V>(row, r, [&](const auto& r, int c) MB_LAMBDA { tops = max(V::load(r.x + c), tops); });
    T lanes[V::size], top = filler;
    tops.store(lanes);
    for (T lane : lanes) top = lane > top ? lane : top;
    each_vector<V>(row, r, [&](const auto& r, int c) MB_LAMBDA {
      V power = exp_of_negative(V::load(r.x + c) - V(top));
      sums = sums + power;
      if (!r.log()) power.store(r.to + c);
    });
    const T total = sum(sums);
    const V scale = r.log() ? V(minbuild::log(Vec<T, 1>(total)).v[0]) : V(T(1) / total);
    each_vector<V>(row, r, [&](const auto& r, int c) MB_LAMBDA {
      V each = V::load((r.log() ? r.x : r.to) + c);
      (r.log() ? each - V(top) - scale : each * scale).store(r.to + c);
    });
  }
};

// dx = (dy - sum dy y) y, or with logarithms dy - e^y sum dy, where y is x of the row. dx may be dy or y.
template <class T>
struct SoftmaxGradBody {
  static constexpr bool kTogether = true;  // RowGradients
  static constexpr T filler = 0;

  template <class W>
  static MB_INLINE void run(const SoftmaxOne<T>* row) {
    using V = typename W::template of<T>;
    const SoftmaxOne<T> r = *row;
    V sums = T(0);
    each_vector<V>(row, r, [&](const auto& r, int c) MB_LAMBDA {
      V each = V::load(r.dy + c);
      sums = r.log() ? sums + each : muladd(each, V::load(r.x + c), sums);
    });
    const V total = sum(sums);
    each_vector<V>(row, r, [&](const auto& r, int c) MB_LAMBDA {
      V each = V::load(r.dy + c), y = V::load(r.x + c);
      (r.log() ? each - exp(y) * total : (each - total) * y).store(r.to + c);
    });
  }
};

#if MB_SOFTMAX_TOGETHER
// The gradients of `rows` softmaxes of `count` elements, without logarithms, as of SoftmaxGradBody, four rows at once,
// so that their sums do not wait for themselves. Rows that are no number of whole vectors are read beyond their end:
// the last row of all stays. Returns the rows that are done.
template <class T>
struct RowGradients {
  template <class W>
  static MB_INLINE int run(T* to, const T* dy, const T* y, int rows, int count) {
    using V = typename W::template of<T>;
    using I = typename V::Bits;
    constexpr int kRows = 4;
    const int rest = count % V::size, whole = count - rest;
    I kept;  // lanes of the last vector that belong to the row
    for (int lane = 0; lane < V::size; ++lane) kept.v[lane] = lane < rest ? -1 : 0;
    int done = 0;
    for (; done + kRows + (rest != 0) <= rows; done += kRows) {
      V sums[kRows];
      unroll<kRows>([&](auto i) MB_LAMBDA { sums[i] = T(0); });
      for (int c = 0; c < whole; c += V::size)
        unroll<kRows>([&](auto i) MB_LAMBDA {
          const intptr_t at = intptr_t(i) * count + c;
          sums[i] = muladd(V::load(dy + at), V::load(y + at), sums[i]);
        });
      for (int i = 0; i < kRows; ++i, to += count, dy += count, y += count) {
        if (rest != 0) sums[i] = muladd(of_row(V::load(dy + whole), kept), of_row(V::load(y + whole), kept), sums[i]);
        const V total = sum(sums[i]);
        for (int c = 0; c < whole; c += V::size) ((V::load(dy + c) - total) * V::load(y + c)).store(to + c);
        if (rest != 0) store_rest((V::load(dy + whole) - total) * V::load(y + whole), to + whole, rest);
      }
    }
    return done;
  }
  // The first `rest` lanes.
  template <class V>
  static MB_INLINE void store_rest(V x, T* to, int rest) {
    T lanes[V::size];
    x.store(lanes);
    int i = 0;
    if (V::size > 4 && rest >= 4) Vec<T, 4>::load(lanes).store(to), i = 4;
    for (; i < rest; ++i) to[i] = lanes[i];
  }
  template <class V>
  static MB_INLINE V of_row(V x, typename V::Bits kept) {
    return bits_as<T>(bits_as<typename LaneBits<T>::type>(x) & kept);
  }
};
#endif

// Tensors [A,C,B], and a softmax over C for each of A and B: its elements lie B apart. Where that is not 1, or C no number
// of whole vectors, they are copied together, into `apart`, and back; of long rows only the last vector is copied, and
// there is no `apart`. Arguments: the output, `inputs` of the same size, the sizes, `apart`.
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
  const int rest = MB_SOFTMAX_ROWS && !copies ? count % kWhole : 0;
  row.count -= rest;
  if (row.count % kWhole != 0 || (copies ? row.count < count : stride != 1)) return Status::kBadPlan;
#if MB_SOFTMAX_ROWS
  T ends[2][kWhole];
  SoftmaxOne<T> end = row;
  end.count = kWhole, end.rest = nullptr, row.rest = rest != 0 ? &end : nullptr;
  end.x = end.to = ends[inputs - 1], end.dy = ends[0];
#endif
  int a = 0;
#if MB_SOFTMAX_TOGETHER
  if (Body::kTogether && !copies && !row.log())
    a = dispatch<RowGradients<T>>(call[0].as<T>(), static_cast<const T*>(call[1].as<T>()),
                                  static_cast<const T*>(call[inputs].as<T>()), groups.dims[0], count);
#endif
  for (; a < groups.dims[0]; ++a) {
    for (int b = 0; b < stride; ++b) {
      T* at[3];
      for (int i = 0; i <= inputs; ++i) at[i] = call[i].as<T>() + a * count * stride + b;
      for (int i = 1; copies && i <= inputs; ++i) {
        T* together = apart.as<T>() + (i - 1) * row.count;
        for (int c = 0; c < row.count; ++c) together[c] = c < count ? at[i][c * stride] : Body::filler;
        at[i] = together;
      }
#if MB_SOFTMAX_ROWS
      for (int i = 0; rest != 0 && i < inputs; ++i) {
        for (T& each : ends[i]) each = Body::filler;
        copy_bytes(ends[i], at[i + 1] + row.count, rest * sizeof(T));
      }
#endif
      row.x = at[inputs], row.dy = at[1], row.to = copies ? at[inputs] : at[0];
      dispatch<Body>(&row);
#if MB_SOFTMAX_ROWS
      if (rest != 0) copy_bytes(at[0] + row.count, end.to, rest * sizeof(T));
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
