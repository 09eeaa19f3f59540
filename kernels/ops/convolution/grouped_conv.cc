// Convolutions of real size with few channels per group, and their gradients, over two axes with windows that move by
// one or two elements. Products of so few rows do not pay for packing: a tile of results stays in registers until all
// taps of all channels are in it, which it reads where they are, from planes with zeros around the images.
#include "minbuild/kernel.h"
#include "lib/nn/grouped_planes.h"

namespace minbuild {

constexpr int kGroupRows = 4;  // of a tile
template <class W>
constexpr int kGroupColumns = W::bytes == 64 ? 6 : 3;  // vectors of a tile: 32 registers, or 16
// Of so many that are left, with tiles of six, four, three and one.
constexpr int8_t kWidestTiles[] = {0, 1, 1, 3, 4, 4, 6, 4, 4, 6, 6, 4};

// sums[r][k] += left(r) * right(k). The fewer of both are in registers at once, besides one of the others.
template <int kR, int kC, class V, class Left, class Right>
MB_INLINE void add_products(V (&sums)[kR][kC], Left left, Right right) {
  if constexpr (kR < kC) {
    V factors[kR];
    unroll<kR>([&](auto r) MB_LAMBDA { factors[r] = left(r); });
    unroll<kC>([&](auto k) MB_LAMBDA {
      const V factor = right(k);
      unroll<kR>([&](auto r) MB_LAMBDA { sums[r][k] = muladd(factors[r], factor, sums[r][k]); });
    });
  } else {
    V factors[kC];
    unroll<kC>([&](auto k) MB_LAMBDA { factors[k] = right(k); });
    unroll<kR>([&](auto r) MB_LAMBDA {
      const V factor = left(r);
      unroll<kC>([&](auto k) MB_LAMBDA { sums[r][k] = muladd(factor, factors[k], sums[r][k]); });
    });
  }
}

// Results of some images of a group, of all sources.
template <class T>
struct GroupSumsBody {
  // to[row] = bias[row] + what `list` gives, of rows whose weights are w_row apart, w_step from source to source.
  template <class V, int kR, int kC>
  static MB_INLINE void sum_tile(const Grouped<T>& c, const TapList& list, const T* x, const T* w, const T* bias,
                                 T* to) {
    V sums[kR][kC];
    unroll<kR>([&](auto r) MB_LAMBDA {
      const V start = bias ? bias[r] : T(0);
      unroll<kC>([&](auto v) MB_LAMBDA { sums[r][v] = start; });
    });
    for (int k = 0; k < c.sources; ++k, x += c.source_step, w += list.w_step)
      for (int t = list.first; t < list.count; ++t) {
        const T *from = x + list.places[t], *factors = w + list.weights[t];
        add_products<kR, kC>(
            sums, [&](auto r) MB_LAMBDA { return V(factors[r * list.w_row]); },
            [&](auto v) MB_LAMBDA { return V::load(from + v * V::size); });
      }
    unroll<kR>([&](auto r) MB_LAMBDA {
      unroll<kC>([&](auto v) MB_LAMBDA { sums[r][v].store(to + r * list.to_step + v * V::size); });
    });
  }
  template <class V, int kC>
  static MB_INLINE void sum_rows(const Grouped<T>& c, const TapList& list, const T* x, const T* w, const T* bias,
                                 T* to) {
    int row = 0;
    for (; row <= c.results - kGroupRows; row += kGroupRows)
      sum_tile<V, kGroupRows, kC>(c, list, x, w + row * list.w_row, bias ? bias + row : bias, to + row * list.to_step);
    for (; row < c.results; ++row)
      sum_tile<V, 1, kC>(c, list, x, w + row * list.w_row, bias ? bias + row : bias, to + row * list.to_step);
  }
  template <class W>
  static MB_INLINE void run(const Grouped<T>* of, const TapList* taps, const T* w, const T* bias, T* to,
                            intptr_t count) {
    using V = typename W::template of<T>;
    constexpr int kC = kGroupColumns<W>;
    const Grouped<T>& c = *of;
    TapList list = *taps;
    for (intptr_t at = 0, left = (count + V::size - 1) / V::size, now; left > 0; left -= now, at += now * V::size) {
      // Few vectors are left to a last tile only where no others fit.
      now = left >= 2 * kC ? kC : W::bytes == 64 ? kWidestTiles[left] : left == 4 ? 2 : left < kC ? left : kC;
      if (c.images > 1) {
        if (kC > 4 && c.pitch == 4 * V::size) now = 4;  // a row
        c.leave_padding_out(list, taps->count, int(at), int(at) + int(now) * V::size - 1);
      }
      const T* const x = c.planes + at;
      if (now == kC) sum_rows<V, kC>(c, list, x, w, bias, to + at);
      else if (kC > 3 && now == 4) sum_rows<V, (kC > 3 ? 4 : 2)>(c, list, x, w, bias, to + at);
      else if (now > 1) sum_rows<V, (kC > 3 ? 3 : 2)>(c, list, x, w, bias, to + at);
      else sum_rows<V, 1>(c, list, x, w, bias, to + at);
    }
  }
};

// Gradients of the weights of a group, which are added to.
template <class T>
struct GroupWeightsBody {
  // w[row, column] += the lanes of each, from `kFirst` on: as many columns at once as a vector has sums for.
  template <class V, int kC, int kFirst>
  static MB_INLINE void add_sums(V (&sums)[kGroupRows][kC], T* w, intptr_t w_row) {
    if constexpr (kFirst < kC) {
      constexpr int kMost = V::size / kGroupRows, kSome = kMost < kC - kFirst ? kMost : kC - kFirst;
      static_assert((kSome & (kSome - 1)) == 0);
      V all[kGroupRows * kSome];
      unroll<kGroupRows>([&](auto r) MB_LAMBDA {
        unroll<kSome>([&](auto k) MB_LAMBDA { all[r * kSome + k] = sums[r][kFirst + k]; });
      });
      T lanes[V::size];
      add_pairs<kGroupRows * kSome, 1>(all).store(lanes);
      unroll<kGroupRows>([&](auto r) MB_LAMBDA {
        using Some = Vec<T, kSome>;
        T* to = w + r * w_row + kFirst;
        (Some::load(to) + Some::load(lanes + r * kSome)).store(to);
      });
      add_sums<V, kC, kFirst + kSome>(sums, w, w_row);
    }
  }
  // The sum of the lanes of each of `kCount` vectors in a lane of its own, after `kDone` pairs of lanes are one.
  template <int kCount, int kDone, class V>
  static MB_INLINE V add_pairs(V* x) {
    if constexpr (kDone == V::size) {
      return x[0];
    } else {
      constexpr int kLeft = kCount > 1 ? kCount / 2 : 1;
      V pairs[kLeft];
      unroll<kLeft>([&](auto i) MB_LAMBDA {
        const V &low = x[kCount > 1 ? 2 * i : 0], &high = x[kCount > 1 ? 2 * i + 1 : 0];
        pairs[i] = of_pairs<0>(low, high) + of_pairs<1>(low, high);
      });
      return add_pairs<kLeft, 2 * kDone>(pairs);
    }
  }
  // w[row, column] += the products of y's row, and of x as tap and channel `column` read it, over `count` elements.
  template <class V, int kR, int kC>
  static MB_INLINE void weigh_tile(const Grouped<T>& c, const T* y, const T* const* x, T* w, intptr_t w_row,
                                   intptr_t count) {
    V sums[kR][kC];
    const T* from[kC];
    unroll<kC>([&](auto k) MB_LAMBDA {
      from[k] = x[k];
      unroll<kR>([&](auto r) MB_LAMBDA { sums[r][k] = T(0); });
    });
    for (intptr_t at = 0; at < count; at += V::size) {
      add_products<kR, kC>(
          sums, [&](auto r) MB_LAMBDA { return V::load(y + r * c.side + at); },
          [&](auto k) MB_LAMBDA { return V::load(from[k] + at); });
    }
    if constexpr (kR == kGroupRows && V::size >= kGroupRows) add_sums<V, kC, 0>(sums, w, w_row);
    else
      unroll<kR>([&](auto r) MB_LAMBDA { unroll<kC>([&](auto k) MB_LAMBDA { w[r * w_row + k] += sum(sums[r][k]); }); });
  }
  template <class V, int kC>
  static MB_INLINE void weigh_rows(const Grouped<T>& c, const T* const* x, T* w, intptr_t w_row, intptr_t count) {
    int row = 0;
    for (; row <= c.filters - kGroupRows; row += kGroupRows)
      weigh_tile<V, kGroupRows, kC>(c, c.grid + row * c.side, x, w + row * w_row, w_row, count);
    for (; row < c.filters; ++row) weigh_tile<V, 1, kC>(c, c.grid + row * c.side, x, w + row * w_row, w_row, count);
  }
  template <class W>
  static MB_INLINE void run(const Grouped<T>* of, const TapList* list, T* w, intptr_t count) {
    using V = typename W::template of<T>;
    constexpr int kC = kGroupColumns<W>;
    const Grouped<T>& c = *of;
    const int depth = c.channels * c.taps;
    int k = 0;
    for (int now; k < depth; k += now) {
      now = k <= depth - kC ? kC : 1;
      const T* x[kC];
      for (int i = 0; i < now; ++i) x[i] = c.planes + (k + i) / c.taps * c.source_step + list->places[(k + i) % c.taps];
      if (now == kC) weigh_rows<V, kC>(c, x, w + k, depth, count);
      else weigh_rows<V, 1>(c, x, w + k, depth, count);
    }
  }
};

// Some images of a group to their planes.
template <class T>
struct FillBody {
  template <class W>
  static MB_INLINE void run(const Grouped<T>* of, const T* image, int count) {
    const Grouped<T>& c = *of;
    const bool back = c.propagation == kInputGradient;
    const intptr_t step = back ? c.y_image : c.x_image, all = c.groups * c.sources * step;
    for (int i = 0; i < count; ++i)
      for (int k = 0; k < c.sources; ++k)
        c.template fill_plane<typename W::template of<T>>(image + i * all + k * step,
                                                          c.planes + k * c.source_step + i * c.extent[1]);
  }
};

// Some images of y of a group to the grid, or back.
template <class T>
struct GroupOutputsBody {
  template <class W>
  static MB_INLINE void run(const Grouped<T>* of, T* y, int count, bool back) {
    using V = typename W::template of<T>;
    const Grouped<T>& c = *of;
    for (int i = 0; i < count; ++i)
      for (int m = 0; m < c.filters; ++m) {
        T* own = y + (intptr_t(i) * c.groups * c.filters + m) * c.y_image;
        T* line = c.grid + m * c.side + i * c.extent[1];
        for (int r = 0; r < c.out[0]; ++r, own += c.out[1], line += c.pitch)
          copy_row<V>(static_cast<const T*>(back ? line : own), back ? own : line, c.out[1]);
      }
  }
};

// Rows of phase `down` of some images of a group, all columns of which are in the grid, to the input's gradient.
template <class T>
struct GroupInputsBody {
  template <class W>
  static MB_INLINE void run(const Grouped<T>* of, T* x, int count, int down) {
    using V = typename W::template of<T>;
    const Grouped<T>& c = *of;
    const int rows = c.length(0, down), first = c.first(0, down) * c.stride + down - c.pad[0];
    for (int i = 0; i < count; ++i)
      for (int k = 0; k < c.channels; ++k) {
        T* to = x + (intptr_t(i) * c.groups * c.channels + k) * c.x_image + first * c.in[1];
        const T* from = c.grid + k * c.stride * c.side + i * c.extent[1];
        for (int r = 0; r < rows; ++r, from += c.pitch, to += c.stride * c.in[1]) {
          if (kPairs && c.stride == 2) join_row<V>(from, from + c.side, to, c.in[1]);
          else copy_row<V>(from, to, c.in[1]);
        }
      }
  }
};

// One group of `count` images.
template <class T>
void run_group(const Grouped<T>& c, T* x, T* y, T* w, const T* bias, int count) {
  const int bytes = vector_bytes(), widest = widest_bytes();
  const bool back = c.propagation == kInputGradient;
  const intptr_t depth = intptr_t(c.channels) * c.taps;
  // Of images that are left there, nothing may get into sums.
  if (count < c.images && c.propagation == kWeightGradient) clear_bytes(c.planes, size_t(c.share) * sizeof(T));
  run_at<FillBody<T>>(bytes, &c, static_cast<const T*>(back ? y : x), count);
  TapList list;
  if (back) {
    list.w_row = c.taps, list.w_step = depth, list.to_step = c.stride * c.side;
    for (int down = 0; down < c.stride; ++down) {
      for (int across = 0; across < c.stride; ++across) {
        c.list_taps(list, down, across);
        T* to = c.grid;
        if (kPairs && c.stride == 2) to += (across + c.pad[1]) % 2 * c.side;
        const intptr_t reach = c.length(0, down) * c.pitch;
        run_at<GroupSumsBody<T>, 64>(widest, &c, &list, static_cast<const T*>(w), bias, to, reach);
      }
      run_at<GroupInputsBody<T>>(bytes, &c, x, count, down);
    }
    return;
  }
  c.list_taps(list);
  const intptr_t reach = (c.out[0] - 1) * c.pitch + (count - 1) * c.extent[1] + c.out[1];
  if (c.propagation == kOutput) {
    list.w_row = depth, list.w_step = c.taps, list.to_step = c.side;
    run_at<GroupSumsBody<T>, 64>(widest, &c, &list, static_cast<const T*>(w), bias, c.grid, reach);
    return run_at<GroupOutputsBody<T>>(bytes, &c, y, count, true);
  }
  run_at<GroupOutputsBody<T>>(bytes, &c, y, count, false);
  run_at<GroupWeightsBody<T>, 64>(widest, &c, &list, w, (reach + kGroupMultiple - 1) & -kGroupMultiple);
}

// Some groups of all images.
template <class T>
MB_NOINLINE void run_groups(const Grouped<T>& c, T* x, T* y, T* w, const T* bias, int first, int some) {
  const intptr_t x_group = c.channels * c.x_image, y_group = c.filters * c.y_image;
  const intptr_t w_group = intptr_t(c.filters) * c.channels * c.taps;
  for (int g = first; g < first + some; ++g)
    for (int n = 0; n < c.batch; n += c.images) {
      const intptr_t at = intptr_t(n) * c.groups + g;
      const T* const own_bias = bias ? bias + intptr_t(g) * c.filters : nullptr;
      run_group<T>(c, x + at * x_group, y + at * y_group, w + g * w_group, own_bias,
                   c.batch - n < c.images ? c.batch - n : c.images);
    }
}

// Arguments and parameters as those of conv.
template <class T>
Status grouped_conv_packed(const Call& call) {
  Grouped<T> c;
  return run_in_groups<T>(call, c, run_groups<T>);
}

MB_INSTANTIATE_GROUPED_CONV

}  // namespace minbuild
