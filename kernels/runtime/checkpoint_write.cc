// Writes an ORT training checkpoint front to back through a sink, without building it in memory.
//
// A flatbuffer's offsets point forward, so the place of every child must be known before the child is written. The same
// code therefore first runs without a sink, which only counts: once over the file to learn where its lists are, and
// within a list to learn how large each block is. Every block starts at a multiple of 8, as the 8-byte numbers in it need.
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// The start of every file: offset of the root table, identifier, then the virtual tables of all tables below as 16-bit
// numbers {bytes of this vtable, bytes of the table, offset of each field...}.
constexpr uint16_t kStart[] = {
    56, 0, 'O' | 'D' << 8, 'T' | 'C' << 8,
    10, 16, 4, 8, 12, 0,      // Checkpoint: version, module, groups
    8,  12, 4, 8,             // Module: trainable, frozen; and State: parameter, moments
    12, 24, 16, 4, 12, 20,    // Group: name, step, initial learning rate, states
    14, 20, 4, 0, 8, 12, 16,  // Tensor: name, (no remark), dims, element, data
    0,
};
static_assert(sizeof kStart == 56, "the root table follows");
constexpr uint32_t kCheckpointVtable = 8, kPairVtable = 20, kGroupVtable = 28, kTensorVtable = 40;
enum Mark { kTrainableList, kFrozenList, kGroupList, kStateList, kMarks };

uint32_t round_up(uint32_t n, uint32_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

struct Writer {
  Session* s;
  mb_sink sink;  // null while counting
  void* user;
  uint32_t at;
  uint32_t marks[kMarks];
  bool failed;

  void put(const void* bytes, uint32_t size) {
    if (sink != nullptr && !failed && size > 0) failed = sink(user, bytes, size) != 0;
    at += size;
  }
  void word(uint32_t value) { put(&value, 4); }
  void pad_to(uint32_t position) {
    const uint64_t zero = 0;
    put(&zero, position - at);  // never more than 8
  }
  void string(const char* text, uint32_t length) {
    word(length);
    put(text, length);
    pad_to(round_up(at + 1, 4));
  }

  // The tensor of a parameter, or its moment number `moment`, which has the same layout further on in memory.
  void tensor_block(const plan::Parameter& parameter, int moment) {
    char moment_name[] = "momentum0";
    moment_name[8] = static_cast<char>('0' + moment);
    const char* name = moment < 0 ? s->plan.name(parameter.name) : moment_name;
    Tensor tensor;
    s->resolve(parameter.tensor, &tensor);
    if (moment >= 0) tensor.data += (2 + moment) * size_t{s->plan.trainable_bytes};
    uint32_t element = s->plan.tensor(parameter.tensor).type, rank = static_cast<uint32_t>(tensor.rank);
    uint32_t bytes = static_cast<uint32_t>(tensor.count) * kElementSizes[element], length = length_of(name);
    uint32_t dims = round_up(round_up(20 + 4 + length + 1, 4) + 4, 8) - 4, data = dims + 4 + 8 * rank;
    const uint32_t table[] = {at - kTensorVtable, 20 - 4, dims - 8, element, data - 16};
    put(table, sizeof table);
    string(name, length);
    pad_to(round_up(at + 4, 8) - 4);
    word(rank);
    for (int i = 0; i < tensor.rank; ++i) {
      const int32_t dim[] = {tensor.dims[i], 0};
      put(dim, 8);
    }
    word(bytes);
    put(tensor.data, bytes);
    pad_to(round_up(at, 8));
  }

  void state_block(const plan::Parameter& parameter) {
    const char* name = s->plan.name(parameter.name);
    uint32_t length = length_of(name), moments = s->plan.moments;
    const uint32_t table[] = {at - kPairVtable, 12 - 4, round_up(12 + 4 + length + 1, 4) - 8};
    put(table, sizeof table);
    string(name, length);
    word(moments);
    uint32_t first = round_up(at + 4 * moments, 8), each = size_of(parameter, 0);
    for (uint32_t m = 0; m < moments; ++m, first += each) word(first - at);
    pad_to(round_up(at, 8));
    for (uint32_t m = 0; m < moments; ++m) tensor_block(parameter, static_cast<int>(m));
  }

  static constexpr int kState = -2;  // besides -1, the parameter itself, and the numbers of moments
  void block(const plan::Parameter& parameter, int what) {
    if (what == kState) {
      state_block(parameter);
    } else {
      tensor_block(parameter, what);
    }
  }
  uint32_t size_of(const plan::Parameter& parameter, int what) const {
    Writer counter = *this;
    counter.sink = nullptr;
    counter.at = 0;
    counter.block(parameter, what);
    return counter.at;
  }

  // A vector of tables and the tables, for all parameters that are trainable or not. One walk counts, one writes the
  // offsets, one the tables.
  void list(Mark mark, bool trainable, int what) {
    marks[mark] = at;
    uint32_t count = 0, place = 0;
    for (int walk = 0; walk < 3; ++walk) {
      for (uint32_t i = 0; i < s->plan.count[plan::kParameters]; ++i) {
        const plan::Parameter& parameter = s->plan.parameter(i);
        if ((parameter.kind == MB_TRAINABLE) != trainable) continue;
        if (walk == 0) ++count;
        if (walk == 1) word(place - at), place += size_of(parameter, what);
        if (walk == 2) block(parameter, what);
      }
      if (walk == 0) place = round_up(at + 4 + 4 * count, 8), word(count);
      if (walk == 1) pad_to(round_up(at, 8));
    }
  }

  // The only optimizer group there is, or none. Its table stands 4 bytes off, so that the step is aligned.
  void group_list(bool include) {
    marks[kGroupList] = at;
    const uint32_t head[] = {include, 8, 0};
    put(head, include ? 12 : 4);
    if (!include) return;
    mb_session* session = static_cast<mb_session*>(s);
    int64_t step = mb_step_count(session);
    float rate = mb_learning_rate(session);
    word(at - kGroupVtable);
    put(&step, 8);
    put(&rate, 4);
    const uint32_t rest[] = {8, marks[kStateList] - at - 4};
    put(rest, 8);
    string("group0", 6);
    pad_to(round_up(at, 8));
    list(kStateList, true, kState);
  }

  void file(bool include_optimizer) {
    at = 0;
    put(kStart, sizeof kStart);
    const uint32_t tables[] = {
        at - kCheckpointVtable, checkpoint::kVersion, 16 - 8, marks[kGroupList] - at - 12,
        at + 16 - kPairVtable, marks[kTrainableList] - at - 20, marks[kFrozenList] - at - 24, 0,
    };
    put(tables, sizeof tables);
    list(kTrainableList, true, -1);
    list(kFrozenList, false, -1);
    group_list(include_optimizer);
  }
};

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" mb_status mb_write_checkpoint(mb_session* s, int include_optimizer, mb_sink sink, void* user) {
  Writer writer = {};
  writer.s = s;
  for (int pass = 0; pass < 2; ++pass) {
    writer.file(include_optimizer != 0);
    writer.sink = sink;
    writer.user = user;
  }
  return writer.failed ? s->error.fail(MB_IO, "the checkpoint could not be written") : mb_status{MB_OK};
}
