"""Command lines of zig's compiler, and of the compiler inside of its linker: what each target needs to be small."""

from __future__ import annotations

from minbuild.options.build_options import OFF, BuildOptions
from minbuild.toolchain import flags
from minbuild.toolchain.compile_library import INCLUDES
from minbuild.toolchain.targets import Target

# Of Android on 32-bit Arm, where calls hand numbers over as on processors without instructions for them: zig's driver
# takes these instructions away, the last ones out of clang's reach but for this spelling.
_SOFTFP = ("-mfloat-abi=softfp", "-Xclang", "-target-feature", "-Xclang", "+vfp2")


def driver(target: Target, language: str, name: str = "", mode: str = "") -> tuple[str, ...]:
    """The words of zig's driver that select `language` ("c++" or "cc") and the processor of `target`. `name` replaces
    zig's name of the target, `mode` is added to that of the processor."""
    cpu = f"{target.cpu or target.traits.cpu}{mode}"
    return ("zig", language, "-target", name or target.traits.zig, f"-mcpu={cpu}")


def compile_command(
    target: Target, language: str, build_options: BuildOptions, name: str = "", *, speed: bool = False
) -> tuple[str, ...]:
    """The call that compiles a source in `language` for `target`, as `build_options` say: for size, or with `speed`
    for time. `name` replaces zig's name of the target."""
    cxx = ("-std=c++17", "-nostdlib++") if language == "c++" else ("-std=c11",)
    # zig's driver turns -Oz into -Os; the second spelling reaches clang itself.
    level = (flags.SPEED,) if speed else ("-Oz", "-Xclang", "-Oz")
    common = flags.compile_flags(build_options)
    softfp = _SOFTFP if (name or target.traits.zig) == "arm-linux-musleabi" else ()
    return (
        *driver(target, language, name, "" if name else target.traits.mode),
        *cxx,
        *level,
        "-fno-sanitize=all",
        *(() if speed else _small(target)),
        *(common if language == "c++" else (f for f in common if f not in _CXX_ONLY)),
        *target.traits.flags,
        *softfp,
        *INCLUDES,
    )


def uses_lto(target: Target, build_options: BuildOptions) -> bool:
    """True if a link optimises; links of other formats cannot."""
    return target.traits.is_elf and build_options.lto != OFF


def lto_options(target: Target, build_options: BuildOptions) -> tuple[str, ...]:
    """The options that the compiler inside of the linker needs again. Functions know themselves what they are for.

    It sees all callers of a function, so that each saves just the registers that another changes. What it moves into
    its callers besides is shorter only where instructions have one size.
    """
    if not uses_lto(target, build_options):
        return ()
    if build_options.optimize == "speed":
        return ("--lto-O2",)
    small = tuple(word for word in _small(target) if not word.startswith("-f"))
    if target.traits.arch == "x86_64":
        # What was extended to 64 bits is used so in other blocks, too: up to 32 bytes less.
        return ("--lto-O1", *small, *_mllvm("-enable-ipra", "-aggressive-ext-opt"))
    return ("--lto-O2", *small, *_mllvm("-enable-ipra"))


def _mllvm(*options: str) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-mllvm", option))


# What clang does for speed even where size is all that counts. Loops that matter are vectors already, and no
# slower without.
_SMALL = (
    "-fno-jump-tables",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-strict-aliasing",  # keeps values in registers that are shorter to read again
    *_mllvm(
        "-disable-lsr",  # induction variables of their own for every address
        "-disable-machine-licm",  # constants in registers around loops
        "-indvars-widen-indvars=0",  # 64-bit counters for 32-bit ones
        "-enable-pre=false",  # loads and sums copied to where they may be spared
        "-split-spill-mode=size",  # values go to the stack where that is short
        "-enable-gvn-sink",  # what branches end with alike, once behind them
        "-apply-ext-tsp-for-size",  # blocks in the order that needs the fewest jumps
        "-jump-threading-threshold=2",  # blocks copied to spare a jump
    ),
)
# Both sides of a branch computed to choose between the results, or not: it pays for processors with instructions that
# compute on a condition.
_ONE_SIDE = _mllvm("-phi-node-folding-threshold=0")
_NEITHER_SIDE = (*_ONE_SIDE, *_mllvm("-bonus-inst-threshold=0"))
_BOTH_SIDES = _mllvm("-bonus-inst-threshold=4")
# Where an entry is but a byte or two.
_JUMP_TABLES = ("-fjump-tables",)
_SMALL_ON = {
    "x86_64": _NEITHER_SIDE,
    "aarch64": (*_BOTH_SIDES, *_JUMP_TABLES),
    "arm": _ONE_SIDE,
    "thumb": _ONE_SIDE,
    "riscv64": _NEITHER_SIDE,
    "wasm32": _JUMP_TABLES,
}


def _small(target: Target) -> tuple[str, ...]:
    return (*_SMALL, *_SMALL_ON.get(target.traits.arch, ()))


_CXX_ONLY = ("-fno-rtti", "-fno-threadsafe-statics", "-fno-exceptions")
