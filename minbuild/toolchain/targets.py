"""The machines a trainer can be built for, and what each one's linker and loader need."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from minbuild.errors import BadInput
from minbuild.options.did_you_mean import did_you_mean


@dataclass(frozen=True, slots=True)
class Target:
    """A machine by its name in the table below. `cpu` is a CPU in zig's spelling ("x86_64_v3"), "" for the
    oldest.
    """

    name: str
    cpu: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.cpu}" if self.cpu else self.name

    @property
    def traits(self) -> Traits:
        """The row of the table. Raises BadInput when there is none."""
        return _traits(self.name)


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a target that the tools use.

    `zig` names the oldest C library to run on: headers then avoid functions that came later. `page` is the
    largest page a kernel of that architecture may use; a loader refuses libraries aligned to less, and with
    one file image for code and data a larger one costs address space but no bytes. `flags` are the extra
    compiler flags.
    """

    name: str
    zig: str
    libc: str = ""  # soname of the C library the loader has to bring
    page: int = 4096
    emulator: str = ""  # program that runs what is built, "" where none does
    static: str = ""  # zig's name for static programs, "" where programs are dynamic
    flags: tuple[str, ...] = ()
    cpu: str = "baseline"  # the oldest CPU that counts
    mode: str = (
        ""  # what to add to the CPU's name for the library itself, but not for the C library of programs
    )
    machine: str = ""  # the board an emulator of chips emulates
    android: str = ""  # what Android calls the architecture

    @property
    def arch(self) -> str:
        return self.zig.split("-")[0]

    @property
    def bits(self) -> int:
        """Bits of an address."""
        return 64 if self.arch in _ARCHES_64 else 32

    @property
    def os(self) -> str:
        return self.zig.split("-")[1]

    @property
    def format(self) -> str:
        """The format of the linked file: an ELF, Mach-O or PE library, a WebAssembly module, or the image of a chip
        without an operating system.
        """
        if self.arch == "wasm32":
            return "wasm"
        return {"macos": "macho", "windows": "pe", "freestanding": "image"}.get(self.os, "elf")

    @property
    def is_elf(self) -> bool:
        """True if it is an ELF shared library."""
        return self.format == "elf"

    @property
    def hosted(self) -> bool:
        """True if there is an operating system with a C library."""
        return self.os != "freestanding"

    @property
    def shares_memory(self) -> bool:
        """True for WebAssembly modules whose memory workers share: threads of those who load it."""
        return "+atomics" in self.cpu

    @property
    def relaxed_simd(self) -> bool:
        """True for WebAssembly modules with instructions of the relaxed SIMD proposal, which engines may lack."""
        return "+relaxed_simd" in self.cpu

    @property
    def no_threads(self) -> str:
        """Why libraries for it make no threads, "" where they do: by system calls of Linux, the C library of macOS, or
        Windows."""
        if self.shares_memory:
            return ""
        if self.arch == "wasm32":
            return "its module shares no memory with workers, as that of wasm32-threads does"
        return "" if self.hosted else "there is no operating system"

    @property
    def shared_name(self) -> str:
        """File name of what is linked: also its soname or install name."""
        return _FILES[self.format]

    @property
    def usage(self) -> str:
        """Notes for users of the file, "" for a plain shared library."""
        return _USAGES.get(self.format, "")


_ARCHES_64 = ("x86_64", "aarch64", "riscv64", "powerpc64le", "s390x", "loongarch64")
_USAGES = {
    "wasm": "imports nothing but memory that is shared; hand over memory you got by growing that, and callbacks in its "
    "table",
    "image": "what the library adds to a firmware, to be measured; link `libminbuild.a`, which needs no C library "
    "and no heap: hand over the arena",
    "pe": "built without files, and imports nothing but what threads take: hand over the arena",
}
_FILES = {
    "elf": "libminbuild.so",
    "macho": "libminbuild.dylib",
    "pe": "minbuild.dll",
    "wasm": "minbuild.wasm",
    "image": "minbuild.elf",
}


def _linux(
    arch: str,
    abi: str,
    since: str,
    page: int,
    flags: tuple[str, ...] = (),
    cpu: str = "baseline",
    mode: str = "",
) -> Traits:
    name = f"{arch}-linux-{abi}"
    libc = "libc.so.6" if since else "libc.so"
    static = f"{arch}-linux-{abi.replace('gnu', 'musl')}"
    zig = f"{name}.{since}" if since else name
    return Traits(
        name,
        zig=zig,
        libc=libc,
        page=page,
        emulator=f"qemu-{arch}",
        static=static,
        flags=flags,
        cpu=cpu,
        mode=mode,
    )


def _cortex(name: str, cpu: str, machine: str) -> Traits:
    """A microcontroller with single precision in hardware; the name of the CPU alone would leave that out."""
    flags = (*_FIXED, "-mthumb")
    return Traits(
        name,
        zig="thumb-freestanding-eabihf",
        page=0,
        emulator="qemu-system-arm",
        flags=flags,
        cpu=cpu,
        machine=machine,
    )


# Code for a fixed address.
_FIXED = ("-fno-pic",)
# Calls through the offset table instead of stubs. Longer at every call of aarch64; unknown to the others'
# compilers.
_NO_PLT = ("-fno-plt",)
# A Cortex-A7 has what every 32-bit board in use has: Thumb-2, VFPv4, NEON.
# The option is for drivers of other compilers, `mode` for the default one's, which does not hear it.
_THUMB = (("-mthumb",), "cortex_a7", "+thumb_mode")

_TABLE = {
    traits.name: traits
    for traits in (
        _linux("x86_64", "gnu", "2.17", 4096, _NO_PLT),
        _linux("x86_64", "musl", "", 4096, _NO_PLT),
        _linux("aarch64", "gnu", "2.17", 65536),
        _linux("aarch64", "musl", "", 65536),
        _linux("arm", "gnueabihf", "2.17", 4096, *_THUMB),
        _linux("arm", "musleabihf", "", 4096, *_THUMB),
        _linux("riscv64", "gnu", "2.27", 4096),
        _linux("riscv64", "musl", "", 4096),
        _linux("loongarch64", "gnu", "2.36", 65536),
        _linux("loongarch64", "musl", "", 65536),
        Traits(
            *("aarch64-linux-android", "aarch64-linux-musl", "libc.so", 65536, "qemu-aarch64"),
            static="aarch64-linux-musl",
            android="arm64-v8a",
        ),
        Traits(
            *(
                "arm-linux-androideabi",
                "arm-linux-musleabi",
                "libc.so",
                4096,
                "qemu-arm",
                "arm-linux-musleabi",
            ),
            *_THUMB,
            android="armeabi-v7a",
        ),
        Traits(
            "wasm32", zig="wasm32-freestanding", page=0, emulator="node", flags=_FIXED, cpu="lime1+simd128"
        ),
        # Rounding of a product and sum depends on the engine, and so do the last bits.
        Traits(
            *("wasm32-relaxed-simd", "wasm32-freestanding", "", 0, "node"),
            flags=_FIXED,
            cpu="lime1+simd128+relaxed_simd",
        ),
        Traits(
            *("wasm32-threads", "wasm32-freestanding", "", 0, "node"),
            flags=_FIXED,
            cpu="lime1+simd128+atomics+bulk_memory",
        ),
        Traits(
            *("wasm32-threads-relaxed-simd", "wasm32-freestanding", "", 0, "node"),
            flags=_FIXED,
            cpu="lime1+simd128+relaxed_simd+atomics+bulk_memory",
        ),
        _cortex("cortex-m4f", "cortex_m4+vfp4d16sp", "mps2-an386"),
        _cortex("cortex-m7", "cortex_m7+fp_armv8d16sp", "mps2-an500"),
        _cortex("cortex-m55", "cortex_m55+fp_armv8d16sp+mve_fp", "mps3-an547"),
        Traits("aarch64-macos", zig="aarch64-macos", page=16384),
        Traits("x86_64-macos", zig="x86_64-macos", flags=_NO_PLT),
        Traits("x86_64-windows", zig="x86_64-windows-gnu", emulator="wine"),
        Traits("aarch64-windows", zig="aarch64-windows-gnu"),
    )
}

# Neither a machine of CI nor an emulator in it runs their programs; those of macOS and Android neither.
_NEVER_RUN = ("aarch64-windows", "loongarch64-linux-gnu", "loongarch64-linux-musl")

_ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv8l": "arm", "armv6l": "arm"}
_SPELLINGS = {**_ALIASES, "armv7": "arm", "armv7a": "arm"}  # of architectures, at the start of a name
_ANDROID = {"aarch64-android": "aarch64-linux-android", "arm-android": "arm-linux-androideabi"}


def known_targets() -> tuple[str, ...]:
    """Every target name, sorted."""
    return tuple(sorted(_TABLE))


def proven_targets() -> tuple[str, ...]:
    """Targets whose trainers the project's CI runs and proves."""
    return tuple(name for name in known_targets() if name not in unproven_targets())


def unproven_targets() -> tuple[str, ...]:
    """Targets that CI cannot run: every list marks them NOT PROVEN."""
    return tuple(
        n for n in known_targets() if _TABLE[n].os == "macos" or _TABLE[n].android or n in _NEVER_RUN
    )


def _traits(name: str) -> Traits:
    if name in _TABLE:
        return _TABLE[name]
    hint = did_you_mean(name, known_targets())
    raise BadInput(f"target '{name}': unknown.{hint} {_known()}")


def _known() -> str:
    unproven = ", ".join(unproven_targets())
    return f"Known targets: {', '.join(proven_targets())}; NOT PROVEN, as CI cannot run them: {unproven}."


def _in_table(name: str) -> str:
    """The name in the table for another name of it; any other as it is."""
    arch, dash, system = name.partition("-")
    usual = f"{_SPELLINGS.get(arch, arch)}{dash}{system}"
    usual = _ANDROID.get(usual, usual)
    return usual if usual in _TABLE else name


def parse_target(text: str) -> Target:
    """`name` or `name:cpu` as the command line has it; an architecture may have its other names, such as arm64 and
    armv7, and Android its short one. Raises BadInput for a name not in the table."""
    name, _, cpu = text.partition(":")
    name = _in_table(name)
    _traits(name)
    if not all(letter.isalnum() or letter in "_+-." for letter in cpu):
        raise BadInput(
            f"target '{text}': '{cpu}' is no CPU name. Write it as zig does, for example x86_64_v3."
        )
    return Target(name, cpu)


def host_target() -> Target:
    """The machine this process runs on. Raises BadInput where no trainer can be built for it."""
    machine = platform.machine().lower()
    arch = _ALIASES.get(machine, machine)
    if sys.platform == "darwin":
        name = f"{arch}-macos"
    elif sys.platform.startswith("linux"):
        abi = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
        # A 64-bit kernel reports itself even to a 32-bit interpreter.
        if sys.maxsize < 2**32 and arch in ("aarch64", "arm"):
            arch, abi = "arm", f"{abi}eabihf"
        name = f"{arch}-linux-{abi}"
    else:
        name = f"{arch}-{sys.platform}"
    if name not in _TABLE:
        raise BadInput(
            f"{name}: no trainer can be built for this machine itself. Name another with --target. {_known()}"
        )
    return Target(name)
