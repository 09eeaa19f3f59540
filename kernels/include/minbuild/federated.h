/* A federated client on a device: the update since a round began, as one array of floats, clipped, noised, and in int8.
 * Every function is static: a program holds those that it calls. Nothing here allocates, calls the C library, or touches
 * a session; the same in Python is minbuild.federated. Parameters come from and go to a session with
 * mb_copy_parameters_to_buffer and mb_copy_buffer_to_parameters (`--with buffers`). */
#ifndef MINBUILD_FEDERATED_H_
#define MINBUILD_FEDERATED_H_

#include <stdint.h>

#if defined(__GNUC__)
#define MB_FEDERATED static inline __attribute__((unused))
#else
#define MB_FEDERATED static
#endif

/* A source of 32 random bits. Noise protects nobody from who can predict it: give the chip's generator of true random
 * numbers, or one for cryptography. */
typedef struct mb_random {
  uint32_t (*bits)(void* user);
  void* user;
} mb_random;

/* The update of a round: `parameters`, after training, become their difference from `server`, which the round began
 * with. */
MB_FEDERATED void mb_update_since(float* parameters, const float* server, uint32_t count) {
  uint32_t i;
  for (i = 0; i < count; ++i) parameters[i] -= server[i];
}

/* The square root, within one unit in the last place; 0 of what is not above 0. */
MB_FEDERATED float mb_root(float x) {
  union {
    float number;
    uint32_t bits;
  } root;
  int i;
  if (!(x > 0.0f)) return 0.0f;
  root.number = x;
  root.bits = (root.bits >> 1) + 0x1fc00000u; /* half the exponent: within 6 % */
  for (i = 0; i < 4; ++i) root.number = 0.5f * (root.number + x / root.number);
  return root.number;
}

/* The Euclidean norm; infinite where a number is not finite. Squares are taken of numbers over the largest one, so they
 * neither overflow nor vanish, and added with the bits that sums lose. */
MB_FEDERATED float mb_update_norm(const float* update, uint32_t count) {
  const float infinity = 3.4028234e38f * 2.0f;
  float most = 0.0f, sum = 0.0f, lost = 0.0f;
  uint32_t i;
  for (i = 0; i < count; ++i) {
    float size = update[i] < 0.0f ? -update[i] : update[i];
    if (!(size < infinity)) return infinity;
    if (size > most) most = size;
  }
  if (most == 0.0f) return 0.0f;
  for (i = 0; i < count; ++i) {
    float part = update[i] / most, next;
    part = part * part - lost;
    next = sum + part;
    lost = (next - sum) - part;
    sum = next;
  }
  return most * mb_root(sum);
}

/* Scales the update down to Euclidean norm `norm`, above 0, where it is longer. 0, and nothing changes, where it is not
 * finite: training diverged. */
MB_FEDERATED int mb_update_clip(float* update, uint32_t count, float norm) {
  float length = mb_update_norm(update, count), scale;
  uint32_t i;
  if (!(length <= 3.4028234e38f)) return 0;
  if (length <= norm) return 1;
  scale = norm / length;
  for (i = 0; i < count; ++i) update[i] *= scale;
  return 1;
}

/* The natural logarithm of a number that is normal and above 0, within 2e-7 of 1 or of itself. */
MB_FEDERATED float mb_natural_log(float x) {
  union {
    float number;
    uint32_t bits;
  } part;
  float at, square;
  int32_t exponent;
  part.number = x;
  exponent = (int32_t)((part.bits - 0x3f3504f3u) >> 23); /* the rest is from 1/sqrt(2) to below sqrt(2) */
  exponent = exponent >= 256 ? exponent - 512 : exponent;
  part.bits -= (uint32_t)exponent << 23;
  at = (part.number - 1.0f) / (part.number + 1.0f); /* log x = 2 (at + at^3/3 + at^5/5 + ...) */
  square = at * at;
  at += at * square * (0.333333343f + square * (0.2f + square * (0.142857149f + square * 0.111111111f)));
  return (float)exponent * 0.693147182f + 2.0f * at;
}

/* Two normally distributed numbers with mean 0 and deviation 1, by Box and Muller: at most 6.66. */
MB_FEDERATED void mb_normal_pair(mb_random* random, float* first, float* second) {
  uint32_t bits = random->bits(random->user), turn = random->bits(random->user);
  float radius = mb_root(-2.0f * mb_natural_log(((float)bits + 1.0f) * 2.32830644e-10f));
  float at = (float)(int32_t)(turn << 2) * 3.65733836e-10f; /* an angle from -pi/4 to pi/4; two bits are left */
  float square = at * at;
  float sine = at * (1.0f + square * (-0.166666672f + square * (0.00833333377f - square * 0.000198412701f)));
  float cosine =
      1.0f + square * (-0.5f + square * (0.0416666679f + square * (-0.00138888892f + square * 2.48015876e-5f)));
  if (turn & 0x80000000u) radius = -radius;
  *first = radius * (turn & 0x40000000u ? cosine : sine);
  *second = radius * (turn & 0x40000000u ? sine : cosine);
}

/* Adds Gaussian noise of standard deviation `deviation` to each number. For central differential privacy of the mean of n
 * clipped updates, each client adds noise_multiplier * norm / sqrt(n). */
MB_FEDERATED void mb_update_noise(float* update, uint32_t count, float deviation, mb_random* random) {
  uint32_t i;
  for (i = 0; i < count; i += 2) {
    float first, second;
    mb_normal_pair(random, &first, &second);
    update[i] += deviation * first;
    if (i + 1 < count) update[i + 1] += deviation * second;
  }
}

/* The update in int8, rounded up or down at random so that its expectation stays. Every `block` numbers share a scale, the
 * largest of them over 127: scales[ceil(count / block)]. The server multiplies values with their scale.
 * 0, and what was written means nothing, where the update is not finite. */
MB_FEDERATED int mb_update_quantize(const float* update, uint32_t count, uint32_t block, int8_t* values, float* scales,
                                    mb_random* random) {
  uint32_t first, i;
  for (first = 0; first < count; first += block) {
    uint32_t end = count - first < block ? count : first + block;
    float most = 0.0f, scale;
    for (i = first; i < end; ++i) {
      float size = update[i] < 0.0f ? -update[i] : update[i];
      if (!(size <= 3.4028234e38f)) return 0;
      if (size > most) most = size;
    }
    *scales++ = scale = most / 127.0f;
    for (i = first; i < end; ++i) {
      float step = scale > 0.0f ? update[i] / scale : 0.0f;
      int32_t down = (int32_t)step - (step < (float)(int32_t)step);
      /* 24 bits: all of them are in a float */
      int32_t value = down + ((float)(random->bits(random->user) >> 8) * 5.96046448e-8f + (step - (float)down) >= 1.0f);
      values[i] = (int8_t)(value > 127 ? 127 : value < -127 ? -127 : value);
    }
  }
  return 1;
}

#endif /* MINBUILD_FEDERATED_H_ */
