// Softmax and log-softmax over one axis, and their gradients.
#include "shared/softmax.h"

#include "minbuild/kernel.h"

namespace minbuild {

// Tensors [A,C,B] with the softmax over C.
struct SoftmaxShape {
  int outer, classes, inner;
  bool log;

  bool read(const Tensor& y, const Tensor& x, const Tensor& groups, const int32_t* params) {
    if (groups.rank != 3 || groups.count != y.count || x.count != y.count) return false;
    outer = groups.dims[0], classes = groups.dims[1], inner = groups.dims[2];
    log = MB_SOFTMAX_LOG && params[0] != 0;
    return y.count != 0;
  }
};

// As many neighbouring softmaxes as V has lanes; y may be x.
template <class T>
struct SoftmaxColumns {
  template <class V>
  static MB_INLINE void step(int i, T* y, const T* x, const SoftmaxShape* shape) {
    int end = shape->classes * shape->inner + i;
    V largest = V::load(x + i), sum = T(0);
    for (int at = i; at < end; at += shape->inner) largest = max(V::load(x + at), largest);
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(x + at) - largest, power = exp(each);
      sum = sum + power;
      (shape->log ? each : power).store(y + at);
    }
    sum = shape->log ? log(sum) : V(T(1)) / sum;
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(y + at);
      (shape->log ? each - sum : each * sum).store(y + at);
    }
  }
};

template <class T>
struct SoftmaxGradColumns {
  template <class V>
  static MB_INLINE void step(int i, T* dx, const T* dy, const T* y, const SoftmaxShape* shape) {
    int end = shape->classes * shape->inner + i;
    V sum = T(0);
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(dy + at);
      sum = sum + (shape->log ? each : each * V::load(y + at));
    }
    for (int at = i; at < end; at += shape->inner) {
      V each = V::load(dy + at), out = V::load(y + at);
      (shape->log ? each - exp(out) * sum : (each - sum) * out).store(dx + at);
    }
  }
};
