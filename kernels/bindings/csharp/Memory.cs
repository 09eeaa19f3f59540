using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Minbuild
{
    /// <summary>A copy of bytes outside the garbage collector's reach, at a multiple of 16.</summary>
    internal sealed class Memory : IDisposable
    {
        private IntPtr block;

        public Memory(byte[] bytes)
        {
            block = Marshal.AllocHGlobal(bytes.Length + 16);
            Address = new IntPtr((block.ToInt64() + 15) & ~15L);
            Size = new UIntPtr((uint)bytes.Length);
            Marshal.Copy(bytes, 0, Address, bytes.Length);
        }

        public IntPtr Address { get; }

        public UIntPtr Size { get; }

        public bool Holds(IntPtr address) => (ulong)(address.ToInt64() - Address.ToInt64()) < Size.ToUInt64();

        public void Dispose()
        {
            Marshal.FreeHGlobal(block);
            block = IntPtr.Zero;
        }

        /// <summary>A text as C has it, in UTF-8.</summary>
        public static Memory Text(string text) => new Memory(Encoding.UTF8.GetBytes(text + "\0"));

        public static string TextAt(IntPtr address)
        {
            if (address == IntPtr.Zero) return "";
            int length = 0;
            while (Marshal.ReadByte(address, length) != 0) ++length;
            var bytes = new byte[length];
            Marshal.Copy(address, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }
    }
}
