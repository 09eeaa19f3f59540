// Convolution over two or three spatial axes, and its gradients, on padded phase planes (phase_planes.h).
//
// On planes a convolution is a sum over taps of products of three matrices, and so are its gradients; only the tensor
// to compute differs. For a tap, with X[C,flat] the planes of x as the tap reads them, Y[M,flat] the outputs or their
// gradient on the same grid (zeros or leftovers between rows), W[M,C] the tap's weights:
//   output           Y += W  * X
//   input gradient   X += W' * Y
//   weight gradient  W += Y  * X'
// For outputs all taps are one product, since layers that read a picture have few channels.
#ifndef MINBUILD_LIB_NN_PLANE_CONV_H_
#define MINBUILD_LIB_NN_PLANE_CONV_H_

#include "lib/gemm/gemm.h"
#include "lib/indexing/disjoint.h"
#include "lib/nn/conv_packers.h"
#include "lib/nn/phase_planes.h"
#include "lib/nn/propagation.h"
#include "lib/nn/stored_weights.h"
#include "lib/nn/tap_product.h"
#include "lib/nn/tap_sums.h"

namespace minbuild {

constexpr int kWhole = 16;  // rows of the grid are a multiple of as many elements long, so that tiles are never partial

// All taps of one filter on one channel, over a multiple of kWhole elements.
template <class T>
struct TapsBody {
  template <class W>
  static MB_INLINE void run(Propagation propagation, int count, T* planes, T* y, T* w, const int* places, int taps) {
    using V = typename W::template of<T>;
    for (; taps > 0; --taps, ++places, ++w) {
      T* x = planes + *places;
      if (propagation == kWeightGradient) {
        V sums[2] = {T(0), T(0)};
        for (int i = 0; i < count; i += 2 * V::size)
          unroll<2>([&](auto s) MB_LAMBDA {
            sums[s] = muladd(V::load(x + i + s * V::size), V::load(y + i + s * V::size), sums[s]);
          });
        *w += sum(sums[0] + sums[1]);
      } else {
        const T* from = propagation == kOutput ? x : y;
        T* to = propagation == kOutput ? y : x;
        for (int i = 0; i < count; i += V::size) muladd(V(*w), V::load(from + i), V::load(to + i)).store(to + i);
      }
    }
  }
};

// Which convolutions have one spatial axis, of a library where others have two.
template <bool kBoth>
struct AxisCount {
  bool is_line;
};
template <>
struct AxisCount<false> {
  static constexpr bool is_line = false;
};

// x: [N,G*C,in...]  y: [N,G*M,out...]  w: [G*M,C,taps...], with leading spatial axes of one element where they lack.
// Features: constants for what some convolution of the library has; code for all else compiles to nothing.
template <class T, class Features>
struct PlaneConv : StoredWeights<T, Features>, AxisCount<Features::kLines && Features::kPadded> {
  static constexpr int kAxes = Features::kVolume ? 3 : 2, kLast = kAxes - 1;
  static constexpr bool kExchanges = Features::kExchanged, kPadded = Features::kPadded && !Features::kVolume;
  static constexpr bool kStridden = Features::kStrides;
  static constexpr bool kFewer = Features::kVolume || Features::kLines;  // some convolutions have
  using Images = Planes<kAxes, bool(Features::kStrides)>;
  // Fewer products do not pay for a loop of their own for each tap.
  static constexpr int kLeastDepth = 8;
  static constexpr bool kSumsTaps = MB_FAST_WASM && !Features::kDequantize && sizeof(T) == 4;
  static constexpr Propagation kOutputs = kOutput, kInputs = kInputGradient, kWeights = kWeightGradient;
  // In this order the members used most stand first, where x86-64 and Arm address them with one byte instead of four.
  T *planes, *grid;
  int* places;  // where each tap finds the first output
  Propagation propagation;
  int batch, groups, taps;
  // Bits of all that keeps windows from being pointwise: zero if windows are single elements side by side, so that x
  // itself is its only plane.
  int windowed;
  Images xs, ys;  // of one group
#if MB_FAST_WASM
  intptr_t first = -1;  // place of the first input that is no padding, where input gradients are sums over taps
#endif
  int window[kAxes], dilation[kAxes];
#if MB_THREADS > 1
  Team* team = nullptr;
  int32_t members = 1;
  intptr_t share = 0;  // elements of planes and grid; all but the first member's are behind `places`
  T* shares;
  int32_t first_row = 0, some_rows = 0;  // of the product that a part computes; 0: all
#endif

  // A window of one element needs no planes. One filter per channel is no matter of matrices.
  bool pointwise() const { return Features::kPointwise && windowed == 0; }
  // Where vectors are narrow it goes through matrices all the same, so that there is one loop.
  bool depthwise() const {
    return Features::kDepthwise && xs.channels == 1 && ys.channels == 1 && groups > 1 && !pointwise() &&
           (!MB_DISPATCHES || vector_bytes() >= 32);
  }

  int stride(int axis) const { return Features::kStrides ? xs.axes[axis].stride : 1; }
  // Elements that a window reaches beyond its first.
  int span(int axis) const { return (Features::kDilations ? dilation[axis] : 1) * (window[axis] - 1); }

  // params: groups, then strides, pads at the start, and dilations, three each.
  MB_NOINLINE bool read(const Tensor& x, const Tensor& y, const Tensor& w, const int32_t* params) {
    const int rank = x.rank;
    groups = Features::kGroups ? params[0] : 1;
    if (MB_WRONG(rank < (kFewer ? 3 : kAxes + 2) || rank > kAxes + 2)) return false;
    if (MB_WRONG(y.rank != rank || w.rank != rank || groups < 1)) return false;
    if constexpr (Features::kLines && Features::kPadded) this->is_line = rank < kAxes + 2;
    batch = x.dims[0];
    const int channels = xs.channels = w.dims[1];
    const int filters = ys.channels = Features::kGroups ? w.dims[0] / groups : w.dims[0];
    if (MB_WRONG(y.dims[0] != batch || y.dims[1] != w.dims[0])) return false;
    if (MB_WRONG(filters * groups != w.dims[0] || int64_t(channels) * groups != x.dims[1])) return false;
    windowed = 0;
    taps = 1;
    xs.image = ys.image = ys.size = 1;
    int64_t size = 1;
    int phases = 1;
    for (int a = kAxes - 1; a >= 0; --a) {
      const int at = kFewer ? rank - kAxes + a : a + 2;
      const bool present = !kFewer || at > 1;
      const int in = present ? x.dims[at] : 1, out = present ? y.dims[at] : 1, width = present ? w.dims[at] : 1;
      const int32_t* param = params + 4 - kAxes + a;
      const int stride = Features::kStrides ? param[0] : 1, pad = param[3],
                spacing = Features::kDilations ? param[6] : 1;
      constexpr unsigned kMost = 1 << 12;  // so that no position overflows
      constexpr unsigned kLongest = 1 << 28;
      // One comparison each: a bit at or above the limit in any of them, sign bits included, survives the `or`.
      if (((stride - 1u) | pad | (spacing - 1u) | (width - 1u)) >= kMost) return false;
      if (unsigned((in - 1) | (out - 1)) >= kLongest) return false;
      const int dilated = spacing * (width - 1), extent = out + dilated / stride, pitch = int(size);
      window[a] = width;
      if (Features::kDilations) dilation[a] = spacing;
      PlaneAxis &x_axis = xs.axes[a], &y_axis = ys.axes[a];
      x_axis.in = in, x_axis.extent = extent, x_axis.pad = pad;
      y_axis.in = y_axis.extent = out, y_axis.pad = 0;
      x_axis.pitch = y_axis.pitch = pitch;
      if (Features::kStrides) {
        if (int64_t(extent) * stride >= 1 << 30) return false;
        x_axis.stride = stride, x_axis.phases = dilated < stride ? dilated + 1 : stride;
        y_axis.stride = y_axis.phases = 1;
        if (Features::kVolume && int64_t(phases) * x_axis.phases >= 1 << 27) return false;
        phases *= x_axis.phases;  // at most the stride, which times the extent is limited
      }
      xs.image *= in;
      ys.image *= out;
      ys.size += (out - 1) * pitch;
      taps *= width;
      size *= extent;
      if (size * phases >= 1 << 27) return false;
      if (Features::kPointwise) windowed |= (stride - 1) | pad | (width - 1) | (extent - in);
    }
    xs.size = int(size);
    xs.step = xs.size * phases;
    ys.step = ys.size;
    return true;
  }

  // Where each tap finds the first output in the planes.
  MB_INLINE void find_places(int* found) const {
    for (int number = 0; number < taps; ++number) {
      int tap = number, place = 0, phase = xs.size;
      for (int a = kAxes - 1; a >= 0; --a) {
        const PlaneAxis& axis = xs.axes[a];
        int position = tap % window[a];
        tap /= window[a];
        if (Features::kDilations) position *= dilation[a];
        if (Features::kStrides) {
          place += position % axis.stride * phase;
          position /= axis.stride;
          phase *= axis.phases;
        }
        place += position * axis.pitch;
      }
      found[number] = place;
    }
  }

  // As PackedConv: here all images add to gradients.
  static constexpr bool overwrite() { return false; }

  // scratch: planes of one image of x; outputs on their grid; places of taps
  MB_NOINLINE bool lay_out(const Tensor& written, const Tensor& bytes) {
    if (pointwise()) {
      if constexpr (Features::kDequantize) {
        // Of single elements products are dot products.
        if (this->matrix && ys.image == 1)
          return this->has_row(written, propagation == kOutput ? xs.channels : ys.channels);
      }
      return true;
    }
    ys.step = ys.size = (ys.size + kWhole - 1) & -kWhole;
    const int64_t elements = int64_t(xs.channels) * xs.step + int64_t(ys.channels) * ys.step;
    if (sizeof(void*) == 4 && elements * int64_t(sizeof(T)) > bytes.count) return false;  // no pointer to their end
    planes = bytes.scratch<T>();
    grid = planes + int64_t(xs.channels) * xs.step + kWhole;
    places = reinterpret_cast<int*>(grid + int64_t(ys.channels) * ys.step);
    if (reinterpret_cast<char*>(places + taps) - bytes.data > bytes.count) return false;
    if (!disjoint(written, sizeof(T), bytes, 1)) return false;  // results must not become places
    // Padding of what is read, gaps in the grid. What is written needs none, or clears it for every image.
    char* begin = reinterpret_cast<char*>(propagation == kInputGradient ? grid : planes);
    char* end = propagation == kOutput ? reinterpret_cast<char*>(grid) : reinterpret_cast<char*>(places);
    clear_bytes(begin, size_t(end - begin));
    find_places(places);
    if constexpr (kSumsTaps) gather_inputs();
#if MB_THREADS > 1
    constexpr uintptr_t kLine = 64;
    shares = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(places + taps) + kLine - 1) & -kLine);
    share = (reinterpret_cast<T*>(places) - planes + kWhole - 1) & -kWhole;
    const int64_t room = (bytes.data + bytes.count - reinterpret_cast<char*>(shares)) / (share * int64_t(sizeof(T)));
    const int64_t work = int64_t(batch) * groups * ys.channels * ys.image * channels_and_taps();
    if (groups > 1 && team != nullptr && room > 0 && work >= kLeastWork / 16) {
      members = room + 1 < team->members ? int32_t(room + 1) : team->members;
      clear_bytes(shares, size_t((members - 1) * share) * sizeof(T));
    }
#endif
    return true;
  }
#if MB_FAST_WASM
  // Lays out an input gradient as sums over taps, if windows move by one element and memory is there: gradients of inputs
  // from the first that is no padding on, on the grid of the outputs, whose rows have zeros between them.
  MB_INLINE void gather_inputs() {
    if (propagation != kInputGradient || (ys.channels < kLeastDepth && !depthwise())) return;
    intptr_t base = 0;
    for (int a = 0; a < kAxes; ++a) {
      const PlaneAxis& axis = xs.axes[a];
      if (stride(a) != 1 || axis.in != ys.axes[a].in || axis.pad > span(a)) return;
      base += intptr_t(axis.pad) * axis.pitch;
    }
    const intptr_t before = places[taps - 1] - base, gap = before > base ? before : base;
    T* const begin = planes + xs.channels * intptr_t(ys.size);
    if (reinterpret_cast<T*>(places) - begin < before + ys.channels * (ys.size + gap)) return;
    clear_bytes(begin, size_t(reinterpret_cast<char*>(places) - reinterpret_cast<char*>(begin)));
    grid = begin + before;
    xs.step = ys.size;
    ys.step = ys.size += int(gap);
    first = base;
  }

  // The product of all taps, with sums in registers.
  MB_NOINLINE void sum_taps(T* x, T* y, T* w, bool add) {
    const intptr_t depth = intptr_t(xs.channels) * taps;
    TapProduct<T> product = {ys.channels, ys.size, xs.channels, w,      depth, taps, x,
                             xs.step,     y,       ys.size,     places, taps,  1,    add};
    if (propagation == kInputGradient) {
      product.rows = xs.channels, product.columns = xs.step, product.depth = ys.channels;
      product.a_row = taps, product.a_col = depth;
      product.b = y + first, product.b_row = ys.step, product.direction = -1;
      product.c = x, product.c_row = xs.step;
    }
    product.run();
  }

  // The same of one filter on one channel; false where taps add to planes one after the other.
  MB_INLINE bool sum_filter(T* x, T* y, T* w, const T* bias) {
    if (propagation == kWeightGradient) {
      TapSums<T>::weights(ys.size, x, y, w, places, taps);
    } else if (propagation == kOutput) {
      TapSums<T>::outputs(ys.size, x, y, w, places, taps, 1, Features::kBias && bias ? *bias : T(0));
    } else {
      if (first < 0) return false;
      TapSums<T>::outputs(xs.step, y + first, x, w, places, taps, -1, T(0));
    }
    return true;
  }
#else
  static constexpr intptr_t first = -1;
  void gather_inputs() {}
  void sum_taps(T*, T*, T*, bool) {}
  bool sum_filter(T*, T*, T*, const T*) { return false; }
#endif
#if MB_THREADS > 1
  int64_t channels_and_taps() const { return int64_t(xs.channels) * taps; }
  // True if rows of the product are divided: of pointwise windows without groups.
  bool divides_rows() const {
    if constexpr (Features::kDequantize) {
      if (this->matrix) return false;
    }
    return pointwise() && groups == 1;
  }
  // Itself, in the memory of a member.
  MB_INLINE PlaneConv of_member(int32_t member) const {
    PlaneConv own = *this;
    if (member > 0) own.planes = shares + (member - 1) * share, own.grid = own.planes + (grid - planes);
    return own;
  }
#endif

  // The product of one tap, or of all for outputs.
  MB_NOINLINE void multiply(T* x, T* y, T* w, bool add) {
    const intptr_t channels = xs.channels, filters = ys.channels, depth = channels * taps, flat = ys.size;
    Gemm<T> product = {filters, flat, depth, w, depth, 1, x, xs.step, 1, y, flat};
    if (propagation != kOutput) {
      product.m = channels;
      product.b = y;
      if (propagation == kInputGradient) {
        product.k = filters;
        product.a_row = taps, product.a_col = depth;
        product.b_row = flat;
        product.c = x, product.c_row = xs.step;
      } else {
        product.n = filters, product.k = flat;
        product.a = x, product.a_row = xs.step;
        product.b_row = 1, product.b_col = flat;
        product.c = w, product.c_row = taps, product.c_col = depth;
      }
    }
    product.accumulate = add;
    const PlanePacker<T> rows = {x, places, taps, xs.step};
    if constexpr (Features::kDequantize) {
      if (Features::kPieces && this->matrix && (propagation == kInputGradient || pointwise()))
        return this->multiply_pieces(product, propagation == kInputGradient, taps);
#if MB_WRITTEN_ROWS
      if (this->matrix)
        product.rows = this->write, product.source = static_cast<const StoredWeights<T, Features>*>(this);
#else
      if (this->matrix) return this->multiply_outputs(product, pack_with<T, PlanePacker<T>>, &rows);
#endif
    }
#if MB_THREADS > 1
    if (some_rows != 0) product = part_of(product, first_row, some_rows, 0, product.n);
#endif
    if (propagation == kWeightGradient || pointwise()) return multiply_strided(product);
    const int bytes = vector_bytes();
    // For inputs, rows of Y are whole tiles: read in place.
    const bool direct = propagation == kInputGradient;
    minbuild::multiply<T>(product, bytes, direct, direct ? pack_strided<T> : pack_with<T, PlanePacker<T>>,
                          direct ? static_cast<const void*>(&product) : &rows);
  }

  // One group of one image.
  MB_NOINLINE void run(T* x, T* y, T* w, const T* bias) {
    // Grids are whole vectors, images that take their place are not.
    using V = typename Width<Features::kPointwise ? sizeof(T) : kNarrowBytes>::template of<T>;
    T *image = x, *outputs = y;
    bool add = propagation == kWeightGradient;
    if (!pointwise()) {
      add = propagation != kOutput;
      x = planes;
      y = grid;
      if (propagation == kInputGradient) {
        if (!kSumsTaps || first < 0) clear_bytes(x, size_t(y - x) * sizeof(T));
      } else xs.move(image, x, false);
      if (propagation != kOutput) ys.move(outputs, y, false);
    }
    if (propagation == kOutput && (kSumsTaps ? bias && !depthwise() : bias || depthwise())) {
      add = true;
      T* to = y;
#if MB_THREADS > 1
      to += intptr_t(first_row) * ys.size;
      if (bias) bias += first_row;
      const int rows = some_rows != 0 ? some_rows : ys.channels;
      for (int m = 0; m < rows; ++m) {
#else
      for (int m = 0; m < ys.channels; ++m) {
#endif
        const V value = Features::kBias && bias ? bias[m] : T(0);
        for (int i = 0; i < ys.size; i += V::size, to += V::size) value.store(to);
      }
    }
    if (depthwise()) {
      const auto run_taps = [&](T* weights, int first, int count) MB_LAMBDA {
#if MB_DISPATCHES
        run_avx2<TapsBody<T>>(propagation, ys.size, x, y, weights, static_cast<const int*>(places) + first, count);
#else
        dispatch<TapsBody<T>>(propagation, ys.size, x, y, weights, static_cast<const int*>(places) + first, count);
#endif
      };
      if constexpr (Features::kDequantize) {
        if (this->matrix) this->each_piece(w, taps, run_taps);
        else run_taps(w, 0, taps);
      } else if (!kSumsTaps || !sum_filter(x, y, w, bias)) {
        run_taps(w, 0, taps);
      }
    } else if (kSumsTaps && !pointwise() && (first >= 0 || (propagation == kOutput && xs.channels >= kLeastDepth))) {
      sum_taps(x, y, w, propagation == kOutput && add);
    } else if (propagation == kOutput || pointwise()) {
      multiply(x, y, w, add);
    } else {
      for (int t = 0; t < taps; ++t) multiply(x + places[t], y, w + t, true);
    }
    if (pointwise()) return;
    if (propagation == kOutput) ys.move(outputs, y, true);
    if (propagation == kInputGradient) xs.move(image, kSumsTaps && first >= 0 ? x - first : x, true);
  }
};

// All images, group by group.
template <class T, class Features>
MB_INLINE void run_images(PlaneConv<T, Features>& c, PlaneConv<T, Features>&, const Tensor& y, const Tensor& x,
                          const Tensor& w, const Tensor& bias) {
#if MB_THREADS > 1
  // Each group is one thread's for all images, so that its weight gradients are added in their order.
  if (c.members > 1) {
    const int some = (c.groups + 4 * c.members - 1) / (4 * c.members);
    for_parts(c.team, c.members, (c.groups + some - 1) / some, [&](int32_t part, int32_t member) {
      PlaneConv<T, Features> own = c.of_member(member);
      const int first = part * some, end = c.groups - first < some ? c.groups : first + some;
      for (int n = 0; n < c.batch; ++n)
        for (int g = first; g < end; ++g) {
          const intptr_t at = intptr_t(n) * c.groups + g;
          own.run(x.as<T>() + at * c.xs.channels * c.xs.image, y.as<T>() + at * c.ys.channels * c.ys.image,
                  c.weights(w) + intptr_t(g) * c.ys.channels * c.xs.channels * c.taps,
                  Features::kBias && bias ? bias.as<T>() + g * c.ys.channels : nullptr);
        }
    });
    return;
  }
#endif
#if MB_THREADS > 1
  // Each part of the rows is one thread's for all images.
  if (c.divides_rows()) {
    const int rows = c.propagation == kOutput ? c.ys.channels : c.xs.channels;
    const int64_t work = int64_t(c.batch) * c.xs.channels * c.ys.channels * c.ys.image;
    return for_ranges(
        c.team, rows, work / (kLeastWork / (2 * kLeastBytes)), kWhole, [&](intptr_t first, intptr_t some) {
          PlaneConv<T, Features> own = c;
          own.first_row = int32_t(first), own.some_rows = int32_t(some);
          for (intptr_t n = 0; n < c.batch; ++n)
            own.run(x.as<T>() + n * c.xs.channels * c.xs.image, y.as<T>() + n * c.ys.channels * c.ys.image,
                    c.weights(w), Features::kBias ? bias.as<T>() : nullptr);
        });
  }
#endif
  T *image = x.as<T>(), *outputs = y.as<T>();
  for (int n = 0; n < c.batch; ++n) {
    T* filters = c.weights(w);
    const T* biases = Features::kBias ? bias.as<T>() : nullptr;
    int g = 0;
    do {  // no loop where there are no groups
      c.run(image, outputs, filters, biases);
      image += c.xs.channels * c.xs.image;
      outputs += c.ys.channels * c.ys.image;
      filters += c.ys.channels * c.xs.channels * c.taps;
      if (biases) biases += c.ys.channels;
    } while (Features::kGroups && ++g < c.groups);
  }
}

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PLANE_CONV_H_
