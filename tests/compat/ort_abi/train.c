/* A program for ONNX Runtime's C interface: trains on batches of a file and prints what it sees. ORT_HEADER is the header
 * of the training interface.
 *
 *   train FOLDER BATCHES STEPS RATE      FOLDER is that of the training artifacts */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include ORT_HEADER

enum { MAX_INPUTS = 4 };

static const OrtApi* api;
static const OrtTrainingApi* training;

static void must(OrtStatus* status) {
  if (status == NULL) return;
  printf("error %d: %s\n", (int)api->GetErrorCode(status), api->GetErrorMessage(status));
  api->ReleaseStatus(status);
  exit(1);
}

/* Prints why a call is refused. */
static void refused(OrtStatus* status) {
  if (status == NULL) exit(2);
  printf("refused %d: %s\n", (int)api->GetErrorCode(status), api->GetErrorMessage(status));
  api->ReleaseStatus(status);
}

static void read_all(void* to, size_t size, FILE* file) {
  if (fread(to, 1, size, file) != size) exit(3);
}

int main(int argc, char** argv) {
  const char* names[4] = {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"};
  char paths[4][512];
  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  OrtMemoryInfo* memory = NULL;
  OrtAllocator* allocator = NULL;
  OrtCheckpointState *state = NULL, *saved = NULL;
  OrtTrainingSession* session = NULL;
  OrtTensorTypeAndShapeInfo* info = NULL;
  OrtValue *inputs[MAX_INPUTS] = {NULL}, *output = NULL, *buffer = NULL;
  int32_t head[1 + MAX_INPUTS * 2];
  size_t count = 0, size = 0, rank = 0, bytes[MAX_INPUTS];
  char* data[MAX_INPUTS];
  char *text = NULL, *name = NULL;
  float *loss = NULL, rate = 0;
  int64_t dims[8], seven = 7;
  int step, i, steps, batches;
  enum OrtPropertyType type;
  FILE* file = NULL;

  if (argc != 5) return 4;
  file = fopen(argv[2], "rb");
  steps = atoi(argv[3]);

  api = OrtGetApiBase()->GetApi(1);
  for (i = 2; i <= 21; ++i)
    if (OrtGetApiBase()->GetApi((uint32_t)i) != api) return 5;
  if (OrtGetApiBase()->GetApi(99) != NULL) return 6;
  training = api->GetTrainingApi(21);
  for (i = 0; i < 4; ++i) snprintf(paths[i], sizeof paths[i], "%s/%s", argv[1], names[i]);

  must(api->CreateEnv(2, "test", &env));
  must(api->CreateSessionOptions(&options));
  must(api->SetIntraOpNumThreads(options, 1));
  must(api->GetAllocatorWithDefaultOptions(&allocator));
  must(api->CreateCpuMemoryInfo(0, 0, &memory));
  refused(api->SetOptimizedModelFilePath(options, "none"));
  refused(training->LoadCheckpoint("/nowhere", &state));
  must(training->LoadCheckpoint(paths[3], &state));
  refused(training->CreateTrainingSession(env, options, state, paths[3], NULL, NULL, &session));
  must(training->CreateTrainingSession(env, options, state, paths[0], paths[1], paths[2], &session));
  must(training->GetLearningRate(session, &rate));
  printf("rate %g\n", (double)rate);
  must(training->SetLearningRate(session, (float)atof(argv[4])));
  must(training->TrainingSessionGetTrainingModelInputCount(session, &count));
  printf("inputs");
  for (i = 0; i < (int)count; ++i) {
    must(training->TrainingSessionGetTrainingModelInputName(session, (size_t)i, allocator, &name));
    printf(" %s", name);
    must(api->AllocatorFree(allocator, name));
  }
  printf("\n");

  /* Batches: how many, and of each input its type, rank, dimensions and elements. */
  read_all(&batches, sizeof batches, file);
  for (i = 0; i < (int)count; ++i) {
    int32_t axis;
    read_all(head, 2 * sizeof *head, file);
    rank = (size_t)head[1];
    read_all(dims, rank * sizeof *dims, file);
    bytes[i] = head[0] == 1 || head[0] == 6 ? 4 : 8;
    for (axis = 0; axis < head[1]; ++axis) bytes[i] *= (size_t)dims[axis];
    data[i] = malloc(bytes[i] * (size_t)batches);
    read_all(data[i], bytes[i] * (size_t)batches, file);
    must(api->CreateTensorWithDataAsOrtValue(memory, data[i], bytes[i], dims, rank, head[0], &inputs[i]));
  }
  fclose(file);

  for (step = 0; step < steps; ++step) {
    for (i = 0; i < (int)count; ++i) { /* one tensor over the batch that comes next, as programs do that fill it */
      void* at = NULL;
      must(api->GetTensorMutableData(inputs[i], &at));
      if (step % batches > 0) memcpy(at, data[i] + bytes[i] * (size_t)(step % batches), bytes[i]);
      else if (step > 0) exit(7); /* batches are not used twice: the first has been written over */
    }
    if (output != NULL) api->ReleaseValue(output);
    output = NULL;
    must(training->TrainStep(session, NULL, count, (const OrtValue* const*)inputs, 1, &output));
    must(api->GetTensorMutableData(output, (void**)&loss));
    printf("loss %.9g\n", (double)*loss);
    must(training->OptimizerStep(session, NULL));
    must(training->LazyResetGrad(session));
  }
  must(training->EvalStep(session, NULL, count, (const OrtValue* const*)inputs, 1, &output));
  printf("eval %.9g\n", (double)*loss);
  must(api->GetTensorTypeAndShape(output, &info));
  must(api->GetDimensionsCount(info, &rank));
  printf("rank of the loss %d\n", (int)rank);
  api->ReleaseTensorTypeAndShapeInfo(info);
  refused(training->TrainStep(session, NULL, 1, (const OrtValue* const*)inputs, 1, &output));

  must(training->AddProperty(state, "epoch", 0, &seven));
  must(training->AddProperty(state, "who", 2, "somebody"));
  must(training->SaveCheckpoint(state, "saved", true));
  must(training->LoadCheckpoint("saved", &saved));
  must(training->GetProperty(saved, "who", allocator, &type, (void**)&text));
  printf("property %d %s\n", (int)type, text);
  must(api->AllocatorFree(allocator, text));

  must(training->GetParametersSize(session, &size, true));
  dims[0] = (int64_t)size;
  must(api->CreateTensorAsOrtValue(allocator, dims, 1, 1, &buffer));
  must(training->CopyParametersToBuffer(session, buffer, true));
  must(training->CopyBufferToParameters(session, buffer, true));
  printf("parameters %d\n", (int)size);
  refused(training->SchedulerStep(session));
  must(training->RegisterLinearLRScheduler(session, 8, 16, 0.5f));
  must(training->SchedulerStep(session));
  must(training->GetLearningRate(session, &rate));
  printf("scheduled %g\n", (double)rate);

  api->ReleaseValue(output);
  api->ReleaseValue(buffer);
  for (i = 0; i < (int)count; ++i) api->ReleaseValue(inputs[i]), free(data[i]);
  training->ReleaseTrainingSession(session);
  training->ReleaseCheckpointState(state);
  training->ReleaseCheckpointState(saved);
  api->ReleaseMemoryInfo(memory);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  return 0;
}
