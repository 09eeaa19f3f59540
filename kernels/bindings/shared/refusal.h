/* Refused batches in words: which input is what, and what the model takes. For hosts, beside the library: nothing here is
 * compiled into it. model_inputs.h, which is generated, describes the models of the package. */
#ifndef MINBUILD_REFUSAL_H_
#define MINBUILD_REFUSAL_H_

#include <stddef.h>
#include <stdint.h>

#include "minbuild/trainer.h"

typedef struct mb_model_input {
  const char* name;
  int32_t type, rank;
  int32_t dims[MB_MAX_RANK]; /* a size; -1 for one that depends on others; -2 - n for free dimension n */
  int32_t classes;           /* labels are 0 to classes - 1; 0 where the input is no labels of a loss */
  int32_t ignores, ignored;  /* whether there is a label that the loss leaves out, and which */
} mb_model_input;

typedef struct mb_model_symbol {
  const char* name;
  int32_t largest; /* of sessions that are created without sizes */
} mb_model_symbol;

typedef struct mb_model {
  uint32_t key;
  const mb_model_symbol* symbols;
  size_t symbol_count;
  const mb_model_input* inputs[2]; /* of MB_TRAIN and MB_EVAL */
  size_t counts[2];
} mb_model;

#include "model_inputs.h"

/* A text in a buffer of 160 bytes, that of mb_options.error. What has no room is left out, whole characters at a time. */
typedef struct mb_text {
  char* at;
  size_t room;
} mb_text;

static inline void mb_add(mb_text* text, const char* more) {
  for (; *more != 0; ++more) {
    size_t i, length = 1;
    while (((unsigned char)more[length] & 0xc0) == 0x80) ++length;
    if (length > text->room) text->room = 0;
    for (i = 0; i < length && text->room > 0; ++i, --text->room) *text->at++ = more[i];
    more += length - 1;
  }
  *text->at = 0;
}

static inline void mb_add_number(mb_text* text, int64_t number) {
  char digits[21];
  char* first = digits + sizeof digits - 1;
  uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  *first = 0;
  do *--first = (char)('0' + rest % 10);
  while ((rest /= 10) != 0);
  if (number < 0) *--first = '-';
  mb_add(text, first);
}

static inline const char* mb_type_name(int32_t type) {
  static const char* const names[17] = {"of no type", "float32", "uint8",  "int8", "uint16",  "int16",
                                        "int32",      "int64",   "string", "bool", "float16", "float64",
                                        "uint32",     "uint64",  "?",      "?",    "bfloat16"};
  return type >= 0 && type < 17 ? names[type] : "of no type";
}

/* The hash of one input or parameter, for mb_model.key. */
static inline uint32_t mb_hash(const mb_parameter* found) {
  uint32_t hash = 0x811c9dc5;
  const char* name;
  int32_t i, shift;
  for (name = found->name; *name != 0; ++name) hash = (hash ^ (unsigned char)*name) * 0x01000193;
  for (i = -1; i < found->value.rank; ++i) {
    uint32_t number = (uint32_t)(i < 0 ? found->value.type : found->value.dims[i]);
    for (shift = 0; shift < 32; shift += 8) hash = (hash ^ (number >> shift & 255)) * 0x01000193;
  }
  return hash;
}

/* The model that a session trains; null where it is none of the package's, as its plan came from elsewhere. */
static inline const mb_model* mb_model_of(const mb_session* session) {
  static const int lists[3] = {2 * MB_TRAIN + MB_INPUTS, 2 * MB_EVAL + MB_INPUTS, MB_PARAMETERS};
  mb_parameter found;
  uint32_t key = 0;
  size_t i, k;
  for (k = 0; k < 3; ++k)
    for (i = 0; mb_get(session, lists[k], i, &found) == MB_OK; ++i) key += mb_hash(&found);
  for (i = 0; i < MB_MODEL_COUNT; ++i)
    if (mb_models[i].key == key) return &mb_models[i];
  return NULL;
}

static inline void mb_add_name(mb_text* text, const char* name) {
  mb_add(text, "input '"), mb_add(text, name), mb_add(text, "'");
}

static inline void mb_add_shape(mb_text* text, const mb_model* model, int32_t rank, const int32_t* dims) {
  int32_t i;
  mb_add(text, "[");
  for (i = 0; i < rank && i < MB_MAX_RANK; ++i) {
    if (i > 0) mb_add(text, ", ");
    if (dims[i] >= 0) mb_add_number(text, dims[i]);
    else mb_add(text, model == NULL || dims[i] == -1 ? "?" : model->symbols[-2 - dims[i]].name);
  }
  mb_add(text, "]");
}

/* Another number of inputs than the model has. */
static inline int mb_count_refused(mb_text* text, const mb_model* model, int graph, size_t count) {
  size_t i;
  if (count == model->counts[graph]) return 0;
  mb_add_number(text, (int64_t)count);
  mb_add(text, count == 1 ? " input was given, the model takes " : " inputs were given, the model takes ");
  mb_add_number(text, (int64_t)model->counts[graph]);
  for (i = 0; i < model->counts[graph]; ++i)
    mb_add(text, i > 0 ? ", " : ": "), mb_add(text, model->inputs[graph][i].name);
  mb_add(text, ".");
  return 1;
}

/* The size along a free dimension of the first input that has it; one has. */
static inline int32_t mb_first_size(const mb_model_input* inputs, const mb_tensor* tensors, int32_t symbol,
                                    size_t* first) {
  int32_t axis;
  for (*first = 0;; ++*first)
    for (axis = 0; axis < inputs[*first].rank; ++axis)
      if (inputs[*first].dims[axis] == symbol) return tensors[*first].dims[axis];
}

/* The first input whose type, rank or size is not what the model takes. */
static inline int mb_shape_refused(mb_text* text, const mb_model* model, const mb_model_input* inputs,
                                   const mb_tensor* tensors, size_t count) {
  size_t i, first;
  int32_t axis;
  for (i = 0; i < count; ++i) {
    const mb_model_input* expected = &inputs[i];
    const mb_tensor* tensor = &tensors[i];
    int unlike = tensor->rank != expected->rank;
    if (tensor->type != expected->type) {
      mb_add_name(text, expected->name);
      mb_add(text, " is "), mb_add(text, mb_type_name(tensor->type));
      mb_add(text, ", the model takes "), mb_add(text, mb_type_name(expected->type)), mb_add(text, ".");
      return 1;
    }
    if (tensor->rank < 0) {
      mb_add_name(text, expected->name), mb_add(text, " has more or fewer elements than its dimensions say.");
      return 1;
    }
    for (axis = 0; !unlike && axis < expected->rank; ++axis)
      unlike = expected->dims[axis] >= 0 && expected->dims[axis] != tensor->dims[axis];
    if (unlike) {
      mb_add_name(text, expected->name);
      mb_add(text, " has the shape "), mb_add_shape(text, NULL, tensor->rank, tensor->dims);
      mb_add(text, ", the model takes "), mb_add_shape(text, model, expected->rank, expected->dims), mb_add(text, ".");
      return 1;
    }
    for (axis = 0; axis < expected->rank; ++axis) {
      const int32_t symbol = expected->dims[axis], size = tensor->dims[axis];
      int32_t before;
      if (symbol > -2) continue;
      before = mb_first_size(inputs, tensors, symbol, &first);
      if (before == size && size > 0) continue;
      mb_add_name(text, expected->name);
      mb_add(text, size == before ? " is empty along '" : " has ");
      if (size != before) mb_add_number(text, size), mb_add(text, " along '");
      mb_add(text, model->symbols[-2 - symbol].name);
      if (size == before) return mb_add(text, "', which is 1 at least."), 1;
      mb_add(text, "', "), mb_add_name(text, inputs[first].name), mb_add(text, " has ");
      mb_add_number(text, before), mb_add(text, ".");
      return 1;
    }
  }
  return 0;
}

/* A label of a loss that is no class, where an input has the labels as they are. */
static inline int mb_label_refused(mb_text* text, const mb_model_input* inputs, const mb_tensor* tensors,
                                   size_t count) {
  size_t i, at, size;
  int32_t axis;
  for (i = 0; i < count; ++i) {
    const mb_model_input* expected = &inputs[i];
    if (expected->classes == 0 || (expected->type != MB_INT64 && expected->type != MB_INT32)) continue;
    for (axis = 0, size = 1; axis < tensors[i].rank; ++axis) size *= (size_t)tensors[i].dims[axis];
    for (at = 0; at < size; ++at) {
      const int64_t label =
          expected->type == MB_INT64 ? ((const int64_t*)tensors[i].data)[at] : ((const int32_t*)tensors[i].data)[at];
      if ((label >= 0 && label < expected->classes) || (expected->ignores && label == expected->ignored)) continue;
      mb_add(text, "label "), mb_add_number(text, label);
      mb_add(text, " is outside 0.."), mb_add_number(text, expected->classes - 1);
      if (tensors[i].rank == 1) {
        mb_add(text, " (sample "), mb_add_number(text, (int64_t)at);
      } else {
        int32_t place[MB_MAX_RANK] = {0};
        for (axis = tensors[i].rank - 1; axis >= 0; at /= (size_t)tensors[i].dims[axis--])
          place[axis] = (int32_t)(at % (size_t)tensors[i].dims[axis]);
        mb_add(text, " (place "), mb_add_shape(text, NULL, tensors[i].rank, place);
      }
      mb_add(text, " of "), mb_add_name(text, expected->name), mb_add(text, ").");
      return 1;
    }
  }
  return 0;
}

/* A free dimension that is larger than the session was created for. */
static inline int mb_size_refused(mb_text* text, const mb_model* model, const mb_model_input* inputs,
                                  const mb_tensor* tensors, size_t count, const int32_t* sizes) {
  size_t i;
  int32_t axis;
  for (i = 0; i < count; ++i)
    for (axis = 0; axis < inputs[i].rank; ++axis) {
      const int32_t dim = inputs[i].dims[axis];
      int32_t largest;
      if (dim > -2) continue;
      largest = sizes != NULL ? sizes[-2 - dim] : model->symbols[-2 - dim].largest;
      if (tensors[i].dims[axis] <= largest) continue;
      mb_add(text, model->symbols[-2 - dim].name), mb_add(text, " "), mb_add_number(text, tensors[i].dims[axis]);
      mb_add(text, " is above the "), mb_add_number(text, largest);
      mb_add(text, " this session has memory for. Create it with larger sizes.");
      return 1;
    }
  return 0;
}

/* Puts into mb_last_error the reason in `inputs` why mb_run of `graph` ended with `status`; leaves the library's own text
 * where they do not explain it. `sizes` are those that the session was created with, null for none. */
static inline void mb_explain_refusal(mb_session* session, int graph, mb_status status, const mb_tensor* inputs,
                                      size_t count, const int32_t* sizes) {
  char words[sizeof((mb_options*)0)->error] = "";
  mb_text text = {NULL, sizeof words - 1};
  const mb_model* model = graph == MB_TRAIN || graph == MB_EVAL ? mb_model_of(session) : NULL;
  const mb_model_input* expected;
  int found = 0;
  if (model == NULL) return;
  text.at = words;
  expected = model->inputs[graph];
  if (status == MB_INVALID_ARGUMENT) found = mb_count_refused(&text, model, graph, count);
  if (count != model->counts[graph] && !found) return;
  if (status == MB_BAD_SHAPE) found = mb_shape_refused(&text, model, expected, inputs, count);
  if (status == MB_BAD_VALUE) found = mb_label_refused(&text, expected, inputs, count);
  if (status == MB_OUT_OF_MEMORY) found = mb_size_refused(&text, model, expected, inputs, count, sizes);
  if (found) mb_copy(session->error, words, (size_t)(text.at - words) + 1);
}

#endif /* MINBUILD_REFUSAL_H_ */
