/* Trains a classifier and keeps a checkpoint after each step; may be killed anywhere and started again.
 *
 *   train PACKAGE CHECKPOINT     goes on from CHECKPOINT where it is there */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "minbuild/trainer.h"

enum { PIXELS = 64, CLASSES = 10, BATCH = 16, STEPS = 600, HELD = 397 };

typedef struct {
  int32_t label;
  float pixels[PIXELS];
} digit;

static digit* digits;
static int32_t count;

static int read_digits(void) {
  FILE* file = fopen("digits.bin", "rb");
  int well = file != NULL && fread(&count, sizeof count, 1, file) == 1 && count > HELD;
  digits = well ? malloc((size_t)count * sizeof(digit)) : NULL;
  well = digits != NULL && fread(digits, sizeof(digit), (size_t)count, file) == (size_t)count;
  if (file != NULL) fclose(file);
  if (!well) fprintf(stderr, "digits.bin: cannot be read; prepare.py writes it\n");
  return well;
}

/* BATCH digits from `first` on; past `end` it goes on with digit 0. */
static void make_batch(int32_t first, int32_t end, mb_tensor inputs[2]) {
  static float pixels[BATCH][PIXELS];
  static int64_t labels[BATCH];
  int32_t i;
  for (i = 0; i < BATCH; ++i) {
    const digit* one = &digits[(first + i) % end];
    memcpy(pixels[i], one->pixels, sizeof pixels[i]);
    labels[i] = one->label;
  }
  inputs[0] = (mb_tensor){pixels, MB_FLOAT, 2, {BATCH, PIXELS}};
  inputs[1] = (mb_tensor){labels, MB_INT64, 1, {BATCH}};
}

/* Everything that a step depends on is in the checkpoint: parameters, the optimizer's state, the random stream of Dropout, and
 * the number of steps, from which the batch follows. */
static mb_status step(mb_session* session) {
  const int64_t number = mb_step_count(session);
  mb_tensor inputs[2];
  mb_status status;
  make_batch((int32_t)(number * BATCH % (count - HELD)), count - HELD, inputs);
  status = mb_train_step(session, inputs, 2);
  if (status == MB_OK) status = mb_optimizer_step(session);
  mb_lazy_reset_grad(session);
  return status;
}

static mb_status judge(mb_session* session) {
  int32_t first, i, k, right = 0, seen = 0;
  for (first = count - HELD; first + BATCH <= count; first += BATCH) {
    mb_tensor inputs[2], scores;
    const char* name;
    mb_status status;
    make_batch(first, count, inputs);
    status = mb_eval_step(session, inputs, 2);
    if (status == MB_OK) status = mb_output(session, MB_EVAL, 1, &name, &scores);
    if (status != MB_OK) return status;
    for (i = 0; i < BATCH; ++i, ++seen) {
      const float* row = (const float*)scores.data + i * CLASSES;
      int32_t best = 0;
      for (k = 1; k < CLASSES; ++k)
        if (row[k] > row[best]) best = k;
      right += best == digits[first + i].label;
    }
  }
  printf("%d of %d held-out digits right\n", (int)right, (int)seen);
  return MB_OK;
}

/* A save that was cut left its unfinished copy beside the checkpoint: CHECKPOINT.newA, .newB and so on. */
static void remove_unfinished(const char* checkpoint) {
  char path[1024];
  char letter;
  for (letter = 'A'; letter <= 'z'; ++letter) {
    snprintf(path, sizeof path, "%s.new%c", checkpoint, letter);
    remove(path);
  }
}

static int fail(const char* text) {
  fprintf(stderr, "%s\n", text);
  return 1;
}

int main(int argc, char** argv) {
  char plan[1024], shipped[1024];
  mb_options options = {0};
  mb_session* session = NULL;
  FILE* own;
  if (argc != 3) return fail("usage: train PACKAGE CHECKPOINT");
  if (!read_digits()) return 1;
  snprintf(plan, sizeof plan, "%s/model/trainer.plan", argv[1]);
  snprintf(shipped, sizeof shipped, "%s/model/checkpoint", argv[1]);
  own = fopen(argv[2], "rb");
  if (own != NULL) fclose(own);
  remove_unfinished(argv[2]);
  if (mb_create_from_files(plan, own != NULL ? argv[2] : shipped, &options, &session) != MB_OK) return fail(options.error);
  printf("from step %d\n", (int)mb_step_count(session));
  fflush(stdout);
  mb_set_learning_rate(session, 0.003f);
  while (mb_step_count(session) < STEPS) {
    if (step(session) != MB_OK) return fail(mb_last_error(session));
    if (mb_save_checkpoint(session, argv[2], 1) != MB_OK) return fail(mb_last_error(session));
  }
  if (judge(session) != MB_OK) return fail(mb_last_error(session));
  mb_destroy(session);
  free(digits);
  return 0;
}
