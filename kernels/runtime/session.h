// The session and what its parts share. One piece of memory holds everything: the struct, where the regions are, the
// values of the plan's expressions, the persistent region (parameters, gradients, optimizer state), and the arena of
// temporaries.
#ifndef MINBUILD_RUNTIME_SESSION_H_
#define MINBUILD_RUNTIME_SESSION_H_

#include "minbuild/kernel.h"
#include "minbuild/plan.h"
#include "runtime/flatbuffer.h"
#include "runtime/layout.h"
#include "runtime/threads.h"

#pragma GCC visibility push(hidden)
namespace minbuild {

constexpr uint32_t kMostSymbols = 8;
// Values of expressions, bytes, and indices into the plan's tables. Plans that need more than 2 GB of memory, or whose
// checkpoints do, or that have more than 65,535 entries in a table are wide, in another layout; a library reads the plans
// of one width.
#if MB_WIDE
using Size = int64_t;
using Bytes = uint64_t;
using Index = uint32_t;
using Divisor = uintptr_t;  // 64-bit chips divide 64 bits; on others all values have 31
constexpr int64_t kMostValue = sizeof(void*) > 4 ? int64_t{1} << 46 : 0x7fffffff;
MB_INLINE bool is_value(int64_t n) { return -kMostValue <= n && n <= kMostValue; }
constexpr size_t kAnySize = ~size_t{0} / 2;
constexpr uint32_t kMostExprs = 1 << 18;
#else
using Size = int32_t;
using Bytes = uint32_t;
#if MB_DENSE
using plan::Index;
#elif !MB_WIDE
using Index = uint16_t;
#endif
using Divisor = uint32_t;
constexpr int64_t kMostValue = 0x7fffffff;
MB_INLINE bool is_value(int64_t n) { return n == static_cast<int32_t>(n); }
constexpr size_t kAnySize = 0x7fffffff;
constexpr uint32_t kMostExprs = 65536;
#endif
constexpr int64_t kNoValue = kMostValue + 1;  // no sum of two values overflows, and no product where chips have 32 bits
// Of what persists: in 32 bits it is counted together with the arena.
constexpr Bytes kMostPersistent = sizeof(Size) > 4 && sizeof(void*) > 4 ? static_cast<Bytes>(kMostValue) : 0x70000000;
// Where tensors are. Trainable parameters fill the first bytes of what persists. What is bound comes from outside: inputs
// while a graph runs, frozen parameters from a checkpoint; each is a region of its own, first all ports, then all
// parameters. Kernels write to regions before kNothing only, where extents and absent arguments are.
enum Region : uint16_t { kArena, kTrained, kPersistent, kNothing, kConstants, kBound };
enum GraphIndex { kTrain, kEvaluate, kOptimize, kGraphs };
// Where training steps update parameters, no gradients are stored: stored moments follow the parameters.
constexpr uint32_t kFirstMoment = MB_FUSED_UPDATES ? 1 : 2;

// A function that ends in one place: a jump to another from its middle would repeat what restores its registers. Only
// clang can be told; without it results are the same and mlp's trainer is 16 bytes larger.
#if defined(__clang__)
#define MB_ONE_EXIT __attribute__((disable_tail_calls))
#else
#define MB_ONE_EXIT
#endif

// strlen: as an import it would cost a dynamic symbol, a relocation and an entry of the linkage table, and a library
// that imports nothing would no longer be one.
uint32_t length_of(const char* text);
MB_INLINE intptr_t word_of(const char* text) { return reinterpret_cast<intptr_t>(text); }

// The failures.
enum class Failure : uint8_t {
#define MB_FAILURE(name, status, text) name,
#include "runtime/errors.inc"
#undef MB_FAILURE
};
// For an argument that nobody reads: whatever is in its register. A zero would cost an instruction at every call of
// fail, in mlp's trainer 48 bytes. `volatile`, or the compiler may use one value for several and has to keep it.
MB_INLINE intptr_t anything() {
  intptr_t value;
  __asm__ volatile("" : "=r"(value));
  return value;
}
// Leaves a failure's text in the session, with a, b, c for its `%s` and `%d` in order. Returns its status.
mb_status fail(const mb_session* session, Failure failure, intptr_t a = anything(), intptr_t b = anything(),
               intptr_t c = anything());

struct Span {
  char* data;  // null: not bound now
  size_t size;
};

#if MB_LOOPS > 2
// The rounds of loops of several lengths, some of which do not run to their end.
struct LoopControl {
  int32_t rounds;  // of the loops that follow
  bool skips;      // the rest of this round

  // Acts on the status of a step with this first argument; the status that is left. `last` is the last round.
  mb_status act(mb_status status, const Tensor& first, int32_t* last) {
    if (status == kSkipRoundStatus) {
      skips = true;
    } else if (status == kSetRoundsStatus) {
      rounds = *first.as<int32_t>();
      *last = rounds - 1;
    } else {
      return status;
    }
    return MB_OK;
  }
};
#endif

#if MB_COMPILED
#include "runtime/compiled_session.inc"
#else
// The plan is read in place, and no index in it is trusted: for one that is out of range `at` returns the plan's first
// bytes, whatever they are, and remembers; who asked looks at `damaged` before anything comes of it. The progress that
// callers see, and kernels as tensors, is the end of the persistent region.
struct Session : mb_session {
  mutable bool damaged;
  bool keeps_checkpoint;  // frozen parameters are read where the checkpoint is
  uint32_t region_count;
#if MB_DENSE
  mutable uint32_t next;  // byte of the plan's stream
  uint32_t stream_bytes;
  const uint8_t* stream;
#endif
  Span* regions;
  Size* values;                    // of the plan's expressions
  uint32_t count[plan::kVectors];  // among the first 128 bytes, which x86-64 reaches by shorter instructions
  Bytes trainable_bytes, persistent_bytes, trained, arena;
#if MB_DENSE
  Bytes expr_count, constant_count;  // expressions are the free dimensions, constants, and operations
#endif
#if MB_DENSE || MB_ROLLBACK || MB_CHECKSUMS
  Bytes rollback_bytes;  // at the end of what persists: what a failed call restores from a copy behind it
#endif
#if MB_DENSE || MB_CHECKSUMS
  Bytes fingerprint;  // of the model; 32 bits
#endif
#if MB_DENSE || (MB_CHECKSUMS && MB_DRAWS)
  Bytes draw_bytes;  // of counters of random draws, before the progress
#else
  static constexpr Bytes draw_bytes = 0;
#endif
  const char* start;  // of the plan
  const char* data[plan::kVectors];
  int32_t symbols[kMostSymbols];
#if MB_LOOPS
  int32_t sample;  // the round that a loop is in
#if MB_LOOPS > 1
  int32_t last_sample;
#endif
#if MB_LOOPS > 2
  LoopControl loop;
#endif
#endif
  Span mapped[3];  // what mb_destroy unmaps: the session itself, plan, checkpoint
#if MB_THREADS > 1
  ThreadTeam team;
#endif
#if MB_IDLE_MOMENTS > 1
  uint32_t stored_moments;
#endif
#if MB_SHARED_NAMES
  const char* other_names;  // of the plan, behind those of parameters
  uint32_t name_bytes;      // of the names of parameters, which are behind the values
#endif
  char error_room[sizeof(mb_options::error)];
#if MB_FUSED_UPDATES
  bool broken;  // by a step that failed after an update: until a checkpoint is loaded nothing runs
#endif
#if MB_BUFFERS
  bool nominal;  // parameters have no values yet
#endif
#if MB_PROPERTIES
  uint32_t bag_size;  // bytes in use; see properties.cc
  alignas(8) char bag[MB_PROPERTY_BYTES];
#endif

  // Opens a plan; whether it is one.
  bool read_plan(const void* bytes, size_t size);
#if MB_SHARED_NAMES
  // Writes the names of parameters one after the other, or if `to` is null only counts their bytes.
  void expand_names(char* to);
#endif
  // The index comes first, as in all that ask for one vector: none has to move it.
  MB_NOINLINE const void* at(uint32_t index, plan::VectorIndex vector) const;
#if MB_DENSE
  // Text number i; the empty one that ends them where there are fewer.
  MB_NOINLINE const char* name(uint32_t i) const;
  // The next number of the stream: 7 bits a byte, the high ones first, and 128 in all but the last. One that is not there
  // has all bits set, and is remembered as damage.
  MB_NOINLINE uint32_t read() const;
  uint32_t value_count() const { return expr_count; }
  // As much of an expression as those need who look for free dimensions.
  MB_INLINE plan::Expr expr(uint32_t i) const {
    const uint32_t symbols = count[plan::kDefaults];
    return {static_cast<int32_t>(i), 0,
            i < symbols                    ? plan::kExprSymbol
            : i - symbols < constant_count ? plan::kExprConstant
                                           : plan::kExprMultiply};
  }
  static plan::Parameter parameter(uint32_t i) { return {i, i}; }
  plan::Port port(uint32_t i) const { return parameter(i + count[plan::kParameters]); }
  // An entry of one of these two lists.
  plan::Port entry(uint32_t i, plan::VectorIndex vector) const {
    return vector == plan::kParameters ? parameter(i) : port(i);
  }
  uint32_t order(uint32_t i) const {
    return count[plan::kOrders] == 0 ? i : *static_cast<const Index*>(at(i, plan::kOrders));
  }
  // The names of moments in checkpoints.
  const char* moment(uint32_t i) const { return name(i + count[plan::kParameters] + count[plan::kPorts]); }
  const char* name_of(const plan::Kernel&, uint32_t i) const {
    return moment(i + count[plan::kMoments] + count[plan::kDefaults]);
  }
#else
  const char* name(uint32_t i) const { return static_cast<const char*>(at(i, plan::kNames)); }
  uint32_t value_count() const { return count[plan::kExprs]; }
  const plan::Expr& expr(uint32_t i) const { return *static_cast<const plan::Expr*>(at(i, plan::kExprs)); }
  const plan::Port& port(uint32_t i) const { return *static_cast<const plan::Port*>(at(i, plan::kPorts)); }
  const plan::Parameter& parameter(uint32_t i) const {
    return *static_cast<const plan::Parameter*>(at(i, plan::kParameters));
  }
  const plan::Port& entry(uint32_t i, plan::VectorIndex vector) const {
    static_assert(sizeof(plan::Port) == sizeof(plan::Parameter), "both are a name and a tensor");
    return *static_cast<const plan::Port*>(at(i, vector));
  }
  // The place of a parameter among those that are inputs of the training graph.
  uint32_t order(uint32_t i) const { return parameter(i).order; }
  // The names of moments in checkpoints.
  const char* moment(uint32_t i) const { return name(*static_cast<const uint32_t*>(at(i, plan::kMoments))); }
  const char* name_of(const plan::Kernel& kernel, uint32_t) const { return name(kernel.name); }
#endif
  const plan::Kernel& kernel(uint32_t i) const { return *static_cast<const plan::Kernel*>(at(i, plan::kKernels)); }
  const plan::Graph& graph(uint32_t i) const { return *static_cast<const plan::Graph*>(at(i, plan::kGraphs)); }
  // The rank (in a dense plan with what else a tensor is), then an expression for each dimension.
  const Index* shape(const plan::Tensor& t) const { return static_cast<const Index*>(at(t.shape, plan::kShapes)); }
  // Region of a parameter that is bound.
  uint32_t bound(uint32_t parameter) const { return kBound + count[plan::kPorts] + parameter; }

  // Where the persistent region starts in a session that starts at `memory`; places what is before it.
  uintptr_t place(uintptr_t memory);
  // Evaluates all expressions under `symbols`; returns the bytes of temporaries, negative when an expression has no value.
  Size evaluate();
  // Evaluates, and refuses when temporaries do not fit.
  mb_status lay_out();
#if MB_LOOPS
  // Rounds of a graph's loops.
  int32_t samples(const plan::Graph& graph) const {
    return graph.samples < value_count() ? static_cast<int32_t>(values[graph.samples]) : 0;
  }
#endif
  // Shape and place of a tensor under the current sizes. One that is malformed or not within its region has no data and
  // makes the plan damaged.
#if MB_DENSE
  plan::Tensor resolve(uint32_t index, Tensor* tensor) const;
#else
  const plan::Tensor& resolve(uint32_t index, Tensor* tensor) const;
#endif
};
#endif

// Moments of each trained parameter that are in memory. Those of SGD have names alone: checkpoints hold zeros for them,
// because ONNX Runtime refuses a checkpoint without.
MB_INLINE uint32_t stored_moments(const Session* s) {
#if MB_IDLE_MOMENTS > 1
  return s->stored_moments;
#else
  return MB_IDLE_MOMENTS ? 0 : s->count[plan::kMoments];
#endif
}

// True for the parameters that training updates, which come first: all, where no plan has others.
MB_INLINE bool is_trained(const Session* s, uint32_t parameter) {
  return !MB_FROZEN_PARAMETERS || parameter < s->trained;
}

// As the number of steps of a loop: all from the first one of the graph on.
inline constexpr uint32_t kFromStart = 255;

// Bytes of one element by type number; 0: no such type, as with extents, which have dimensions and no data. x86-64 would
// align the table to 16.
alignas(uint8_t) inline constexpr uint8_t kElementSizes[32] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
MB_INLINE uint32_t element_size(uint32_t type) { return kElementSizes[type % sizeof kElementSizes]; }

MB_INLINE Bytes bytes_of(const Tensor& tensor, uint32_t type) {
  return static_cast<Bytes>(tensor.count) * element_size(type);
}

#if MB_FUSED_UPDATES
// Ends a training step whose kernel returned `status`: where parameters may have been updated before, the session is
// broken. `parameter` is the first argument of the kernel.
mb_status fail_step(Session* s, mb_status status, const Tensor* parameter, uint32_t step, const char* kernel);
#endif

// checkpoint_read.cc
mb_status read_checkpoint(Session* session, const void* bytes, size_t size);

#if MB_PROPERTIES
// properties.cc: whether there is room for the properties of a checkpoint, which replace those there are if `apply`; and
// whether there was for the learning rate as one of them.
bool read_properties(Session* session, const Flatbuffer& file, uint32_t root, bool apply);
bool keep_learning_rate(Session* session);
#endif

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
// The call comes first, as in a kernel, so that a conditional jump is all that each costs.
Status run_kernel(const Call& call, uint32_t row);
#if MB_STRAIGHT
// The same for a step that has its arguments in it, `row` from the first of these on.
Status run_straight(Session* session, uint32_t row, uint32_t accumulate);
#endif
#if MB_THREADS > 1
// How threads may cut a call of each kernel, 0 if they may not: bit k is set where argument k is cut into the rows that
// the first dimension of an extent counts; or these.
constexpr uint16_t kCutBroadcast = 1 << 14;  // operands that broadcast, along the first axis of the result
constexpr uint16_t kCutElements = 1 << 15;   // arguments with as many elements as the first
extern const uint16_t kKernelCuts[];
#endif

}  // namespace minbuild
#pragma GCC visibility pop

#endif  // MINBUILD_RUNTIME_SESSION_H_
