// Softmax and log-softmax over one axis, and their gradients.
#include "shared/elementwise.h"
#include "shared/math.h"

namespace minbuild {

// Tensors [A,C,B] with the softmax over C.
struct SoftmaxShape {
  int outer, classes, inner;
  bool log;

  bool read(const Tensor& y, const Tensor& x, const Tensor& groups, const int32_t* params) {
    if (groups.rank != 3 || groups.count != y.count || x.count != y.count) return false;
    outer = groups.dims[0], classes = groups.dims[1], inner = groups.dims[2];
    log = params[0] != 0;
    return y.count != 0;
  }
};

// As many neighbouring softmaxes as V has lanes; y may be x.
template <class T>
struct SoftmaxColumns {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x, const SoftmaxShape* shape) {
    const bool logs = MB_SOFTMAX_LOG && shape->log;
    int end = shape->classes * shape->inner + i;
    V largest = V::load(x + i), sum = T(0);
    for (int at = i; at < end; at += shape->inner) largest = max(V::load(x + at), largest);
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(x + at) - largest, power = exp(each);
      sum = sum + power;
      (logs ? each : power).store(y + at);
    }
    sum = logs ? log(sum) : V(T(1)) / sum;
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(y + at);
      (logs ? each - sum : each * sum).store(y + at);
    }
  }
};

template <class T>
struct SoftmaxGradColumns {
  template <class V>
  static MB_INLINE void step(int i, T* dx, const T* dy, const T* y, const SoftmaxShape* shape) {
    const bool logs = MB_SOFTMAX_LOG && shape->log;
    int end = shape->classes * shape->inner + i;
    V sum = T(0);
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(dy + at);
      sum = sum + (logs ? each : each * V::load(y + at));
    }
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(dy + at), out = V::load(y + at);
      (logs ? each - exp(out) * sum : (each - sum) * out).store(dx + at);
    }
  }
};

// A row of `count` elements as whole vectors: the last ones are copied to a vector of their own and filled up.
template <class T, int N>
struct PaddedRow {
  T tail[N];
  int whole, rest;

  MB_INLINE PaddedRow(const T* x, int count, T filler) : whole(count & -N), rest(count & (N - 1)) {
    if (N == 1) return;
    Vec<T, N>(filler).store(tail);
    __builtin_memcpy(tail, x + whole, rest * sizeof(T));
  }
  // Where vector `i` stands when the row itself is at x.
  MB_INLINE T* at(T* x, int i) { return N == 1 || i < whole ? x + i : tail; }
  MB_INLINE const T* at(const T* x, int i) const { return N == 1 || i < whole ? x + i : tail; }
  MB_INLINE void copy_to(T* y) const {
    if (N > 1) __builtin_memcpy(y + whole, tail, rest * sizeof(T));
  }
};

// One number from all lanes: halves onto halves.
template <class T, int N, class F>
MB_INLINE T fold_lanes(Vec<T, N> v, F f) {
  if constexpr (N == 1) {
    return v.v[0];
  } else {
    Vec<T, N / 2> half[2];
    __builtin_memcpy(half, &v, sizeof v);
    return fold_lanes(f(half[0], half[1]), f);
  }
}

struct LargerOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return max(a, b);
  }
};
struct TotalOf {
  template <class V>
  MB_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// One softmax over contiguous elements; y may be x.
template <class T>
struct SoftmaxRow {
  template <class W>
  static MB_INLINE void run(T* y, const T* x, int count, bool asked) {
    using V = typename W::template of<T>;
    const bool logs = MB_SOFTMAX_LOG && asked;  // here, because a call that is not inlined hides constants
    constexpr T kNothing = -static_cast<T>(__builtin_inff());
    PaddedRow<T, V::size> row(x, count, kNothing);
    V tops = kNothing, sums = T(0);
    for (int i = 0; i < count; i += V::size) tops = max(V::load(row.at(x, i)), tops);
    V top = fold_lanes(tops, LargerOf{});
    for (int i = 0; i < count; i += V::size) {
      V each = V::load(row.at(x, i)) - top, power = exp(each);
      sums = sums + power;
      (logs ? each : power).store(row.at(y, i));
    }
    V sum = fold_lanes(sums, TotalOf{});
    sum = logs ? log(sum) : V(T(1)) / sum;
    for (int i = 0; i < count; i += V::size) {
      V each = V::load(row.at(y, i));
      (logs ? each - sum : each * sum).store(row.at(y, i));
    }
    row.copy_to(y);
  }
};

template <class T>
struct SoftmaxGradRow {
  template <class W>
  static MB_INLINE void run(T* dx, const T* dy, const T* y, int count, bool asked) {
    using V = typename W::template of<T>;
    const bool logs = MB_SOFTMAX_LOG && asked;
    PaddedRow<T, V::size> row(dy, count, T(0)), out(y, count, T(0));
    V sums = T(0);
    for (int i = 0; i < count; i += V::size) {
      V each = V::load(row.at(dy, i));
      sums = sums + (logs ? each : each * V::load(out.at(y, i)));
    }
    V sum = fold_lanes(sums, TotalOf{});
    for (int i = 0; i < count; i += V::size) {
      V each = V::load(row.at(dy, i)), power = V::load(out.at(y, i));
      (logs ? each - exp(power) * sum : (each - sum) * power).store(row.at(dx, i));
    }
    row.copy_to(dx);
  }
};

// Wide vectors where the processor has them, else single elements.
template <class Body, class T, class... Args>
MB_INLINE void run_row(T* y, Args... args) {
#if MB_DISPATCHES
  if (vector_bytes() >= 32) return run_avx2<Body>(y, args...);
  Body::template run<Width<sizeof(T)>>(y, args...);
#else
  dispatch<Body>(y, args...);
#endif
}

// y = e^(x - top) / sum of it, or its logarithm; top is the largest x, so that nothing overflows
template <class T>
Status softmax(const Call& call) {
  SoftmaxShape shape;
  if (!shape.read(call[0], call[1], call[2], call.params)) return Status::kBadPlan;
  T* y = call[0].as<T>();
  const T* x = call[1].as<T>();
  int block = shape.classes * shape.inner;
  for (int a = 0; a < shape.outer; ++a, y += block, x += block) {
    if (MB_SOFTMAX_ROWS && shape.inner == 1) {
      run_row<SoftmaxRow<T>>(y, x, shape.classes, shape.log);
    } else if (MB_SOFTMAX_COLUMNS) {
      for_range<T, SoftmaxColumns<T>>(shape.inner, y, x, static_cast<const SoftmaxShape*>(&shape));
    }
  }
  return Status::kOk;
}

// dx = (dy - sum dy y) y, or with logarithms dy - e^y sum dy
template <class T>
Status softmax_grad(const Call& call) {
  SoftmaxShape shape;
  if (!shape.read(call[0], call[1], call[3], call.params) || call[2].count != call[0].count) return Status::kBadPlan;
  T* dx = call[0].as<T>();
  const T *dy = call[1].as<T>(), *y = call[2].as<T>();
  int block = shape.classes * shape.inner;
  for (int a = 0; a < shape.outer; ++a, dx += block, dy += block, y += block) {
    if (MB_SOFTMAX_ROWS && shape.inner == 1) {
      run_row<SoftmaxGradRow<T>>(dx, dy, y, shape.classes, shape.log);
    } else if (MB_SOFTMAX_COLUMNS) {
      for_range<T, SoftmaxGradColumns<T>>(shape.inner, dx, dy, y, static_cast<const SoftmaxShape*>(&shape));
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_SOFTMAX

}  // namespace minbuild
