// Boxes that remain when those of lower scores that overlap with them are left out.
#include "lib/indexing/disjoint.h"
#include "lib/loops/fill.h"

namespace minbuild {

struct Corners {
  float low[2], high[2];
};

// Two opposite corners in any order; with `center` the middle and the sizes.
MB_INLINE Corners corners(const float* box, bool center) {
  Corners found;
  for (int i = 0; i < 2; ++i) {
    const float a = box[i], b = box[i + 2], half = b / 2;
    found.low[i] = center ? a - half : a < b ? a : b;
    found.high[i] = center ? a + half : a < b ? b : a;
  }
  return found;
}

// True if intersection over union is above the limit; false for boxes without an area.
MB_INLINE bool overlap(const Corners& a, const Corners& b, float limit) {
  float shared = 1, first = 1, second = 1;
  for (int i = 0; i < 2; ++i) {
    const float low = a.low[i] > b.low[i] ? a.low[i] : b.low[i];
    const float high = a.high[i] < b.high[i] ? a.high[i] : b.high[i];
    if (high <= low) return false;
    shared *= high - low, first *= a.high[i] - a.low[i], second *= b.high[i] - b.low[i];
  }
  return shared / (first + second - shared) > limit;
}

// boxes: [B,N,4]  scores: [B,C,N]  places: [P,3], batch, class and box, of each class at most `most`, best score first,
// then the first row again  count: how many boxes remain  left: N bytes, 1 where a box may still be taken
template <class T>
Status non_max_suppression(const Call& call) {
  const Tensor &places = call[0], &count = call[1], &boxes = call[2], &scores = call[3], &left = call[6],
               &layout = call[7];
  if (layout.rank != 4 || count.count != 1 || places.count % 3 != 0) return Status::kBadPlan;
  const int batches = layout.dims[0], classes = layout.dims[1], size = layout.dims[2], most = layout.dims[3];
  const int64_t groups = int64_t(batches) * classes;
  if (boxes.count != int64_t(batches) * size * 4 || scores.count != groups * size || left.count != size ||
      places.count != groups * most * 3 || !disjoint(left, 1, places, 8))
    return Status::kBadPlan;
  const T limit = call[4] ? call[4].as<T>()[0] : T(0), lowest = call[5] ? call[5].as<T>()[0] : -T(__builtin_inff());
  const bool center = call.params[0] != 0;
  const T *box = boxes.as<T>(), *score = scores.as<T>();
  char* may = left.data;
  int64_t *const start = places.as<int64_t>(), *to = start;
  for (int b = 0; b < batches; ++b, box += ptrdiff_t(size) * 4) {
    for (int c = 0; c < classes; ++c, score += size) {
      for (int i = 0; i < size; ++i) may[i] = score[i] > lowest;
      for (int taken = 0; taken < most; ++taken) {
        int best = -1;
        for (int i = 0; i < size; ++i)
          if (may[i] && (best < 0 || score[i] > score[best])) best = i;
        if (best < 0) break;
        to[0] = b, to[1] = c, to[2] = best, to += 3;
        may[best] = 0;
        const Corners chosen = corners(box + ptrdiff_t(best) * 4, center);
        for (int i = 0; i < size; ++i)
          if (may[i] && overlap(chosen, corners(box + ptrdiff_t(i) * 4, center), limit)) may[i] = 0;
      }
    }
  }
  count.as<int64_t>()[0] = (to - start) / 3;
  for (int64_t* end = start + places.count; to < end; ++to) *to = to - start < 3 ? 0 : start[(to - start) % 3];
  return Status::kOk;
}

MB_INSTANTIATE_NON_MAX_SUPPRESSION

}  // namespace minbuild
