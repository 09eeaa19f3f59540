// Softmax and log-softmax over one axis, and their gradients.
#include "minbuild/kernel.h"
#include "shared/math.h"

namespace minbuild {

// Tensors [A,C,B], and a softmax over C for each of A and B: its elements lie B apart. They are taken in vectors of 16
// bytes, which every processor with vectors has, so that the library holds the code of exp once.
template <class T>
struct Softmax {
  using V = Width<16>::of<T>;
  int outer, classes, stride;
  bool is_log;

  bool read(const Tensor& y, const Tensor& x, const Tensor& groups, const int32_t* params) {
    if (groups.rank != 3 || groups.count != y.count || x.count != y.count) return false;
    outer = groups.dims[0], classes = groups.dims[1], stride = groups.dims[2];
    is_log = params[0] != 0;
    return y.count != 0;
  }
  bool log() const { return MB_SOFTMAX_LOG && is_log; }

  // work(first element) for every softmax
  template <class Work>
  MB_INLINE void each(Work work) const {
    for (int a = 0; a < outer; ++a)
      for (int b = 0; b < stride; ++b) work(a * classes * stride + b);
  }
  // step(c) for every vector of classes, the first of which is c
  template <class Step>
  MB_INLINE void vectors(Step step) const {
    for (int c = 0; c < classes; c += V::size) step(c);
  }

  MB_NOINLINE V load(const T* x, int c, T filler) const {
    x += c * stride;
    int left = classes - c;
    if (stride == 1 && left >= V::size) return V::load(x);
    V few = filler;
    for (int i = 0; i < V::size && i < left; ++i) reinterpret_cast<T*>(&few)[i] = x[i * stride];
    return few;
  }
  MB_NOINLINE void store(V few, T* y, int c) const {
    y += c * stride;
    int left = classes - c;
    if (stride == 1 && left >= V::size) return few.store(y);
    for (int i = 0; i < V::size && i < left; ++i) y[i * stride] = reinterpret_cast<const T*>(&few)[i];
  }
};

// y = e^(x - top) / sum of it, or its logarithm; top is the largest x, so that nothing overflows. y may be x.
template <class T>
Status softmax(const Call& call) {
  using V = typename Softmax<T>::V;
  Softmax<T> all;
  if (!all.read(call[0], call[1], call[2], call.params)) return Status::kBadPlan;
  all.each([&](int first) MB_LAMBDA {
    T* y = call[0].as<T>() + first;
    const T* x = call[1].as<T>() + first;
    const T nothing = -static_cast<T>(__builtin_inff());
    V tops = nothing, sums = T(0);
    all.vectors([&](int c) MB_LAMBDA { tops = max(all.load(x, c, nothing), tops); });
    T top = tops.v[0];
    for (int i = 1; i < V::size; ++i) top = tops.v[i] > top ? tops.v[i] : top;
    all.vectors([&](int c) MB_LAMBDA {
      V power = exp(all.load(x, c, nothing) - V(top));
      sums = sums + power;
      if (!all.log()) all.store(power, y, c);
    });
    T total = sum(sums);
    total = all.log() ? log(Vec<T, 1>(total)).v[0] : T(1) / total;
    all.vectors([&](int c) MB_LAMBDA {
      V each = all.load(all.log() ? x : y, c, T(0));
      all.store(all.log() ? each - V(top) - V(total) : each * V(total), y, c);
    });
  });
  return Status::kOk;
}

// dx = (dy - sum dy y) y, or with logarithms dy - e^y sum dy. dx may be dy or y.
template <class T>
Status softmax_grad(const Call& call) {
  using V = typename Softmax<T>::V;
  Softmax<T> all;
  if (!all.read(call[0], call[1], call[3], call.params) || call[2].count != call[0].count) return Status::kBadPlan;
  all.each([&](int first) MB_LAMBDA {
    T* dx = call[0].as<T>() + first;
    const T *dy = call[1].as<T>() + first, *y = call[2].as<T>() + first;
    V sums = T(0);
    all.vectors([&](int c) MB_LAMBDA {
      V each = all.load(dy, c, T(0));
      sums = sums + (all.log() ? each : each * all.load(y, c, T(0)));
    });
    T total = sum(sums);
    all.vectors([&](int c) MB_LAMBDA {
      V each = all.load(dy, c, T(0)), out = all.load(y, c, T(0));
      all.store(all.log() ? each - exp(out) * V(total) : (each - V(total)) * out, dx, c);
    });
  });
  return Status::kOk;
}

MB_INSTANTIATE_SOFTMAX

}  // namespace minbuild
