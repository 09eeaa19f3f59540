// Writes an ORT training checkpoint front to back through a sink, without building it in memory.
//
// A flatbuffer's offsets point forward, so the position of every child must be known before the child is written. The
// same code therefore runs twice: once to learn the positions (no sink), once to write. Every block starts at a
// multiple of 8, as the 8-byte dimensions inside it need.
#include "minbuild/checkpoint.h"
#include "runtime/session.h"

namespace minbuild {
namespace {

// Virtual tables of all tables below: {bytes of this vtable, bytes of the table, offset of each field...}.
constexpr uint16_t kVtables[] = {
    10, 16, 4, 8, 12, 0,     // Checkpoint: version, module, groups
    8, 12, 4, 8,             // Module: trainable, frozen; and State: parameter, moments
    12, 24, 16, 4, 12, 20,   // Group: name, step, initial learning rate, states
    14, 20, 4, 0, 8, 12, 16, // Tensor: name, (no remark), dims, element, data
    0,
};
constexpr uint32_t kCheckpointVtable = 8, kPairVtable = 20, kGroupVtable = 28, kTensorVtable = 40;
constexpr char kGroupName[] = "group0";
enum Mark { kTrainableList, kFrozenList, kGroupVector, kStateList, kMarks };

uint32_t align_to(uint32_t n, uint32_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }
uint32_t string_size(uint32_t length) { return align_to(4 + length + 1, 4); }

// What a tensor block needs to know.
struct Item {
  const char* name;
  Tensor tensor;
  uint32_t type, bytes, name_length;

  uint32_t dims_at() const { return align_to(20 + string_size(name_length) + 4, 8) - 4; }
  uint32_t data_at() const { return dims_at() + 4 + 8 * static_cast<uint32_t>(tensor.rank); }
  uint32_t size() const { return align_to(data_at() + 4 + bytes, 8); }
};

struct Writer {
  Session* s;
  mb_sink sink;  // null while positions are learned
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
    const uint64_t zeros = 0;
    put(&zeros, position - at);  // never more than 8
  }
  void string(const char* text, uint32_t length) {
    uint32_t end = at + string_size(length);
    word(length);
    put(text, length);
    pad_to(end);
  }
  // An offset field at the current position that refers to `target`.
  void refer(uint32_t target) { word(target - at); }
  void table(uint32_t vtable) { word(at - vtable); }

  Item item(const plan::Parameter& parameter) const {
    const char* name = s->plan.name(parameter.name);
    uint32_t type = s->plan.tensor(parameter.tensor).type;
    Tensor tensor = s->resolve(parameter.tensor);
    uint32_t bytes = static_cast<uint32_t>(tensor.count * kElementSizes[type]);
    return {name, tensor, type, bytes, static_cast<uint32_t>(strlen(name))};
  }

  void tensor_block(const Item& item) {
    uint32_t start = at;
    table(kTensorVtable);
    refer(start + 20);
    refer(start + item.dims_at());
    word(item.type);
    refer(start + item.data_at());
    string(item.name, item.name_length);
    pad_to(start + item.dims_at());
    word(static_cast<uint32_t>(item.tensor.rank));
    for (int i = 0; i < item.tensor.rank; ++i) {
      int64_t dim = item.tensor.dims[i];
      put(&dim, 8);
    }
    word(item.bytes);
    put(item.tensor.data, item.bytes);
    pad_to(start + item.size());
  }

  // A moment has the layout of its parameter, further on in the persistent region.
  Item moment(Item of, uint32_t index, const char* name) const {
    of.tensor.data += (2 + index) * size_t{s->plan.trainable_bytes};
    of.name = name;
    of.name_length = 9;
    return of;
  }

  uint32_t state_moments_at(const Item& item) const { return 12 + string_size(item.name_length); }
  uint32_t state_blocks_at(const Item& item) const {
    return align_to(state_moments_at(item) + 4 + 4 * uint32_t{s->plan.moments}, 8);
  }
  uint32_t state_size(const Item& of) const {
    return state_blocks_at(of) + s->plan.moments * moment(of, 0, "").size();
  }

  void state_block(const Item& of) {
    uint32_t start = at, first = start + state_blocks_at(of);
    table(kPairVtable);
    refer(start + 12);
    refer(start + state_moments_at(of));
    string(of.name, of.name_length);
    word(s->plan.moments);
    uint32_t each = moment(of, 0, "").size();
    for (uint32_t m = 0; m < s->plan.moments; ++m) refer(first + m * each);
    pad_to(first);
    char name[] = "momentum0";
    for (uint32_t m = 0; m < s->plan.moments; ++m, ++name[8]) tensor_block(moment(of, m, name));
  }

  // A vector of tables and the tables: all parameters that are trainable or not, or their optimizer state. One walk
  // counts, one writes the offsets, one the tables.
  void list(Mark mark, bool trainable, bool state) {
    marks[mark] = at;
    uint32_t count = 0, block = 0;
    for (int walk = 0; walk < 3; ++walk) {
      for (uint32_t i = 0; i < s->plan.count[plan::kParameters]; ++i) {
        if ((s->plan.parameter(i).kind == MB_TRAINABLE) != trainable) continue;
        Item each = item(s->plan.parameter(i));
        if (walk == 0) ++count;
        if (walk == 1) refer(block), block += state ? state_size(each) : each.size();
        if (walk == 2) state ? state_block(each) : tensor_block(each);
      }
      if (walk == 0) block = align_to(at + 4 + 4 * count, 8), word(count);
      if (walk == 1) pad_to(align_to(at, 8));
    }
  }

  void optimizer_group(bool include) {
    marks[kGroupVector] = at;
    word(include ? 1 : 0);
    if (!include) return;
    word(align_to(at + 4, 8) + 4 - at);  // the table's 8-byte step follows its first word
    pad_to(align_to(at, 8) + 4);
    table(kGroupVtable);
    int64_t step = mb_step_count(static_cast<mb_session*>(s));
    float rate = mb_learning_rate(static_cast<mb_session*>(s));
    put(&step, 8);
    put(&rate, 4);
    refer(at + 8);
    refer(marks[kStateList]);
    string(kGroupName, 6);
    pad_to(align_to(at, 8));
    list(kStateList, true, true);
  }

  void file(bool include_optimizer) {
    at = 0;
    uint32_t root = align_to(8 + sizeof kVtables, 8), module = root + 16;
    word(root);
    put(checkpoint::kIdentifier, 4);
    put(kVtables, sizeof kVtables);
    pad_to(root);
    table(kCheckpointVtable);
    word(checkpoint::kVersion);
    refer(module);
    refer(marks[kGroupVector]);
    table(kPairVtable);
    refer(marks[kTrainableList]);
    refer(marks[kFrozenList]);
    pad_to(align_to(at, 8));
    list(kTrainableList, true, false);
    list(kFrozenList, false, false);
    optimizer_group(include_optimizer);
  }
};

}  // namespace
}  // namespace minbuild

using namespace minbuild;

extern "C" mb_status mb_write_checkpoint(mb_session* s, int include_optimizer, mb_sink sink, void* user) {
  Writer writer = {};
  writer.s = s;
  writer.file(include_optimizer != 0);
  writer.sink = sink;
  writer.user = user;
  if (sink != nullptr) writer.file(include_optimizer != 0);
  if (sink != nullptr && !writer.failed) return MB_OK;
  s->say() << "the checkpoint could not be written";
  return MB_IO;
}
