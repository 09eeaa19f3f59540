// The largest values in the parts of regions of images, and their gradients.
#include "minbuild/kernel.h"

namespace minbuild {

// One axis of a region, in whole pixels.
struct RoiSpan {
  int start, length, bins, size;

  // False for coordinates that are no numbers, or beyond what any image has.
  template <class T>
  bool read(T from, T to, T scale, int parts, int image) {
    constexpr T far = T(1 << 15);
    from = from * scale, to = to * scale;
    if (!(from < far && from > -far && to < far && to > -far)) return false;
    start = nearest(from), bins = parts, size = image;
    length = nearest(to) - start + 1;
    if (length < 1) length = 1;
    return true;
  }

  // Halves are rounded away from zero.
  template <class T>
  static int nearest(T at) {
    return static_cast<int>(at < T(0) ? at - T(0.5) : at + T(0.5));
  }

  // Where a bin begins, rounded down, and ends, rounded up; never outside of the image.
  MB_INLINE int first(int bin) const { return inside(bin * length / bins); }
  MB_INLINE int last(int bin) const { return inside(((bin + 1) * length + bins - 1) / bins); }
  MB_INLINE int inside(int at) const {
    at += start;
    return at < 0 ? 0 : at < size ? at : size;
  }
};

// x: [N,C,H,W]  y: [R,C,bins...]  rois: [R,5] as image, x1, y1, x2, y2
// Forward, y becomes the largest of x in each bin, zero where there is nothing; backward, where dx is given, dx gathers y
// where the first of them stood. params: the scale of coordinates
template <class T>
MB_NOINLINE Status pooled_regions(const Call& call, const Tensor& x, const Tensor& rois, const Tensor& y, T* dx) {
  if (x.rank != 4 || y.rank != 4 || x.dims[1] != y.dims[1] || rois.count != 5 * int64_t(y.dims[0]))
    return Status::kBadPlan;
  for (int a = 2; a < 4; ++a)
    if (x.dims[a] < 1 || y.dims[a] < 1 || y.dims[a] >= 1 << 14) return Status::kTooLarge;
  const T scale = static_cast<T>(call.real(0));
  const int channels = x.dims[1], width = x.dims[3], image = x.dims[2] * width;
  T* to = y.as<T>();
  for (int r = 0; r < y.dims[0]; ++r) {
    const T* roi = rois.as<T>() + 5 * r;
    if (!(roi[0] > T(-1) && roi[0] < static_cast<T>(x.dims[0]))) return Status::kBadValue;
    RoiSpan rows, columns;
    if (!rows.read(roi[2], roi[4], scale, y.dims[2], x.dims[2])) return Status::kBadValue;
    if (!columns.read(roi[1], roi[3], scale, y.dims[3], width)) return Status::kBadValue;
    int plane = static_cast<int>(roi[0]) * channels * image;
    for (int c = 0; c < channels; ++c, plane += image) {
      for (int i = 0; i < y.dims[2]; ++i) {
        for (int j = 0; j < y.dims[3]; ++j, ++to) {
          int best = -1;
          for (int v = rows.first(i); v < rows.last(i); ++v)
            for (int h = columns.first(j); h < columns.last(j); ++h) {
              const int at = plane + v * width + h;
              if (best < 0 || x.as<T>()[at] > x.as<T>()[best]) best = at;
            }
          if (!dx) *to = best < 0 ? T(0) : x.as<T>()[best];
          if (dx && best >= 0) dx[best] += *to;
        }
      }
    }
  }
  return Status::kOk;
}

template <class T>
Status max_roi_pool(const Call& call) {
  return pooled_regions<T>(call, call[1], call[2], call[0], nullptr);
}

template <class T>
Status max_roi_pool_grad(const Call& call) {
  const Tensor &dx = call[0], &x = call[2];
  if (dx.count != x.count) return Status::kBadPlan;
  clear_bytes(dx.data, dx.count * sizeof(T));
  return pooled_regions<T>(call, x, call[3], call[1], dx.as<T>());
}

MB_INSTANTIATE_MAX_ROI_POOL

}  // namespace minbuild
