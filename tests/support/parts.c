/* Calls what trainer.h has beyond training: parameters, schedule, properties, buffers, export. Arguments: plan, checkpoint,
 * template, name of a trained parameter, file to export to. Says nothing if all is as it should be. */
#include <minbuild/trainer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                    \
  do {                                                 \
    if (!(what)) {                                     \
      printf("line %d: %s\n", __LINE__, #what);        \
      return 1;                                        \
    }                                                  \
  } while (0)

static int near(float a, float b) { return a - b < 1e-6f && b - a < 1e-6f; }

static int parameters(mb_session* session, const char* name) {
  mb_parameter found;
  mb_tensor mine;
  size_t bytes, i;
  float* values;
  CHECK(mb_find_parameter(session, name, &found) == MB_OK && found.kind == MB_TRAINABLE);
  mine = found.value;
  CHECK(mb_match_parameter(session, name, &mine, &found, &bytes) == MB_OK);
  mine.data = values = malloc(bytes);
  CHECK(mb_read_parameter(session, name, &mine) == MB_OK && memcmp(values, found.value.data, bytes) == 0);
  for (i = 0; i < bytes / 4; ++i) values[i] = (float)i;
  CHECK(mb_update_parameter(session, name, &mine) == MB_OK && memcmp(values, found.value.data, bytes) == 0);
  mine.dims[0] += 1;
  CHECK(mb_update_parameter(session, name, &mine) == MB_BAD_SHAPE);
  mine.dims[0] -= 1;
  mine.type = MB_DOUBLE;
  CHECK(mb_read_parameter(session, name, &mine) == MB_BAD_SHAPE);
  CHECK(mb_read_parameter(session, "nobody", &mine) == MB_INVALID_ARGUMENT);
  free(values);
  return 0;
}

static int schedule(mb_session* session) {
  mb_linear_schedule linear;
  const float wanted[] = {0.0f, 0.25f, 0.5f, 0.375f, 0.25f, 0.125f, 0.0f, 0.0f};
  int i;
  mb_schedule_linear(session, &linear, 2, 6, 0.5f);
  CHECK(mb_learning_rate(session) == 0.5f); /* until the first step of the schedule */
  for (i = 0; i < 8; ++i) {
    session->progress->step = i;
    mb_schedule_step(session, &linear);
    CHECK(near(mb_learning_rate(session), wanted[i]));
  }
  mb_schedule_linear(session, &linear, 0, 0, 1.0f);
  mb_schedule_step(session, &linear);
  CHECK(mb_learning_rate(session) == 0.0f);
  return 0;
}

static int properties(mb_session* session) {
  mb_property property = {"epoch", NULL, 7, 0, MB_INT64}, found;
  CHECK(mb_set_property(session, &property) == MB_OK);
  CHECK(mb_find_property(session, "epoch", &found) == MB_OK && found.type == MB_INT64 && found.integer == 7);
  property.type = MB_STRING;
  property.text = "seven";
  CHECK(mb_set_property(session, &property) == MB_OK);
  CHECK(mb_find_property(session, "epoch", &found) == MB_OK && strcmp(found.text, "seven") == 0);
  property.type = MB_DOUBLE;
  CHECK(mb_set_property(session, &property) == MB_INVALID_ARGUMENT);
  /* What was found may be set again, and others keep their place. */
  property = (mb_property){"note", "halfway", 0, 0, MB_STRING};
  CHECK(mb_set_property(session, &property) == MB_OK);
  CHECK(mb_find_property(session, "epoch", &found) == MB_OK && mb_set_property(session, &found) == MB_OK);
  CHECK(mb_find_property(session, "epoch", &found) == MB_OK && strcmp(found.text, "seven") == 0);
  CHECK(mb_find_property(session, "note", &property) == MB_OK && strcmp(property.text, "halfway") == 0);
  found.text = property.text;
  CHECK(mb_set_property(session, &found) == MB_OK && mb_find_property(session, "epoch", &found) == MB_OK);
  CHECK(strcmp(found.text, "halfway") == 0 && found.type == MB_STRING);
  property = (mb_property){"epoch", NULL, 0, 0, 0};
  CHECK(mb_set_property(session, &property) == MB_OK);
  CHECK(mb_find_property(session, "epoch", &found) == MB_INVALID_ARGUMENT);
  return 0;
}

static int buffers(mb_session* session, mb_session* other) {
  size_t count, trained;
  float* values;
  CHECK(mb_parameters_size(session, 0, &count) == MB_OK && mb_parameters_size(session, 1, &trained) == MB_OK);
  CHECK(trained <= count && trained > 0);
  values = malloc(count * sizeof *values);
  CHECK(mb_copy_parameters_to_buffer(session, values, count + 1, 0) == MB_INVALID_ARGUMENT);
  CHECK(mb_copy_parameters_to_buffer(session, values, count, 0) == MB_OK);
  CHECK(mb_copy_buffer_to_parameters(other, values, count, 0) == MB_OK);
  free(values);
  return 0;
}

typedef struct bytes {
  char* data;
  size_t size;
} bytes;

static int gather(void* user, const void* data, size_t size) {
  bytes* all = user;
  all->data = realloc(all->data, all->size + size);
  memcpy(all->data + all->size, data, size);
  all->size += size;
  return 0;
}
static int refuse(void* user, const void* data, size_t size) {
  (void)user, (void)data, (void)size;
  return 1;
}

static bytes read_all(const char* path) {
  bytes all = {NULL, 0};
  char piece[4096];
  size_t got;
  FILE* file = fopen(path, "rb");
  while (file != NULL && (got = fread(piece, 1, sizeof piece, file)) > 0) gather(&all, piece, got);
  if (file != NULL) fclose(file);
  return all;
}

static int exporting(mb_session* session, mb_session* other, const char* template_path, const char* path) {
  bytes template = read_all(template_path), first = {NULL, 0}, second = {NULL, 0}, file;
  CHECK(mb_export_model(session, template.data, template.size, gather, &first) == MB_OK && first.size > template.size / 2);
  CHECK(mb_export_model(other, template.data, template.size, gather, &second) == MB_OK); /* which has the same parameters */
  CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  CHECK(mb_export_model(session, template.data, template.size, refuse, NULL) == MB_IO);
  CHECK(mb_export_model(session, template.data, template.size - 1, gather, &second) == MB_BAD_PLAN);
  CHECK(mb_export_to_file(session, template_path, path) == MB_OK);
  file = read_all(path);
  CHECK(file.size == first.size && memcmp(file.data, first.data, file.size) == 0);
  free(template.data), free(first.data), free(second.data), free(file.data);
  return 0;
}

/* Two sessions read one plan and one checkpoint, and write to neither. */
static int sharing(const char* plan_path, const char* checkpoint_path) {
  bytes plan = read_all(plan_path), checkpoint = read_all(checkpoint_path), again;
  mb_session* sessions[2];
  mb_parameter first, second;
  int i;
  for (i = 0; i < 2; ++i) {
    mb_options options = {0};
    CHECK(mb_create(plan.data, plan.size, checkpoint.data, checkpoint.size, &options, &sessions[i]) == MB_OK);
  }
  CHECK(mb_get_parameter(sessions[0], 0, &first) == MB_OK && mb_get_parameter(sessions[1], 0, &second) == MB_OK);
  CHECK(first.value.data != second.value.data && first.name == second.name);
  ((float*)first.value.data)[0] += 1;
  CHECK(((float*)first.value.data)[0] != ((float*)second.value.data)[0]);
  for (i = 0; i < 2; ++i) mb_destroy(sessions[i]);
  again = read_all(plan_path);
  CHECK(again.size == plan.size && memcmp(again.data, plan.data, plan.size) == 0);
  free(again.data);
  again = read_all(checkpoint_path);
  CHECK(again.size == checkpoint.size && memcmp(again.data, checkpoint.data, checkpoint.size) == 0);
  free(again.data), free(plan.data), free(checkpoint.data);
  return 0;
}

int main(int count, char** paths) {
  mb_options options = {0};
  mb_session *session, *other;
  CHECK(count == 6);
  CHECK(mb_create_from_files(paths[1], paths[2], &options, NULL) == MB_OK && options.arena_size > 0);
  memset(&options, 0, sizeof options);
  CHECK(mb_create_from_files(paths[1], paths[2], &options, &session) == MB_OK);
  memset(&options, 0, sizeof options);
  CHECK(mb_create_from_files(paths[1], paths[2], &options, &other) == MB_OK);
  if (parameters(session, paths[4]) || schedule(session) || properties(session) || buffers(session, other) ||
      exporting(session, other, paths[3], paths[5]) || sharing(paths[1], paths[2]))
    return 1;
  mb_destroy(session);
  mb_destroy(other);
  return 0;
}
