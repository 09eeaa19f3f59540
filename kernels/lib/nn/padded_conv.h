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

  // Writes the `count` rows of X that begin at `rows` of the planes, at the outputs of one or two units.
  struct Body {
    template <class W>
    static MB_INLINE void run(const PaddedProduct* p, T* panel, int unit, int units, const int32_t* rows,
                              intptr_t count) {
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
      const T* x = p->taps.planes;
      if (few) return copy<Short, 0>(x, panel, rows, count, units * kUnit, from, to, copies);
      if (copies > kFew) return copy<V, 0>(x, panel, rows, count, units * kUnit, from, to, copies);
      for (; copies < kFew; ++copies) from[copies] = from[copies - 1], to[copies] = to[copies - 1];
      copy<V, kFew>(x, panel, rows, count, units * kUnit, from, to, copies);
    }

    template <class V, int kCopies>
    static MB_INLINE void copy(const T* planes, T* panel, const int32_t* rows, intptr_t count, int width,
                               const intptr_t* from, const intptr_t* to, int copies) {
      intptr_t own_from[kCopies + 1], own_to[kCopies + 1];
      unroll<kCopies>([&](auto i) MB_LAMBDA { own_from[i] = from[i], own_to[i] = to[i]; });
      for (; count > 0; --count, panel += width) {
        const T* x = planes + *rows++;
        if constexpr (kCopies != 0) {
          unroll<kCopies>([&](auto i) MB_LAMBDA { V::load(x + own_from[i]).store(panel + own_to[i]); });
        } else {
          for (int i = 0; i < copies; ++i) V::load(x + from[i]).store(panel + to[i]);
        }
      }
    }
  };

  // Units that a panel may have.
  static MB_INLINE int units_of(int bytes) { return MINBUILD_AVX512 && bytes == 64 ? 2 : 1; }

  MB_INLINE void pack([[maybe_unused]] int bytes, T* panel, int unit, int units, const int32_t* rows,
                      intptr_t count) const {
#if MINBUILD_AVX512
    if (bytes == 64) return run_widest<Body>(this, panel, unit, units, rows, count);
#endif
    run_wide<Body>(this, panel, unit, units, rows, count);
  }

#if MINBUILD_AVX512
  // True if a tile collects the panel of some units, each of a few runs. All but the first may be elsewhere, so that lanes
  // before them, which are not taken, may be before the planes, but not before what stands there: the order.
  MB_INLINE bool leaves(PanelCopies<T>& copies, int unit, int units) const {
    for (int i = 0; i < units; ++i) {
      const OutputUnit* own = order.units + unit + i;
      const int32_t runs = own[1].run - own[0].run;
      if (runs > kMostCopies) return false;
      auto& source = copies.sources[i];
      for (int r = 0; r < kMostCopies; ++r) {
        const OutputRun& run = order.runs[own[0].run + (r < runs ? r : runs - 1)];
        const int column = run.column % kUnit;
        source.from[r] = run.place - column;
        if (r + 1 < kMostCopies) source.ends[r] = column + run.length;
      }
    }
    return true;
  }
#endif

  // Where the elements of W are at the depths that `seen` has, and the rows of X; returns how many.
  MB_NOINLINE intptr_t fill_lists(int32_t* list, int32_t* rows, uint32_t seen, intptr_t k, intptr_t some) const {
    const int32_t* const first = list;
    int tap = int(k % taps.taps);
    int32_t channel = int32_t(k / taps.taps), at = int32_t(channel * w_step), row = int32_t(channel * taps.step);
    for (; some > 0; tap = 0, at += int32_t(w_step), row += int32_t(taps.step)) {
      const int end = some < taps.taps - tap ? tap + int(some) : taps.taps;
      some -= end - tap;
      for (uint32_t left = (seen >> tap << tap) & (~uint32_t(0) >> (kMostTaps - end)); left != 0; left &= left - 1) {
        const int now = __builtin_ctz(left);
        *list++ = at + now, *rows++ = row + taps.places[now];
      }
    }
    return list - first;
  }

  // Some filters at some units, with panels in `scratch`.
  MB_NOINLINE void multiply(intptr_t first_filter, intptr_t filters, int first_unit, int units, T* scratch) const {
    const int bytes = widest_bytes(), wide = units_of(bytes);
    int32_t list[kPanelBytes / kTileVectors / 32], rows[kPanelBytes / kTileVectors / 32];
    PanelCopies<T> copies = {rows};
    copies.x = taps.planes;
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
            now = order.units_of_panel(unit, end, wide);
            if (unit == from || own->taps != listed) {
              listed = own->taps;
              tile.k = fill_lists(list, rows, listed, k, some);
            }
            const PanelCopies<T>* collected = nullptr;
#if MINBUILD_AVX512
            if (i == 0 && bytes == 64 && leaves(copies, unit, now)) collected = &copies;
#endif
            if (i == 0 && !collected) pack(bytes, panel, unit, now, rows, tile.k);
            tile.a = w + (first_filter + i) * w_row;
            tile.a_col = unit == from && w_row < depth ? packed_tile_rows(bytes) * w_row : 0;
            tile.b = panel, tile.b_row = now * kUnit;
            tile.c = c + (first_filter + i) * order.columns + unit * kUnit;
            multiply_listed(tile, bytes, list, collected);
          }
        }
      }
    }
  }

#if MB_THREADS > 1
  MB_NOINLINE void multiply_in_parts(const Gemm<T>& g, T* scratch) const {
    if (g.members < 2 || int64_t(g.m) * g.n * g.k < kLeastWork) return multiply(0, g.m, 0, order.count, scratch);
    const int bytes = widest_bytes();
    const Partition parts = partition_of(g, bytes, 1, {kPackingWork, kGatheringWork, 0}, units_of(bytes) > 1);
    for_parts(g.team, g.members, parts.count(), [&](int32_t part, int32_t member) {
      const int32_t down = parts.down(part), across = parts.across(part);
      const int unit = parts.columns.at(across) / kUnit, units = parts.columns.at(across + 1) / kUnit - unit;
      multiply(parts.rows.at(down), parts.rows.length(down), unit, units, scratch + member * g.share);
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
