#import "MBTrainingSession.h"

#include <stdlib.h>
#include <string.h>

#include "minbuild/trainer.h"
#include "refusal.h"

NSString* const MBTrainerErrorDomain = @"MBTrainerErrorDomain";

static size_t bytes_of(const mb_tensor* tensor) {
  static const uint8_t sizes[17] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2};
  size_t bytes = tensor->type < 17 ? sizes[tensor->type] : 0;
  for (int32_t i = 0; i < tensor->rank; ++i) bytes *= (size_t)tensor->dims[i];
  return bytes;
}

static BOOL fail(NSError** error, mb_status status, const char* text) {
  if (error != NULL)
    *error = [NSError errorWithDomain:MBTrainerErrorDomain
                                 code:status
                             userInfo:@{NSLocalizedDescriptionKey : @(text)}];
  return NO;
}

@implementation MBTensor
- (instancetype)initWithData:(NSData*)data elementType:(int32_t)type dims:(NSArray<NSNumber*>*)dims {
  if ((self = [super init])) {
    _data = [data copy];
    _elementType = type;
    _dims = [dims copy];
  }
  return self;
}

+ (instancetype)copyOf:(const mb_tensor*)tensor {
  NSMutableArray<NSNumber*>* dims = [NSMutableArray array];
  for (int32_t i = 0; i < tensor->rank; ++i) [dims addObject:@(tensor->dims[i])];
  return [[MBTensor alloc] initWithData:[NSData dataWithBytes:tensor->data length:bytes_of(tensor)]
                            elementType:tensor->type
                                   dims:dims];
}

/** Memory of this tensor as the library takes it; fails where its dimensions do not fit its bytes. */
- (BOOL)fill:(mb_tensor*)tensor error:(NSError**)error {
  if (self.dims.count > MB_MAX_RANK) return fail(error, MB_BAD_SHAPE, "a tensor has at most 8 dimensions");
  tensor->data = (void*)self.data.bytes;
  tensor->type = self.elementType;
  tensor->rank = (int32_t)self.dims.count;
  for (NSUInteger i = 0; i < self.dims.count; ++i) tensor->dims[i] = self.dims[i].intValue;
  if (bytes_of(tensor) != self.data.length) return fail(error, MB_BAD_SHAPE, "the tensor has more or fewer bytes than its shape");
  return YES;
}
@end

@implementation MBTrainingSession {
  mb_session* _session;
  void* _checkpoint;  // loaded, where frozen parameters are read from it
  mb_linear_schedule _schedule;
}

- (instancetype)init {
  [self doesNotRecognizeSelector:_cmd];
  return self;
}

- (nullable instancetype)initWithPlanPath:(nullable NSString*)plan checkpointPath:(NSString*)checkpoint error:(NSError**)error {
  if ((self = [super init])) {
    mb_options options = {0};
    mb_status status = mb_create_from_files(plan.UTF8String, checkpoint.UTF8String, &options, &_session);
    if (status != MB_OK) {
      _session = NULL;
      fail(error, status, options.error);
      return nil;
    }
  }
  return self;
}

- (void)dealloc {
  if (_session != NULL) mb_destroy(_session);
  free(_checkpoint);
}

- (BOOL)must:(mb_status)status error:(NSError**)error {
  return status == MB_OK ? YES : fail(error, status, mb_last_error(_session));
}

- (NSArray<NSString*>*)namesOf:(int)list {
  NSMutableArray<NSString*>* names = [NSMutableArray array];
  mb_parameter found;
  while (mb_get(_session, list, names.count, &found) == MB_OK) [names addObject:@(found.name)];
  return names;
}

- (nullable NSArray<MBTensor*>*)run:(int)graph inputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error {
  mb_tensor* tensors = calloc(inputs.count + 1, sizeof(mb_tensor));
  BOOL well = tensors != NULL ? YES : fail(error, MB_OUT_OF_MEMORY, "there is no memory for the inputs");
  for (NSUInteger i = 0; well && i < inputs.count; ++i) well = [inputs[i] fill:&tensors[i] error:error];
  if (well) {
    mb_status status = mb_run(_session, graph, tensors, inputs.count);
    if (graph == MB_TRAIN_AND_UPDATE) graph = MB_TRAIN;  // whose inputs and outputs it has
    if (status != MB_OK) mb_explain_refusal(_session, graph, status, tensors, inputs.count, NULL);
    well = [self must:status error:error];
  }
  free(tensors);
  if (!well) return nil;
  NSMutableArray<MBTensor*>* outputs = [NSMutableArray array];
  mb_parameter found;
  while (mb_get(_session, 2 * graph + MB_OUTPUTS, outputs.count, &found) == MB_OK)
    [outputs addObject:[MBTensor copyOf:&found.value]];
  return outputs;
}

- (nullable NSArray<MBTensor*>*)trainStepWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error {
  return [self run:MB_TRAIN inputs:inputs error:error];
}
- (nullable NSArray<MBTensor*>*)trainAndUpdateWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error {
  return [self run:MB_TRAIN_AND_UPDATE inputs:inputs error:error];
}
- (nullable NSArray<MBTensor*>*)evalStepWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error {
  return [self run:MB_EVAL inputs:inputs error:error];
}
- (BOOL)optimizerStepWithError:(NSError**)error {
  return [self must:mb_optimizer_step(_session) error:error];
}
- (BOOL)initializeWithError:(NSError**)error {
  return [self must:mb_initialize(_session) error:error];
}
- (void)lazyResetGrad {
  mb_lazy_reset_grad(_session);
}

- (void)registerLinearLRSchedulerWithWarmup:(int64_t)warmup total:(int64_t)total initial:(float)initial {
  mb_schedule_linear(_session, &_schedule, warmup, total, initial);
}
- (void)schedulerStep {
  mb_schedule_step(_session, &_schedule);
}

- (float)learningRate {
  return mb_learning_rate(_session);
}
- (void)setLearningRate:(float)rate {
  mb_set_learning_rate(_session, rate);
}
- (int64_t)seed {
  return mb_seed(_session);
}
- (void)setSeed:(int64_t)seed {
  mb_set_seed(_session, seed);
}
- (int64_t)stepCount {
  return mb_step_count(_session);
}
- (NSArray<NSString*>*)trainInputNames {
  return [self namesOf:2 * MB_TRAIN + MB_INPUTS];
}
- (NSArray<NSString*>*)trainOutputNames {
  return [self namesOf:2 * MB_TRAIN + MB_OUTPUTS];
}
- (NSArray<NSString*>*)evalInputNames {
  return [self namesOf:2 * MB_EVAL + MB_INPUTS];
}
- (NSArray<NSString*>*)evalOutputNames {
  return [self namesOf:2 * MB_EVAL + MB_OUTPUTS];
}
- (NSArray<NSString*>*)parameterNames {
  return [self namesOf:MB_PARAMETERS];
}

- (nullable MBTensor*)parameterNamed:(NSString*)name error:(NSError**)error {
  mb_parameter found;
  mb_status status = mb_find_parameter(_session, name.UTF8String, &found);
  if (status == MB_OK) return [MBTensor copyOf:&found.value];
  fail(error, status, "there is no such parameter");
  return nil;
}

- (BOOL)updateParameterNamed:(NSString*)name with:(MBTensor*)tensor error:(NSError**)error {
  mb_tensor value = {0};
  if (![tensor fill:&value error:error]) return NO;
  mb_status status = mb_update_parameter(_session, name.UTF8String, &value);
  return status == MB_OK ? YES : fail(error, status, "there is no such parameter, or its type or shape is another one");
}

- (BOOL)saveCheckpointToPath:(NSString*)path includeOptimizer:(BOOL)optimizer error:(NSError**)error {
#if MB_WITH_CHECKPOINT_WRITING
  return [self must:mb_save_checkpoint(_session, path.UTF8String, optimizer) error:error];
#else
  (void)path, (void)optimizer;
  return fail(error, MB_UNSUPPORTED, "the library was built without checkpoint writing. Reduce again with --checkpoint-writing on.");
#endif
}

- (BOOL)loadCheckpoint:(NSData*)checkpoint error:(NSError**)error {
  return [self loadCheckpoint:checkpoint acceptAny:NO error:error];
}

- (BOOL)loadCheckpoint:(NSData*)checkpoint acceptAny:(BOOL)any error:(NSError**)error {
  void* aligned = malloc(checkpoint.length + 1);
  if (aligned == NULL) return fail(error, MB_OUT_OF_MEMORY, "there is no memory for the checkpoint");
  memcpy(aligned, checkpoint.bytes, checkpoint.length);
  BOOL well = [self must:(any ? mb_load_any_checkpoint : mb_load_checkpoint)(_session, aligned, checkpoint.length) error:error];
  if (well && mb_reads_from(_session, aligned, checkpoint.length)) {
    void* before = _checkpoint;
    _checkpoint = aligned;
    aligned = before;
  }
  free(aligned);
  return well;
}

- (BOOL)exportModelWithTemplate:(NSString*)templatePath toPath:(NSString*)path error:(NSError**)error {
#if MB_WITH_EXPORT
  return [self must:mb_export_to_file(_session, templatePath.UTF8String, path.UTF8String) error:error];
#else
  (void)templatePath, (void)path;
  return fail(error, MB_UNSUPPORTED, "the library was built without export. Reduce again with --with export.");
#endif
}

- (BOOL)setProperty:(nullable id)value named:(NSString*)name error:(NSError**)error {
#if MB_WITH_PROPERTIES
  mb_property property = {0};
  property.name = name.UTF8String;
  if ([value isKindOfClass:[NSString class]]) {
    property.type = MB_STRING;
    property.text = [(NSString*)value UTF8String];
  } else if ([value isKindOfClass:[NSNumber class]]) {
    NSNumber* number = value;
    char kind = number.objCType[0];
    property.type = kind == 'f' || kind == 'd' ? MB_FLOAT : MB_INT64;
    property.real = number.floatValue;
    property.integer = number.longLongValue;
  } else if (value != nil) {
    return fail(error, MB_INVALID_ARGUMENT, "a property is a number or a string");
  }
  return [self must:mb_set_property(_session, &property) error:error];
#else
  (void)value, (void)name;
  return fail(error, MB_UNSUPPORTED, "the library was built without properties. Reduce again with --with properties.");
#endif
}

- (nullable id)propertyNamed:(NSString*)name {
#if MB_WITH_PROPERTIES
  mb_property found;
  if (mb_find_property(_session, name.UTF8String, &found) != MB_OK) return nil;
  if (found.type == MB_INT64) return @(found.integer);
  return found.type == MB_FLOAT ? (id) @(found.real) : @(found.text);
#else
  (void)name;
  return nil;
#endif
}

- (nullable NSData*)parameterBufferOfTrainable:(BOOL)trainableOnly error:(NSError**)error {
#if MB_WITH_BUFFERS
  size_t count = 0;
  if (![self must:mb_parameters_size(_session, trainableOnly, &count) error:error]) return nil;
  NSMutableData* floats = [NSMutableData dataWithLength:count * sizeof(float)];
  mb_status status = mb_copy_parameters_to_buffer(_session, floats.mutableBytes, count, trainableOnly);
  return [self must:status error:error] ? floats : nil;
#else
  (void)trainableOnly;
  fail(error, MB_UNSUPPORTED, "the library was built without buffers. Reduce again with --with buffers.");
  return nil;
#endif
}

- (BOOL)setParameterBuffer:(NSData*)floats trainable:(BOOL)trainableOnly error:(NSError**)error {
#if MB_WITH_BUFFERS
  mb_status status =
      mb_copy_buffer_to_parameters(_session, floats.bytes, floats.length / sizeof(float), trainableOnly);
  return [self must:status error:error];
#else
  (void)floats, (void)trainableOnly;
  return fail(error, MB_UNSUPPORTED, "the library was built without buffers. Reduce again with --with buffers.");
#endif
}
@end
