"""Does the link hold what was selected, and nothing else? Works on names alone, whoever read them from the
file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from minbuild.errors import ToolchainFailed

# Of the C library: functions of memory, and of that of macOS those of files, the number of the last error, a function
# that its compilers clear memory with, and the loader's part of every call. Threads of macOS and of Windows; the memory
# of a WebAssembly module that shares it.
ALLOWED_IMPORTS = frozenset(
    ("memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "strcmp", "mmap", "munmap", "madvise")
    + ("open", "close", "read", "write", "lseek", "fsync", "rename", "unlink", "fchmod")
    + ("lstat", "lstat$INODE64", "__error", "bzero", "dyld_stub_binder")
    + (
        "pthread_attr_destroy",
        "pthread_attr_init",
        "pthread_attr_setstacksize",
        "pthread_create",
        "pthread_join",
    )
    + ("pthread_cond_broadcast", "pthread_cond_init", "pthread_cond_wait", "pthread_mutex_init")
    + ("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_sigmask", "sysconf")
    + ("CreateThread", "CloseHandle", "WaitForSingleObject", "GetProcessAffinityMask")
    + ("AcquireSRWLockExclusive", "ReleaseSRWLockExclusive")
    + ("SleepConditionVariableSRW", "WakeAllConditionVariable", "memory")
)

# Fundamental types as demanglers print them -> as the generated kernel table writes them, on every data
# model.
_TYPES = {
    "signed char": "int8_t",
    "unsigned char": "uint8_t",
    "short": "int16_t",
    "unsigned short": "uint16_t",
    "int": "int32_t",
    "unsigned int": "uint32_t",
    "long": "int64_t",
    "unsigned long": "uint64_t",
    "long long": "int64_t",
    "unsigned long long": "uint64_t",
    "unsigned": "uint32_t",
}
_NAMESPACES = ("minbuild::", "(anonymous namespace)::")
_PARAMETERS = ("(minbuild::Call const&)", "(Call const&)")
_CAST = re.compile(r"^\([a-z_:A-Z ]+\)(?=-?\d)")
_SUFFIX = re.compile(r"(\.[a-z]+)?(\.\d+)*$|\s*\[.*\]$")


def instantiation(symbol: str) -> str:
    """`minbuild::Status minbuild::gemm<float>(minbuild::Call const&)` -> `gemm<float>`, types in one
    spelling.

    Without a template argument list the bare name; namespace `minbuild` and unnamed ones are left out.
    """
    name = _declarator(symbol.replace("(anonymous namespace)::", ""))
    function, bracket, rest = name.partition("<")
    for namespace in _NAMESPACES:
        function = function.replace(namespace, "")
    if not bracket:
        return _SUFFIX.sub("", function)
    inside = rest[: rest.rfind(">")]
    return f"{function}<{', '.join(_argument(part) for part in _split(inside, ','))}>"


def _is_kernel_call(symbol: str) -> bool:
    """True if the parameters are a kernel's, or unknown. A kernel may share its name with a helper of
    shared/, or with a C function, which has nothing but a name.
    """
    if symbol.isidentifier():
        return False
    symbol = symbol.replace("(anonymous namespace)::", "")
    name = _declarator(symbol)
    parameters = symbol[symbol.find(name) + len(name) :]
    return not parameters.startswith("(") or parameters.startswith(_PARAMETERS)


def _declarator(symbol: str) -> str:
    """The qualified name: up to the parameter list, after the return type."""
    depth, start = 0, 0
    for at, letter in enumerate(symbol):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif depth == 0 and letter == "(" and at > start:
            return symbol[start:at]
        elif depth == 0 and letter == " ":
            start = at + 1
    return symbol[start:] if start < len(symbol) else symbol


def _split(text: str, separator: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, letter in enumerate(text):
        if letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == separator and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _argument(text: str) -> str:
    text = _CAST.sub("", text.strip())
    if "<" in text:
        return instantiation(text)
    for namespace in _NAMESPACES:
        text = text.replace(namespace, "")
    return re.sub(r"^(-?\d+)[uUlL]+$", r"\1", _TYPES.get(text, text))


def check_link(
    *,
    selected: Collection[str],
    kernels: Collection[str],
    symbols: Iterable[str],
    exports: Iterable[str],
    imports: Iterable[str],
    allowed: Collection[str] = ALLOWED_IMPORTS,
) -> None:
    """Raise ToolchainFailed, with every finding, when the link is not what was asked for.

    `selected`: the kernels that belong in, as instantiations ("gemm<float>", with or without "minbuild::").
    `kernels`: the function names of all kernels there are, so that helpers are not mistaken for one. `symbols`:
    demangled names of the unstripped library. `exports`, `imports`: dynamic names of the shared library, where
    macOS's leading underscore is gone. `allowed` are imports that may remain."""
    expected = {instantiation(name) for name in selected}
    functions = {instantiation(name).partition("<")[0] for name in kernels}
    found = {instantiation(name) for name in symbols if _is_kernel_call(name)}
    strays = sorted(name for name in found if name.partition("<")[0] in functions and name not in expected)
    findings = [f"kernel {name} is in it but was not selected" for name in strays]
    findings += [
        f"{name} is exported, only mb_* may be" for name in sorted(exports) if not name.startswith("mb_")
    ]
    findings += [
        f"{name} is imported, which no plain C library has to offer"
        for name in sorted(set(imports) - set(allowed))
    ]
    if findings:
        raise ToolchainFailed(
            f"link: the library is not what was selected: {'; '.join(findings)}. "
            "This is a mistake in a kernel or in minbuild, not in your model: please report this text."
        )
