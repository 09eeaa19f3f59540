// The sizes of a convolution with one filter per channel, and the planes that a channel is copied to
// (ops/convolution/depthwise_conv.cc).
#ifndef MINBUILD_LIB_NN_DEPTHWISE_PLANES_H_
#define MINBUILD_LIB_NN_DEPTHWISE_PLANES_H_

#include "minbuild/kernel.h"
#include "lib/gemm/pack.h"
#include "lib/indexing/disjoint.h"
#include "lib/nn/group_parts.h"
#include "lib/nn/narrow_images.h"
#include "lib/simd/pairs.h"

namespace minbuild {

constexpr int kAxes = 2, kRows = 4;       // axes; rows of results at once
constexpr int kMostDepthwiseTaps = 64;    // of a window
constexpr intptr_t kMostOfCopies = 2048;  // elements of planes of a channel, where several have them
constexpr int kOneVector = 8;             // elements of rows of results, where there are four
constexpr intptr_t kSlackBytes = 128;     // behind planes, for whole vectors

constexpr bool kFiveRows = MB_DEPTHWISE_CONV_FIVE_ROWS, kSevenRows = MB_DEPTHWISE_CONV_SEVEN_ROWS;
constexpr bool kTall = kFiveRows || kSevenRows;

// x: [N,C,in[0],in[1]]  y: [N,C,out[0],out[1]]  w: [C,1,window[0],window[1]]
template <class T>
struct Depthwise {
  Propagation propagation;
  int batch, channels, taps, stride;
  int in[kAxes], out[kAxes], window[kAxes], pad[kAxes];
  // Planes of what is read: of x, or of y for gradients of the input. Element q of phase r of an axis is element
  // q * step + r - before of the image.
  int read[kAxes], extent[kAxes], before[kAxes], step;
  intptr_t plane, pitch;  // elements of a phase and of its rows
  intptr_t reach;         // of the outputs in such rows, zeros between them, whole vectors
  intptr_t x_image, y_image;
  intptr_t places[kMostDepthwiseTaps];      // where each tap begins
  int order[kMostDepthwiseTaps], first[5];  // of taps by the parity of rows and columns that they meet (InputsBody)
  T *planes, *grid;
  intptr_t copy;                      // elements between the planes of one channel and of the next
  int copies;                         // that there are of planes
  intptr_t share;                     // elements of both, for each thread
  const T *first_image, *last_image;  // of all that are read

  // True of images that lib/nn/narrow_images.h takes, where outputs have the size of inputs.
  bool is_narrow() const {
    return MB_DEPTHWISE_CONV_NARROW && window[0] == kSide && window[1] == kSide && stride == 1 && pad[0] == 1 &&
           pad[1] == 1 && out[0] == in[0] && out[1] == in[1] && in[1] <= kNarrow && in[1] > kNarrow / 2;
  }

  // True of windows that lib/nn/window_columns.h takes.
  bool is_tall() const {
    if (propagation == kWeightGradient || (stride > 1 && !MB_DEPTHWISE_CONV_TALL_STRIDES)) return false;
    return (kFiveRows && window[0] == 5) || (kSevenRows && window[0] == 7);
  }

  // params: propagation, groups, then strides, pads at the start and dilations, three each.
  bool read_shapes(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    if (x.rank != 4 || y.rank != 4 || w.rank != 4) return false;
    batch = x.dims[0], channels = x.dims[1], taps = 1, stride = params[3];
    if (y.dims[0] != batch || y.dims[1] != channels || w.dims[0] != channels || w.dims[1] != 1) return false;
    if (params[1] != channels || unsigned(stride - 1) > 1 || params[4] != stride) return false;
    x_image = y_image = plane = 1;
    for (int a = 0; a < kAxes; ++a) {
      in[a] = x.dims[a + 2], out[a] = y.dims[a + 2], window[a] = w.dims[a + 2], pad[a] = params[6 + a];
      constexpr unsigned kMost = 1 << 13;
      if (unsigned(in[a] - 1) >= kMost || unsigned(out[a] - 1) >= kMost ||
          unsigned(window[a] - 1) >= kMostDepthwiseTaps || unsigned(pad[a]) >= unsigned(window[a]) ||
          params[9 + a] != 1)
        return false;
      x_image *= in[a], y_image *= out[a], taps *= window[a];
      const int span = window[a] - 1;
      step = propagation == kInputGradient ? 1 : stride;
      if (propagation != kInputGradient) {
        read[a] = in[a], before[a] = pad[a], extent[a] = out[a] + span / stride;
      } else if (stride == 1) {  // the taps in reverse
        read[a] = out[a], before[a] = span - pad[a], extent[a] = in[a] + span;
      } else {  // element (i + pad) / 2 of an axis meets those up to span / 2 before
        read[a] = out[a], before[a] = span / 2;
        const int reached = (in[a] - 1 + pad[a]) / 2 + 1;
        extent[a] = (reached > out[a] ? reached : out[a]) + span / 2;
      }
      plane *= extent[a];
    }
    pitch = extent[1];
    if (MB_DEPTHWISE_CONV_NARROW) {
      const Tensor& source = propagation == kInputGradient ? y : x;
      first_image = source.as<T>();
      last_image = first_image + source.count - read[0] * read[1];
    }
    return taps <= kMostDepthwiseTaps;
  }

  bool lay_out(const Tensor& written, const Tensor& bytes) {
    constexpr intptr_t kLanes = 16;
    const intptr_t slack = kSlackBytes / intptr_t(sizeof(T)), all = plane * step * step + slack;
    reach = ((out[0] - 1) * pitch + out[1] + kLanes - 1) & -kLanes;
    int copies = 1;
    if constexpr (kTall) {
      const bool forward = propagation == kOutput, phases = !forward && stride == 2;
      if (is_tall() && all <= kMostOfCopies)
        copies = (forward ? out[1] : phases ? (in[1] + 1) / 2 : in[1]) <= kOneVector ? 4 : 2;
      copy = all, this->copies = copies;
    }
    share = (all * copies + (propagation == kWeightGradient ? reach : 0) + slack + 15) & -16;
    planes = bytes.scratch<T>();
    grid = planes + all * copies;
    if (share > bytes.count / intptr_t(sizeof(T)) || !disjoint(written, sizeof(T), bytes, 1)) return false;
    if (propagation == kInputGradient && stride == 2) {
      sort_taps();
      return true;
    }
    for (int tap = 0; tap < taps; ++tap) {
      const int row = tap / window[1], column = tap % window[1];
      places[tap] = (row % step * step + column % step) * plane + row / step * pitch + column / step;
    }
    return true;
  }

  void sort_taps() {
    int count = 0;
    for (int phase = 0; phase < 4; ++phase) {
      first[phase] = count;
      for (int tap = 0; tap < taps; ++tap) {
        const int row = tap / window[1], column = pad[1] + phase % 2 - tap % window[1];
        if (row % 2 != phase / 2 || column % 2 != 0) continue;
        order[count] = tap;
        places[count++] = (before[0] - row / 2) * pitch + before[1] + column / 2;
      }
    }
    first[4] = count;
  }

  // The image of a channel to its planes, whose rims are zero.
  template <class V>
  MB_INLINE void fill_planes(const T* image) const {
    for (int r = 0; r < read[0]; ++r, image += read[1]) {
      const int q = r + before[0], row = q / step;
      if (row >= extent[0]) return;
      T* to = planes + q % step * step * plane + row * pitch;
      if (step == 1) {
        const int count = pitch - before[1] < read[1] ? int(pitch) - before[1] : read[1];
        copy_row<V>(image, to + before[1], count);
      } else {
        // Even columns of the image are those of the phase of the first one.
        T *even = to + before[1] % 2 * plane + before[1] / 2,
          *odd = to + (before[1] + 1) % 2 * plane + (before[1] + 1) / 2;
        const int evens = limited((read[1] + 1) / 2, int(pitch) - before[1] / 2);
        const int odds = limited(read[1] / 2, int(pitch) - (before[1] + 1) / 2);
        int i = 0;
#if MB_SHUFFLES
        if constexpr (V::size == 8)
          for (; i <= (evens < odds ? evens : odds) - V::size; i += V::size) {
            const V a = V::load(image + 2 * i), b = V::load(image + 2 * i + V::size);
            of_pairs<0>(a, b).store(even + i), of_pairs<1>(a, b).store(odd + i);
          }
#endif
        for (int j = i; j < evens; ++j) even[j] = image[2 * j];
        for (int j = i; j < odds; ++j) odd[j] = image[2 * j + 1];
      }
    }
  }
  static MB_INLINE int limited(int count, int most) { return count < most ? count : most; }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_DEPTHWISE_PLANES_H_
