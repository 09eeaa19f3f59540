// Slices whose places along several axes a vector of indices gives: taken, or updated.
#include "shared/indexed.h"

namespace minbuild {

// layout, of the whole tensor: [batches, axes that indices name..., slice]
struct SlicePlaces {
  const int64_t* indices;
  const int32_t* sizes;
  int32_t inner, batches, depth, per_batch, all;

  MB_NOINLINE bool read(const Tensor& whole, const Tensor& part, const Tensor& index, const Tensor& layout) {
    if (layout.rank < 2 || layout.count != whole.count) return false;
    indices = index.as<int64_t>();
    sizes = layout.dims + 1, depth = layout.rank - 2;
    batches = layout.dims[0], inner = layout.dims[layout.rank - 1];
    uint32_t named = 1;
    for (int i = 0; i < depth; ++i) named *= static_cast<uint32_t>(sizes[i]);
    all = static_cast<int32_t>(named), per_batch = 0;
    if (part.count == 0) return true;
    if (batches == 0 || inner == 0) return false;
    per_batch = part.count / batches / inner;
    return int64_t(per_batch) * batches * inner == part.count && int64_t(per_batch) * batches * depth == index.count;
  }

  // body(place) for every vector of indices in order, up to one that names nothing
  template <class Body>
  MB_INLINE bool each(Body body) const {
    const int64_t* next = indices;
    for (int b = 0; b < batches; ++b) {
      for (int i = 0; i < per_batch; ++i) {
        int32_t place = 0;
        for (int k = 0; k < depth; ++k) {
          int64_t index = *next++;
          if (!counted(index, sizes[k])) return false;
          place = place * sizes[k] + static_cast<int32_t>(index);
        }
        body((b * all + place) * inner);
      }
    }
    return true;
  }
};

// The last argument is the layout.
template <class T>
Status gather_nd(const Call& call) {
  return take<T, SlicePlaces>(call, call[3]);
}

template <class T>
Status scatter_nd(const Call& call) {
  return put<T, false, SlicePlaces>(call, call[4], 0);
}

// Parameter 0 says how an update meets what is there.
template <class T>
Status scatter_nd_meeting(const Call& call) {
  return put<T, true, SlicePlaces>(call, call[4], call.params[0]);
}

MB_INSTANTIATE_GATHER_ND

}  // namespace minbuild
