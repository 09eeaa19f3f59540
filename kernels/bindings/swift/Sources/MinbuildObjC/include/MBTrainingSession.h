#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

/** Errors of this domain have an mb_status of trainer.h as code. */
extern NSString* const MBTrainerErrorDomain;

/** A dense tensor in row-major order: its elements, their type as ONNX numbers it, its dimensions. */
@interface MBTensor : NSObject
@property(nonatomic, readonly) NSData* data;
@property(nonatomic, readonly) int32_t elementType;
@property(nonatomic, readonly) NSArray<NSNumber*>* dims;
- (instancetype)initWithData:(NSData*)data elementType:(int32_t)type dims:(NSArray<NSNumber*>*)dims;
@end

/** One model in training, after ORTTrainingSession. One session belongs to one thread at a time. */
@interface MBTrainingSession : NSObject
@property(nonatomic) float learningRate;
@property(nonatomic) int64_t seed;
@property(nonatomic, readonly) int64_t stepCount; /* optimizer steps taken, restored from checkpoints */
@property(nonatomic, readonly) NSArray<NSString*>* trainInputNames;
@property(nonatomic, readonly) NSArray<NSString*>* trainOutputNames;
@property(nonatomic, readonly) NSArray<NSString*>* evalInputNames;
@property(nonatomic, readonly) NSArray<NSString*>* evalOutputNames;
@property(nonatomic, readonly) NSArray<NSString*>* parameterNames;

/** From files: a package's trainer.plan, nil where the library has it compiled in, and a checkpoint. */
- (nullable instancetype)initWithPlanPath:(nullable NSString*)plan
                           checkpointPath:(NSString*)checkpoint
                                    error:(NSError**)error;
- (instancetype)init NS_UNAVAILABLE;

/** Outputs, of which the first is the loss. Adds to the gradients, or replaces them after lazyResetGrad. */
- (nullable NSArray<MBTensor*>*)trainStepWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error;
/** Forward, backward and updates in one pass, of libraries reduced with --updates fused. */
- (nullable NSArray<MBTensor*>*)trainAndUpdateWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error;
- (nullable NSArray<MBTensor*>*)evalStepWithInputs:(NSArray<MBTensor*>*)inputs error:(NSError**)error;
- (BOOL)optimizerStepWithError:(NSError**)error;
- (BOOL)initializeWithError:(NSError**)error;
- (void)lazyResetGrad;

/** From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`. */
- (void)registerLinearLRSchedulerWithWarmup:(int64_t)warmup total:(int64_t)total initial:(float)initial;
- (void)schedulerStep;

- (nullable MBTensor*)parameterNamed:(NSString*)name error:(NSError**)error;
- (BOOL)updateParameterNamed:(NSString*)name with:(MBTensor*)tensor error:(NSError**)error;
- (BOOL)saveCheckpointToPath:(NSString*)path includeOptimizer:(BOOL)optimizer error:(NSError**)error;
- (BOOL)loadCheckpoint:(NSData*)checkpoint error:(NSError**)error;
/** With `any` also those of another model whose parameters have the same names, types and shapes. */
- (BOOL)loadCheckpoint:(NSData*)checkpoint acceptAny:(BOOL)any error:(NSError**)error;

/* Libraries without these components return MB_UNSUPPORTED. */
- (BOOL)exportModelWithTemplate:(NSString*)templatePath toPath:(NSString*)path error:(NSError**)error;
/** An NSString, or an NSNumber of a double or float for a real, of anything else for an integer; nil removes it. */
- (BOOL)setProperty:(nullable id)value named:(NSString*)name error:(NSError**)error;
- (nullable id)propertyNamed:(NSString*)name;
/** The parameters one after the other, as floats. */
- (nullable NSData*)parameterBufferOfTrainable:(BOOL)trainableOnly error:(NSError**)error;
- (BOOL)setParameterBuffer:(NSData*)floats trainable:(BOOL)trainableOnly error:(NSError**)error;
@end

NS_ASSUME_NONNULL_END
