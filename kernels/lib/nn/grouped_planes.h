// The sizes of a convolution of few channels per group, and the planes of a group
// (ops/convolution/grouped_conv.cc). Windows move by one or by two elements.
#ifndef MINBUILD_LIB_NN_GROUPED_PLANES_H_
#define MINBUILD_LIB_NN_GROUPED_PLANES_H_

#include "minbuild/kernel.h"
#include "lib/gemm/pack.h"
#include "lib/indexing/disjoint.h"
#include "lib/nn/group_parts.h"
#include "lib/simd/pairs.h"

namespace minbuild {

constexpr int kMostGroupTaps = 64;                // of a window
constexpr intptr_t kGroupMultiple = 16;           // elements that what is computed is a multiple of
constexpr intptr_t kSlack = 64;                   // elements behind planes, for whole vectors
constexpr int kLeastOfPass = 256;                 // outputs of a channel in one pass at least, where the batch has them
constexpr bool kPairs = MB_GROUPED_CONV_STRIDES;  // windows that move by two elements

// The elements of every channel of a group that meet some taps: from planes + places[i], times w[weights[i]]. Results are
// to_step apart, their weights w_row, and w_step from source to source.
struct TapList {
  int first = 0, count = 0;
  intptr_t w_row, w_step, to_step;
  intptr_t places[kMostGroupTaps], weights[kMostGroupTaps];
};

// The even and the odd elements of a row, or the row of them.
template <class V, class T>
MB_INLINE void split_row(const T* row, T* even, T* odd, int evens, int odds) {
  const int both = evens < odds ? evens : odds;
  int i = 0;
#if MB_SHUFFLES
  for (; i <= both - V::size; i += V::size) {
    const V a = V::load(row + 2 * i), b = V::load(row + 2 * i + V::size);
    of_pairs<0>(a, b).store(even + i), of_pairs<1>(a, b).store(odd + i);
  }
#endif
  for (int j = i; j < evens; ++j) even[j] = row[2 * j];
  for (int j = i; j < odds; ++j) odd[j] = row[2 * j + 1];
}
template <class V, class T>
MB_INLINE void join_row(const T* even, const T* odd, T* row, int count) {
  int i = 0;
#if MB_SHUFFLES
  for (; 2 * i <= count - 2 * V::size; i += V::size) {
    const V a = V::load(even + i), b = V::load(odd + i);
    in_pairs<0>(a, b).store(row + 2 * i), in_pairs<1>(a, b).store(row + 2 * i + V::size);
  }
#endif
  for (; 2 * i < count; ++i) {
    row[2 * i] = even[i];
    if (2 * i + 1 < count) row[2 * i + 1] = odd[i];
  }
}

// x: [N,G*C,in[0],in[1]]  y: [N,G*M,out[0],out[1]]  w: [G*M,C,window[0],window[1]]
template <class T>
struct Grouped {
  static constexpr int kAxes = 2;
  Propagation propagation;
  int batch, groups, channels, filters, taps, stride;  // channels and filters of a group
  int in[kAxes], out[kAxes], window[kAxes], pad[kAxes], gap[kAxes];
  int images;  // of a pass, side by side: each row of a phase has that row of every image
  // Planes of what is read: of x, or of y for gradients of the input. Element q of phase r of an axis is element
  // q * step + r - before of the image.
  int sources, results;  // channels that are read, and those that are computed
  int read[kAxes], before[kAxes], extent[kAxes], step;
  intptr_t plane, pitch;       // elements of a phase of all images, and of its rows
  intptr_t x_image, y_image;   // elements
  intptr_t source_step, side;  // from one channel to the next: of the planes, of the grid
  T *planes, *grid;
  intptr_t share;  // elements of both, for each thread

  MB_INLINE int span(int axis) const { return gap[axis] * (window[axis] - 1); }

  // Where the phase `r` of an axis begins that is not padding, and its elements that are not: of gradients of the input.
  MB_INLINE int first(int axis, int r) const { return pad[axis] > r ? (pad[axis] - r + stride - 1) / stride : 0; }
  MB_INLINE int length(int axis, int r) const {
    return (in[axis] + pad[axis] - r + stride - 1) / stride - first(axis, r);
  }

  // params: propagation, groups, then strides, pads at the start and dilations, three each.
  bool read_shapes(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    if (x.rank != 4 || y.rank != 4 || w.rank != 4) return false;
    constexpr unsigned kMost = 1 << 13;
    batch = x.dims[0], groups = params[1], channels = w.dims[1], taps = 1, stride = kPairs ? params[3] : 1;
    if (unsigned(groups - 1) >= kMost || unsigned(channels - 1) >= kMost || params[3] != stride) return false;
    filters = w.dims[0] / groups;
    if (unsigned(filters - 1) >= kMost || filters * groups != w.dims[0] || channels * groups != x.dims[1]) return false;
    if (y.dims[0] != batch || y.dims[1] != w.dims[0]) return false;
    if (unsigned(stride - 1) > 1 || params[4] != stride) return false;
    const bool back = propagation == kInputGradient;
    x_image = y_image = 1, step = back ? 1 : stride;
    for (int a = 0; a < kAxes; ++a) {
      in[a] = x.dims[a + 2], out[a] = y.dims[a + 2], window[a] = w.dims[a + 2];
      pad[a] = params[6 + a], gap[a] = params[9 + a];
      if (unsigned(in[a] - 1) >= kMost || unsigned(out[a] - 1) >= kMost || unsigned(window[a] - 1) >= kMostGroupTaps ||
          unsigned(pad[a]) >= kMost || unsigned(gap[a] - 1) >= kMost / kMostGroupTaps)
        return false;
      x_image *= in[a], y_image *= out[a], taps *= window[a];
      read[a] = back ? out[a] : in[a], before[a] = back ? 0 : pad[a];
      int end = out[a] + span(a) - pad[a];  // elements from the image's first on that are read
      if (pad[a] > span(a)) return false;
      if (back) {
        end = 0;
        for (int t = 0; t < window[a]; ++t) {
          const int at = t * gap[a] / stride - first(a, t * gap[a] % stride);
          if (at > before[a]) before[a] = at;
        }
        for (int r = 0; r < stride; ++r) {
          const int own = first(a, r) + length(a, r);
          if (own > end) end = own;
        }
      }
      // Zeros behind a row are those before the next.
      const int behind = end - read[a] > before[a] ? end - read[a] : before[a];
      extent[a] = step == 1 ? read[a] + behind : out[a] + span(a) / stride;
    }
    sources = back ? filters : channels, results = back ? channels : filters;
    return taps <= kMostGroupTaps;
  }

  bool lay_out(const Tensor& written, const Tensor& bytes) {
    images = 1;
    while (images < kLeastOfPass && images * y_image < kLeastOfPass) images *= 2;
    // Passes of about the same size, as each computes all columns.
    const int passes = (batch + images - 1) / images;
    images = passes > 0 ? (batch + passes - 1) / passes : 1;
    pitch = intptr_t(images) * extent[1];
    if (sizeof(void*) == 4 && int64_t(pitch) * extent[0] * step * step > bytes.count) return false;
    plane = pitch * extent[0];
    source_step = step * step * plane + before[0] * pitch + before[1];
    side = (plane + kGroupMultiple - 1) & -kGroupMultiple;
    constexpr int64_t kMost = int64_t(1) << 28;
    const int64_t all = sources * int64_t(source_step) + kSlack;
    const int64_t made = results * int64_t(side) * (propagation == kInputGradient ? stride : 1) + kSlack;
    if (source_step > kMost || all > kMost || made > kMost) return false;
    share = intptr_t((all + made + kGroupMultiple - 1) & -kGroupMultiple);
    planes = bytes.scratch<T>();
    grid = planes + all;
    return share * int64_t(sizeof(T)) <= bytes.count && disjoint(written, sizeof(T), bytes, 1);
  }

  // All taps, of outputs and gradients of weights.
  void list_taps(TapList& list) const {
    for (int i = 0; i < taps; ++i) {
      const int row = i / window[1] * gap[0], column = i % window[1] * gap[1];
      const int phase = row % stride * stride + column % stride;
      list.places[i] = phase * plane + row / stride * pitch + column / stride;
      list.weights[i] = i;
    }
    list.count = taps;
  }
  // Those that phase (down, across) of the input meets.
  void list_taps(TapList& list, int down, int across) const {
    list.count = 0;
    for (int i = 0; i < taps; ++i) {
      const int row = i / window[1] * gap[0], column = i % window[1] * gap[1];
      if (row % stride != down || column % stride != across) continue;
      list.weights[list.count] = i;
      list.places[list.count++] =
          (before[0] + first(0, down) - row / stride) * pitch + before[1] + first(1, across) - column / stride;
    }
  }

  // Limits `list`, which has `count` taps in order of their rows, to those that meet anything but padding above or below
  // images for some results from `from` to `to`.
  void leave_padding_out(TapList& list, int count, int from, int to) const {
    if (step > 1) return;
    const int row = int(pitch), top = before[0] - to / row, bottom = before[0] + read[0] - from / row;
    const auto meets = [&](int tap) {
      const int met = int(list.places[tap]) / row;
      return met >= top && met < bottom;
    };
    list.first = 0, list.count = count;
    while (list.count > 0 && !meets(list.count - 1)) --list.count;
    while (list.first < list.count && !meets(list.first)) ++list.first;
  }

  // An image of a channel to its plane, whose rim is zero.
  template <class V>
  MB_INLINE void fill_plane(const T* image, T* to) const {
    if (!kPairs || step == 1) {
      to += before[0] * pitch + before[1];
      for (int r = 0; r < read[0]; ++r, image += read[1], to += pitch) copy_row<V>(image, to, read[1]);
      return;
    }
    // Even columns of the image are those of the phase of the first one.
    const int left = before[1] / 2, right = (before[1] + 1) / 2, parity = before[1] % 2;
    const int lefts = limited((read[1] + 1) / 2, extent[1] - left), rights = limited(read[1] / 2, extent[1] - right);
    for (int q = before[0]; q < read[0] + before[0] && q / 2 < extent[0]; ++q, image += read[1]) {
      T* own = to + q % 2 * 2 * plane + q / 2 * pitch;
      split_row<V>(image, own + parity * plane + left, own + (1 - parity) * plane + right, lefts, rights);
    }
  }
  static MB_INLINE int limited(int count, int most) { return count < most ? count : most; }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_GROUPED_PLANES_H_
