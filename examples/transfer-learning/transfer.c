/* Teaches a classifier new classes on the device, from a few images of each: trains the last layer, saves a checkpoint,
 * goes on from it, judges images it has not seen, and exports a model for inference.
 *
 *   transfer PACKAGE IMAGES     IMAGES is the folder that make_images.py wrote */
#include <stdio.h>
#include <stdlib.h>

#include "minbuild/trainer.h"

enum { BATCH = 8, EPOCHS = 40 };

typedef struct {
  int32_t count, classes, side;
  int64_t* labels;
  float* pixels; /* [count, 3, side, side] */
} images;

static size_t image_floats(const images* set) { return 3 * (size_t)set->side * (size_t)set->side; }

static int read_images(const char* folder, const char* name, images* set) {
  char path[1024];
  int32_t i, label;
  FILE* file;
  int well;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  file = fopen(path, "rb");
  if (file == NULL || fread(&set->count, sizeof(int32_t), 3, file) != 3) {
    fprintf(stderr, "%s: cannot be read\n", path);
    return 0;
  }
  set->labels = malloc((size_t)set->count * sizeof(int64_t));
  set->pixels = malloc((size_t)set->count * image_floats(set) * sizeof(float));
  well = set->labels != NULL && set->pixels != NULL;
  for (i = 0; well && i < set->count; ++i) {
    well = fread(&label, sizeof label, 1, file) == 1 &&
           fread(set->pixels + (size_t)i * image_floats(set), sizeof(float), image_floats(set), file) == image_floats(set);
    set->labels[i] = label;
  }
  fclose(file);
  if (!well) fprintf(stderr, "%s: is cut short, or there is no memory for it\n", path);
  return well;
}

/* The images from `first` on, at most BATCH, as inputs of a step. */
static int32_t make_batch(const images* set, int32_t first, mb_tensor inputs[2]) {
  const int32_t count = set->count - first < BATCH ? set->count - first : BATCH;
  const mb_tensor pixels = {set->pixels + (size_t)first * image_floats(set), MB_FLOAT, 4, {count, 3, set->side, set->side}};
  const mb_tensor labels = {set->labels + first, MB_INT64, 1, {count}};
  inputs[0] = pixels;
  inputs[1] = labels;
  return count;
}

/* How many images of a batch get the highest score for their own class. Outputs: the loss, then scores [count,classes]. */
static int32_t right_ones(const mb_session* session, const images* set, int32_t first, int32_t count) {
  mb_tensor scores;
  const char* name;
  int32_t i, k, right = 0;
  if (mb_output(session, MB_EVAL, 1, &name, &scores) != MB_OK) return 0;
  for (i = 0; i < count; ++i) {
    const float* row = (const float*)scores.data + i * set->classes;
    int32_t best = 0;
    for (k = 1; k < set->classes; ++k)
      if (row[k] > row[best]) best = k;
    right += best == set->labels[first + i];
  }
  return right;
}

static mb_status judge(mb_session* session, const images* set, const char* when) {
  int32_t first, count, right = 0;
  for (first = 0; first < set->count; first += count) {
    mb_tensor inputs[2];
    mb_status status;
    count = make_batch(set, first, inputs);
    status = mb_eval_step(session, inputs, 2);
    if (status != MB_OK) return status;
    right += right_ones(session, set, first, count);
  }
  printf("%s: %d of %d right\n", when, (int)right, (int)set->count);
  return MB_OK;
}

static mb_status train(mb_session* session, const images* set) {
  int epoch;
  mb_set_learning_rate(session, 0.05f);
  for (epoch = 0; epoch < EPOCHS; ++epoch) {
    int32_t first;
    float sum = 0;
    for (first = 0; first < set->count; first += BATCH) {
      mb_tensor inputs[2], loss;
      const char* name;
      const int32_t count = make_batch(set, first, inputs);
      mb_status status = mb_train_step(session, inputs, 2);
      if (status == MB_OK) status = mb_output(session, MB_TRAIN, 0, &name, &loss);
      if (status != MB_OK) return status;
      sum += *(const float*)loss.data * (float)count;
      status = mb_optimizer_step(session);
      if (status != MB_OK) return status;
      mb_lazy_reset_grad(session);
    }
    if (epoch % 10 == 9) printf("epoch %d: loss %.6f\n", epoch + 1, (double)(sum / (float)set->count));
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
  char path[1024];
  images few, held;
  mb_session* session;
  if (argc != 3) {
    fprintf(stderr, "usage: transfer PACKAGE IMAGES\n");
    return 2;
  }
  if (!read_images(argv[2], "train.bin", &few) || !read_images(argv[2], "held.bin", &held)) return 1;
  snprintf(path, sizeof path, "%s/model/checkpoint", argv[1]);
  session = open_session(argv[1], path);
  if (session == NULL) return 1;
  if (judge(session, &held, "before") != MB_OK || train(session, &few) != MB_OK) return fail(session);
  if (mb_save_checkpoint(session, "taught.checkpoint", 1) != MB_OK) return fail(session);
  mb_destroy(session);

  session = open_session(argv[1], "taught.checkpoint"); /* as after the application was started anew */
  if (session == NULL) return 1;
  if (judge(session, &held, "after") != MB_OK) return fail(session);
  snprintf(path, sizeof path, "%s/model/inference.template", argv[1]);
  if (mb_export_to_file(session, path, "classifier.onnx") != MB_OK) return fail(session);
  mb_destroy(session);
  free(few.labels), free(few.pixels), free(held.labels), free(held.pixels);
  return 0;
}
