// OrtCheckpointState and OrtTrainingSession. A checkpoint state has the session of the trainer from the moment that it is
// loaded; a training session adds what only training has.
#ifndef MINBUILD_ABI_ORT_STATE_H_
#define MINBUILD_ABI_ORT_STATE_H_

#include "abi/ort/ort_types.h"
#include "abi/ort/refusal.h"

namespace minbuild::ort {

struct CheckpointState {
  mb_session* session;
  void* checkpoint;  // frozen parameters are read in it
  int32_t sizes[MB_MOST_MODEL_SYMBOLS];
};

struct TrainingSession {
  CheckpointState* state;
  bool evaluates, optimizes, scheduled;
  mb_linear_schedule schedule;
};

// The status of a call of the trainer, with its text.
Status* said(const mb_session* session, mb_status status);

// A state of the checkpoint's bytes, which it takes over, at a multiple of 16; null for none.
Status* open_state(void* checkpoint, size_t size, CheckpointState** out);
// Replaces the session by one with memory for these inputs: parameters, optimizer state, gradients and settings stay.
Status* grow(CheckpointState* state, int graph, const mb_tensor* inputs);
void release_state(CheckpointState* state);

// Bytes that calls write, on the heap.
struct Written {
  char* data;
  size_t size, room;
};
int append(void* written, const void* bytes, size_t size);  // an mb_sink

void fill_state(const void** table);

}  // namespace minbuild::ort
#endif  // MINBUILD_ABI_ORT_STATE_H_
