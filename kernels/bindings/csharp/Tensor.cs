using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;

namespace Minbuild
{
    /// <summary>A call that the trainer refused; the code is an mb_status of trainer.h.</summary>
    public sealed class TrainerException : Exception
    {
        public TrainerException(int code, string text) : base(text) => Code = code;

        public int Code { get; }
    }

    /// <summary>A dense tensor: an array in row-major order and its dimensions. The array is used in place.</summary>
    public sealed class Tensor
    {
        private static readonly Dictionary<Type, int> Types = new Dictionary<Type, int>
        {
            { typeof(float), Header.MB_FLOAT }, { typeof(double), Header.MB_DOUBLE }, { typeof(bool), Header.MB_BOOL },
            { typeof(sbyte), Header.MB_INT8 }, { typeof(short), Header.MB_INT16 }, { typeof(int), Header.MB_INT32 },
            { typeof(long), Header.MB_INT64 }, { typeof(byte), Header.MB_UINT8 }, { typeof(ushort), Header.MB_UINT16 },
            { typeof(uint), Header.MB_UINT32 }, { typeof(ulong), Header.MB_UINT64 },
        };

        public Tensor(Array data, params int[] dims)
        {
            if (data.Rank != 1 || !Types.TryGetValue(data.GetType().GetElementType(), out int type))
                throw new ArgumentException($"a tensor's data is a flat array of numbers, not {data.GetType()}");
            if (dims.Aggregate(1L, (product, dim) => product * dim) != data.Length || dims.Length > Header.MB_MAX_RANK)
                throw new ArgumentException($"[{string.Join(", ", dims)}] is no shape of {data.Length} elements");
            Data = data;
            Dims = Array.AsReadOnly((int[])dims.Clone());
            Type = type;
        }

        public Array Data { get; }

        public IReadOnlyList<int> Dims { get; }

        /// <summary>The number that ONNX gives the element type.</summary>
        public int Type { get; }

        public float[] Floats => (float[])Data;

        internal int Bytes => Data.Length * SizeOf(Type);

        internal static int SizeOf(int type)
        {
            switch (type)
            {
                case Header.MB_BOOL: case Header.MB_INT8: case Header.MB_UINT8: return 1;
                case Header.MB_INT16: case Header.MB_UINT16: case Header.MB_FLOAT16: case Header.MB_BFLOAT16: return 2;
                case Header.MB_FLOAT: case Header.MB_INT32: case Header.MB_UINT32: return 4;
                default: return 8;
            }
        }

        internal static unsafe int[] DimsOf(mb_tensor tensor)
        {
            var dims = new int[tensor.rank];
            for (int i = 0; i < dims.Length; ++i) dims[i] = tensor.dims[i];
            return dims;
        }

        /// <summary>A copy of what a session has; halves as their bits.</summary>
        internal static Tensor CopyOf(mb_tensor tensor)
        {
            int[] dims = DimsOf(tensor);
            Type kind = Types.Where(pair => pair.Value == tensor.type).Select(pair => pair.Key).FirstOrDefault() ?? typeof(ushort);
            var data = Array.CreateInstance(kind, dims.Aggregate(1, (product, dim) => product * dim));
            var copy = new Tensor(data, dims);
            copy.Move(tensor.data, toSession: false);
            return copy;
        }

        /// <summary>Copies all bytes to or from memory of a session.</summary>
        internal unsafe void Move(IntPtr memory, bool toSession)
        {
            GCHandle pinned = GCHandle.Alloc(Data, GCHandleType.Pinned);
            void* own = (void*)pinned.AddrOfPinnedObject();
            if (toSession) Buffer.MemoryCopy(own, (void*)memory, Bytes, Bytes);
            else Buffer.MemoryCopy((void*)memory, own, Bytes, Bytes);
            pinned.Free();
        }
    }
}
