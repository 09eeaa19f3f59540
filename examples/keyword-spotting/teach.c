/* Teaches a keyword spotter the four words of its household: trains the last layer on a few recordings, keeps a checkpoint, and judges
 * recordings of people that it has not heard.
 *
 *   teach PACKAGE CHECKPOINT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "minbuild/trainer.h"

enum { FRAMES = 42, BANDS = 20, WORDS = 4, BATCH = 8, EPOCHS = 60 };

typedef struct {
  int32_t word;
  float features[FRAMES * BANDS];
} recording;

typedef struct {
  int32_t count;
  recording* all;
} recordings;

static int read_recordings(const char* path, recordings* set) {
  FILE* file = fopen(path, "rb");
  int well = file != NULL && fread(&set->count, sizeof set->count, 1, file) == 1 && set->count > 0;
  set->all = well ? malloc((size_t)set->count * sizeof(recording)) : NULL;
  well = set->all != NULL && fread(set->all, sizeof(recording), (size_t)set->count, file) == (size_t)set->count;
  if (file != NULL) fclose(file);
  if (!well) fprintf(stderr, "%s: cannot be read; make_data.py writes it\n", path);
  return well;
}

/* Every BATCH-th recording from `first` on: all words are in a batch, though a file has one word after the other. */
static void make_batch(const recordings* set, int32_t first, int32_t step, mb_tensor inputs[2]) {
  static float sounds[BATCH][FRAMES * BANDS];
  static int64_t words[BATCH];
  int32_t count = 0, i;
  for (i = first; i < set->count && count < BATCH; i += step, ++count) {
    memcpy(sounds[count], set->all[i].features, sizeof sounds[count]);
    words[count] = set->all[i].word;
  }
  inputs[0] = (mb_tensor){sounds, MB_FLOAT, 4, {count, 1, FRAMES, BANDS}};
  inputs[1] = (mb_tensor){words, MB_INT64, 1, {count}};
}

/* How many recordings get the highest score for their own word. Outputs: the loss, then scores [count, WORDS]. */
static mb_status judge(mb_session* session, const recordings* set, const char* when) {
  int32_t first, i, k, right = 0;
  for (first = 0; first < set->count; first += BATCH) {
    mb_tensor inputs[2], scores;
    const char* name;
    mb_status status;
    make_batch(set, first, 1, inputs);
    status = mb_eval_step(session, inputs, 2);
    if (status == MB_OK) status = mb_output(session, MB_EVAL, 1, &name, &scores);
    if (status != MB_OK) return status;
    for (i = 0; i < inputs[1].dims[0]; ++i) {
      const float* row = (const float*)scores.data + i * WORDS;
      int32_t best = 0;
      for (k = 1; k < WORDS; ++k)
        if (row[k] > row[best]) best = k;
      right += best == ((const int64_t*)inputs[1].data)[i];
    }
  }
  printf("%s: %d of %d right\n", when, (int)right, (int)set->count);
  return MB_OK;
}

static mb_status train(mb_session* session, const recordings* set) {
  const int32_t batches = set->count / BATCH;
  int32_t epoch, batch;
  mb_set_learning_rate(session, 0.02f);
  for (epoch = 1; epoch <= EPOCHS; ++epoch) {
    float sum = 0;
    for (batch = 0; batch < batches; ++batch) {
      mb_tensor inputs[2], loss;
      const char* name;
      mb_status status;
      make_batch(set, batch, batches, inputs);
      status = mb_train_step(session, inputs, 2);
      if (status == MB_OK) status = mb_output(session, MB_TRAIN, 0, &name, &loss);
      if (status != MB_OK) return status;
      sum += *(const float*)loss.data;
      status = mb_optimizer_step(session);
      if (status != MB_OK) return status;
      mb_lazy_reset_grad(session);
    }
    if (epoch % 20 == 0) printf("epoch %d: loss %.4f\n", (int)epoch, (double)(sum / (float)batches));
  }
  return MB_OK;
}

static mb_session* open_session(const char* package, const char* checkpoint) {
  char plan[1024];
  mb_options options = {0};
  mb_session* session = NULL;
  snprintf(plan, sizeof plan, "%s/model/trainer.plan", package);
  if (mb_create_from_files(plan, checkpoint, &options, &session) != MB_OK) fprintf(stderr, "%s\n", options.error);
  return session;
}

static int fail(const mb_session* session) {
  fprintf(stderr, "%s\n", mb_last_error(session));
  return 1;
}

int main(int argc, char** argv) {
  char shipped[1024];
  recordings few, held;
  mb_session* session;
  if (argc != 3) {
    fprintf(stderr, "usage: teach PACKAGE CHECKPOINT\n");
    return 2;
  }
  if (!read_recordings("few.bin", &few) || !read_recordings("held.bin", &held)) return 1;
  snprintf(shipped, sizeof shipped, "%s/model/checkpoint", argv[1]);
  session = open_session(argv[1], shipped);
  if (session == NULL) return 1;
  if (judge(session, &held, "before") != MB_OK || train(session, &few) != MB_OK) return fail(session);
  if (mb_save_checkpoint(session, argv[2], 0) != MB_OK) return fail(session);
  mb_destroy(session);

  session = open_session(argv[1], argv[2]); /* as after the device was started anew */
  if (session == NULL) return 1;
  if (judge(session, &held, "after") != MB_OK) return fail(session);
  mb_destroy(session);
  free(few.all), free(held.all);
  return 0;
}
