// The largest or smallest elements along an axis, in order.
#include "shared/apart.h"

namespace minbuild {

// Indices of the best elements found so far, the worst of them first: no index stands above a worse one.
template <class T>
struct Best {
  const T* x;
  ptrdiff_t step;
  bool smallest;
  int32_t* heap;
  int size;

  // Whether element a comes before element b: no number counts as the largest, of equal ones the first is first.
  bool before(int32_t a, int32_t b) const {
    T left = x[a * step], right = x[b * step];
    bool more = left > right || (left != left && right == right), less = left < right || (right != right && left == left);
    return (smallest ? less : more) || (!more && !less && a < b);
  }
  void sift_up(int at) {
    for (int up; at > 0 && before(heap[up = (at - 1) / 2], heap[at]); at = up) swap(up, at);
  }
  void sift_down(int at) {
    for (int down; (down = 2 * at + 1) < size; at = down) {
      if (down + 1 < size && before(heap[down], heap[down + 1])) ++down;
      if (before(heap[down], heap[at])) return;
      swap(at, down);
    }
  }
  void swap(int i, int j) {
    int32_t old = heap[i];
    heap[i] = heap[j], heap[j] = old;
  }
};

// x: [A,D,B]  values, indices: [A,K,B]  heap: K int32
template <class T>
Status top_k(const Call& call) {
  const Tensor &values = call[0], &indices = call[1], &x = call[2], &groups = call[3], &heap = call[4];
  if (groups.rank != 4) return Status::kBadPlan;
  int outer = groups.dims[0], size = groups.dims[1], inner = groups.dims[2], count = groups.dims[3];
  int64_t rows = int64_t(outer) * inner;
  if (count > size || x.count != rows * size || heap.count != int64_t(count) * 4) return Status::kBadPlan;
  for (int i = 0; i < 2; ++i) {
    if (!call[i]) continue;
    if (call[i].count != rows * count || !apart(heap, 1, call[i], i == 0 ? int(sizeof(T)) : 8)) return Status::kBadPlan;
  }
  if (count == 0) return Status::kOk;
  for (int a = 0; a < outer; ++a) {
    for (int b = 0; b < inner; ++b) {
      Best<T> best = {x.as<T>() + int64_t(a) * size * inner + b, inner, call.params[0] == 0, heap.as<int32_t>(), 0};
      for (int i = 0; i < size; ++i) {
        if (best.size < count) {
          best.heap[best.size] = i;
          best.sift_up(best.size++);
        } else if (best.before(i, best.heap[0])) {
          best.heap[0] = i;
          best.sift_down(0);
        }
      }
      while (best.size > 1) {
        best.swap(0, --best.size);
        best.sift_down(0);
      }
      for (int i = 0; i < count; ++i) {
        ptrdiff_t at = (ptrdiff_t(a) * count + i) * inner + b;
        if (values) values.as<T>()[at] = best.x[best.heap[i] * best.step];
        if (indices) indices.as<int64_t>()[at] = best.heap[i];
      }
    }
  }
  return Status::kOk;
}

MB_INSTANTIATE_TOP_K

}  // namespace minbuild
