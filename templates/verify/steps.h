/* Watches a session step by step; what runner.c knows and steps.cc needs. */
#ifndef STEPS_H_
#define STEPS_H_

#include <stddef.h>

/* What is done at every step besides running it. */
enum {
  STEPS_RUN,     /* nothing */
  STEPS_FOLLOW,  /* sends what the step wrote, and replaces it by what the file `trace` has next */
  STEPS_MEASURE, /* sends what the step wrote, and how far rounding of its inputs moves that */
  STEPS_DISTURB, /* rounds its inputs otherwise */
  STEPS_LOOK     /* sends only whether it changed what is not its own */
};
/* `seed` is that of the disturbance. */
void steps_choose(int what, unsigned seed, int garbage);
/* Bytes that a session may read, and of which a step changes only its outputs and scratch; the session itself first. */
void steps_watch(void* start, size_t size);
/* Forgets all but the first `count`. */
void steps_unwatch(size_t count);
/* Before a run: whatever else changed since the last one is as it should be. */
void steps_begin(void);

#endif
