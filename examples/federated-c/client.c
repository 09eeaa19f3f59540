/* A round of one federated client: takes the server's parameters from standard input, trains on its own samples, and
 * writes the clipped update to standard output, in int8 with a scale for every 256 numbers.
 *
 *   client DIST SAMPLES [--float]     DIST is the package, SAMPLES a file with rows of 64 floats and a label;
 *                                     --float writes the update as it is
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "minbuild/federated.h"
#include "minbuild/trainer.h"

enum { PIXELS = 64, BATCH = 20, EPOCHS = 2, BLOCK = 256 };
static const float kRate = 0.2f, kNorm = 1.5f, kDeviation = 0.0005f; /* of training, of clipping, of noise */

static float pixels[BATCH * PIXELS];
static int64_t labels[BATCH];
static const mb_tensor inputs[] = {{pixels, MB_FLOAT, 2, {BATCH, PIXELS}}, {labels, MB_INT64, 1, {BATCH}}};

static void stop(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* Random bits of the system; on a chip, of its generator. */
static uint32_t system_bits(void* user) {
  uint32_t bits;
  if (fread(&bits, sizeof bits, 1, (FILE*)user) != 1) stop("random", "no bits");
  return bits;
}

static void train(mb_session* session, FILE* samples) {
  int epoch, row;
  for (epoch = 0; epoch < EPOCHS; ++epoch) {
    for (rewind(samples), row = 0; fread(pixels + row * PIXELS, 4, PIXELS, samples) == PIXELS; ++row) {
      if (fread(labels + row, 8, 1, samples) != 1) stop("read", "a sample without a label");
      if (row + 1 < BATCH) continue;
      if (mb_train_step(session, inputs, 2) != MB_OK) stop("train step", mb_last_error(session));
      if (mb_optimizer_step(session) != MB_OK) stop("optimizer step", mb_last_error(session));
      mb_lazy_reset_grad(session);
      row = -1;
    }
  }
}

static void send(float* update, uint32_t count) {
  uint32_t blocks = (count + BLOCK - 1) / BLOCK;
  int8_t* values = malloc(count);
  float* scales = malloc(blocks * sizeof *scales);
  mb_random random = {system_bits, fopen("/dev/urandom", "rb")};
  if (!values || !scales || !random.user) stop("memory", "not enough");
  mb_update_noise(update, count, kDeviation, &random);
  if (!mb_update_quantize(update, count, BLOCK, values, scales, &random)) stop("update", "not finite");
  fwrite(scales, sizeof *scales, blocks, stdout);
  fwrite(values, 1, count, stdout);
}

int main(int argc, char** argv) {
  static char plan[4096], checkpoint[4096];
  mb_options options = {0};
  mb_session* session = NULL;
  float *server, *update;
  size_t count;
  FILE* samples;
  if (argc < 3) stop("usage", "client DIST SAMPLES [--float]");
  snprintf(plan, sizeof plan, "%s/model/trainer.plan", argv[1]);
  snprintf(checkpoint, sizeof checkpoint, "%s/model/checkpoint", argv[1]);
  if (mb_create_from_files(plan, checkpoint, &options, &session) != MB_OK) stop("create", options.error);
  if (!(samples = fopen(argv[2], "rb"))) stop("read", argv[2]);
  if (mb_parameters_size(session, 1, &count) != MB_OK) stop("parameters", mb_last_error(session));
  server = malloc(count * sizeof *server);
  update = malloc(count * sizeof *update);
  if (!server || !update || fread(server, 4, count, stdin) != count) stop("read", "the server's parameters");
  if (mb_copy_buffer_to_parameters(session, server, count, 1) != MB_OK) stop("load", mb_last_error(session));
  mb_set_learning_rate(session, kRate);
  train(session, samples);
  if (mb_copy_parameters_to_buffer(session, update, count, 1) != MB_OK) stop("copy", mb_last_error(session));
  mb_update_since(update, server, (uint32_t)count);
  if (!mb_update_clip(update, (uint32_t)count, kNorm)) stop("update", "not finite: lower the learning rate");
  if (argc > 3 && !strcmp(argv[3], "--float"))
    fwrite(update, 4, count, stdout);
  else
    send(update, (uint32_t)count);
  mb_destroy(session);
  return fflush(stdout) ? 1 : 0;
}
