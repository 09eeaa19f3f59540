// minbuild trainer for C++17: the functions of trainer.h with owners, spans and types. Nothing throws and nothing but
// the session itself allocates; what can fail returns a Status, which the compiler makes callers look at.
#ifndef MINBUILD_TRAINER_HPP_
#define MINBUILD_TRAINER_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#include "minbuild/trainer.h"

// Refused batches in words, from what model_inputs.h says of the package's models. Define MINBUILD_WORDS as 0 where bytes
// count more: then a status has the library's own text.
#ifndef MINBUILD_WORDS
#if __has_include("model_inputs.h")
#include "refusal.h"
#define MINBUILD_WORDS MB_MODEL_WORDS
#else
#define MINBUILD_WORDS 0
#endif
#elif MINBUILD_WORDS
#include "refusal.h"
#endif

namespace minbuild {

// Elements that belong to somebody else.
template <class T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
  template <size_t N>
  constexpr Span(T (&array)[N]) : data_(array), size_(N) {}
  // Anything with data() and size(): std::vector, std::array, std::span.
  template <class C, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<C&>().data()), T*>>>
  constexpr Span(C&& container) : data_(container.data()), size_(container.size()) {}

  constexpr T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](size_t i) const { return data_[i]; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// How a call went. The text says what was found where and what was expected; it lasts until the session's next call.
class [[nodiscard]] Status {
 public:
  Status(mb_status code, const char* text) : code_(code), text_(text) {}
  bool ok() const { return code_ == MB_OK; }
  explicit operator bool() const { return ok(); }
  mb_status code() const { return code_; }
  const char* text() const { return ok() ? "" : text_; }

 private:
  mb_status code_;
  const char* text_;
};

// The ONNX number of an element type.
template <class T>
constexpr int32_t type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return MB_FLOAT;
  else if constexpr (std::is_same_v<U, double>) return MB_DOUBLE;
  else if constexpr (std::is_same_v<U, bool>) return MB_BOOL;
  else {
    static_assert(std::is_integral_v<U>, "tensors hold numbers; for half precision fill in an mb_tensor");
    constexpr int32_t of_signed[] = {MB_INT8, MB_INT16, MB_INT32, MB_INT64};
    constexpr int32_t of_unsigned[] = {MB_UINT8, MB_UINT16, MB_UINT32, MB_UINT64};
    constexpr int log2 = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
    return std::is_signed_v<U> ? of_signed[log2] : of_unsigned[log2];
  }
}

// Number of elements of a tensor.
inline size_t count_of(const mb_tensor& tensor) {
  size_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= static_cast<size_t>(tensor.dims[i]);
  return count;
}

// A dense tensor over memory of the caller. Without dimensions it is a vector. What does not fit its memory has rank
// -1, which every function of the library refuses.
template <class T>
mb_tensor tensor(Span<T> elements, std::initializer_list<int32_t> dims) {
  mb_tensor made = {const_cast<std::remove_cv_t<T>*>(elements.data()), type_of<T>(), 0, {}};
  if (dims.size() > MB_MAX_RANK) return made.rank = -1, made;
  for (int32_t dim : dims) made.dims[made.rank++] = dim;
  if (count_of(made) != elements.size()) made.rank = -1;
  return made;
}
template <class C>
mb_tensor tensor(C& elements, std::initializer_list<int32_t> dims) {
  return tensor(Span<std::remove_pointer_t<decltype(std::data(elements))>>(elements), dims);
}

// The elements of a tensor; empty where their type is another one.
template <class T>
Span<T> elements_of(const mb_tensor& tensor) {
  if (tensor.type != type_of<T>()) return {};
  return {static_cast<T*>(tensor.data), count_of(tensor)};
}

// A list of the session, read in place: `for (const mb_parameter& p : session.parameters())`.
class List {
 public:
  class Iterator {
   public:
    Iterator(const mb_session* session, int list) : session_(session), list_(list) { read(); }
    Iterator() = default;
    const mb_parameter& operator*() const { return found_; }
    Iterator& operator++() { return ++index_, read(), *this; }
    bool operator!=(const Iterator& other) const { return session_ != other.session_; }

   private:
    void read() {
      if (mb_get(session_, list_, index_, &found_) != MB_OK) session_ = nullptr;
    }
    const mb_session* session_ = nullptr;
    int list_ = 0;
    size_t index_ = 0;
    mb_parameter found_ = {};
  };

  List(const mb_session* session, int list) : session_(session), list_(list) {}
  size_t size() const { return mb_count(session_, list_); }
  Iterator begin() const { return {session_, list_}; }
  Iterator end() const { return {}; }

 private:
  const mb_session* session_;
  int list_;
};

// One model in training. Moves, but has no copies. Every function but the creating ones needs a session that is there.
class Session {
 public:
  Session() = default;
  Session(Session&& other) noexcept { *this = std::move(other); }
  Session& operator=(Session&& other) noexcept {
    std::swap(session_, other.session_);
#if MINBUILD_WORDS
    std::swap(sizes_, other.sizes_);
#endif
    return *this;
  }
  ~Session() {
    if (session_ != nullptr) mb_destroy(session_);
  }

  // Memory of the caller, which outlives the session; 8-byte aligned. An empty checkpoint: parameters start at zero.
  // An empty plan: the library has it compiled in. `options` may bring the arena and the sizes of free dimensions, and
  // receives the text of a failure.
  static Status create(Span<const std::byte> plan, Span<const std::byte> checkpoint, mb_options& options,
                       Session& into) {
    Session made;
    mb_status code =
        mb_create(plan.data(), plan.size(), checkpoint.data(), checkpoint.size(), &options, &made.session_);
    return into.take(code, made, options);
  }
  // Links only with a library that has files (`--file-io on`). A null path is that of no file.
  static Status open(const char* plan, const char* checkpoint, mb_options& options, Session& into) {
    Session made;
    return into.take(mb_create_from_files(plan, checkpoint, &options, &made.session_), made, options);
  }

  explicit operator bool() const { return session_ != nullptr; }
  mb_session* get() const { return session_; }

  // Adds to the gradients, or replaces them after lazy_reset_grad.
  Status train_step(Span<const mb_tensor> inputs) { return run(MB_TRAIN, inputs); }
  // Both in one pass, without gradients in memory: of libraries reduced with `--updates fused`, which have no other way to
  // train. After a gradient that is not finite (MB_BAD_VALUE, naming the parameter) only load_checkpoint goes on.
  Status train_and_update(Span<const mb_tensor> inputs) { return run(MB_TRAIN_AND_UPDATE, inputs); }
  Status eval_step(Span<const mb_tensor> inputs) { return run(MB_EVAL, inputs); }
  Status optimizer_step() { return said(mb_optimizer_step(session_)); }
  Status initialize() { return said(mb_initialize(session_)); }
  void lazy_reset_grad() { mb_lazy_reset_grad(session_); }

  float learning_rate() const { return mb_learning_rate(session_); }
  Status set_learning_rate(float rate) { return said(mb_set_learning_rate(session_, rate)); }
  int64_t step_count() const { return mb_step_count(session_); }
  int64_t seed() const { return mb_seed(session_); }
  void set_seed(int64_t seed) { mb_set_seed(session_, seed); }

  // Outputs point into the session and last until its next step.
  List inputs(int graph = MB_TRAIN) const { return {session_, 2 * graph + MB_INPUTS}; }
  List outputs(int graph = MB_TRAIN) const { return {session_, 2 * graph + MB_OUTPUTS}; }
  List parameters() const { return {session_, MB_PARAMETERS}; }

  // The first output of the last step; nothing but 0 where that is no single float.
  float loss(int graph = MB_TRAIN) const {
    mb_parameter found = {};
    if (mb_get(session_, 2 * graph + MB_OUTPUTS, 0, &found) != MB_OK) return 0;
    Span<const float> values = elements_of<const float>(found.value);
    return values.size() == 1 ? values[0] : 0;
  }

  Status find_parameter(const char* name, mb_parameter& found) const {
    return said(mb_find_parameter(session_, name, &found), "there is no such parameter");
  }
  Status read_parameter(const char* name, const mb_tensor& to) const {
    return said(mb_read_parameter(session_, name, &to), unlike_);
  }
  Status update_parameter(const char* name, const mb_tensor& from) {
    return said(mb_update_parameter(session_, name, &from), unlike_);
  }

  // `accept_any` takes the checkpoint of another model whose parameters have the same names, types and shapes. Frozen
  // parameters are read from the bytes in place, which then outlive the session or its next load: see mb_reads_from.
  Status load_checkpoint(Span<const std::byte> bytes, bool accept_any = false) {
    return said((accept_any ? mb_load_any_checkpoint : mb_load_checkpoint)(session_, bytes.data(), bytes.size()));
  }
  // These two link only with a library that saves (`--checkpoint-writing on`), the first only with one that has files as well.
  Status save_checkpoint(const char* path, bool include_optimizer) {
    return said(mb_save_checkpoint(session_, path, include_optimizer));
  }
  // `sink(Span<const std::byte>)` returns whether to go on.
  template <class Sink>
  Status write_checkpoint(bool include_optimizer, Sink&& sink) {
    return said(mb_write_checkpoint(session_, include_optimizer, &pass<Sink>, &sink));
  }

  // Of the parts properties, buffers and export: they link only with a library that has them.
  Status set_property(const char* name, int64_t value) { return set({name, nullptr, value, 0, MB_INT64}); }
  Status set_property(const char* name, float value) { return set({name, nullptr, 0, value, MB_FLOAT}); }
  Status set_property(const char* name, const char* value) { return set({name, value, 0, 0, MB_STRING}); }
  Status remove_property(const char* name) { return set({name, nullptr, 0, 0, 0}); }
  Status find_property(const char* name, mb_property& found) const {
    return said(mb_find_property(session_, name, &found), "there is no such property");
  }
  Status parameters_size(bool trainable_only, size_t& count) {
    return said(mb_parameters_size(session_, trainable_only, &count));
  }
  Status to_buffer(Span<float> buffer, bool trainable_only) {
    return said(mb_copy_parameters_to_buffer(session_, buffer.data(), buffer.size(), trainable_only));
  }
  Status from_buffer(Span<const float> buffer, bool trainable_only) {
    return said(mb_copy_buffer_to_parameters(session_, buffer.data(), buffer.size(), trainable_only));
  }
  Status export_model(const char* template_path, const char* path) {
    return said(mb_export_to_file(session_, template_path, path));
  }
  template <class Sink>
  Status export_model(Span<const std::byte> template_bytes, Sink&& sink) {
    return said(mb_export_model(session_, template_bytes.data(), template_bytes.size(), &pass<Sink>, &sink));
  }

 private:
  static constexpr const char* unlike_ = "there is no such parameter, or its type or shape is another one";

  Status take(mb_status code, Session& made, mb_options& options) {
#if MINBUILD_WORDS
    made.sizes_.given = options.symbols != nullptr && options.symbol_count <= MB_MOST_MODEL_SYMBOLS;
    for (size_t i = 0; made.sizes_.given && i < options.symbol_count; ++i) made.sizes_.of[i] = options.symbols[i];
#endif
    if (code == MB_OK) *this = std::move(made);
    return {code, options.error};
  }
  Status run(int graph, Span<const mb_tensor> inputs) {
    const mb_status code = mb_run(session_, graph, inputs.data(), inputs.size());
#if MINBUILD_WORDS
    if (code != MB_OK)
      mb_explain_refusal(session_, graph == MB_TRAIN_AND_UPDATE ? MB_TRAIN : graph, code, inputs.data(), inputs.size(),
                         sizes_.given ? sizes_.of : nullptr);
#endif
    return said(code);
  }
  Status set(const mb_property& property) { return said(mb_set_property(session_, &property)); }
  Status said(mb_status code) const { return {code, mb_last_error(session_)}; }
  Status said(mb_status code, const char* text) const { return {code, text}; }
  template <class Sink>
  static int pass(void* user, const void* bytes, size_t size) {
    auto& sink = *static_cast<std::remove_reference_t<Sink>*>(user);
    return sink(Span<const std::byte>(static_cast<const std::byte*>(bytes), size)) ? 0 : 1;
  }

  mb_session* session_ = nullptr;
#if MINBUILD_WORDS
  struct {
    bool given = false;
    int32_t of[MB_MOST_MODEL_SYMBOLS] = {};
  } sizes_;  // of free dimensions, that the session was created with
#endif
};

// The learning rate rises from 0 to `initial` during `warmup` optimizer steps, then falls to 0 at step `total`.
class LinearSchedule {
 public:
  LinearSchedule(Session& session, int64_t warmup, int64_t total, float initial) : session_(session.get()) {
    mb_schedule_linear(session_, &schedule_, warmup, total, initial);
  }
  void step() { mb_schedule_step(session_, &schedule_); }

 private:
  mb_session* session_;
  mb_linear_schedule schedule_ = {};
};

}  // namespace minbuild
#endif  // MINBUILD_TRAINER_HPP_
