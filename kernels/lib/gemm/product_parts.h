// Parts of products for the threads of a call. A packed product has parts of some rows and columns, which members of a
// team take one after the other; each packs what it reads, into scratch memory of its own.
#ifndef MINBUILD_LIB_GEMM_PRODUCT_PARTS_H_
#define MINBUILD_LIB_GEMM_PRODUCT_PARTS_H_

#include "lib/gemm/packed_blocks.h"

namespace minbuild {

// B from column `first` on.
template <class T>
struct LaterColumns {
  PackPanels<T> pack;
  const void* packer;
  int first;

  static void run(const void* columns, T* panel, int k, int depth, int j, int live, int width, PanelCopies<T>* copies) {
    const LaterColumns& c = *static_cast<const LaterColumns*>(columns);
    c.pack(c.packer, panel, k, depth, c.first + j, live, width, copies);
  }
};

// The costs of a part besides its multiplications, in such that take as long: of an element of its rows and of its columns,
// which each part reads and packs by itself; and of one of C that another member reads in the kernel after this, where
// columns are cut.
struct PartCosts {
  int32_t row, column, crossing;
};
constexpr int32_t kPackingWork = 8, kGatheringWork = 16;  // from memory, and collected from elsewhere

#if MB_THREADS > 1

// Of a packed product whose B is a matrix in memory if it is `plain`, and whose rows of A are written as they are packed if
// `writes_rows`.
template <class T>
MB_INLINE PartCosts costs_of(const Gemm<T>& g, int bytes, bool plain, bool writes_rows) {
  // Columns of B, such as weights after an update, wait for memory less where all members read the same ones at the same
  // time: rows are cut, where each part has enough of them for the packing of B.
  constexpr int32_t kEnough = 64;
  const bool along = plain && g.b_row == 1 && g.m >= kEnough * g.members && !(MINBUILD_AVX512 && bytes == 64);
  return {writes_rows ? kGatheringWork : kPackingWork, along ? 0 : (plain ? kPackingWork : kGatheringWork), 0};
}

// Of a product of matrices in memory. Where B is near, what counts is which elements of A and C go from one member to another:
// half of them, if columns are cut, and none of those of layers that are cut by rows. The numbers were measured.
template <class T>
MB_INLINE PartCosts costs_of(const Gemm<T>& g, int bytes) {
  constexpr intptr_t kNear = 3 << 18;
  if (g.n * g.k * intptr_t(sizeof(T)) <= kNear) return {72, 40, 36};
  return costs_of(g, bytes, true, false);
}

// Lets the threads of a call share its products, as many as `bytes` of scratch memory have room for. Each takes `elements`
// of it; if 0, as many as Blocks has.
template <class T>
MB_NOINLINE void divide_among(Gemm<T>& g, Team* team, int64_t bytes, intptr_t elements = 0) {
  constexpr intptr_t kAligned = 64 / sizeof(T);
  if (team == nullptr || g.k < 1) return;
  g.team = team;
  if (elements == 0) elements = Blocks<T>(g, widest_bytes()).elements(g);
  g.share = (elements + kAligned - 1) & -kAligned;
  const int64_t room = bytes / (g.share * intptr_t(sizeof(T)));
  g.members = room < team->members ? int32_t(room) : team->members;
}

// An axis of a product in `count` pieces: large and small ones by turns, as far as there are large ones, then small ones.
struct Cuts {
  int32_t all, large, small, many, count;

  MB_NOINLINE int32_t at(int32_t piece) const {
    const int32_t half = (piece + 1) / 2, some = half < many ? half : many,
                  place = some * large + (piece - some) * small;
    return place < all ? place : all;
  }
  MB_NOINLINE int32_t length(int32_t piece) const { return at(piece + 1) - at(piece); }
};

// Pieces of whole units; if `uneven`, half of them are three times as long as the others.
MB_NOINLINE inline Cuts cuts_of(intptr_t length, int32_t pieces, int32_t unit, bool uneven) {
  const int32_t all = length, units = (all + unit - 1) / unit, many = uneven ? pieces / 2 : 0, rest = pieces - many;
  const int32_t large = 3 * units / (2 * pieces), small = (units - many * large + rest - 1) / rest;
  Cuts cuts = {all, large * unit, small * unit, many, pieces};
  while (cuts.count > 1 && cuts.at(cuts.count - 1) == all) --cuts.count;
  return cuts;
}

// Parts of a product, or of several of the same sizes: some rows of some columns. Those of the same rows are neighbours,
// which one member takes: of A, it reads what it has made in the kernel before, and the kernel after this reads C so.
struct Partition {
  Cuts rows, columns;

  MB_INLINE int32_t count() const { return rows.count * columns.count; }
  MB_INLINE int32_t down(int32_t part) const { return part / columns.count; }
  MB_INLINE int32_t across(int32_t part) const { return part % columns.count; }
  // A product's part.
  template <class T>
  MB_INLINE Gemm<T> of(const Gemm<T>& g, int32_t part) const {
    const int32_t row = down(part), column = across(part);
    return part_of(g, rows.at(row), rows.length(row), columns.at(column), columns.length(column));
  }
};

// Bytes of a product of little depth that takes its time to be written. Threads differ most in that, by up to a half.
constexpr int64_t kLeastWritten = 1 << 22;

// Whole tiles for each part, such that the last member would end soonest if each took the next part whenever it has done
// one. `halves`: its last panel may be half as wide as others, and takes a little longer than half as long. Products of real
// size have two parts for each member, as threads are not equally fast, and parts that are uneven; for others the search
// must take no time.
template <class T>
MB_NOINLINE Partition partition_of(const Gemm<T>& g, int bytes, int32_t products, const PartCosts& costs,
                                   bool halves = false) {
  const int32_t members = g.members, tall = packed_tile_rows(bytes), m = g.m, n = g.n,
                width = int32_t(unsigned(bytes) / sizeof(T)) * kTileVectors, unit = halves ? width / 2 : width;
  const bool written = g.k <= kBrief && int64_t(m) * n * int64_t(sizeof(T)) >= kLeastWritten;
  const bool real = written || int64_t(m) * n * g.k >= 32 * members * kLeastWork;
  const int32_t least = real && products == 1 ? (written ? 4 : 2) : 1;
  const int32_t crossing = (costs.crossing << 8) / (int32_t(g.k) + 1);  // for each multiplication; there may be none
  Partition best = {cuts_of(m, 1, 1, false), cuts_of(n, 1, 1, false)};
  int64_t shortest = INT64_MAX / members;
  for (int32_t across = 1; across <= (products > 1 ? 1 : 2 * members) && (across - 1) * width < n; ++across)
    for (int32_t turns = least; turns < least + 3; ++turns) {
      const int32_t down = turns * members / (across * products);
      if (down == 0) continue;
      for (int uneven = 0; uneven < (real ? 3 : 1); ++uneven) {
        const Partition parts = {cuts_of(m, down, tall, uneven == 1), cuts_of(n, across, unit, uneven == 2)};
        // Its last rows must be in tiles as those of the whole: see low_rows.
        const int32_t last = parts.rows.length(parts.rows.count - 1);
        if (kTallerTiles && last < m && last < tall) continue;
        const auto work_of = [&](int32_t part) MB_LAMBDA {
          const int64_t high = parts.rows.length(parts.down(part) % parts.rows.count);
          const int32_t wide = parts.columns.length(parts.across(part)), rest = wide % width;
          const int64_t multiplied = wide - rest + (rest == 0 ? 0 : halves && rest <= unit ? unit + unit / 4 : width);
          return high * multiplied + costs.row * high + costs.column * wide +
                 (parts.rows.count < members ? high * wide * crossing >> 8 : 0);
        };
        const int32_t count = products * parts.count();
        int64_t ends[MB_THREADS] = {}, length = 0;
        if (!real) length = (count + members - 1) / members * work_of(0);
        for (int32_t part = 0; real && part < count; ++part) {
          int64_t* first = ends;
          for (int32_t member = 1; member < members; ++member)
            if (ends[member] < *first) first = ends + member;
          *first += work_of(part);
          if (*first > length) length = *first;
        }
        length += (length >> 6) * turns;  // few parts where it is much the same
        if (length < shortest) shortest = length, best = parts;
      }
    }
  return best;
}

// The product in parts of some rows and columns, each of them packed by itself.
template <class T, class... Rows>
MB_NOINLINE void multiply_in_parts(const Gemm<T>& g, int bytes, T* scratch, PackPanels<T> pack, const void* packer,
                                   const T* start, const PartCosts& costs, const Rows&... pack_rows) {
  if (g.members < 2 || int64_t(g.m) * g.n * (g.k + kPackingWork) < kLeastWork)  // C takes its time, too
    return multiply_packed<T>(g, bytes, scratch, pack, packer, start, pack_rows...);
  const bool plain = packer == &g;
  const Partition parts = partition_of(g, bytes, 1, costs, MB_HALF_PANELS && bytes == 64 && !plain);
  for_parts(g.team, g.members, parts.count(), [&](int32_t part, int32_t member) {
    const intptr_t j = parts.columns.at(parts.across(part));
    Gemm<T> some = parts.of(g, part);
    if (!plain) some.b = g.b;
    const LaterColumns<T> later = {pack, packer, int(j)};
    multiply_packed<T>(some, bytes, scratch + member * g.share, plain ? pack : LaterColumns<T>::run,
                       plain ? static_cast<const void*>(&some) : &later, start ? start + j : nullptr, pack_rows...);
  });
}

// multiply_few in parts of some columns, as many as its blocks or whole tiles have; long ones where rows of B are read.
template <class T>
MB_NOINLINE void multiply_few_in_parts(const Gemm<T>& g) {
  const bool far = is_far(g);
  const intptr_t unit = g.b_row == 1 ? kNearBytes / intptr_t(sizeof(T)) / g.k + 1 : 64;
  if (g.members < 2 || int64_t(g.n) * g.k * intptr_t(sizeof(T)) < 4 * kLeastBytes) return multiply_few(g, far);
  const intptr_t units = (g.n + unit - 1) / unit, count = g.b_row == 1 ? 4 * g.members : g.members,
                 columns = (units + count - 1) / count * unit;
  for_parts(g.team, g.members, (g.n + columns - 1) / columns,
            [&](int32_t part, int32_t) { multiply_few(part_of(g, 0, g.m, part * columns, columns), far); });
}

// multiply_strided, of fewer columns than vectors have, in parts of some rows: they take longer than their work. None has
// a single row, which would be a dot product where the whole is not.
template <class T>
MB_NOINLINE void multiply_narrow_in_parts(Gemm<T>& g) {
  constexpr intptr_t kRowsOfPart = 64;
  const intptr_t most = g.m / kRowsOfPart, count = most < 2 * g.members ? most : 2 * g.members;
  if (g.members < 2 || count < 2 || int64_t(g.m) * g.n * g.k < kLeastWork / 4) return multiply_strided(g);
  const intptr_t rows = g.m / count & -intptr_t{16};
  for_parts(g.team, g.members, count, [&](int32_t part, int32_t) {
    const intptr_t first = part * rows;
    Gemm<T> some = part_of(g, first, part + 1 < count ? rows : g.m - first, 0, g.n);
    multiply_strided(some);
  });
}

// add_rows in parts of some rows of C, whose vectors are those of the whole.
template <class T>
MB_NOINLINE void add_rows_in_parts(const Gemm<T>& g) {
  if (g.members < 2 || int64_t(g.m) * g.n * intptr_t(sizeof(T)) < 2 * kLeastBytes) return add_rows(g);
  const intptr_t rows = (g.m + 2 * g.members - 1) / (2 * g.members);
  for_parts(g.team, g.members, (g.m + rows - 1) / rows,
            [&](int32_t part, int32_t) { add_rows(part_of(g, part * rows, rows, 0, g.n)); });
}

#else

template <class... Of>
MB_INLINE PartCosts costs_of(const Of&...) {
  return {};
}
template <class T, class... Rows>
MB_INLINE void multiply_in_parts(const Gemm<T>& g, int bytes, T* scratch, PackPanels<T> pack, const void* packer,
                                 const T* start, const PartCosts&, const Rows&... rows) {
  multiply_packed<T>(g, bytes, scratch, pack, packer, start, rows...);
}
template <class T>
MB_INLINE void multiply_few_in_parts(const Gemm<T>& g) {
  multiply_few(g, is_far(g));
}
template <class T>
MB_INLINE void multiply_narrow_in_parts(Gemm<T>& g) {
  multiply_strided(g);
}
template <class T>
MB_INLINE void add_rows_in_parts(const Gemm<T>& g) {
  add_rows(g);
}

#endif

}  // namespace minbuild
#endif  // MINBUILD_LIB_GEMM_PRODUCT_PARTS_H_
