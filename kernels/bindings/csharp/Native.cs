using System;
using System.Runtime.InteropServices;

namespace Minbuild
{
    /// <summary>The functions of trainer.h.</summary>
    internal static class Native
    {
        private const string Library = "minbuild"; // libminbuild.so, libminbuild.dylib, minbuild.dll

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        public delegate int Sink(IntPtr user, IntPtr bytes, UIntPtr size);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_create(
            IntPtr plan, UIntPtr planSize, IntPtr checkpoint, UIntPtr checkpointSize, ref mb_options options, out IntPtr session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern void mb_destroy(IntPtr session);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_run(IntPtr session, int graph, [In] mb_tensor[] inputs, UIntPtr inputCount);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_get(IntPtr session, int list, UIntPtr index, out mb_parameter found);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_load_checkpoint(IntPtr session, IntPtr checkpoint, UIntPtr size);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_write_checkpoint(IntPtr session, int includeOptimizer, Sink sink, IntPtr user);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_get_property(IntPtr session, UIntPtr index, out mb_property found);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_set_property(IntPtr session, ref mb_property property);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_parameter_buffer(
            IntPtr session, int trainableOnly, int what, [In, Out] float[] buffer, ref UIntPtr count);

        [DllImport(Library, CallingConvention = CallingConvention.Cdecl)]
        public static extern byte mb_export_model(IntPtr session, IntPtr template, UIntPtr size, Sink sink, IntPtr user);
    }
}
