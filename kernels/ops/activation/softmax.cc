// Softmax and log-softmax over one axis, and their gradients.
#include "minbuild/kernel.h"
#include "lib/types/bytes.h"
#include "lib/simd/math.h"

namespace minbuild {

constexpr int kWholeRow = 8;  // rows have whole vectors of every width: of 8 floats, or of fewer doubles

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
  static constexpr int kInputs = 1;
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
  static constexpr int kInputs = 2;
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
// Softmaxes of `count` elements, or their gradients, without logarithms, of `rows` rows, with the bits of SoftmaxBody and
// SoftmaxGradBody. Several rows at once: their sums do not wait for themselves, nor rows for each other. Rows that are no
// number of whole vectors are read beyond their end: the last row of all stays. Both return the rows that are done.
constexpr int kSoftmaxesTogether = 4;

template <class T, class V>
struct RowEnd {
  int whole, rest;
  typename V::Bits kept;  // lanes of the last vector that belong to the row

  MB_INLINE explicit RowEnd(int count) : rest(count % V::size) {
    whole = count - rest;
    for (int lane = 0; lane < V::size; ++lane) kept.v[lane] = lane < rest ? -1 : 0;
  }
  MB_INLINE bool fits(int rows) const { return kSoftmaxesTogether + (rest != 0) <= rows; }
  MB_INLINE V load(const T* x, V others) const { return select(kept, V::load(x + whole), others); }
  // The first `rest` lanes.
  MB_INLINE void store(V x, T* to) const {
    T lanes[V::size];
    x.store(lanes);
    to += whole;
    int i = 0;
    if (V::size > 4 && rest >= 4) Vec<T, 4>::load(lanes).store(to), i = 4;
    for (; i < rest; ++i) to[i] = lanes[i];
  }
};

template <class T>
struct SoftmaxRows {
  template <class W>
  static MB_INLINE int run(T* to, const T* x, int rows, int count) {
    using V = typename W::template of<T>;
    const RowEnd<T, V> end(count);
    const V least = SoftmaxBody<T>::filler;
    int done = 0;
    for (; end.fits(rows - done); done += kSoftmaxesTogether) {
      V tops[kSoftmaxesTogether], last[kSoftmaxesTogether];
      unroll<kSoftmaxesTogether>([&](auto i) MB_LAMBDA { tops[i] = least; });
      for (int c = 0; c < end.whole; c += V::size)
        unroll<kSoftmaxesTogether>([&](auto i)
                                       MB_LAMBDA { tops[i] = max(V::load(x + intptr_t(i) * count + c), tops[i]); });
      if (end.rest != 0)
        unroll<kSoftmaxesTogether>([&](auto i) MB_LAMBDA {
          last[i] = end.load(x + intptr_t(i) * count, least);
          tops[i] = max(last[i], tops[i]);
        });
      for (int i = 0; i < kSoftmaxesTogether; ++i, to += count, x += count) {
        T lanes[V::size], top = SoftmaxBody<T>::filler;
        tops[i].store(lanes);
        for (T lane : lanes) top = lane > top ? lane : top;
        V sums = T(0), power = T(0);
        const intptr_t next = intptr_t(kSoftmaxesTogether) * count;
        for (int c = 0; c < end.whole; c += V::size) {
          __builtin_prefetch(x + next + c);
          power = exp_of_negative(V::load(x + c) - V(top));
          sums = sums + power;
          power.store(to + c);
        }
        if (end.rest != 0) sums = sums + (power = exp_of_negative(last[i] - V(top)));
        const V scale = T(1) / sum(sums);
        for (int c = 0; c < end.whole; c += V::size) (V::load(to + c) * scale).store(to + c);
        if (end.rest != 0) end.store(power * scale, to);
      }
    }
    return done;
  }
};

template <class T>
struct RowGradients {
  template <class W>
  static MB_INLINE int run(T* to, const T* dy, const T* y, int rows, int count) {
    using V = typename W::template of<T>;
    const RowEnd<T, V> end(count);
    const V none = T(0);
    int done = 0;
    for (; end.fits(rows - done); done += kSoftmaxesTogether) {
      V sums[kSoftmaxesTogether];
      unroll<kSoftmaxesTogether>([&](auto i) MB_LAMBDA { sums[i] = none; });
      for (int c = 0; c < end.whole; c += V::size)
        unroll<kSoftmaxesTogether>([&](auto i) MB_LAMBDA {
          const intptr_t at = intptr_t(i) * count + c;
          sums[i] = muladd(V::load(dy + at), V::load(y + at), sums[i]);
        });
      for (int i = 0; i < kSoftmaxesTogether; ++i, to += count, dy += count, y += count) {
        if (end.rest != 0) sums[i] = muladd(end.load(dy, none), end.load(y, none), sums[i]);
        const V total = sum(sums[i]);
        const auto write = [&](int at) MB_LAMBDA { ((V::load(dy + at) - total) * V::load(y + at)).store(to + at); };
        const intptr_t next = intptr_t(kSoftmaxesTogether) * count;
        int c = 0;
        for (; c <= end.whole - 2 * V::size; c += 2 * V::size) {
          __builtin_prefetch(dy + next + c);
          __builtin_prefetch(y + next + c);
          unroll<2>([&](auto v) MB_LAMBDA { write(c + v * V::size); });
        }
        if (c < end.whole) write(c);
        if (end.rest != 0) end.store((V::load(dy + end.whole) - total) * V::load(y + end.whole), to);
      }
    }
    return done;
  }
};
#endif

// Tensors [A,C,B], and a softmax over C for each of A and B: its elements lie B apart. Where that is not 1, or C no number
// of whole vectors, they are copied together, into `apart`, and back; of long rows only the last vector is copied, and
// there is no `apart`. Arguments: the output, the inputs of the same size, the sizes, `apart`.
template <class T, class Body>
MB_INLINE Status each_softmax(const Call& call) {
  constexpr int kInputs = Body::kInputs;
  const Tensor &out = call[0], &groups = call[kInputs + 1], &apart = call[kInputs + 2];
  if (groups.rank != 3 || groups.count != out.count) return Status::kBadPlan;
  for (int i = 1; i <= kInputs; ++i)
    if (call[i].count != out.count) return Status::kBadPlan;
  if (out.count == 0) return Status::kOk;
  const int count = groups.dims[1], stride = groups.dims[2];
  const bool copies = MB_SOFTMAX_APART && apart;
  SoftmaxOne<T> row;
  row.is_log = call.params[0] != 0;
  row.count = copies ? apart.count / kInputs : count;
  const int rest = MB_SOFTMAX_ROWS && !copies ? count % kWholeRow : 0;
  row.count -= rest;
  if (row.count % kWholeRow != 0 || (copies ? row.count < count : stride != 1)) return Status::kBadPlan;
#if MB_SOFTMAX_ROWS
  T ends[2][kWholeRow];
  SoftmaxOne<T> end = row;
  end.count = kWholeRow, end.rest = nullptr, row.rest = rest != 0 ? &end : nullptr;
  end.x = end.to = ends[kInputs - 1], end.dy = ends[0];
#endif
  int a = 0;
#if MB_SOFTMAX_TOGETHER
  if (!copies && !row.log()) {
    T *to = out.as<T>(), *x = call[kInputs].as<T>();
    if constexpr (kInputs == 1) a = dispatch<SoftmaxRows<T>>(to, static_cast<const T*>(x), groups.dims[0], count);
    else
      a = dispatch<RowGradients<T>>(to, static_cast<const T*>(call[1].as<T>()), static_cast<const T*>(x),
                                    groups.dims[0], count);
  }
#endif
  for (; a < groups.dims[0]; ++a) {
    for (int b = 0; b < stride; ++b) {
      T* at[3];
      for (int i = 0; i <= kInputs; ++i) at[i] = call[i].as<T>() + a * count * stride + b;
      for (int i = 1; copies && i <= kInputs; ++i) {
        T* together = apart.as<T>() + (i - 1) * row.count;
        for (int c = 0; c < row.count; ++c) together[c] = c < count ? at[i][c * stride] : Body::filler;
        at[i] = together;
      }
#if MB_SOFTMAX_ROWS
      for (int i = 0; rest != 0 && i < kInputs; ++i) {
        for (T& each : ends[i]) each = Body::filler;
        copy_bytes(ends[i], at[i + 1] + row.count, rest * sizeof(T));
      }
#endif
      row.x = at[kInputs], row.dy = at[1], row.to = copies ? at[kInputs] : at[0];
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
  return each_softmax<T, SoftmaxBody<T>>(call);
}

template <class T>
Status softmax_grad(const Call& call) {
  return each_softmax<T, SoftmaxGradBody<T>>(call);
}

MB_INSTANTIATE_SOFTMAX

}  // namespace minbuild
