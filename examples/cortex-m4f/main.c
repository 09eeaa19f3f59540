/* Learns how a motor vibrates when it is well, on the motor, and then says which windows are not like that.
 *
 * An autoencoder is trained to repeat the windows that it sees; what it cannot repeat is unlike what it has learned. The
 * windows stay in flash and are converted one at a time; first weights are read in place. RAM holds the arena,
 * one window, and the page that stands for the flash sector where a checkpoint is kept. */
#include <minbuild/trainer.h>
#include <string.h>

#include "board.h"

enum { SAMPLES = 64, NORMAL = 400, TESTED = 100, LEARNED = 300, EPOCHS = 12 };

extern const unsigned char checkpoint[], checkpoint_end[];
extern const int16_t windows[];

static _Alignas(16) unsigned char arena[24 * 1024];
static _Alignas(8) unsigned char page[8 * 1024];
static size_t page_used;

static void check(mb_status status, const char* what) {
  if (status == MB_OK) return;
  put(what);
  put(" failed: ");
  put_number(status);
  put("\n");
  stop(1);
}

static mb_session* open_session(const void* from, size_t size) {
  mb_options options = {0};
  mb_session* session = NULL;
  options.arena = arena;
  options.arena_size = sizeof arena;
  check(mb_create(NULL, 0, from, size, &options, &session), "mb_create");
  return session;
}

/* A window is input and target alike. */
static float* load(int number, mb_tensor inputs[2]) {
  static float window[SAMPLES];
  const int16_t* samples = windows + (size_t)number * SAMPLES;
  int i;
  for (i = 0; i < SAMPLES; ++i) window[i] = (float)samples[i] * (1.0f / 8000.0f);
  inputs[0] = inputs[1] = (mb_tensor){window, MB_FLOAT, 2, {1, SAMPLES}};
  return window;
}

static float loss_of(const mb_session* session, int graph) {
  const char* name;
  mb_tensor loss;
  check(mb_output(session, graph, 0, &name, &loss), "mb_output");
  return *(const float*)loss.data;
}

static float learn(mb_session* session, int number) {
  mb_tensor inputs[2];
  load(number, inputs);
  check(mb_train_step(session, inputs, 2), "mb_train_step");
  check(mb_optimizer_step(session), "mb_optimizer_step");
  mb_lazy_reset_grad(session);
  return loss_of(session, MB_TRAIN);
}

static float score(mb_session* session, int number) {
  mb_tensor inputs[2];
  load(number, inputs);
  check(mb_eval_step(session, inputs, 2), "mb_eval_step");
  return loss_of(session, MB_EVAL);
}

/* A real board erases a sector before this and programs it here. */
static int keep(void* user, const void* bytes, size_t size) {
  (void)user;
  if (size > sizeof page - page_used) return 1;
  memcpy(page + page_used, bytes, size);
  page_used += size;
  return 0;
}

static void say(const char* text, uint32_t number, const char* unit) {
  put(text);
  put_number(number);
  put(unit);
}

int main(void) {
  mb_session* session = open_session(checkpoint, (size_t)(checkpoint_end - checkpoint));
  float sum = 0, largest = 0;
  uint32_t found = 0, false_alarms = 0;
  int i, epoch;

  mb_set_learning_rate(session, 0.2f);
  for (epoch = 0; epoch < EPOCHS; ++epoch) {
    for (sum = 0, i = 0; i < LEARNED; ++i) sum += learn(session, i);
    if (epoch % 4 == 3) {
      say("epoch ", (uint32_t)epoch + 1, ": ");
      say("mean squared error ", (uint32_t)(sum / LEARNED * 1e6f), " millionths\n");
    }
  }

  /* As after a restart: the session goes, and another one begins with what was kept. */
  check(mb_write_checkpoint(session, 0, keep, NULL), "mb_write_checkpoint");
  mb_destroy(session);
  session = open_session(page, page_used);

  /* The limit comes from normal windows that were not learned. */
  for (i = LEARNED; i < NORMAL; ++i) {
    const float error = score(session, i);
    largest = error > largest ? error : largest;
  }
  for (i = 0; i < TESTED; ++i) {
    const uint32_t alarm = score(session, NORMAL + i) > 1.5f * largest;
    if (i % 2 == 1) found += alarm;
    else false_alarms += alarm;
  }
  say("damaged: ", found, " of 50 found\n");
  say("normal: ", false_alarms, " of 50 taken for damaged\n");
  say("checkpoint: ", (uint32_t)page_used, " bytes\n");
  mb_destroy(session);
  return found >= 45 && false_alarms <= 2 ? 0 : 1;
}
