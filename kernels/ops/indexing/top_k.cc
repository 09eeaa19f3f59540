// The largest or smallest elements along an axis, in order.
#include "lib/indexing/disjoint.h"

namespace minbuild {

// True if *a is larger than *b; no number is the largest.
using Larger = bool (*)(const char* a, const char* b);
template <class T>
bool larger(const char* a, const char* b) {
  T left = *reinterpret_cast<const T*>(a), right = *reinterpret_cast<const T*>(b);
  return left > right || (left != left && right == right);
}

// Indices of the best elements found so far, the worst of them first: no index stands above a worse one.
struct Best {
  Larger larger;
  bool smallest;
  ptrdiff_t step;  // bytes
  const char* x;
  int32_t* heap;
  int size;

  // True if element a comes before element b; of equal ones the first is first.
  bool before(int32_t a, int32_t b) const {
    const char *left = x + a * step, *right = x + b * step;
    if (smallest ? larger(right, left) : larger(left, right)) return true;
    return a < b && !(smallest ? larger(left, right) : larger(right, left));
  }
  void swap(int i, int j) {
    int32_t old = heap[i];
    heap[i] = heap[j], heap[j] = old;
  }
  MB_NOINLINE void sift_down() {
    for (int at = 0, down; (down = 2 * at + 1) < size; at = down) {
      if (down + 1 < size && before(heap[down], heap[down + 1])) ++down;
      if (before(heap[down], heap[at])) return;
      swap(at, down);
    }
  }
  void add(int32_t index) {
    int at = size++;
    heap[at] = index;
    for (int up; at > 0 && before(heap[up = (at - 1) / 2], heap[at]); at = up) swap(up, at);
  }
  // The best `count` of `all` elements, in order.
  MB_NOINLINE void find(int all, int count) {
    size = 0;
    for (int i = 0; i < all; ++i) {
      if (size < count) {
        add(i);
      } else if (before(i, heap[0])) {
        heap[0] = i;
        sift_down();
      }
    }
    while (size > 1) {
      swap(0, --size);
      sift_down();
    }
  }
};

// x: [A,D,B]  values, indices: [A,K,B]  heap: K int32
MB_NOINLINE Status top_k_of(const Call& call, Larger larger, int element) {
  const Tensor &values = call[0], &indices = call[1], &x = call[2], &groups = call[3], &heap = call[4];
  if (groups.rank != 4) return Status::kTooLarge;
  int outer = groups.dims[0], size = groups.dims[1], inner = groups.dims[2], count = groups.dims[3];
  int64_t rows = int64_t(outer) * inner;
  if (count > size || x.count != rows * size || heap.count != int64_t(count) * 4 ||
      reinterpret_cast<uintptr_t>(heap.data) % 4 != 0)
    return Status::kTooLarge;
  for (int i = 0; i < 2; ++i)
    if (call[i] && (call[i].count != rows * count || !disjoint(heap, 1, call[i], i == 0 ? element : 8)))
      return Status::kTooLarge;
  if (count == 0) return Status::kOk;
  Best best = {larger, call.params[0] == 0, ptrdiff_t(inner) * element, x.data, heap.as<int32_t>(), 0};
  for (int a = 0; a < outer; ++a, best.x += best.step * (size - 1)) {
    for (int b = 0; b < inner; ++b, best.x += element) {
      best.find(size, count);
      ptrdiff_t at = ptrdiff_t(a) * count * inner + b;
      for (int i = 0; i < count; ++i, at += inner) {
        if (values) copy_bytes(values.data + at * element, best.x + best.heap[i] * best.step, element);
        if (indices) indices.as<int64_t>()[at] = best.heap[i];
      }
    }
  }
  return Status::kOk;
}

template <class T>
Status top_k(const Call& call) {
  return top_k_of(call, larger<T>, sizeof(T));
}

MB_INSTANTIATE_TOP_K

}  // namespace minbuild
