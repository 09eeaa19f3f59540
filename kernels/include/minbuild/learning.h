/* Learning kit: schedules of the learning rate, early stopping, running means, a replay reservoir, and thresholds for
 * anomaly scores. Every function is static: a program holds those that it calls, at most 400 bytes each on a Cortex-M4F.
 * Nothing here allocates, calls the C library, or touches a session; the same functions in Python are
 * minbuild.training.learning_kit. */
#ifndef MINBUILD_LEARNING_H_
#define MINBUILD_LEARNING_H_

#include <stdint.h>

#if defined(__GNUC__)
#define MB_KIT static inline __attribute__((unused))
#else
#define MB_KIT static
#endif

/* Cosine schedule: from 0 up to `rate` over `warmup` steps, then along half a cosine down to `last` at step `total`, and
 * `last` from there on. `step` counts from 0. */
MB_KIT float mb_cosine_rate(float rate, float last, uint32_t step, uint32_t warmup, uint32_t total) {
  float at, square, cosine;
  if (step < warmup) return rate * ((float)step / (float)warmup);
  if (step >= total) return last;
  at = 0.5f - (float)(step - warmup) / (float)(total - warmup); /* cos(pi t) = sin(pi (1/2 - t)) */
  square = at * at;
  cosine = square * (0.0821458866f - square * 0.00737043095f) - 0.599264529f;
  cosine = at * (3.14159265f + square * (-5.16771278f + square * (2.55016404f + square * cosine)));
  return last + (rate - last) * 0.5f * (1.0f + cosine);
}

/* Step schedule: `rate`, multiplied by `factor` after every `every` steps. */
MB_KIT float mb_step_rate(float rate, float factor, uint32_t step, uint32_t every) {
  uint32_t times = every ? step / every : 0;
  for (; times; times >>= 1) {
    if (times & 1) rate *= factor;
    factor *= factor;
  }
  return rate;
}

/* Early stopping: set `patience` and `least_gain`, everything else to 0. */
typedef struct mb_early_stopping {
  float least_gain;  /* a loss counts as better where it is lower by more than this */
  uint32_t patience; /* losses in a row that are not better, after which to stop */
  float best;        /* the best loss so far */
  uint32_t best_at;  /* its number, from 0: the checkpoint to keep */
  uint32_t count;    /* losses so far */
} mb_early_stopping;

/* Takes the next loss of validation; 1 where training should stop. A loss that is no number is not better. */
MB_KIT int mb_early_stop(mb_early_stopping* state, float loss) {
  uint32_t at = state->count++;
  if (!at || loss < state->best - state->least_gain || (state->best != state->best && loss == loss)) {
    state->best = loss;
    state->best_at = at;
  }
  return at - state->best_at >= state->patience && at > state->best_at;
}

/* Running mean of a loss or an accuracy: set to 0 to begin. */
typedef struct mb_running_mean {
  float mean;
  uint32_t count;
} mb_running_mean;

/* Adds `count` values whose mean is `value`, such as the loss of a batch. */
MB_KIT void mb_add_mean(mb_running_mean* state, float value, uint32_t count) {
  state->count += count;
  if (state->count) state->mean += (value - state->mean) * ((float)count / (float)state->count);
}

/* Adds the accuracy of a batch: scores[rows][classes], and labels[rows]. The first of equal scores counts. */
MB_KIT void mb_add_accuracy(mb_running_mean* state, const float* scores, const int64_t* labels, uint32_t rows,
                            uint32_t classes) {
  uint32_t row, i, right = 0;
  for (row = 0; row < rows; ++row, scores += classes) {
    uint32_t best = 0;
    for (i = 1; i < classes; ++i)
      if (scores[i] > scores[best]) best = i;
    right += labels[row] == (int64_t)best;
  }
  if (rows) mb_add_mean(state, (float)right / (float)rows, rows);
}

/* Reservoir of past samples for replay: every sample so far is in one of `capacity` places with the same probability.
 * Set `capacity`, `seed` to any number, and `count` to 0. */
typedef struct mb_reservoir {
  uint32_t capacity;
  uint32_t count; /* samples so far */
  uint32_t seed;  /* of the next draw */
} mb_reservoir;

#define MB_NO_PLACE 0xffffffffu

/* A number from 0 to below `limit`. */
MB_KIT uint32_t mb_draw(mb_reservoir* state, uint32_t limit) {
  uint32_t x = state->seed += 0x9e3779b9u; /* a Weyl sequence, mixed as in MurmurHash3 */
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  x ^= x >> 16;
  return (uint32_t)(((uint64_t)x * limit) >> 32);
}

/* The place where the next sample goes, or MB_NO_PLACE where it is left out. */
MB_KIT uint32_t mb_reservoir_place(mb_reservoir* state) {
  uint32_t at = state->count < MB_NO_PLACE - 1 ? state->count++ : state->count;
  if (at >= state->capacity) at = mb_draw(state, at + 1);
  return at < state->capacity ? at : MB_NO_PLACE;
}

/* The place of a sample to replay, or MB_NO_PLACE while there is none. */
MB_KIT uint32_t mb_reservoir_pick(mb_reservoir* state) {
  uint32_t held = state->count < state->capacity ? state->count : state->capacity;
  return held ? mb_draw(state, held) : MB_NO_PLACE;
}

/* Threshold for anomaly scores: mean and variance of the scores of normal samples. Set `forget` to 0, for all samples
 * alike, or to the weight of a new one, such as 0.01; everything else to 0. */
typedef struct mb_threshold {
  float forget;
  float mean;
  float variance;
  uint32_t count;
  uint32_t votes; /* the last 32 verdicts, newest in bit 0 */
} mb_threshold;

/* Adds the score of a normal sample. */
MB_KIT void mb_threshold_add(mb_threshold* state, float score) {
  float weight, difference = score - state->mean;
  state->count += 1;
  weight = 1.0f / (float)state->count;
  if (weight < state->forget) weight = state->forget;
  state->mean += weight * difference;
  state->variance = (1.0f - weight) * (state->variance + weight * difference * difference);
}

/* 1 where a score is more than `deviations` standard deviations above the mean, or no number. */
MB_KIT int mb_threshold_exceeded(const mb_threshold* state, float score, float deviations) {
  float above = score - state->mean;
  return !(above <= 0.0f || above * above <= deviations * deviations * state->variance);
}

/* The same by a vote: 1 where at least `needed` of the last `window` scores, 1 to 32 of them, exceeded. */
MB_KIT int mb_threshold_vote(mb_threshold* state, float score, float deviations, uint32_t window, uint32_t needed) {
  uint32_t recent;
  state->votes = (state->votes << 1) | (uint32_t)mb_threshold_exceeded(state, score, deviations);
  for (recent = window < 32 ? state->votes & ((1u << window) - 1u) : state->votes; recent && needed; --needed)
    recent &= recent - 1u; /* without its lowest bit */
  return !needed;
}

#endif /* MINBUILD_LEARNING_H_ */
