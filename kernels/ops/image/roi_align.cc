// Regions of images resampled to one size, and their gradients.
#include "minbuild/kernel.h"

namespace minbuild {

// Where a sample lies along an axis: between two neighbours, with their weights.
template <class T>
struct RoiSample {
  int low, high;
  T low_weight, high_weight;
};

// One axis of a region: `grid` samples in each of its bins.
template <class T>
struct RoiAxis {
  T start, bin;
  int grid, size;

  // False for sizes that are no numbers, or would keep us busy for ever.
  bool read(T from, T to, int bins, int ratio, bool half_pixel, int image) {
    size = image;
    start = from;
    T length = to - from;
    if (!half_pixel && !(length > T(1))) length = T(1);
    bin = length / static_cast<T>(bins);
    constexpr T far = T(1 << 30);
    if (!(bin < (ratio > 0 ? far : T(1 << 12)) && bin > -far && start < far && start > -far)) return false;
    const int cut = static_cast<int>(bin);
    grid = ratio > 0 ? ratio : cut + (static_cast<T>(cut) < bin);
    return true;
  }

  // False outside of the image, where samples count as zero.
  MB_INLINE bool sample(int number, int i, RoiSample<T>* s) const {
    T at = start + static_cast<T>(number) * bin + (static_cast<T>(i) + T(0.5)) * bin / static_cast<T>(grid);
    if (at < T(-1) || at > static_cast<T>(size)) return false;
    if (at < T(0)) at = T(0);
    s->low = static_cast<int>(at);
    if (s->low >= size - 1) s->low = size - 1, at = static_cast<T>(s->low);
    s->high = s->low + (s->low < size - 1);
    s->high_weight = at - static_cast<T>(s->low);
    s->low_weight = T(1) - s->high_weight;
    return true;
  }
};

// x: [N,C,H,W]  y: [R,C,bins...]  rois: [R,4] as x1, y1, x2, y2  images: [R], the image of each region.
// Forward, y becomes what is in x; backward, where dx is given, dx gathers y.
// params: sampling ratio, whether coordinates are of half pixels, whether the largest counts, the scale of coordinates
template <class T>
MB_NOINLINE Status regions(const Call& call, const Tensor* inputs, const Tensor& y, T* dx) {
  const Tensor &x = inputs[0], &rois = inputs[1], &images = inputs[2];
  if (x.rank != 4 || y.rank != 4 || x.dims[1] != y.dims[1] || rois.count != 4 * int64_t(y.dims[0]) ||
      images.count != y.dims[0] || x.dims[2] < 1 || x.dims[3] < 1 || unsigned(call.params[0]) >= 1 << 12)
    return Status::kTooLarge;
  const bool half_pixel = call.params[1] != 0, largest = MB_ROI_ALIGN_MAX && call.params[2] != 0;
  const T scale = static_cast<T>(call.real(3)), offset = half_pixel ? T(0.5) : T(0);
  const int channels = x.dims[1], width = x.dims[3], image = x.dims[2] * width;
  T* to = y.as<T>();
  for (int r = 0; r < y.dims[0]; ++r) {
    const T* corner = rois.as<T>() + 4 * r;
    const int64_t which = images.as<int64_t>()[r];
    if (which < 0 || which >= x.dims[0]) return Status::kBadValue;
    RoiAxis<T> axes[2];
    for (int a = 0; a < 2; ++a) {
      const T from = corner[1 - a] * scale - offset, until = corner[3 - a] * scale - offset;
      if (!axes[a].read(from, until, y.dims[a + 2], call.params[0], half_pixel, x.dims[a + 2]))
        return Status::kBadValue;
    }
    const int grid = axes[0].grid * axes[1].grid;
    const T count = static_cast<T>(grid > 1 ? grid : 1);
    int plane = static_cast<int>(which) * channels * image;
    for (int c = 0; c < channels; ++c, plane += image) {
      for (int i = 0; i < y.dims[2]; ++i) {
        for (int j = 0; j < y.dims[3]; ++j, ++to) {
          T sum = 0, best = 0, best_weight = 0;
          int best_at = -1;
          for (int p = 0; p < axes[0].grid; ++p) {
            for (int q = 0; q < axes[1].grid; ++q) {
              RoiSample<T> v = {}, h = {};
              const bool inside = axes[0].sample(i, p, &v) && axes[1].sample(j, q, &h);
              for (int tap = 0; tap < 4; ++tap) {
                const int at = plane + (tap < 2 ? v.low : v.high) * width + (tap & 1 ? h.high : h.low);
                T weight = (tap < 2 ? v.low_weight : v.high_weight) * (tap & 1 ? h.high_weight : h.low_weight);
                if (!inside) weight = T(0);
                const T value = weight * x.as<T>()[at];
                sum += value;
                if (dx && !largest) dx[at] += weight * (*to / count);
                // As ONNX has it: the largest of what the neighbours contribute, not of the samples.
                if (largest && (best_at < 0 || value > best)) best = value, best_at = at, best_weight = weight;
              }
            }
          }
          if (!dx) *to = largest ? best : sum / count;
          if (dx && largest && best_at >= 0) dx[best_at] += best_weight * *to;
        }
      }
    }
  }
  return Status::kOk;
}

template <class T>
Status roi_align(const Call& call) {
  return regions<T>(call, &call[1], call[0], nullptr);
}

template <class T>
Status roi_align_grad(const Call& call) {
  const Tensor &dx = call[0], &x = call[2];
  if (dx.count != x.count) return Status::kTooLarge;
  clear_bytes(dx.data, dx.count * sizeof(T));
  return regions<T>(call, &x, call[1], dx.as<T>());
}

MB_INSTANTIATE_ROI_ALIGN

}  // namespace minbuild
