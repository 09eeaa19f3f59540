using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace Minbuild
{
    /// <summary>A free dimension, and its size in sessions that are created without sizes.</summary>
    internal sealed class Symbol
    {
        public Symbol(string name, int largest) { Name = name; Largest = largest; }

        public string Name { get; }

        public int Largest { get; }
    }

    /// <summary>An input of a graph: a dimension is a size, -1 for one that depends on others, or -2 - n for free
    /// dimension n; labels of a loss are 0 to Classes - 1, or the ignored one.</summary>
    internal sealed class Input
    {
        public Input(string name, int type, int[] dims, int classes, long? ignored)
        {
            Name = name;
            Type = type;
            Dims = dims;
            Classes = classes;
            Ignored = ignored;
        }

        public string Name { get; }

        public int Type { get; }

        public int[] Dims { get; }

        public int Classes { get; }

        public long? Ignored { get; }
    }

    /// <summary>A model of the package, which refused batches are explained from. Models.cs, which is generated, has
    /// them all.</summary>
    internal sealed partial class Model
    {
        private static readonly string[] TypeNames =
        {
            "of no type", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16",
            "float64", "uint32", "uint64", "?", "?", "bfloat16",
        };

        private readonly uint key;
        private readonly Symbol[] symbols;
        private readonly Input[][] graphs;

        private Model(uint key, Symbol[] symbols, params Input[][] graphs)
        {
            this.key = key;
            this.symbols = symbols;
            this.graphs = graphs;
        }

        /// <summary>The model with these inputs and parameters; null where it is none of the package's.</summary>
        public static Model Of(IEnumerable<mb_parameter> described)
        {
            uint sum = 0;
            foreach (mb_parameter each in described) sum = unchecked(sum + HashOf(each));
            return All.FirstOrDefault(model => model.key == sum);
        }

        private static uint HashOf(mb_parameter found)
        {
            IEnumerable<int> numbers = new[] { found.value.type }.Concat(Tensor.DimsOf(found.value));
            IEnumerable<byte> bytes = Encoding.UTF8.GetBytes(Memory.TextAt(found.name))
                .Concat(numbers.SelectMany(n => new[] { (byte)n, (byte)(n >> 8), (byte)(n >> 16), (byte)(n >> 24) }));
            uint hash = 0x811c9dc5;
            foreach (byte one in bytes) hash = unchecked((hash ^ one) * 0x01000193);
            return hash;
        }

        /// <summary>The reason in the tensors why a step of `graph` ended with `status`, or "" where they do not explain
        /// it. `sizes` are those that the session was created with.</summary>
        public string Refusal(int graph, int status, Tensor[] tensors, int[] sizes)
        {
            if (graph != Header.MB_TRAIN && graph != Header.MB_EVAL) return "";
            Input[] expected = graphs[graph];
            if (status == Header.MB_INVALID_ARGUMENT && expected.Length != tensors.Length)
            {
                string given = tensors.Length == 1 ? "1 input was" : $"{tensors.Length} inputs were";
                return $"{given} given, the model takes {expected.Length}: {string.Join(", ", expected.Select(input => input.Name))}.";
            }
            if (expected.Length != tensors.Length) return "";
            switch (status)
            {
                case Header.MB_BAD_SHAPE: return Unlike(expected, tensors);
                case Header.MB_BAD_VALUE: return LabelOutside(expected, tensors);
                case Header.MB_OUT_OF_MEMORY: return TooLarge(expected, tensors, sizes);
                default: return "";
            }
        }

        private string Written(IEnumerable<int> dims) =>
            $"[{string.Join(", ", dims.Select(dim => dim >= 0 ? dim.ToString() : dim == -1 ? "?" : symbols[-2 - dim].Name))}]";

        /// <summary>The first input whose type, rank or size is not what the model takes.</summary>
        private string Unlike(Input[] expected, Tensor[] tensors)
        {
            // Free dimension -> the input that had it first, and its size there.
            var found = new Dictionary<int, KeyValuePair<string, int>>();
            for (int i = 0; i < expected.Length; ++i)
            {
                Input input = expected[i];
                Tensor tensor = tensors[i];
                string name = $"input '{input.Name}'";
                if (tensor.Type != input.Type)
                    return $"{name} is {TypeNames[tensor.Type]}, the model takes {TypeNames[input.Type]}.";
                if (tensor.Dims.Count != input.Dims.Length || input.Dims.Where((dim, axis) => dim >= 0 && dim != tensor.Dims[axis]).Any())
                    return $"{name} has the shape {Written(tensor.Dims)}, the model takes {Written(input.Dims)}.";
                for (int axis = 0; axis < input.Dims.Length; ++axis)
                {
                    int dim = input.Dims[axis], size = tensor.Dims[axis];
                    if (dim > -2) continue;
                    if (!found.ContainsKey(dim)) found[dim] = new KeyValuePair<string, int>(name, size);
                    string along = $"along '{symbols[-2 - dim].Name}'";
                    if (found[dim].Value != size) return $"{name} has {size} {along}, {found[dim].Key} has {found[dim].Value}.";
                    if (size == 0) return $"{name} is empty {along}, which is 1 at least.";
                }
            }
            return "";
        }

        /// <summary>A label of a loss that is no class, where an input has the labels as they are.</summary>
        private static string LabelOutside(Input[] expected, Tensor[] tensors)
        {
            for (int i = 0; i < expected.Length; ++i)
            {
                Input input = expected[i];
                IReadOnlyList<int> dims = tensors[i].Dims;
                if (input.Classes == 0) continue;
                for (int at = 0; at < tensors[i].Data.Length; ++at)
                {
                    long label = Convert.ToInt64(tensors[i].Data.GetValue(at));
                    if ((label >= 0 && label < input.Classes) || label == input.Ignored) continue;
                    IEnumerable<int> place = dims.Select((dim, axis) => at / dims.Skip(axis + 1).Aggregate(1, (a, b) => a * b) % dim);
                    string where = dims.Count == 1 ? $"sample {at}" : $"place [{string.Join(", ", place)}]";
                    return $"label {label} is outside 0..{input.Classes - 1} ({where} of input '{input.Name}').";
                }
            }
            return "";
        }

        /// <summary>A free dimension that is larger than the session was created for.</summary>
        private string TooLarge(Input[] expected, Tensor[] tensors, int[] sizes)
        {
            for (int i = 0; i < expected.Length; ++i)
                for (int axis = 0; axis < expected[i].Dims.Length; ++axis)
                {
                    int dim = expected[i].Dims[axis], size = tensors[i].Dims[axis];
                    if (dim > -2) continue;
                    Symbol symbol = symbols[-2 - dim];
                    int room = sizes.Length > 0 ? sizes[-2 - dim] : symbol.Largest;
                    if (size > room)
                        return $"{symbol.Name} {size} is above the {room} this session has memory for. Create it with larger sizes.";
                }
            return "";
        }
    }
}
