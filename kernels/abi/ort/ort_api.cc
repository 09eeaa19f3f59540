// OrtGetApiBase, and the part of OrtApi that holds no tensors: status, environment, options. Settings that have no meaning for a
// library of one model and one thread are accepted; everything else that is left out is ORT_NOT_IMPLEMENTED.
#include "abi/ort/ort_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/ort/ort_functions.h"

namespace minbuild::ort {
namespace {

Status not_there = {kNotImplemented, false,
                    "not implemented: this library of minbuild has what training needs of ONNX Runtime's interface"};
Status no_memory = {kFail, false, "out of memory"};

const void* api[kOrtApiCount];
const void* training[kOrtTrainingApiCount];
char environment;  // everything there is of an OrtEnv: its address

Status* accept() { return nullptr; }

// ---------------------------------------------------------------------------- status

Status* create_status(int code, const char* text) { return failure(static_cast<Code>(code), text); }
int error_code(const Status* status) { return status->code; }
const char* error_message(const Status* status) { return status->text; }
void release_status(Status* status) {
  if (status != nullptr && status->owned) free(status);
}

// ---------------------------------------------------------------------------- environment

Status* create_env(int, const char*, void** out) { return *out = &environment, nullptr; }
Status* create_env_with_logger(const void*, void*, int, const char*, void** out) {
  return *out = &environment, nullptr;
}
Status* create_env_with_threads(int, const char*, const void*, void** out) { return *out = &environment, nullptr; }
Status* create_env_with_both(const void*, void*, int, const char*, const void*, void** out) {
  return *out = &environment, nullptr;
}
// Options of sessions and of threads have no state: nothing here depends on them.
Status* create_options(void** out) { return *out = &environment, nullptr; }
Status* clone_options(const void*, void** out) { return *out = &environment, nullptr; }
void release_nothing(void*) {}

Status* available_providers(char*** out, int* count) {
  static char name[] = "CPUExecutionProvider";
  static char* all[] = {name, nullptr};
  *out = all, *count = 1;
  return nullptr;
}

const char* build_info() { return "minbuild: a trainer of one model with ONNX Runtime's interface"; }

// ---------------------------------------------------------------------------- options of a run

struct RunOptions {
  int verbosity, severity;
  char* tag;
};
Status* create_run_options(RunOptions** out) {
  *out = static_cast<RunOptions*>(calloc(1, sizeof(RunOptions)));
  if (*out == nullptr) return out_of_memory();
  (*out)->severity = -1;
  return nullptr;
}
void release_run_options(RunOptions* options) {
  if (options != nullptr) free(options->tag);
  free(options);
}
Status* set_verbosity(RunOptions* options, int level) { return options->verbosity = level, nullptr; }
Status* set_severity(RunOptions* options, int level) { return options->severity = level, nullptr; }
Status* get_verbosity(const RunOptions* options, int* level) { return *level = options->verbosity, nullptr; }
Status* get_severity(const RunOptions* options, int* level) { return *level = options->severity, nullptr; }
Status* set_tag(RunOptions* options, const char* tag) {
  char* copy = nullptr;
  Status* status = copy_text(default_allocator(), tag, &copy);
  if (status != nullptr) return status;
  free(options->tag);
  options->tag = copy;
  return nullptr;
}
Status* get_tag(const RunOptions* options, const char** tag) {
  return *tag = options->tag != nullptr ? options->tag : "", nullptr;
}

// ---------------------------------------------------------------------------- the tables

const void* get_training_api(uint32_t version) { return version >= 1 && version <= kOrtVersion ? training : nullptr; }
const void* get_api(uint32_t version) { return version >= 1 && version <= kOrtVersion ? api : nullptr; }
const char* version_string() { return kOrtVersionString; }

template <class F>
void set(const void** table, int place, F* function) {
  table[place] = reinterpret_cast<const void*>(function);
}

constexpr uint16_t kAccepted[] = {
    kEnableTelemetryEvents,
    kDisableTelemetryEvents,
    kUpdateEnvWithCustomLogLevel,
    kSetLanguageProjection,
    kSetSessionExecutionMode,
    kDisableProfiling,
    kEnableMemPattern,
    kDisableMemPattern,
    kEnableCpuMemArena,
    kDisableCpuMemArena,
    kSetSessionLogId,
    kSetSessionLogVerbosityLevel,
    kSetSessionLogSeverityLevel,
    kSetSessionGraphOptimizationLevel,
    kSetIntraOpNumThreads,
    kSetInterOpNumThreads,
    kAddSessionConfigEntry,
    kDisablePerSessionThreads,
    kSetDeterministicCompute,
    kSetGlobalIntraOpNumThreads,
    kSetGlobalInterOpNumThreads,
    kSetGlobalSpinControl,
    kSetGlobalDenormalAsZero,
    kAddRunConfigEntry,
    kRunOptionsSetTerminate,
    kRunOptionsUnsetTerminate,
    kReleaseAvailableProviders,
    kReleaseEnv,
    kReleaseSessionOptions,
    kReleaseThreadingOptions,
    kReleaseAllocator,
};

}  // namespace

Status* failure(Code code, const char* a, const char* b, const char* c, const char* d) {
  const char* pieces[] = {a, b, c, d};
  size_t length = 1;
  for (const char* piece : pieces) length += strlen(piece);
  Status* made = static_cast<Status*>(malloc(sizeof(Status) + length));
  if (made == nullptr) return out_of_memory();
  char* at = reinterpret_cast<char*>(made + 1);
  *made = {code, true, at};
  for (const char* piece : pieces) {
    memcpy(at, piece, strlen(piece));
    at += strlen(piece);
  }
  *at = 0;
  return made;
}
Status* out_of_memory() { return &no_memory; }
Status* not_implemented() { return &not_there; }

void* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) return nullptr;
  void* data = nullptr;
  long length = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (length >= 0 && length < INTPTR_MAX - 16 && fseek(file, 0, SEEK_SET) == 0) {
    *size = static_cast<size_t>(length);
    data = aligned_alloc(16, (*size + 16) & ~size_t{15});
    if (data != nullptr && fread(data, 1, *size, file) != *size) free(data), data = nullptr;
  }
  fclose(file);
  return data;
}

void fill_settings(const void** table) {
  for (uint16_t place : kAccepted) set(table, place, accept);
  set(table, kCreateStatus, create_status);
  set(table, kGetErrorCode, error_code);
  set(table, kGetErrorMessage, error_message);
  set(table, kReleaseStatus, release_status);
  set(table, kCreateEnv, create_env);
  set(table, kCreateEnvWithCustomLogger, create_env_with_logger);
  set(table, kCreateEnvWithGlobalThreadPools, create_env_with_threads);
  set(table, kCreateEnvWithCustomLoggerAndGlobalThreadPools, create_env_with_both);
  set(table, kCreateSessionOptions, create_options);
  set(table, kCreateThreadingOptions, create_options);
  set(table, kCloneSessionOptions, clone_options);
  set(table, kGetAvailableProviders, available_providers);
  set(table, kGetBuildInfoString, build_info);
  set(table, kCreateRunOptions, create_run_options);
  set(table, kReleaseRunOptions, release_run_options);
  set(table, kRunOptionsSetRunLogVerbosityLevel, set_verbosity);
  set(table, kRunOptionsSetRunLogSeverityLevel, set_severity);
  set(table, kRunOptionsGetRunLogVerbosityLevel, get_verbosity);
  set(table, kRunOptionsGetRunLogSeverityLevel, get_severity);
  set(table, kRunOptionsSetRunTag, set_tag);
  set(table, kRunOptionsGetRunTag, get_tag);
  set(table, kGetTrainingApi, get_training_api);
}

}  // namespace minbuild::ort

// The tables are filled here and not by the loader, which would need 24 bytes of relocation for each of their entries. Threads
// that come at the same time write the same.
extern "C" __attribute__((visibility("default"))) const void* OrtGetApiBase() {
  using namespace minbuild::ort;
  static const struct {
    const void* (*get_api)(uint32_t);
    const char* (*version)();
  } base = {get_api, version_string};
  if (training[kGetParameter] != nullptr) return &base;
  for (const void*& entry : api) entry = reinterpret_cast<const void*>(not_implemented);
  for (const void*& entry : training) entry = reinterpret_cast<const void*>(not_implemented);
  fill_settings(api);
  fill_values(api);
  fill_training(training);
  return &base;
}
