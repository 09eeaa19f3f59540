// Moves elements from one dense tensor to another: transposition, slices, padding, repetition.
#include "lib/loops/strided.h"

namespace minbuild {

constexpr int kBroadcastAxis = 15;  // in place of an axis: nothing moves there

// One of the two tensors, as its layout says. `sizes` are those of the walk's axes. `moves` packs an axis order into one
// parameter word, four bits an axis: bits 4i to 4i+3 are the axis of the layout along which axis i of the walk moves, so
// 0x021 walks axis 1, then 2, then 0. A word an axis would take a load and a check of rank each. Gives the walk's steps
// and the first element, or says that some element would lie outside.
struct Side {
  ptrdiff_t steps[MB_MAX_RANK];
  ptrdiff_t first;

  MB_NOINLINE bool read(const Tensor& tensor, const Tensor& layout, const Tensor& starts, const Tensor& sizes,
                        uint32_t moves, const Tensor& pace, uint32_t backwards) {
    if (layout.rank == 0 || layout.count != tensor.count) return false;
    bool shifted = starts.rank == layout.rank, paced = pace.count != 0;  // an absent argument has no elements
    if (paced && pace.rank != sizes.rank) return false;
    ptrdiff_t strides[MB_MAX_RANK];
    int64_t low[MB_MAX_RANK], high[MB_MAX_RANK];
    uint64_t count = 1;
    first = 0;
    for (int a = layout.rank - 1; a >= 0; --a) {
      strides[a] = static_cast<ptrdiff_t>(count);
      low[a] = high[a] = shifted ? starts.dims[a] : 0;
      first += static_cast<ptrdiff_t>(low[a]) * strides[a];
      count *= static_cast<uint32_t>(layout.dims[a]);
    }
    for (int i = 0; i < sizes.rank; ++i, moves >>= 4, backwards >>= 1) {
      int a = moves & 15;
      steps[i] = 0;
      if (a == kBroadcastAxis) continue;
      if (a >= layout.rank) return false;
      int64_t step = paced ? pace.dims[i] : 1, reach = (sizes.dims[i] - 1) * step;
      if (backwards & 1) {
        step = -step, low[a] -= reach;
      } else {
        high[a] += reach;
      }
      steps[i] = static_cast<ptrdiff_t>(step) * strides[a];
    }
    for (int a = 0; a < layout.rank; ++a)
      if (low[a] < 0 || high[a] >= layout.dims[a]) return false;
    return true;
  }
};

// Arguments: y, x, the walk's sizes in the order of y, the layouts of y and x, the first element's place in each, and
// the walk's steps: along x, or y. Parameters: `moves` of both sides, axes that go backwards, whether y has the steps.
template <class T>
Status move_elements(const Call& call) {
  const Tensor &y = call[0], &x = call[1], &sizes = call[2];
  const int32_t* p = call.params;
  Tensor none;
  none.rank = none.count = 0;
  Side to, from;
#if MB_STRIDED_COPY_WINDOWS
  bool steps_to = p[3] != 0;
  const Tensor &to_start = call[5], &from_start = call[6], &to_pace = steps_to ? call[7] : none,
               &from_pace = steps_to ? none : call[7];
  uint32_t to_back = steps_to ? p[2] : 0, from_back = steps_to ? 0 : p[2];
#else
  const Tensor &to_start = none, &from_start = none, &to_pace = none, &from_pace = none;
  uint32_t to_back = 0, from_back = 0;
#endif
  if (sizes.rank == 0) return Status::kTooLarge;
  if (sizes.count == 0) return Status::kOk;
  if (!to.read(y, call[3], to_start, sizes, p[0], to_pace, to_back)) return Status::kTooLarge;
  if (!from.read(x, call[4], from_start, sizes, p[1], from_pace, from_back)) return Status::kTooLarge;
  StridedLoopNest nest;
  nest.loop = strided_loop<T>;
  nest.element = sizeof(T);
  for (int i = 0; i < sizes.rank; ++i) nest.axes[i + 1] = {sizes.dims[i], to.steps[i], from.steps[i]};
  nest.run(sizes.rank, y.data + to.first * intptr_t(sizeof(T)), x.data + from.first * intptr_t(sizeof(T)));
  return Status::kOk;
}

MB_INSTANTIATE_STRIDED_COPY

}  // namespace minbuild
