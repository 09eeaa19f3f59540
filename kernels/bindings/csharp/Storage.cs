using System;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;

namespace Minbuild
{
    /// <summary>Checkpoints, and what a library has only if asked for: without, its calls raise
    /// EntryPointNotFoundException.</summary>
    public sealed partial class TrainingSession
    {
        /// <summary>The bytes of an ONNX Runtime checkpoint.</summary>
        public byte[] ToCheckpoint(bool includeOptimizer) =>
            Written(sink => Native.mb_write_checkpoint(Open, includeOptimizer ? 1 : 0, sink, IntPtr.Zero));

        /// <summary>Written beside the file, then moved over it, so the old one survives a failure.</summary>
        public void SaveCheckpoint(string path, bool includeOptimizer) => Replace(path, ToCheckpoint(includeOptimizer));

        /// <summary>`acceptAny` takes the checkpoint of another model whose parameters have the same names, types and
        /// shapes.</summary>
        public unsafe void LoadCheckpoint(byte[] bytes, bool acceptAny = false)
        {
            var session = (mb_session*)Open;
            session->accepts_any_checkpoint = acceptAny ? 1 : 0;
            Memory unused = new Memory(bytes), loaded = unused;
            byte status = Native.mb_load_checkpoint(Open, loaded.Address, loaded.Size);
            session->accepts_any_checkpoint = 0;
            // Frozen parameters are read where their checkpoint is.
            if (status == Header.MB_OK && All(Header.MB_PARAMETERS).Any(found => loaded.Holds(found.value.data)))
            {
                unused = checkpoint;
                checkpoint = loaded;
            }
            unused.Dispose();
            Must(status);
        }

        /// <summary>Part `export`: an ONNX model for inference, made from the package's inference.template.</summary>
        public void ExportModelForInferencing(string templatePath, string path)
        {
            using (var template = new Memory(File.ReadAllBytes(templatePath)))
                Replace(path, Written(sink => Native.mb_export_model(Open, template.Address, template.Size, sink, IntPtr.Zero)));
        }

        /// <summary>Part `properties`: a long, a float or a string that travels in checkpoints; null removes it.</summary>
        public void SetProperty(string name, object value)
        {
            using (Memory nameText = Memory.Text(name))
            using (Memory text = Memory.Text(value as string ?? ""))
            {
                var property = new mb_property { name = nameText.Address, text = text.Address };
                if (value is long || value is int) property.integer = Convert.ToInt64(value);
                if (value is float real) property.real = real;
                property.type = PropertyType(value);
                Must(Native.mb_set_property(Open, ref property));
            }
        }

        private static int PropertyType(object value)
        {
            if (value == null) return 0;
            if (value is long || value is int) return Header.MB_INT64;
            if (value is float) return Header.MB_FLOAT;
            if (value is string) return Header.MB_STRING;
            throw new ArgumentException($"a property is a long, a float or a string, not {value.GetType()}");
        }

        /// <summary>A long, a float or a string; null where there is none of that name.</summary>
        public object GetProperty(string name)
        {
            mb_property found;
            for (uint i = 0; Native.mb_get_property(Open, new UIntPtr(i), out found) == Header.MB_OK; ++i)
            {
                if (Memory.TextAt(found.name) != name) continue;
                if (found.type == Header.MB_INT64) return found.integer;
                return found.type == Header.MB_FLOAT ? (object)found.real : Memory.TextAt(found.text);
            }
            return null;
        }

        /// <summary>Part `buffers`: the parameters one after the other.</summary>
        public float[] ToBuffer(bool trainableOnly)
        {
            UIntPtr count = UIntPtr.Zero;
            Must(Native.mb_parameter_buffer(Open, trainableOnly ? 1 : 0, Header.MB_COUNT_PARAMETERS, null, ref count));
            var buffer = new float[(int)count.ToUInt32()];
            Must(Native.mb_parameter_buffer(Open, trainableOnly ? 1 : 0, Header.MB_FROM_PARAMETERS, buffer, ref count));
            return buffer;
        }

        public void FromBuffer(float[] buffer, bool trainableOnly)
        {
            var count = new UIntPtr((uint)buffer.Length);
            Must(Native.mb_parameter_buffer(Open, trainableOnly ? 1 : 0, Header.MB_TO_PARAMETERS, buffer, ref count));
        }

        private byte[] Written(Func<Native.Sink, byte> call)
        {
            var stream = new MemoryStream();
            Native.Sink sink = (user, bytes, size) =>
            {
                var piece = new byte[(int)size.ToUInt32()];
                Marshal.Copy(bytes, piece, 0, piece.Length);
                stream.Write(piece, 0, piece.Length);
                return 0;
            };
            Must(call(sink));
            GC.KeepAlive(sink);
            return stream.ToArray();
        }

        private static void Replace(string path, byte[] bytes)
        {
            string beside = path + ".new";
            using (var file = new FileStream(beside, FileMode.Create))
            {
                file.Write(bytes, 0, bytes.Length);
                file.Flush(flushToDisk: true);
            }
            if (File.Exists(path)) File.Replace(beside, path, null);
            else File.Move(beside, path);
        }
    }
}
