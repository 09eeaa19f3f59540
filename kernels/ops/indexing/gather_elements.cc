// Elements whose place along one axis an index gives: taken, or updated.
#include "lib/indexing/scatter_gather.h"

namespace minbuild {

// The part has an element for every index; the whole is at least as large along all axes but one.
struct ElementIterator : IndexIterator {
  const int64_t* indices;
  const int32_t* sizes;
  int32_t last, axis, size, base;
  int32_t strides[MB_MAX_RANK], at[MB_MAX_RANK];

  MB_NOINLINE bool read(const Tensor& whole, const Tensor& part, const Tensor& index, int32_t along) {
    int rank = index.rank;
    count = index.count, inner = 1, next = find;
    indices = index.as<int64_t>(), sizes = index.dims, last = rank - 1, axis = along, base = 0;
    if (rank == 0 || whole.rank != rank || part.count != count || axis < 0 || axis >= rank) return false;
    size = whole.dims[axis];
    uint32_t stride = 1;
    for (int i = last; i >= 0; --i) {
      at[i] = 0;
      strides[i] = static_cast<int32_t>(stride);
      stride *= static_cast<uint32_t>(whole.dims[i]);
      if (count != 0 && i != axis && sizes[i] > whole.dims[i]) return false;
    }
    return true;
  }

  static int32_t find(IndexIterator& places) {
    ElementIterator& p = static_cast<ElementIterator&>(places);
    int64_t index = *p.indices++;
    if (!counted(index, p.size)) return -1;
    int32_t place = p.base + static_cast<int32_t>(index) * p.strides[p.axis];
    for (int k = p.last; k >= 0; --k) {
      int32_t stride = k == p.axis ? 0 : p.strides[k];
      p.base += stride;
      if (++p.at[k] < p.sizes[k]) break;
      p.base -= stride * p.sizes[k];
      p.at[k] = 0;
    }
    return place;
  }
};

// Parameter 0 is the axis.
template <class T>
Status gather_elements(const Call& call) {
  ElementIterator places;
  if (!places.read(call[1], call[0], call[2], call.params[0])) return Status::kBadPlan;
  return gather_at<T>(call[0], call[1], places);
}

template <class T>
Status scatter_elements(const Call& call) {
  ElementIterator places;
  if (!places.read(call[0], call[3], call[2], call.params[0])) return Status::kBadPlan;
  return scatter_checked<T, false>(call, places, 0);
}

// Parameter 1 says how an update meets what is there.
template <class T>
Status scatter_elements_reduce(const Call& call) {
  ElementIterator places;
  if (!places.read(call[0], call[3], call[2], call.params[0])) return Status::kBadPlan;
  return scatter_checked<T, true>(call, places, call.params[1]);
}

MB_INSTANTIATE_GATHER_ELEMENTS

}  // namespace minbuild
