"""A built trainer library, loaded into this process: the C API of trainer.h on numpy arrays."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.errors import BadInput, MinbuildError
from minbuild.ir import ElementType
from minbuild.ir.mapped import FileBytes, parts_of
from minbuild.planning.library_contents import COMPONENTS
from minbuild.training.c_api import (
    OPTIONAL_FUNCTIONS,
    PARALLEL,
    PROTOTYPES,
    SINK,
    COptions,
    CParameter,
    CProperty,
    CSession,
    CTensor,
    to_array,
    to_tensor,
)

STATUS = (
    "ok", "invalid argument", "bad plan", "missing kernel", "bad checkpoint", "out of memory", "bad shape",
    "bad value", "input or output failed", "unsupported",
)  # fmt: skip
TRAIN, EVAL, TRAIN_AND_UPDATE = 0, 1, 4


def ports_of(graph: int) -> int:
    """The graph whose inputs and outputs `graph` has."""
    return TRAIN if graph == TRAIN_AND_UPDATE else graph


class TrainerError(MinbuildError, RuntimeError):
    """A call of the device library failed. `status` is the mb_status."""

    exit_code = 2

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(f"{STATUS[status] if status < len(STATUS) else status}: {text}")


_STRING = 8  # mb_property's type of a text
_BAD_VALUE, _UNSUPPORTED = 7, 9
_COUNT, _FROM_PARAMETERS, _TO_PARAMETERS = range(3)
_OPTIMIZER, _INITIALIZE = 2, 3  # the graphs after TRAIN and EVAL
_TRAINABLE = 1  # kind of a parameter
_PARAMETERS = 4  # the list after the inputs and outputs of both


_known: dict[Path, tuple[int, ...]] = {}  # the file that was first loaded from each path


def _loaded(path: Path) -> ctypes.CDLL:
    """The library in a file. The system's loader gives what it once loaded from a path, for ever, so a file that was
    replaced since, as by reducing again in a notebook, is loaded from a copy."""
    about = path.stat()
    identity = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
    if _known.setdefault(path, identity) == identity:
        return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory(prefix="minbuild-library-", ignore_cleanup_errors=True) as folder:
        return ctypes.CDLL(shutil.copy(path, folder))


class Library:
    """The functions of one trainer library. Raises BadInput when it cannot be loaded here."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = _loaded(Path(path).resolve())
            for name, (result, arguments) in PROTOTYPES.items():
                function = getattr(self.handle, name)
                function.restype, function.argtypes = result, arguments
            for name, (_, arguments) in OPTIONAL_FUNCTIONS.items():
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
            component = OPTIONAL_FUNCTIONS.get(f"mb_{name}", ("",))[0]
            if not component:
                raise
            cure = f"--with {component}" if component in COMPONENTS else f"--{component} on"
            text = f"the library was built without {component.replace('-', ' ')}. Reduce again with {cure}."
            raise TrainerError(_UNSUPPORTED, text) from None


def aligned_room(size: int, alignment: int = 64) -> np.ndarray:
    """`size` bytes that start at a multiple of `alignment`, as the device library requires it of plans and arenas."""
    room = np.empty(size + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    return room[start : start + size]


def aligned_copy(data: bytes | memoryview, alignment: int = 64) -> np.ndarray:
    """The bytes in memory that starts at a multiple of `alignment`."""
    view = aligned_room(len(data), alignment)
    at = 0
    for part in parts_of(data):
        view[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return view


def _aligned(data: FileBytes | np.ndarray) -> np.ndarray:
    return data if isinstance(data, np.ndarray) else aligned_copy(data)


Parallel = Callable[[Callable[[int], None], int], None]


def _pool(parallel: Parallel) -> Any:
    """A pool of the program as the library calls it."""
    return PARALLEL(lambda user, task, work, count: parallel(lambda i: task(work, i), count))


class Session:
    """A trainer in memory. Arrays of parameters and gradients are views of the device's own memory."""

    def __init__(
        self,
        library: Library,
        plan: FileBytes | np.ndarray,
        checkpoint: FileBytes | np.ndarray | None,
        sizes: Sequence[int] | None = None,
        arena: np.ndarray | None = None,
        *,
        accept_any: bool = False,
        threads: int = 0,
        parallel: Parallel | None = None,
    ) -> None:
        """A session of `library` that starts from `checkpoint`, a file's bytes, or from None without parameters yet. An
        array of bytes, also as `plan`, is used as it is, and starts at a multiple of 64.

        `plan` is empty where the library has it compiled in; `sizes` are the largest sizes of the free dimensions,
        in plan order; `arena` is memory to use (uint8, 16-byte aligned); `accept_any` takes checkpoints of other models
        with the same parameters, now and in `load`; `threads` limits the threads of a call, 0 takes all there are;
        `parallel(task, count)` is a pool of threads to use: it calls task(i) for every i below `count`, on whichever
        threads, and returns when all of these calls have. Raises TrainerError."""
        self.library = library
        self._plan = _aligned(plan)
        self._checkpoint = None if checkpoint is None else _aligned(checkpoint)
        self._arena = arena
        options = _options(sizes)
        options.accept_any_checkpoint = accept_any
        options.threads = threads
        if parallel is not None:
            self._parallel = _pool(parallel)  # lives as long as the session
            options.parallel = self._parallel
        if arena is not None:
            options.arena, options.arena_size = arena.ctypes.data, arena.nbytes
        self._session = ctypes.POINTER(CSession)()
        given = self._checkpoint
        status = library.create(
            *(self._plan.ctypes.data if self._plan.nbytes else None, self._plan.nbytes),
            *((None, 0) if given is None else (given.ctypes.data, given.nbytes)),
            ctypes.byref(options),
            ctypes.byref(self._session),
        )
        if status:
            raise TrainerError(status, options.error.decode(errors="replace"))
        self.parameters = self._parameters()

    def close(self) -> None:
        """Frees the session; every array it handed out is gone with it."""
        if self._session:
            self.library.destroy(self._session)
            self._session = ctypes.POINTER(CSession)()

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            self.close()

    def _listed(self, number: int) -> Iterator[CParameter]:
        """The contents of a list of the session."""
        for index in itertools.count():
            found = CParameter()
            if self.library.get(self._session, number, index, ctypes.byref(found)):
                return
            yield found

    def _parameters(self) -> dict[str, CParameter]:
        return {found.name.decode(): found for found in self._listed(_PARAMETERS)}

    def _check(self, status: int) -> None:
        if status:
            raise TrainerError(status, self._session.contents.error.decode(errors="replace"))

    def names(self, graph: int, outputs: bool) -> list[str]:
        """Names of the inputs or outputs of a graph."""
        return [found.name.decode() for found in self._listed(2 * ports_of(graph) + outputs)]

    def run(self, graph: int, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One step of a graph; outputs are copies."""
        arrays = [np.asarray(x, order="C") for x in inputs]  # ascontiguousarray would give scalars an axis
        tensors = (CTensor * max(1, len(arrays)))(*(to_tensor(x) for x in arrays))
        self._check(self.library.run(self._session, graph, tensors, len(arrays)))
        return [to_array(found.value).copy() for found in self._listed(2 * ports_of(graph) + 1)]

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
        """The parameter's own memory, which the array keeps alive: that of the session, or of a frozen parameter the
        checkpoint that was loaded last."""
        return to_array(self.parameters[name].value, (self, self._checkpoint))

    def is_trained(self, name: str) -> bool:
        """True if updates change the parameter."""
        return bool(self.parameters[name].kind == _TRAINABLE)

    def gradient(self, name: str) -> np.ndarray | None:
        """The gradient's own memory; None for what is not trained, and with fused updates."""
        parameter = self.parameters[name]
        if not parameter.gradient:
            return None
        tensor = CTensor.from_buffer_copy(parameter.value)
        tensor.data = parameter.gradient
        return to_array(tensor, self)

    def checkpoint(self, include_optimizer: bool) -> bytes:
        """The session's state as the bytes of an ORT checkpoint."""
        write = self.library.write_checkpoint
        return self._gathered(lambda sink: write(self._session, int(include_optimizer), sink, None))

    def stream_checkpoint(self, include_optimizer: bool, take: Callable[[memoryview], None]) -> None:
        """Passes the bytes of `checkpoint` to `take`, piece by piece, each valid for the call only."""
        write = self.library.write_checkpoint

        def sink(_: int, data: int, size: int) -> int:
            if size:
                take(memoryview((ctypes.c_char * size).from_address(data)).cast("B"))
            return 0

        self._check(write(self._session, int(include_optimizer), SINK(sink), None))

    def _gathered(self, write: Callable[[Any], int]) -> bytes:
        """The bytes that `write` passes to its sink."""
        pieces: list[bytes] = []

        def sink(_: int, data: int, size: int) -> int:
            pieces.append(ctypes.string_at(data, size))
            return 0

        self._check(write(SINK(sink)))
        return b"".join(pieces)

    def properties(self) -> dict[str, int | float | str]:
        """The properties, oldest first. This and what follows raise TrainerError where the library lacks the part."""
        found: dict[str, int | float | str] = {}
        entry = CProperty()
        while not self.library.get_property(self._session, len(found), ctypes.byref(entry)):
            kinds = {ElementType.FLOAT: entry.real, ElementType.INT64: entry.integer, _STRING: entry.text}
            value = kinds[entry.type]
            found[entry.name.decode()] = value.decode() if isinstance(value, bytes) else value
        return found

    def set_property(self, name: str, value: int | float | str | None) -> None:
        """Adds or replaces a property; None removes it."""
        entry = CProperty(name.encode())
        if isinstance(value, str):
            entry.text, entry.type = value.encode(), _STRING
        elif isinstance(value, int):
            entry.integer, entry.type = value, ElementType.INT64
        elif value is not None:
            entry.real, entry.type = value, ElementType.FLOAT
        self._check(self.library.set_property(self._session, ctypes.byref(entry)))

    def buffer(self, trainable_only: bool) -> np.ndarray:
        """All parameters, or those that are trained, one after the other."""
        count = ctypes.c_size_t()
        move = self.library.parameter_buffer
        self._check(move(self._session, int(trainable_only), _COUNT, None, ctypes.byref(count)))
        buffer = np.empty(count.value, np.float32)
        given = self._session, int(trainable_only), _FROM_PARAMETERS, buffer.ctypes.data
        self._check(move(*given, ctypes.byref(count)))
        return buffer

    def fill(self, buffer: np.ndarray, trainable_only: bool) -> None:
        """The inverse of `buffer`."""
        given = np.ascontiguousarray(buffer, np.float32)
        count = ctypes.c_size_t(given.size)
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
        found = self._parameters()
        if any(0 <= (p.value.data or 0) - data.ctypes.data < data.nbytes for p in found.values()):
            self._checkpoint, self.parameters = data, found  # frozen parameters are read from it in place


def arena_size(library: Library, plan: FileBytes | np.ndarray, sizes: Sequence[int] | None = None) -> int:
    """Bytes of arena that a session of `library` needs when its free dimensions grow up to `sizes`; `plan` as of a
    session. Raises TrainerError."""
    data, options = _aligned(plan), _options(sizes)
    given = (data.ctypes.data if data.nbytes else None, data.nbytes)
    no_checkpoint, no_session = (None, 0), None
    status = library.create(*given, *no_checkpoint, ctypes.byref(options), no_session)
    if status:
        raise TrainerError(status, options.error.decode(errors="replace"))
    return int(options.arena_size)


def _options(sizes: Sequence[int] | None) -> COptions:
    """Options with the largest sizes of the free dimensions, in plan order."""
    options = COptions()
    if sizes is not None:
        options.symbols, options.symbol_count = (ctypes.c_int32 * len(sizes))(*sizes), len(sizes)
    return options
