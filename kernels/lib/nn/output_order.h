// Outputs of a convolution in an order in which neighbours see the same taps of the window within the image, so that
// products leave out what others are: padding. Of 3 x 3 taps over 7 x 7 elements with a rim of one zero, 361 of 441
// products are of the image.
#ifndef MINBUILD_LIB_NN_OUTPUT_ORDER_H_
#define MINBUILD_LIB_NN_OUTPUT_ORDER_H_

#include <stdint.h>

#include "lib/nn/conv_packers.h"

namespace minbuild {

// As in conv_layer.py: outputs of a unit, which share their taps; groups of outputs that may begin with a unit of their
// own; taps that a mask has bits for.
constexpr int kUnit = 16, kMostGroups = 8, kMostTaps = 32;

// Neighbours along a row: where they are in the planes, in the image of outputs with this number, and in the order.
struct OutputRun {
  int32_t place, image, target, column, length;
};
// kUnit places of the order: the taps that any of their outputs sees, a bit each, and the first run.
struct OutputUnit {
  uint32_t taps;
  int32_t run;
};

// Places of an axis that see the same taps.
struct SameTaps {
  int first, length;
  uint32_t taps;
};

MB_INLINE int count_bits(uint32_t bits) {
  int count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
}

struct OutputOrder {
  OutputUnit* units;  // and one behind the last
  OutputRun* runs;
  int count, columns, run;  // units, places of the order, runs

  // At most, of all outputs and the rows they have; along each, what is seen changes so many times.
  static int64_t most_units(int64_t outputs) { return outputs / kUnit + kMostGroups + 1; }
  static int64_t most_runs(int64_t outputs, int64_t rows, int64_t changes) {
    return rows * (changes + 1) + most_units(outputs);
  }

  MB_NOINLINE void add(int place, int image, int target, int length, uint32_t taps) {
    while (length > 0) {
      const int at = columns % kUnit, some = length < kUnit - at ? length : kUnit - at;
      if (at == 0) units[count++] = {0, run};
      units[count - 1].taps |= taps;
      runs[run++] = {place, image, target, columns, some};
      place += some, target += some, columns += some, length -= some;
    }
  }

  // Outputs that see the same taps, line by line and image by image; `whole`: they begin with a unit.
  MB_NOINLINE void add_group(const OutputRows& rows, int images, const SameTaps& y, const SameTaps& x, bool whole) {
    for (int image = 0; image < images; ++image)
      for (int line = y.first; line < y.first + y.length; ++line)
        add(int(image * rows.image + line * rows.row + x.first), image, line * rows.width + x.first, x.length,
            y.taps & x.taps);
    if (whole) columns = (columns + kUnit - 1) & -kUnit;
  }

  // The units of a panel that begins with this one and may have as many: of the same taps.
  MB_INLINE int units_of_panel(int unit, int end, int most) const {
    return most == 2 && unit + 1 < end && units[unit].taps == units[unit + 1].taps ? 2 : 1;
  }

  // The time of all products, where panels have up to `most` units. Tiles of one vector take longer than half as long as
  // those of two.
  MB_NOINLINE int cost(int most) const {
    int sum = 0;
    for (int unit = 0, now; unit < count; unit += now) {
      now = units_of_panel(unit, count, most);
      sum += count_bits(units[unit].taps) * (now < most ? 5 : 4 * now);
    }
    return sum;
  }

  // Outputs line by line, or those that see the same taps together: `depth` is 0, 1 for whole lines alone, or 2, for
  // lines that see all taps column by column.
  MB_NOINLINE void fill(const OutputRows& rows, int images, const SameTaps* down, int lines, const SameTaps* across,
                        int places, uint32_t all, int depth, bool whole) {
    count = columns = run = 0;
    const SameTaps& last = down[lines - 1];
    for (int i = 0; i < (depth > 0 ? lines : 1); ++i) {
      const SameTaps own = depth > 0 ? down[i] : SameTaps{0, last.first + last.length, all};
      const bool divides = depth > 1 && own.taps == all;
      for (int j = 0; j < (divides ? places : 1); ++j)
        add_group(rows, images, own, divides ? across[j] : SameTaps{0, rows.width, all}, whole);
    }
    columns = count * kUnit;
    units[count] = {0, run};
  }

  // Finds places of an axis of the convolution `c`, and what they see; returns how many there are.
  template <class C>
  static MB_NOINLINE int find_same(const C& c, const int* where, int axis, SameTaps* found) {
    const auto* axes = c.xs.axes;
    const auto &x = axes[axis], &last = axes[C::kLast];
    int count = 0;
    for (int o = 0; o < c.ys.axes[axis].in; ++o) {
      uint32_t seen = 0;
      for (int tap = 0; tap < c.taps; ++tap) {
        const int place = where[tap] % c.xs.size, line = place / axes[0].pitch;
        int phase = C::kStridden ? where[tap] / c.xs.size : 0,
            at = o + (axis == 0 ? line : place - line * axes[0].pitch);
        if (C::kStridden) at = at * x.stride + (axis == 0 ? phase / last.phases : phase % last.phases);
        seen |= uint32_t(unsigned(at - x.pad) < unsigned(x.in)) << tap;
      }
      if (count == 0 || found[count - 1].taps != seen) found[count++] = {o, 0, seen};
      ++found[count - 1].length;
    }
    return count;
  }

  // The order of a convolution over two axes, whose taps begin at `where`: the one that costs least where
  // panels have as many units at most.
  template <class C>
  MB_NOINLINE void choose(const C& c, const int* where, const OutputRows& rows, int images, int most) {
    SameTaps down[2 * kMostTaps + 1], across[2 * kMostTaps + 1];
    const int lines = find_same(c, where, 0, down), places = find_same(c, where, 1, across);
    const uint32_t all = ~uint32_t(0) >> (kMostTaps - c.taps);
    const bool fits = lines + places <= kMostGroups;  // where groups begin with a unit of their own
    const auto fill_in = [&](int way) {
      fill(rows, images, down, lines, across, places, all, way / 2, way % 2 != 0);
      return cost(most);
    };
    int best = 0, least = fill_in(0);
    for (int way = 2; way < 6; ++way) {
      if (way % 2 != 0 && !fits) continue;
      const int costs = fill_in(way);
      if (costs < least) least = costs, best = way;
    }
    fill_in(best);
  }
};

}  // namespace minbuild
#endif  // MINBUILD_LIB_NN_OUTPUT_ORDER_H_
