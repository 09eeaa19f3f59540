using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;

namespace Minbuild
{
    /// <summary>One model in training, after the TrainingSession of ONNX Runtime. One thread at a time.</summary>
    public sealed partial class TrainingSession : IDisposable
    {
        private readonly Memory plan;
        private Memory checkpoint;
        private readonly int[] sizes;
        private IntPtr session;
        private long warmup, total;
        private float initial = float.NaN;

        /// <summary>A session of a package's trainer.plan, null where the library has it compiled in, and a checkpoint.</summary>
        public TrainingSession(string checkpointPath, string planPath, params int[] sizes)
            : this(File.ReadAllBytes(checkpointPath), planPath == null ? new byte[0] : File.ReadAllBytes(planPath), sizes)
        {
        }

        /// <summary>The same from memory. `sizes` are the largest sizes of free dimensions, in plan order; without, those
        /// the package was made with.</summary>
        public unsafe TrainingSession(byte[] checkpoint, byte[] plan, params int[] sizes)
        {
            this.plan = new Memory(plan);
            this.checkpoint = new Memory(checkpoint);
            this.sizes = (int[])sizes.Clone();
            fixed (int* symbols = sizes)
            {
                var options = new mb_options { symbols = (IntPtr)symbols, symbol_count = new UIntPtr((uint)sizes.Length) };
                int status = Native.mb_create(
                    this.plan.Address, this.plan.Size, this.checkpoint.Address, this.checkpoint.Size, ref options, out session);
                if (status == Header.MB_OK) return;
                session = IntPtr.Zero;
                string text = Memory.TextAt((IntPtr)options.error);
                Dispose();
                throw new TrainerException(status, text);
            }
        }

        public void Dispose()
        {
            if (session != IntPtr.Zero) Native.mb_destroy(session);
            session = IntPtr.Zero;
            plan.Dispose();
            checkpoint.Dispose();
        }

        public IReadOnlyList<string> TrainInputNames => Names(2 * Header.MB_TRAIN + Header.MB_INPUTS);

        public IReadOnlyList<string> TrainOutputNames => Names(2 * Header.MB_TRAIN + Header.MB_OUTPUTS);

        public IReadOnlyList<string> EvalInputNames => Names(2 * Header.MB_EVAL + Header.MB_INPUTS);

        public IReadOnlyList<string> EvalOutputNames => Names(2 * Header.MB_EVAL + Header.MB_OUTPUTS);

        public IReadOnlyList<string> ParameterNames => Names(Header.MB_PARAMETERS);

        /// <summary>Dimensions of an input of a training step, -1 where they are free.</summary>
        public int[] TrainInputDims(int index) =>
            Tensor.DimsOf(All(2 * Header.MB_TRAIN + Header.MB_INPUTS)[index].value);

        /// <summary>Forward and backward on a batch: adds to the gradients, or replaces them after LazyResetGrad.</summary>
        public IReadOnlyList<Tensor> TrainStep(params Tensor[] inputs) => Step(Header.MB_TRAIN, inputs);

        /// <summary>Forward, backward and updates in one pass, of libraries reduced with --updates fused, which do not train
        /// otherwise. After a gradient that is not finite only LoadCheckpoint goes on.</summary>
        public IReadOnlyList<Tensor> TrainAndUpdate(params Tensor[] inputs) => Step(Header.MB_TRAIN_AND_UPDATE, inputs);

        public IReadOnlyList<Tensor> EvalStep(params Tensor[] inputs) => Step(Header.MB_EVAL, inputs);

        /// <summary>Updates the parameters from the gradients.</summary>
        public void OptimizerStep() => Must(Native.mb_run(Open, Header.MB_OPTIMIZER, null, UIntPtr.Zero));

        /// <summary>New first values for parameters and state, of models that bring their own.</summary>
        public void Initialize() => Must(Native.mb_run(Open, Header.MB_INITIALIZE, null, UIntPtr.Zero));

        public unsafe void LazyResetGrad() => ((mb_session*)Open)->replaces_gradients = 1;

        public unsafe float LearningRate
        {
            get => Progress->learning_rate;
            set
            {
                if (float.IsNaN(value) || float.IsInfinity(value))
                    throw new ArgumentOutOfRangeException(nameof(value), "not finite: learning rate");
                Progress->learning_rate = value;
            }
        }

        public unsafe long Seed
        {
            get => Progress->seed;
            set => Progress->seed = value;
        }

        /// <summary>Optimizer steps taken, restored from checkpoints.</summary>
        public unsafe long StepCount => Progress->step;

        /// <summary>From 0 to `initial` during `warmup` optimizer steps, then to 0 at step `total`.</summary>
        public void RegisterLinearLRScheduler(long warmup, long total, float initial)
        {
            this.warmup = warmup;
            this.total = total;
            this.initial = initial;
            LearningRate = initial;
        }

        /// <summary>Sets the rate for the next optimizer step.</summary>
        public void SchedulerStep()
        {
            if (float.IsNaN(initial)) throw new InvalidOperationException("call RegisterLinearLRScheduler first");
            long done = StepCount;
            long part = done < warmup ? done : Math.Max(0, total - done);
            long whole = Math.Max(1, done < warmup ? warmup : total - warmup);
            LearningRate = initial * ((float)part / whole);
        }

        /// <summary>A copy of a parameter.</summary>
        public Tensor GetParameter(string name) => Tensor.CopyOf(Find(name).value);

        public void UpdateParameter(string name, Tensor value)
        {
            mb_tensor found = Find(name).value;
            if (found.type != value.Type || !Tensor.DimsOf(found).SequenceEqual(value.Dims))
                throw new TrainerException(Header.MB_BAD_SHAPE, $"'{name}' is [{string.Join(", ", Tensor.DimsOf(found))}] of type {found.type}");
            value.Move(found.data, toSession: true);
        }

        private IntPtr Open => session != IntPtr.Zero ? session : throw new ObjectDisposedException(nameof(TrainingSession));

        private unsafe mb_progress* Progress => (mb_progress*)((mb_session*)Open)->progress;

        private unsafe void Must(int status)
        {
            if (status != Header.MB_OK) throw new TrainerException(status, Memory.TextAt(((mb_session*)session)->error));
        }

        private IReadOnlyList<mb_parameter> All(int list)
        {
            var all = new List<mb_parameter>();
            mb_parameter found;
            while (Native.mb_get(Open, list, new UIntPtr((uint)all.Count), out found) == Header.MB_OK) all.Add(found);
            return all;
        }

        private string[] Names(int list) => All(list).Select(found => Memory.TextAt(found.name)).ToArray();

        private mb_parameter Find(string name)
        {
            foreach (mb_parameter found in All(Header.MB_PARAMETERS))
                if (Memory.TextAt(found.name) == name) return found;
            throw new TrainerException(Header.MB_INVALID_ARGUMENT, $"there is no parameter '{name}'; there are {string.Join(", ", ParameterNames)}");
        }

        private Model Described() =>
            Model.Of(
                All(2 * Header.MB_TRAIN + Header.MB_INPUTS)
                    .Concat(All(2 * Header.MB_EVAL + Header.MB_INPUTS))
                    .Concat(All(Header.MB_PARAMETERS)));

        private unsafe IReadOnlyList<Tensor> Step(int graph, Tensor[] inputs)
        {
            var tensors = new mb_tensor[inputs.Length];
            GCHandle[] pinned = inputs.Select(input => GCHandle.Alloc(input.Data, GCHandleType.Pinned)).ToArray();
            try
            {
                for (int i = 0; i < inputs.Length; ++i)
                {
                    var tensor = new mb_tensor { data = pinned[i].AddrOfPinnedObject(), type = inputs[i].Type, rank = inputs[i].Dims.Count };
                    int* dims = tensor.dims;
                    for (int axis = 0; axis < tensor.rank; ++axis) dims[axis] = inputs[i].Dims[axis];
                    tensors[i] = tensor;
                }
                int status = Native.mb_run(Open, graph, tensors, new UIntPtr((uint)tensors.Length));
                if (graph == Header.MB_TRAIN_AND_UPDATE) graph = Header.MB_TRAIN; // whose inputs and outputs it has
                string reason = status == Header.MB_OK ? "" : Described()?.Refusal(graph, status, inputs, sizes) ?? "";
                if (reason != "") throw new TrainerException(status, reason);
                Must(status);
            }
            finally
            {
                foreach (GCHandle handle in pinned) handle.Free();
            }
            return All(2 * graph + Header.MB_OUTPUTS).Select(found => Tensor.CopyOf(found.value)).ToArray();
        }
    }
}
