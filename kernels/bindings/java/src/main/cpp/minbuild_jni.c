/* The native half of ai.onnxruntime.OnnxRuntime: one function of trainer.h per method. */
#include <jni.h>
#include <stdint.h>

#include "minbuild/trainer.h"
#include "components.h"
#include "refusal.h"

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_ai_onnxruntime_OnnxRuntime_##name

static mb_session* session_of(jlong session) { return (mb_session*)(intptr_t)session; }

static void fail(JNIEnv* env, int status, const char* text) {
  jclass kind = (*env)->FindClass(env, "ai/onnxruntime/OrtException");
  jmethodID make;
  jstring words;
  jobject made;
  if (kind == NULL) return;
  make = (*env)->GetMethodID(env, kind, "<init>", "(ILjava/lang/String;)V");
  words = (*env)->NewStringUTF(env, text);
  if (make == NULL || words == NULL) return;
  made = (*env)->NewObject(env, kind, make, (jint)status, words);
  if (made != NULL) (*env)->Throw(env, (jthrowable)made);
}

static void must(JNIEnv* env, mb_status status, const mb_session* session) {
  if (status != MB_OK) fail(env, status, mb_last_error(session));
}

static const char* chars_of(JNIEnv* env, jstring text) {
  return text == NULL ? NULL : (*env)->GetStringUTFChars(env, text, NULL);
}

static void release(JNIEnv* env, jstring text, const char* chars) {
  if (chars != NULL) (*env)->ReleaseStringUTFChars(env, text, chars);
}

NATIVE(jlong, create)(JNIEnv* env, jclass self, jstring plan, jstring checkpoint, jintArray sizes) {
  const char *plan_path = chars_of(env, plan), *checkpoint_path = chars_of(env, checkpoint);
  mb_options options = {0};
  mb_session* session = NULL;
  mb_status status;
  (void)self;
  if (sizes != NULL) {
    options.symbols = (const int32_t*)(*env)->GetIntArrayElements(env, sizes, NULL);
    options.symbol_count = (size_t)(*env)->GetArrayLength(env, sizes);
  }
  status = mb_create_from_files(plan_path, checkpoint_path, &options, &session);
  if (sizes != NULL) (*env)->ReleaseIntArrayElements(env, sizes, (jint*)options.symbols, JNI_ABORT);
  release(env, plan, plan_path);
  release(env, checkpoint, checkpoint_path);
  if (status != MB_OK) fail(env, status, options.error);
  return (jlong)(intptr_t)session;
}

NATIVE(void, destroy)(JNIEnv* env, jclass self, jlong session) {
  (void)env, (void)self;
  mb_destroy(session_of(session));
}

enum { MAX_INPUTS = 64 };

/* One input, from its direct buffer, its type and its dimensions. Returns whether it can be given to the library. */
static int fill(JNIEnv* env, jobject data, jint type, jintArray dims, mb_tensor* tensor) {
  jsize rank = (*env)->GetArrayLength(env, dims);
  if (rank > MB_MAX_RANK) return 0;
  tensor->data = (*env)->GetDirectBufferAddress(env, data);
  tensor->type = type;
  tensor->rank = rank;
  (*env)->GetIntArrayRegion(env, dims, 0, rank, (jint*)tensor->dims);
  return 1;
}

/* The error of a refused step, in words where the inputs explain it. `sizes` are those the session was created with. */
static void refuse(JNIEnv* env, mb_session* session, int graph, mb_status status, const mb_tensor* inputs, size_t count,
                   jintArray sizes) {
  jint* given = sizes == NULL ? NULL : (*env)->GetIntArrayElements(env, sizes, NULL);
  mb_explain_refusal(session, graph, status, inputs, count, (const int32_t*)given);
  if (given != NULL) (*env)->ReleaseIntArrayElements(env, sizes, given, JNI_ABORT);
  must(env, status, session);
}

NATIVE(void, run)(JNIEnv* env, jclass self, jlong session, jint graph, jobjectArray data, jintArray types,
                  jobjectArray dims, jintArray largest) {
  mb_tensor inputs[MAX_INPUTS];
  jint element_types[MAX_INPUTS];
  jsize count = (*env)->GetArrayLength(env, data), i;
  mb_status status;
  (void)self;
  if (count > MAX_INPUTS) {
    fail(env, MB_INVALID_ARGUMENT, "a step takes at most 64 inputs");
    return;
  }
  (*env)->GetIntArrayRegion(env, types, 0, count, element_types);
  for (i = 0; i < count; ++i) {
    jobject buffer = (*env)->GetObjectArrayElement(env, data, i);
    jintArray sizes = (jintArray)(*env)->GetObjectArrayElement(env, dims, i);
    int filled = fill(env, buffer, element_types[i], sizes, &inputs[i]);
    (*env)->DeleteLocalRef(env, buffer);
    (*env)->DeleteLocalRef(env, sizes);
    if (!filled) {
      fail(env, MB_BAD_SHAPE, "a tensor has at most 8 dimensions");
      return;
    }
  }
  status = mb_run(session_of(session), graph, inputs, (size_t)count);
  if (graph == MB_TRAIN_AND_UPDATE) graph = MB_TRAIN; /* whose inputs it has */
  if (status != MB_OK) refuse(env, session_of(session), graph, status, inputs, (size_t)count, largest);
}

NATIVE(jobjectArray, names)(JNIEnv* env, jclass self, jlong session, jint list) {
  jsize count = (jsize)mb_count(session_of(session), list), i;
  jclass text = (*env)->FindClass(env, "java/lang/String");
  jobjectArray all = text == NULL ? NULL : (*env)->NewObjectArray(env, count, text, NULL);
  (void)self;
  for (i = 0; all != NULL && i < count; ++i) {
    mb_parameter found;
    jstring name;
    mb_get(session_of(session), list, (size_t)i, &found);
    name = (*env)->NewStringUTF(env, found.name);
    (*env)->SetObjectArrayElement(env, all, i, name);
    (*env)->DeleteLocalRef(env, name);
  }
  return all;
}

NATIVE(jintArray, describe)(JNIEnv* env, jclass self, jlong session, jint list, jint index) {
  mb_parameter found = {0};
  jintArray description;
  (void)self;
  mb_get(session_of(session), list, (size_t)index, &found);
  description = (*env)->NewIntArray(env, 1 + found.value.rank);
  if (description == NULL) return NULL;
  (*env)->SetIntArrayRegion(env, description, 0, 1, (const jint*)&found.value.type);
  (*env)->SetIntArrayRegion(env, description, 1, found.value.rank, (const jint*)found.value.dims);
  return description;
}

NATIVE(jobject, value)(JNIEnv* env, jclass self, jlong session, jint list, jint index) {
  static const uint8_t sizes[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
  mb_parameter found = {0};
  jlong bytes;
  int32_t i;
  (void)self;
  mb_get(session_of(session), list, (size_t)index, &found);
  bytes = sizes[found.value.type];
  for (i = 0; i < found.value.rank; ++i) bytes *= found.value.dims[i];
  return (*env)->NewDirectByteBuffer(env, found.value.data, bytes);
}

NATIVE(void, lazyResetGrad)(JNIEnv* env, jclass self, jlong session) {
  (void)env, (void)self;
  mb_lazy_reset_grad(session_of(session));
}

NATIVE(jfloat, learningRate)(JNIEnv* env, jclass self, jlong session) {
  (void)env, (void)self;
  return mb_learning_rate(session_of(session));
}

NATIVE(void, setLearningRate)(JNIEnv* env, jclass self, jlong session, jfloat rate) {
  (void)self;
  must(env, mb_set_learning_rate(session_of(session), rate), session_of(session));
}

NATIVE(jlong, stepCount)(JNIEnv* env, jclass self, jlong session) {
  (void)env, (void)self;
  return mb_step_count(session_of(session));
}

NATIVE(void, setSeed)(JNIEnv* env, jclass self, jlong session, jlong seed) {
  (void)env, (void)self;
  mb_set_seed(session_of(session), seed);
}

#if !MB_WITH_EXPORT || !MB_WITH_PROPERTIES || !MB_WITH_BUFFERS || !MB_WITH_CHECKPOINT_WRITING
static void missing(JNIEnv* env, const char* text) { fail(env, MB_UNSUPPORTED, text); }
#endif

NATIVE(void, saveCheckpoint)(JNIEnv* env, jclass self, jlong session, jstring path, jboolean optimizer) {
#if MB_WITH_CHECKPOINT_WRITING
  const char* chars = chars_of(env, path);
  (void)self;
  must(env, mb_save_checkpoint(session_of(session), chars, optimizer), session_of(session));
  release(env, path, chars);
#else
  (void)self, (void)session, (void)path, (void)optimizer;
  missing(env, "the library was built without checkpoint writing. Reduce again with --checkpoint-writing on.");
#endif
}

NATIVE(jboolean, loadCheckpoint)(JNIEnv* env, jclass self, jlong session, jobject bytes, jboolean any) {
  const void* data = (*env)->GetDirectBufferAddress(env, bytes);
  size_t size = (size_t)(*env)->GetDirectBufferCapacity(env, bytes);
  (void)self;
  must(env, (any ? mb_load_any_checkpoint : mb_load_checkpoint)(session_of(session), data, size), session_of(session));
  return (jboolean)mb_reads_from(session_of(session), data, size);
}

NATIVE(void, exportModel)(JNIEnv* env, jclass self, jlong session, jstring template_name, jstring path) {
#if MB_WITH_EXPORT
  const char *template_path = chars_of(env, template_name), *out = chars_of(env, path);
  (void)self;
  must(env, mb_export_to_file(session_of(session), template_path, out), session_of(session));
  release(env, template_name, template_path);
  release(env, path, out);
#else
  (void)self, (void)session, (void)template_name, (void)path;
  missing(env, "the library was built without export. Reduce again with --with export.");
#endif
}

NATIVE(void, setProperty)(JNIEnv* env, jclass self, jlong session, jstring name, jint type, jlong integer, jfloat real,
                          jstring text) {
#if MB_WITH_PROPERTIES
  mb_property property = {0};
  (void)self;
  property.name = chars_of(env, name);
  property.text = chars_of(env, text);
  property.type = type;
  property.integer = integer;
  property.real = real;
  must(env, mb_set_property(session_of(session), &property), session_of(session));
  release(env, name, property.name);
  release(env, text, property.text);
#else
  (void)self, (void)session, (void)name, (void)type, (void)integer, (void)real, (void)text;
  missing(env, "the library was built without properties. Reduce again with --with properties.");
#endif
}

#if MB_WITH_PROPERTIES
/* A java.lang.Long or Float: what its valueOf makes of a number. */
static jobject boxed(JNIEnv* env, const char* kind, const char* signature, jvalue number) {
  jclass type = (*env)->FindClass(env, kind);
  jmethodID value_of = type == NULL ? NULL : (*env)->GetStaticMethodID(env, type, "valueOf", signature);
  return value_of == NULL ? NULL : (*env)->CallStaticObjectMethodA(env, type, value_of, &number);
}
#endif

NATIVE(jobject, property)(JNIEnv* env, jclass self, jlong session, jstring name) {
#if MB_WITH_PROPERTIES
  const char* chars = chars_of(env, name);
  mb_property found;
  mb_status status = mb_find_property(session_of(session), chars, &found);
  jvalue number;
  (void)self;
  release(env, name, chars);
  if (status != MB_OK) return NULL;
  if (found.type == MB_STRING) return (*env)->NewStringUTF(env, found.text);
  if (found.type == MB_INT64) {
    number.j = found.integer;
    return boxed(env, "java/lang/Long", "(J)Ljava/lang/Long;", number);
  }
  number.f = found.real;
  return boxed(env, "java/lang/Float", "(F)Ljava/lang/Float;", number);
#else
  (void)self, (void)session, (void)name;
  missing(env, "the library was built without properties. Reduce again with --with properties.");
  return NULL;
#endif
}

NATIVE(jlong, parametersSize)(JNIEnv* env, jclass self, jlong session, jboolean trainable_only) {
  size_t count = 0;
  (void)self;
#if MB_WITH_BUFFERS
  must(env, mb_parameters_size(session_of(session), trainable_only, &count), session_of(session));
#else
  (void)session, (void)trainable_only;
  missing(env, "the library was built without buffers. Reduce again with --with buffers.");
#endif
  return (jlong)count;
}

NATIVE(void, copyParameters)(JNIEnv* env, jclass self, jlong session, jobject floats, jboolean trainable_only,
                             jboolean to_session) {
#if MB_WITH_BUFFERS
  float* data = (float*)(*env)->GetDirectBufferAddress(env, floats);
  size_t count = (size_t)(*env)->GetDirectBufferCapacity(env, floats) / sizeof(float);
  mb_session* open = session_of(session);
  (void)self;
  must(env, mb_parameter_buffer(open, trainable_only, to_session ? MB_TO_PARAMETERS : MB_FROM_PARAMETERS, data, &count),
       open);
#else
  (void)self, (void)session, (void)floats, (void)trainable_only, (void)to_session;
  missing(env, "the library was built without buffers. Reduce again with --with buffers.");
#endif
}
