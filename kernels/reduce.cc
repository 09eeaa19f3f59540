// Sums and means over axes.
#include "minbuild/kernel.h"

namespace minbuild {

// y[i] += x[i]
template <class T>
struct AddRowsBody {
  template <class W>
  static MB_INLINE void run(T* y, const T* x, int rows, int columns) {
    using V = typename W::template of<T>;
    for (; rows > 0; --rows, x += columns) {
      int i = 0;
      for (; i <= columns - V::size; i += V::size) (V::load(y + i) + V::load(x + i)).store(y + i);
      for (; i < columns; ++i) y[i] += x[i];
    }
  }
};

// Sum of contiguous elements, in as many partial sums as a vector has lanes.
template <class T>
struct SumBody {
  template <class W>
  static MB_INLINE T run(const T* x, int count) {
    using V = typename W::template of<T>;
    V total = T(0);
    int i = 0;
    for (; i <= count - V::size; i += V::size) total = total + V::load(x + i);
    total = total + V::load(x + i, count - i);
    T lanes[V::size], result = 0;
    total.store(lanes);
    for (T lane : lanes) result += lane;
    return result;
  }
};

// x: [A,K,R,I], summed over A and R  y: [K,I]  The groups are x's axes folded together.
template <class T>
Status reduce(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &groups = call[2];
  if (groups.rank != 4 || groups.count != x.count) return Status::kBadPlan;
  int outer = groups.dims[0], kept = groups.dims[1], reduced = groups.dims[2], inner = groups.dims[3];
  if (y.count != kept * inner) return Status::kBadPlan;
  T* to = y.as<T>();
  // The mean divides sums, so what is in y already has to be multiplied first.
  T divisor = MB_REDUCE_MEAN && call.params[0] != 0 ? static_cast<T>(outer * reduced) : T(1);
  for (int i = 0; i < y.count; ++i) to[i] = call.adds(0) ? to[i] * divisor : T(0);
  const T* from = x.as<T>();
  for (int a = 0; a < outer; ++a) {
    for (int k = 0; k < kept; ++k, from += reduced * inner) {
      if (MB_REDUCE_ROWS && inner == 1) {
        to[k] += dispatch<SumBody<T>>(from, reduced);
      } else {
        dispatch<AddRowsBody<T>>(to + k * inner, from, reduced, inner);
      }
    }
  }
  for (int i = 0; i < y.count && divisor != 1; ++i) to[i] /= divisor;
  return Status::kOk;
}

MB_INSTANTIATE_REDUCE

}  // namespace minbuild
