// The session and what its parts share. One piece of memory holds everything: this struct, where the regions are, the
// values of the plan's expressions, the persistent region (parameters, gradients, optimizer state), and the arena of
// temporaries.
#ifndef MINBUILD_RUNTIME_SESSION_H_
#define MINBUILD_RUNTIME_SESSION_H_

#include "minbuild/kernel.h"
#include "minbuild/plan.h"
#include "runtime/flatbuffer.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

constexpr uint32_t kMostSymbols = 8;
// Where tensors are. Trainable parameters fill the first bytes of what persists. What is bound comes from outside: inputs
// while a graph runs, frozen parameters from a checkpoint; each is a region of its own, first all ports, then all
// parameters. Kernels write to regions before kNothing only, where extents and absent arguments are.
enum Region : uint16_t { kArena, kTrained, kPersistent, kNothing, kConstants, kBound };
enum GraphIndex { kTrain, kEvaluate, kOptimize, kGraphs };

// Where the text of a failure goes, put together without printf and silently cut where the room ends.
struct ErrorText {
  char* text;
  size_t room;  // 0: nobody reads it

  // Writes `format`, in which `%s` takes a string and `%d` a number from a, b, c in order. Returns `status`.
  mb_status fail(mb_status status, const char* format, intptr_t a = 0, intptr_t b = 0, intptr_t c = 0) const;
};
inline constexpr char kUnreadable[] = "not an intact, aligned %s of version %d";
MB_INLINE intptr_t word_of(const char* text) { return reinterpret_cast<intptr_t>(text); }

// The plan, in place. No index in it is trusted: `at` answers one that is out of range with the plan's first bytes,
// whatever they are, and remembers; who asked looks at `damaged` before anything comes of it.
struct PlanView {
  const char* start;
  mutable bool damaged;
  uint32_t trainable_bytes, persistent_bytes, trained, arena;
  uint32_t count[plan::kVectors];
  const char* data[plan::kVectors];

  mb_status read(const void* bytes, size_t size, const ErrorText& error);
  MB_NOINLINE const void* at(plan::VectorIndex vector, uint32_t index) const;
  const char* name(uint32_t i) const { return static_cast<const char*>(at(plan::kNames, i)); }
  const plan::Expr& expr(uint32_t i) const { return *static_cast<const plan::Expr*>(at(plan::kExprs, i)); }
  const plan::Tensor& tensor(uint32_t i) const { return *static_cast<const plan::Tensor*>(at(plan::kTensors, i)); }
  const plan::Port& port(uint32_t i) const { return *static_cast<const plan::Port*>(at(plan::kPorts, i)); }
  const plan::Parameter& parameter(uint32_t i) const {
    return *static_cast<const plan::Parameter*>(at(plan::kParameters, i));
  }
  const plan::Kernel& kernel(uint32_t i) const { return *static_cast<const plan::Kernel*>(at(plan::kKernels, i)); }
  // What checkpoints call a moment.
  const char* moment(uint32_t i) const { return name(*static_cast<const uint32_t*>(at(plan::kMoments, i))); }
  const plan::Graph& graph(uint32_t i) const { return *static_cast<const plan::Graph*>(at(plan::kGraphs, i)); }
  // The rank, then an expression for each dimension.
  const uint16_t* shape(const plan::Tensor& t) const {
    return static_cast<const uint16_t*>(at(plan::kShapes, t.shape));
  }
  // Region of a parameter that is bound.
  uint32_t bound(uint32_t parameter) const { return kBound + count[plan::kPorts] + parameter; }
};

struct Span {
  char* data;  // null: not bound now
  size_t size;
};

// What kernels read besides tensors of the model: the end of the persistent region.
struct Counters {
  int64_t draws, step;  // draws: how many times nodes without a seed drew random numbers
  float learning_rate, unused;
};

struct Session {
  ErrorText error;
  Span* regions;
  int32_t* values;  // of the plan's expressions; -1 where there is none
  Counters* counters;
  uint32_t region_count;
  bool reset_gradients;
  bool keeps_checkpoint;  // frozen parameters are read where the checkpoint is
  PlanView plan;
  int32_t symbols[kMostSymbols];
  void* mapped[3];  // what mb_destroy unmaps: the session itself, plan, checkpoint
  size_t mapped_size[3];
  char error_room[160];

  // Where the persistent region starts in a session that starts at `memory`; places what is before it.
  uintptr_t place(uintptr_t memory);
  // Evaluates all expressions under `symbols`; returns the bytes of temporaries, negative when that is no size.
  int32_t evaluate();
  // Evaluates, and refuses when temporaries do not fit.
  mb_status lay_out();
  // Shape and place of a tensor under the current sizes. One that is malformed or not within its region has no data and
  // makes the plan damaged.
  const plan::Tensor& resolve(uint32_t index, Tensor* tensor) const;
};

// Bytes of one element by type number; 0: no such type, as with extents, which have dimensions and no data.
inline constexpr uint8_t kElementSizes[32] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
MB_INLINE uint32_t element_size(uint32_t type) { return kElementSizes[type % sizeof kElementSizes]; }

MB_INLINE uint32_t bytes_of(const Tensor& tensor, uint32_t type) {
  return static_cast<uint32_t>(tensor.count) * element_size(type);
}

MB_INLINE uint32_t align16(uint32_t n) { return (n + 15) & ~15u; }

// checkpoint_read.cc
mb_status read_checkpoint(Session* session, const void* bytes, size_t size);

// kernel_table.cc, generated. Features stand behind the kernels, as rows that cannot be run, and then a row
// without a key.
struct KernelRow {
  uint32_t key;
  uint16_t slots;  // first entry in kKernelSlots
  uint8_t arg_count;
  uint8_t param_count;
};
// An argument slot: element type number, and flags.
constexpr uint8_t kSlotType = 31, kSlotWritten = 32, kSlotOptional = 64;
extern const KernelRow kKernelRows[];
extern const uint8_t kKernelSlots[];
Status run_kernel(uint32_t row, const Call& call);

}  // namespace minbuild

struct mb_session : minbuild::Session {};
#pragma GCC visibility pop

#endif  // MINBUILD_RUNTIME_SESSION_H_
