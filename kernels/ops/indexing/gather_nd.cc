// Slices whose places along several axes a vector of indices gives: taken, or updated.
#include "lib/indexing/scatter_gather.h"

namespace minbuild {

// layout, of the whole tensor: [batches, axes that indices name..., slice]
struct SliceIterator : IndexIterator {
  const int64_t* indices;
  const int32_t* sizes;
  int32_t depth, per_batch, batch, at;

  MB_NOINLINE bool read(const Tensor& whole, const Tensor& part, const Tensor& index, const Tensor& layout) {
    if (layout.rank < 2 || layout.count != whole.count) return false;
    indices = index.as<int64_t>(), next = find;
    sizes = layout.dims + 1, depth = layout.rank - 2;
    int32_t batches = layout.dims[0];
    inner = layout.dims[layout.rank - 1];
    per_batch = count = batch = at = 0;
    if (part.count == 0) return true;
    if (batches == 0 || inner == 0) return false;
    per_batch = part.count / batches / inner;
    count = per_batch * batches;
    return int64_t(count) * inner == part.count && int64_t(count) * depth == index.count;
  }

  static int32_t find(IndexIterator& places) {
    SliceIterator& p = static_cast<SliceIterator&>(places);
    int32_t place = p.batch;
    for (int k = 0; k < p.depth; ++k) {
      int64_t index = *p.indices++;
      if (!counted(index, p.sizes[k])) return -1;
      place = place * p.sizes[k] + static_cast<int32_t>(index);
    }
    if (++p.at == p.per_batch) ++p.batch, p.at = 0;
    return place * p.inner;
  }
};

// The last argument is the layout.
template <class T>
Status gather_nd(const Call& call) {
  SliceIterator places;
  if (!places.read(call[1], call[0], call[2], call[3])) return Status::kBadPlan;
  return gather_at<T>(call[0], call[1], places);
}

template <class T>
Status scatter_nd(const Call& call) {
  SliceIterator places;
  if (!places.read(call[0], call[3], call[2], call[4])) return Status::kBadPlan;
  return scatter_checked<T, false>(call, places, 0);
}

// Parameter 0 says how an update meets what is there.
template <class T>
Status scatter_nd_reduce(const Call& call) {
  SliceIterator places;
  if (!places.read(call[0], call[3], call[2], call[4])) return Status::kBadPlan;
  return scatter_checked<T, true>(call, places, call.params[0]);
}

MB_INSTANTIATE_GATHER_ND

}  // namespace minbuild
