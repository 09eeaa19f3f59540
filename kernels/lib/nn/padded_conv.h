// Outputs of convolutions over small images with padding: of what a window reads, products leave out the taps that meet
// nothing but padding (output_order.h, lib/gemm/listed_gemm.h). Weights are read where they are, in roles exchanged too.
// Sums have the order of packed_conv.h: a product with padding adds zero.
#ifndef MINBUILD_LIB_NN_PADDED_CONV_H_
#define MINBUILD_LIB_NN_PADDED_CONV_H_

#include "lib/gemm/listed_gemm.h"
#include "lib/nn/output_order.h"

namespace minbuild {

// C[filters,order] = W * X, for outputs in an order.
template <class T>
struct PaddedProduct {
  TapRows<T> taps;
  OutputOrder order;
  const T* w;
  intptr_t w_row, w_step;  // elements from one filter to the next, and from one channel to the next
  intptr_t depth;          // channels * taps
  T* c;
  bool accumulate;

  // Writes the rows of X that some unit's outputs need, `width` apart, for one or two units.
  struct Body {
    template <class W>
    static MB_INLINE void run(const PaddedProduct* p, T* panel, int unit, int units, intptr_t k, intptr_t depth) {
      using V = typename W::template of<T>;
      using Short = Vec<T, 16 / int(sizeof(T))>;
      constexpr int kMost = 2 * kUnit, kFew = 4;  // copies; few of them are unrolled
      intptr_t from[kMost], to[kMost];
      int copies = 0;
      bool few = true;  // elements of each run
      const OutputUnit* own = p->order.units + unit;
      const OutputRun *run = p->order.runs + own[0].run, *end = p->order.runs + own[units].run;
      for (; run != end; ++run) {
        from[copies] = run->place, to[copies++] = run->column - unit * kUnit;
        few = few && run->length <= Short::size;
        for (int i = V::size; i < run->length; i += V::size, ++copies)
          from[copies] = from[copies - 1] + V::size, to[copies] = to[copies - 1] + V::size;
      }
      if (few) return copy<Short, 0>(*p, panel, own->taps, k, depth, units * kUnit, from, to, copies);
      if (copies > kFew) return copy<V, 0>(*p, panel, own->taps, k, depth, units * kUnit, from, to, copies);
      for (; copies < kFew; ++copies) from[copies] = from[copies - 1], to[copies] = to[copies - 1];
      copy<V, kFew>(*p, panel, own->taps, k, depth, units * kUnit, from, to, copies);
    }

    template <class V, int kCopies>
    static MB_INLINE void copy(const PaddedProduct& p, T* panel, uint32_t seen, intptr_t k, intptr_t depth, int width,
                               const intptr_t* from, const intptr_t* to, int copies) {
      int tap = int(k % p.taps.taps);
      const T* channel = p.taps.planes + k / p.taps.taps * p.taps.step;
      intptr_t own_from[kCopies + 1], own_to[kCopies + 1];
      unroll<kCopies>([&](auto i) MB_LAMBDA { own_from[i] = from[i], own_to[i] = to[i]; });
      for (; depth > 0; --depth) {
        if (seen >> tap & 1) {
          const T* x = channel + p.taps.places[tap];
          if constexpr (kCopies != 0) {
            unroll<kCopies>([&](auto i) MB_LAMBDA { V::load(x + own_from[i]).store(panel + own_to[i]); });
          } else {
            for (int i = 0; i < copies; ++i) V::load(x + from[i]).store(panel + to[i]);
          }
          panel += width;
        }
        if (++tap == p.taps.taps) tap = 0, channel += p.taps.step;
      }
    }
  };

  MB_INLINE void pack([[maybe_unused]] int bytes, T* panel, int unit, int units, intptr_t k, intptr_t some) const {
#if MINBUILD_AVX512
    if (bytes == 64) return run_widest<Body>(this, panel, unit, units, k, some);
#endif
    run_wide<Body>(this, panel, unit, units, k, some);
  }

  // Where the elements of W are at the depths that `seen` has; returns how many.
  MB_INLINE intptr_t fill_list(int32_t* list, uint32_t seen, intptr_t k, intptr_t some) const {
    int32_t* to = list;
    int tap = int(k % taps.taps);
    int32_t at = int32_t(k / taps.taps * w_step);
    for (; some > 0; --some) {
      *to = at + tap;
      to += seen >> tap & 1;
      if (++tap == taps.taps) tap = 0, at += int32_t(w_step);
    }
    return to - list;
  }

  // Some filters at some units, with panels in `scratch`.
  MB_NOINLINE void multiply(intptr_t first_filter, intptr_t filters, int first_unit, int units, T* scratch) const {
    const int bytes = widest_bytes(), wide = bytes == 64 ? 2 : 1;
    int32_t list[kPanelBytes / kTileVectors / 32];
    Gemm<T> tile = {filters, 2 * kUnit, depth, nullptr, w_row, 1, nullptr, 0, 1, nullptr, order.columns};
    const Blocks<T> blocks(tile, bytes);
    const int most = int(blocks.columns) / kUnit & -2, last = first_unit + units;
    for (int from = first_unit; from < last; from += most) {
      const int end = from + most < last ? from + most : last;
      for (intptr_t k = 0; k < depth; k += blocks.depth) {
        const intptr_t some = depth - k < blocks.depth ? depth - k : blocks.depth;
        tile.accumulate = accumulate || k > 0;
        for (intptr_t i = 0; i < filters; i += blocks.rows) {
          tile.m = filters - i < blocks.rows ? filters - i : blocks.rows;
          uint32_t listed = 0;
          T* panel = scratch;
          for (int unit = from, now; unit < end; unit += now, panel += now * kUnit * some) {
            const OutputUnit* own = order.units + unit;
            now = wide == 2 && unit + 1 < end && own[0].taps == own[1].taps ? 2 : 1;
            if (unit == from || own->taps != listed) {
              listed = own->taps;
              tile.k = fill_list(list, listed, k, some);
            }
            if (i == 0) pack(bytes, panel, unit, now, k, some);
            tile.a = w + (first_filter + i) * w_row;
            tile.a_col = unit == from && w_row < depth ? packed_tile_rows(bytes) * w_row : 0;
            tile.b = panel, tile.b_row = now * kUnit;
            tile.c = c + (first_filter + i) * order.columns + unit * kUnit;
            multiply_listed(tile, bytes, list);
          }
        }
      }
    }
  }

#if MB_THREADS > 1
  MB_NOINLINE void multiply_in_parts(const Gemm<T>& g, T* scratch) const {
    if (g.members < 2 || int64_t(g.m) * g.n * g.k < kLeastWork) return multiply(0, g.m, 0, order.count, scratch);
    const Partition parts = partition_of(g, widest_bytes(), 1, 0, kGatheringWork);
    const int units = int(parts.columns) / kUnit;
    for_parts(g.team, g.members, parts.across * parts.down, [&](int32_t part, int32_t member) {
      const intptr_t i = part / parts.across * parts.rows;
      const int unit = int(part % parts.across) * units;
      multiply(i, g.m - i < parts.rows ? g.m - i : parts.rows, unit,
               order.count - unit < units ? order.count - unit : units, scratch + member * g.share);
    });
  }
#endif

  // Outputs of one filter in `images` images to their places, `step` from image to image.
  MB_NOINLINE void scatter(const T* from, T* y, intptr_t step, int images) const {
    using V = Vec<T, 16 / int(sizeof(T))>;
    for (const OutputRun *run = order.runs, *end = run + order.run; run != end; ++run) {
      if (run->image >= images) continue;
      const T* x = from + run->column;
      T* to = y + run->image * step + run->target;
      int i = 0;
      for (; i <= run->length - V::size; i += V::size) V::load(x + i).store(to + i);
      for (; i < run->length; ++i) to[i] = x[i];
    }
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_PADDED_CONV_H_
