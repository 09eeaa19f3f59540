// Elements whose place along one axis an index gives: taken, or updated.
#include "shared/indexed.h"

namespace minbuild {

// The part has an element for every index; the whole is at least as large along all axes but one.
struct ElementPlaces {
  static constexpr int inner = 1;
  const int64_t* indices;
  const int32_t* sizes;
  int rank, axis, size, count;
  int32_t strides[MB_MAX_RANK];

  MB_NOINLINE bool read(const Tensor& whole, const Tensor& part, const Tensor& index, int along) {
    rank = index.rank, axis = along, count = index.count;
    if (rank == 0 || whole.rank != rank || part.count != count || axis < 0 || axis >= rank) return false;
    indices = index.as<int64_t>(), sizes = index.dims, size = whole.dims[axis];
    uint32_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = static_cast<int32_t>(stride);
      stride *= static_cast<uint32_t>(whole.dims[i]);
      if (count != 0 && i != axis && sizes[i] > whole.dims[i]) return false;
    }
    return true;
  }

  // body(place) for every index in order, up to one that names nothing
  template <class Body>
  MB_INLINE bool each(Body body) const {
    int32_t at[MB_MAX_RANK] = {};
    int last = rank - 1, base = 0, row = sizes[last], step = axis == last ? 0 : 1;
    for (int i = 0; i < count; i += row) {
      for (int j = 0; j < row; ++j) {
        int64_t index = indices[i + j];
        if (!counted(index, size)) return false;
        body(base + j * step + static_cast<int>(index) * strides[axis]);
      }
      for (int k = last - 1; k >= 0; --k) {
        int32_t stride = k == axis ? 0 : strides[k];
        base += stride;
        if (++at[k] < sizes[k]) break;
        base -= stride * sizes[k];
        at[k] = 0;
      }
    }
    return true;
  }
};

// Parameter 0 is the axis.
template <class T>
Status gather_elements(const Call& call) {
  return take<T, ElementPlaces>(call, call.params[0]);
}

template <class T>
Status scatter_elements(const Call& call) {
  return put<T, false, ElementPlaces>(call, call.params[0], 0);
}

// Parameter 1 says how an update meets what is there.
template <class T>
Status scatter_elements_meeting(const Call& call) {
  return put<T, true, ElementPlaces>(call, call.params[0], call.params[1]);
}

MB_INSTANTIATE_GATHER_ELEMENTS

}  // namespace minbuild
