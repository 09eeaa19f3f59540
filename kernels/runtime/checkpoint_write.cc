// Writes an ORT training checkpoint front to back through a sink, without building it in memory.
//
// A flatbuffer's offsets point forward, so the place of every child must be known before the child is written: the same
// code that writes a piece counts its bytes when it runs without a sink. Every piece starts at a multiple of 8 and is
// filled up to one, which the 8-byte numbers in it need and which lets pieces be counted by themselves.
#include "minbuild/checkpoint.h"
#include "runtime/checksum.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// The start of every file: offset of the root table, identifier, then the virtual tables of all tables below as 16-bit
// numbers {bytes of this vtable, bytes of the table, offset of each field...}, which x86-64 would align to 16.
constexpr uint32_t kGap = MB_CHECKSUMS ? 8 : 0;  // marks a sealed file: see checksum.h
constexpr uint32_t kRoot = (MB_PROPERTIES ? 72 : 56) + kGap;
static_assert(is_sealed(kRoot) == (MB_CHECKSUMS != 0), "how a sealed file begins");
// clang-format off: a vtable a line
alignas(uint16_t) constexpr uint16_t kStart[] = {
    kRoot, 0, 'O' | 'D' << 8, 'T' | 'C' << 8,
#if MB_CHECKSUMS
    0, 0, 0, 0,
#endif
#if MB_PROPERTIES
    12, 20, 4, 8, 12, 16,     // Checkpoint: version, module, groups, properties
#else
    10, 16, 4, 8, 12, 0,      // Checkpoint: version, module, groups
#endif
    8,  12, 4, 8,             // Module: trainable, frozen; and State: parameter, moments
    12, 24, 16, 8, 4, 20,     // Group: name, step, initial learning rate, states
    14, 20, 4, 0, 8, 12, 16,  // Tensor: name, (no remark), dims, element, data
#if MB_PROPERTIES
    8, 16, 4, 8,              // a property: name, value
    10, 16, 4, 8, 12,         // Properties: ints, floats, strings
#else
    0,
#endif
};
// clang-format on
static_assert(sizeof kStart == kRoot, "the root table follows");
constexpr uint32_t kCheckpointVtable = 8 + kGap, kPairVtable = 20 + kGap, kGroupVtable = 28 + kGap,
                   kTensorVtable = 40 + kGap;

// The vectors of tables in the file. The first three are in it one after the other, the others in elements of those.
enum List { kTrainable, kFrozen, kGroups, kStates, kMoments };
#if MB_PROPERTIES
constexpr uint32_t kPropertyVtable = 54 + kGap, kPropertiesVtable = 62 + kGap;
#endif

// As the offset of a tensor that is in no memory.
constexpr size_t kZeros = ~size_t{0};

uint32_t round_up_8(uint32_t n) { return (n + 7) & ~7u; }

struct Writer {
  const Session* s;
  mb_sink sink;  // null while counting, and when it has failed
  void* user;
  uint32_t at;
  bool optimizer;
  uint32_t places[3];  // where the first lists start; known once everything was counted
#if MB_CHECKSUMS
  Sums sums;
#endif
#if MB_PROPERTIES
  uint32_t properties[4];  // where the table of the properties is, and the list of each type
#endif

  void put(const void* bytes, uint32_t size) {
    at += size;
    if (sink != nullptr && size > 0) {
      if (sink(user, bytes, size) != 0) sink = nullptr;
#if MB_CHECKSUMS
      sums.add(bytes, size);
#endif
    }
  }
  void word(uint32_t value) { put(&value, 4); }
  void fill_up() {
    const uint64_t zero = 0;
    put(&zero, -at & 7);
  }
  // Bytes with their number before them.
  void vector(const void* bytes, uint32_t size) {
    word(size);
    put(bytes, size);
  }
  void string(const char* text) {
    vector(text, length_of(text));
    word(0);  // ends the text, wherever the multiple of 8 is
    fill_up();
  }
  // Where the string after `place` bytes ends.
  static uint32_t after(uint32_t place, const char* text) { return round_up_8(place + 4 + length_of(text) + 4); }

#if MB_IDLE_MOMENTS
  // Zeros with their number before them, a block at a time: a call of the system costs as much for a byte.
  MB_NOINLINE void zeros(uint32_t size) {
    char block[MB_FILE_IO ? 1024 : 64];
    clear_bytes(block, sizeof block);
    word(size);
    for (uint32_t next; size > 0; size -= next) put(block, next = size < sizeof block ? size : sizeof block);
  }
#endif

  // A tensor like that of a parameter, whose data lie `offset` bytes further on in memory.
  void tensor(const plan::Parameter& parameter, const char* name, size_t offset) {
    Tensor found;
    uint32_t type = s->resolve(parameter.tensor, &found).type, rank = static_cast<uint32_t>(found.rank);
    uint32_t text = 24 + 8 * rank;
    const uint32_t table[] = {at - kTensorVtable, text - 4, 20 - 8, type, after(text, name) - 16, rank};
    put(table, sizeof table);
    for (uint32_t i = 0; i < rank; ++i) word(static_cast<uint32_t>(found.dims[i])), word(0);
    string(name);
    // Of a damaged plan, there may be no data.
    const uint32_t size = found.data == nullptr ? 0 : minbuild::bytes_of(found, type);
#if MB_IDLE_MOMENTS
    if (offset == kZeros) {
      zeros(size);
    } else
#endif
      vector(found.data + offset, size);
    fill_up();
  }

  // Element i of a list; `parameter` is whose moments they are.
  MB_ONE_EXIT void element(List list, uint32_t i, uint32_t parameter) {
    if (list == kGroups) {
      // The only optimizer group there is.
      uint32_t table[] = {at - kGroupVtable, 0, 0, 0, 24 - 16, 40 - 20};
      __builtin_memcpy(table + 1, &s->progress->learning_rate, 4);
      __builtin_memcpy(table + 2, &s->progress->step, 8);
      put(table, sizeof table);
      string("group0");
      return this->list(kStates, 0);
    }
    const plan::Parameter& found = s->parameter(list == kMoments ? parameter : i);
    const char* name = s->name(found.name);
    if (list == kMoments) {
      const bool idle = MB_IDLE_MOMENTS && stored_moments(s) == 0;
      return tensor(found, s->moment(i), idle ? kZeros : (kFirstMoment + i) * size_t{s->trainable_bytes});
    }
    if (list != kStates) return tensor(found, name, 0);
    const uint32_t table[] = {at - kPairVtable, 12 - 4, after(12, name) - 8};
    put(table, sizeof table);
    string(name);
    this->list(kMoments, i);
  }

  // A vector of tables and the tables.
  void list(List list, uint32_t parameter) {
    uint32_t first = 0, end = s->trained;
    if (list == kFrozen) first = end, end = s->count[plan::kParameters];
    if (list == kMoments) end = s->count[plan::kMoments];
    if (list == kGroups) end = optimizer;
    word(end - first);
    uint32_t place = round_up_8(at + 4 * (end - first));
    for (uint32_t i = first; i < end; ++i) word(place - at), place += bytes_of(list, i, parameter);
    fill_up();
    for (uint32_t i = first; i < end; ++i) element(list, i, parameter);
  }

  uint32_t bytes_of(List what, uint32_t i, uint32_t parameter) {
    const mb_sink destination = sink;
    const uint32_t here = at;
    sink = nullptr;
    at = 0;
    element(what, i, parameter);
    const uint32_t size = at;
    sink = destination;
    at = here;
    return size;
  }

#if MB_PROPERTIES
  // The vector of the properties of a type, and their tables.
  void property_list(int32_t type) {
    mb_property found;
    uint32_t count = 0;
    for (uint32_t i = 0; mb_get_property(s, i, &found) == MB_OK; ++i) count += found.type == type;
    word(count);
    uint32_t place = round_up_8(at + 4 * count);
    for (uint32_t i = 0; mb_get_property(s, i, &found) == MB_OK; ++i) {
      if (found.type != type) continue;
      word(place - at);
      place += after(16, found.name);
      if (type == MB_STRING) place = after(place, found.text);
    }
    fill_up();
    for (uint32_t i = 0; mb_get_property(s, i, &found) == MB_OK; ++i) {
      if (found.type != type) continue;
      uint32_t table[] = {at - kPropertyVtable, 16 - 4, after(16, found.name) - 8, 0};
      if (type != MB_STRING) __builtin_memcpy(table + 2, &found.integer, 8);
      put(table, sizeof table);
      string(found.name);
      if (type == MB_STRING) string(found.text);
    }
  }

  void property_lists() {
    constexpr int32_t kTypes[] = {0, MB_INT64, MB_FLOAT, MB_STRING};
    properties[0] = at;
    uint32_t table[4] = {at - kPropertiesVtable};
    for (uint32_t i = 1; i < 4; ++i) table[i] = properties[i] - (at + 4 * i);
    put(table, sizeof table);
    for (uint32_t i = 1; i < 4; ++i) {
      properties[i] = at;
      property_list(kTypes[i]);
    }
  }
#endif

  void file() {
    at = 0;
    put(kStart, sizeof kStart);
    const uint32_t module = MB_PROPERTIES ? 20 : 16;
    // clang-format off: a table a line
    const uint32_t tables[] = {
        at - kCheckpointVtable, checkpoint::kVersion, module - 8, places[kGroups] - (at + 12),
#if MB_PROPERTIES
        properties[0] - (at + 16),
#endif
        at + module - kPairVtable, places[kTrainable] - (at + module + 4), places[kFrozen] - (at + module + 8),
#if !MB_PROPERTIES
        0,
#endif
    };
    // clang-format on
    put(tables, sizeof tables);
    for (uint32_t i = 0; i < 3; ++i) {
      places[i] = at;
      list(static_cast<List>(i), 0);
    }
#if MB_PROPERTIES
    property_lists();
#endif
#if MB_CHECKSUMS
    const uint32_t draws = static_cast<uint32_t>(s->draw_bytes);
    vector(reinterpret_cast<const char*>(s->progress) - draws, draws + sizeof(mb_progress));
    put(&sums, sizeof sums);
#endif
  }
};

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" MB_ONE_EXIT mb_status mb_write_checkpoint(mb_session* session, int include_optimizer, mb_sink sink,
                                                     void* user) {
  Session* s = static_cast<Session*>(session);
#if MB_BUFFERS
  if (s->nominal) return fail(s, Failure::kNominal);
#endif
#if MB_FUSED_UPDATES
  if (s->broken) return fail(s, Failure::kBroken);
#endif
#if MB_WIDE
  // The format counts in 31 bits. Gradients are not saved; names and dimensions take less than the rest to 2 GB.
  Bytes most = s->persistent_bytes - (kFirstMoment - 1) * s->trainable_bytes;
  if (MB_IDLE_MOMENTS) most += s->trainable_bytes * (s->count[plan::kMoments] - stored_moments(s));
  if (!include_optimizer) most -= s->trainable_bytes * s->count[plan::kMoments];
  for (uint32_t i = s->trained; i < s->count[plan::kParameters]; ++i) most += s->regions[s->bound(i)].size;
  if (most > 0x7f000000) return fail(s, Failure::kLarge);
#endif
#if MB_PROPERTIES
  if (!keep_learning_rate(s)) return fail(s, Failure::kPropertyRoom, sizeof s->bag);
#endif
  Writer writer = {};
  writer.s = s;
  writer.user = user;
  writer.optimizer = include_optimizer != 0;
#if MB_CHECKSUMS
  writer.sums.ordered = static_cast<uint32_t>(s->fingerprint);
#endif
  writer.file();
  writer.sink = sink;
  writer.file();
  return writer.sink == nullptr ? fail(s, Failure::kSink) : mb_status{MB_OK};
}
