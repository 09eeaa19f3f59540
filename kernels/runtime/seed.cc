// The seed of random numbers, in libraries that draw some.
#include "runtime/session.h"

#ifdef MB_INSTANTIATE_RANDOM_NUMBERS
extern "C" {

void mb_set_seed(mb_session* s, int64_t seed) { s->counters->draws = seed; }

int64_t mb_seed(const mb_session* s) { return s->counters->draws; }

}  // extern "C"
#endif
