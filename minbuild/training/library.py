"""A built trainer library, loaded into this process: the C API of trainer.h on numpy arrays."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import BadInput, MinbuildError
from minbuild.ir import ElementType
from minbuild.planning.library_contents import COMPONENTS

MAX_RANK = 8
STATUS = (
    "ok", "invalid argument", "bad plan", "missing kernel", "bad checkpoint", "out of memory", "bad shape",
    "bad value", "input or output failed", "unsupported",
)  # fmt: skip
TRAIN, EVAL = 0, 1


class TrainerError(MinbuildError, RuntimeError):
    """A call of the device library failed. `status` is the mb_status."""

    exit_code = 2

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{STATUS[status] if status < len(STATUS) else status}: {text}")


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int32 * MAX_RANK),
    )


class _Parameter(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("value", _Tensor),
        ("gradient", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("arena", ctypes.c_void_p),
        ("arena_size", ctypes.c_size_t),
        ("symbols", ctypes.POINTER(ctypes.c_int32)),
        ("symbol_count", ctypes.c_size_t),
        ("error", ctypes.c_char * 160),
        ("accept_any_checkpoint", ctypes.c_int32),
    )


class _Progress(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("learning_rate", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


class _Session(ctypes.Structure):
    """The part of mb_session that is declared in trainer.h."""

    _fields_ = (
        ("progress", ctypes.POINTER(_Progress)),
        ("error", ctypes.c_char_p),
        ("replaces_gradients", ctypes.c_int32),
        ("accepts_any_checkpoint", ctypes.c_int32),
    )


class _Property(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_float),
        ("type", ctypes.c_int32),
    )


_SINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_P, _Z, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_S, _O = ctypes.POINTER(_Session), ctypes.POINTER(_Options)
_PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "mb_create": (ctypes.c_uint8, (_P, _Z, _P, _Z, _O, ctypes.POINTER(_S))),
    "mb_destroy": (None, (_S,)),
    "mb_run": (ctypes.c_uint8, (_S, _I, ctypes.POINTER(_Tensor), _Z)),
    "mb_get": (ctypes.c_uint8, (_S, _I, _Z, ctypes.POINTER(_Parameter))),
    "mb_load_checkpoint": (ctypes.c_uint8, (_S, _P, _Z)),
}
# Functions of optional components, and of those that a build option leaves out.
_OPTIONAL: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "mb_create_from_files": ("file-io", (ctypes.c_char_p, ctypes.c_char_p, _O, ctypes.POINTER(_S))),
    "mb_write_checkpoint": ("checkpoint-writing", (_S, _I, _SINK, _P)),
    "mb_save_checkpoint": ("checkpoint-writing", (_S, ctypes.c_char_p, _I)),
    "mb_get_property": ("properties", (_S, _Z, ctypes.POINTER(_Property))),
    "mb_set_property": ("properties", (_S, ctypes.POINTER(_Property))),
    "mb_parameter_buffer": ("buffers", (_S, _I, _I, _P, ctypes.POINTER(_Z))),
    "mb_export_model": ("export", (_S, _P, _Z, _SINK, _P)),
    "mb_export_to_file": ("export", (_S, ctypes.c_char_p, ctypes.c_char_p)),
}
_STRING = 8  # mb_property's type of a text
_BAD_VALUE, _UNSUPPORTED = 7, 9
_COUNT, _FROM_PARAMETERS, _TO_PARAMETERS = range(3)
_OPTIMIZER, _INITIALIZE = 2, 3  # the graphs after TRAIN and EVAL
_PARAMETERS = 4  # the list after the inputs and outputs of both


class Library:
    """The functions of one trainer library. Raises BadInput when it cannot be loaded here."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = ctypes.CDLL(str(Path(path).resolve()))
            for name, (result, arguments) in _PROTOTYPES.items():
                function = getattr(self.handle, name)
                function.restype, function.argtypes = result, arguments
            for name, (_, arguments) in _OPTIONAL.items():
                if hasattr(self.handle, name):
                    function = getattr(self.handle, name)
                    function.restype, function.argtypes = ctypes.c_uint8, arguments
        except (OSError, AttributeError) as error:
            raise BadInput(
                f"{path}: this machine cannot load the library ({error}). "
                "Reduce again with the target of this machine."
            ) from error

    def __getattr__(self, name: str) -> Any:
        """The function without its mb_. Raises TrainerError where the library was built without its component."""
        try:
            return getattr(self.handle, f"mb_{name}")
        except AttributeError:
            component = _OPTIONAL.get(f"mb_{name}", ("",))[0]
            if not component:
                raise
            cure = f"--with {component}" if component in COMPONENTS else f"--{component} on"
            text = f"the library was built without {component.replace('-', ' ')}. Reduce again with {cure}."
            raise TrainerError(_UNSUPPORTED, text) from None


def aligned_copy(data: bytes | memoryview, alignment: int = 64) -> np.ndarray:
    """The bytes in memory that starts at a multiple of `alignment`, as the device library wants plans."""
    room = np.empty(len(data) + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    view = room[start : start + len(data)]
    view[:] = np.frombuffer(data, np.uint8)
    return view


class Session:
    """A trainer in memory. Arrays of parameters and gradients are views of the device's own memory."""

    def __init__(
        self,
        library: Library,
        plan: bytes,
        checkpoint: bytes | None,
        sizes: Sequence[int] | None = None,
        arena: np.ndarray | None = None,
        *,
        accept_any: bool = False,
    ) -> None:
        """`plan` is empty where the library has it compiled in; `sizes` are the largest sizes of the free dimensions,
        in plan order; `arena` is memory to use (uint8, 16-byte aligned); `accept_any` takes checkpoints of other models
        with the same parameters, now and in `load`. Raises TrainerError."""
        self.library = library
        self._plan = aligned_copy(plan)
        self._checkpoint = None if checkpoint is None else aligned_copy(checkpoint)
        self._arena = arena
        options = _options(sizes)
        options.accept_any_checkpoint = accept_any
        if arena is not None:
            options.arena, options.arena_size = arena.ctypes.data, arena.nbytes
        self._session = _S()
        given = self._checkpoint
        status = library.create(
            self._plan.ctypes.data if plan else None,
            self._plan.nbytes,
            None if given is None else given.ctypes.data,
            0 if given is None else given.nbytes,
            ctypes.byref(options),
            ctypes.byref(self._session),
        )
        if status:
            raise TrainerError(status, options.error.decode(errors="replace"))
        self.parameters = {p.name.decode(): p for p in self._listed(_PARAMETERS)}

    def close(self) -> None:
        """Frees the session; every array it handed out is gone with it."""
        if self._session:
            self.library.destroy(self._session)
            self._session = _S()

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            self.close()

    def _listed(self, number: int) -> Iterator[_Parameter]:
        """The contents of a list of the session."""
        for index in itertools.count():
            found = _Parameter()
            if self.library.get(self._session, number, index, ctypes.byref(found)):
                return
            yield found

    def _check(self, status: int) -> None:
        if status:
            raise TrainerError(status, self._session.contents.error.decode(errors="replace"))

    def names(self, graph: int, outputs: bool) -> list[str]:
        """Names of the inputs or outputs of a graph."""
        return [found.name.decode() for found in self._listed(2 * graph + outputs)]

    def run(self, graph: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One step of a graph; outputs are copies."""
        arrays = [np.asarray(x, order="C") for x in inputs]  # ascontiguousarray would give scalars an axis
        tensors = (_Tensor * max(1, len(arrays)))(*(_tensor(x) for x in arrays))
        self._check(self.library.run(self._session, graph, tensors, len(arrays)))
        return [_array(found.value).copy() for found in self._listed(2 * graph + 1)]

    def optimizer_step(self) -> None:
        self._check(self.library.run(self._session, _OPTIMIZER, None, 0))

    def initialize(self) -> None:
        """New first values for parameters and state, where the model says which."""
        self._check(self.library.run(self._session, _INITIALIZE, None, 0))

    def lazy_reset_grad(self) -> None:
        self._session.contents.replaces_gradients = 1

    @property
    def learning_rate(self) -> float:
        return float(self._session.contents.progress.contents.learning_rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if not math.isfinite(np.float32(rate)):
            raise TrainerError(_BAD_VALUE, "not finite: learning rate")
        self._session.contents.progress.contents.learning_rate = rate

    @property
    def seed(self) -> int:
        """The seed of the next node that draws random numbers and has no seed of its own."""
        return int(self._session.contents.progress.contents.seed)

    @seed.setter
    def seed(self, seed: int) -> None:
        self._session.contents.progress.contents.seed = seed

    @property
    def step_count(self) -> int:
        return int(self._session.contents.progress.contents.step)

    def parameter(self, name: str) -> np.ndarray:
        """The parameter's own memory, which the array keeps alive."""
        return _array(self.parameters[name].value, self)

    def gradient(self, name: str) -> np.ndarray | None:
        """The gradient's own memory; None for what is not trained."""
        parameter = self.parameters[name]
        if not parameter.gradient:
            return None
        tensor = _Tensor.from_buffer_copy(parameter.value)
        tensor.data = parameter.gradient
        return _array(tensor, self)

    def checkpoint(self, include_optimizer: bool) -> bytes:
        """The session's state as the bytes of an ORT checkpoint."""
        write = self.library.write_checkpoint
        return self._gathered(lambda sink: write(self._session, int(include_optimizer), sink, None))

    def _gathered(self, write: Callable[[Any], int]) -> bytes:
        """The bytes that `write` passes to its sink."""
        pieces: list[bytes] = []

        def sink(_: int, data: int, size: int) -> int:
            pieces.append(ctypes.string_at(data, size))
            return 0

        self._check(write(_SINK(sink)))
        return b"".join(pieces)

    def properties(self) -> dict[str, int | float | str]:
        """The properties, oldest first. This and what follows raise TrainerError where the library lacks the part."""
        found: dict[str, int | float | str] = {}
        entry = _Property()
        while not self.library.get_property(self._session, len(found), ctypes.byref(entry)):
            kinds = {ElementType.FLOAT: entry.real, ElementType.INT64: entry.integer, _STRING: entry.text}
            value = kinds[entry.type]
            found[entry.name.decode()] = value.decode() if isinstance(value, bytes) else value
        return found

    def set_property(self, name: str, value: int | float | str | None) -> None:
        """Adds or replaces a property; None removes it."""
        entry = _Property(name.encode())
        if isinstance(value, str):
            entry.text, entry.type = value.encode(), _STRING
        elif isinstance(value, int):
            entry.integer, entry.type = value, ElementType.INT64
        elif value is not None:
            entry.real, entry.type = value, ElementType.FLOAT
        self._check(self.library.set_property(self._session, ctypes.byref(entry)))

    def buffer(self, trainable_only: bool) -> np.ndarray:
        """All parameters, or those that are trained, one after the other."""
        count = _Z()
        move = self.library.parameter_buffer
        self._check(move(self._session, int(trainable_only), _COUNT, None, ctypes.byref(count)))
        buffer = np.empty(count.value, np.float32)
        given = self._session, int(trainable_only), _FROM_PARAMETERS, buffer.ctypes.data
        self._check(move(*given, ctypes.byref(count)))
        return buffer

    def fill(self, buffer: np.ndarray, trainable_only: bool) -> None:
        """The inverse of `buffer`."""
        given = np.ascontiguousarray(buffer, np.float32)
        count = _Z(given.size)
        self._check(
            self.library.parameter_buffer(
                self._session, int(trainable_only), _TO_PARAMETERS, given.ctypes.data, ctypes.byref(count)
            )
        )

    def export(self, template: bytes) -> bytes:
        """The ONNX file for inference that `template` is of, with the parameters as they are."""
        data, write = aligned_copy(template), self.library.export_model
        return self._gathered(lambda sink: write(self._session, data.ctypes.data, data.nbytes, sink, None))

    def export_to(self, template: Path, path: Path) -> None:
        """The same from file to file."""
        self._check(self.library.export_to_file(self._session, str(template).encode(), str(path).encode()))

    def save(self, path: Path, include_optimizer: bool) -> None:
        """Writes an ORT checkpoint file; the old one survives any failure."""
        self._check(self.library.save_checkpoint(self._session, str(path).encode(), int(include_optimizer)))

    def load(self, checkpoint: bytes, *, accept_any: bool = False) -> None:
        """Replaces parameters, and optimizer state where there is some; `accept_any` takes the checkpoint of another
        model with the same parameters."""
        data, held = aligned_copy(checkpoint), self._session.contents
        before, held.accepts_any_checkpoint = (
            held.accepts_any_checkpoint,
            held.accepts_any_checkpoint or accept_any,
        )
        status = self.library.load_checkpoint(self._session, data.ctypes.data, data.nbytes)
        held.accepts_any_checkpoint = before
        self._check(status)
        self._checkpoint = data  # frozen parameters are read from it in place


def _tensor(array: np.ndarray) -> _Tensor:
    element = ElementType.of(array.dtype)
    if element is None or array.ndim > MAX_RANK:
        raise BadInput(f"a tensor of {array.dtype} with {array.ndim} dimensions cannot be an input.")
    dims = (ctypes.c_int32 * MAX_RANK)(*array.shape)
    return _Tensor(array.ctypes.data, int(element), array.ndim, dims)


def _array(tensor: _Tensor, owner: object = None) -> np.ndarray:
    """The tensor's elements where they are; `owner` lives as long as the array and all views of it."""
    element = ElementType(tensor.type)
    shape = tuple(tensor.dims[: tensor.rank])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0 or not tensor.data:
        return np.zeros(shape, element.dtype)
    raw = (ctypes.c_uint8 * (count * element.size)).from_address(tensor.data)
    raw.owner = owner  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(raw).view(element.dtype).reshape(shape)


def arena_size(library: Library, plan: bytes, sizes: Sequence[int] | None = None) -> int:
    """Bytes of arena a session needs when its free dimensions grow up to `sizes`; `plan` as of a session. Raises
    TrainerError."""
    data, options = aligned_copy(plan), _options(sizes)
    start = data.ctypes.data if plan else None
    status = library.create(start, data.nbytes, None, 0, ctypes.byref(options), None)
    if status:
        raise TrainerError(status, options.error.decode(errors="replace"))
    return int(options.arena_size)


def _options(sizes: Sequence[int] | None) -> _Options:
    """Options with the largest sizes of the free dimensions, in plan order."""
    options = _Options()
    if sizes is not None:
        options.symbols, options.symbol_count = (ctypes.c_int32 * len(sizes))(*sizes), len(sizes)
    return options
