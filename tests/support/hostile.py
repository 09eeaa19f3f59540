"""Damaged plans and checkpoints, and a process of its own that feeds them to a trainer.

    python tests/support/hostile.py FOLDER FIRST COUNT
    python tests/support/hostile.py FOLDER truncate 0

FOLDER holds what `prepare` writes. Every mutation is made from its number alone, so that a crash can be
repeated: the number goes to standard output before the library sees the bytes. Plan, checkpoint, inputs and
arena end at a page that cannot be touched, so that reading or writing past the end is a crash as well.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minbuild.frontend.checkpoint import schema as checkpoint_schema
from minbuild.ir.flatbuffers.codec import Schema, decode, encode
from minbuild.planning.dense_file import DensePlan
from minbuild.planning.plan_encoding import is_dense, plan_schema
from minbuild.training import library as device
from minbuild.training.library import EVAL, TRAIN, Library, Session, TrainerError, arena_size

EXTREMES = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    255,
    256,
    32767,
    32768,
    65534,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 16,
    2**32 - 1,
)
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_pages: list[mmap.mmap] = []


def guarded(data: bytes | memoryview | np.ndarray, alignment: int = 64) -> np.ndarray:
    """The bytes in memory of their own, as near to a forbidden page behind them as the alignment allows."""
    size = len(data)
    room = -(-max(size, 1) // _PAGE) * _PAGE
    pages = mmap.mmap(-1, room + _PAGE)
    _pages.append(pages)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    if _libc.mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(_PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    first = (room - size) // alignment * alignment
    view = np.frombuffer(pages, np.uint8, size, first)
    view[:] = np.frombuffer(data, np.uint8)
    return view


# ------------------------------------------------------------------------------------------------- mutations

Random = np.random.Generator


def flip_bytes(data: bytes, random: Random) -> bytes:
    """A few bytes become anything."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 5)):
        changed[random.integers(len(data))] = random.integers(256)
    return bytes(changed)


def replace_number(data: bytes, random: Random) -> bytes:
    """An aligned 16- or 32-bit number becomes an extreme one."""
    width = int(random.choice((2, 4)))
    at = int(random.integers(max(1, len(data) // width))) * width
    value = int(random.choice(EXTREMES)) & (256**width - 1)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def swap_numbers(data: bytes, random: Random) -> bytes:
    """Two aligned 32-bit numbers of the first bytes change places: offsets of vectors, mostly."""
    changed = bytearray(data)
    a, b = (int(i) * 4 for i in random.integers(0, max(1, min(len(data), 256) // 4), 2))
    changed[a : a + 4], changed[b : b + 4] = data[b : b + 4], data[a : a + 4]
    return bytes(changed)


def cut(data: bytes, random: Random) -> bytes:
    return data[: random.integers(len(data))]


def rewrite(schema: Schema) -> Callable[[bytes, Random], bytes]:
    """Well-formed bytes with wrong contents: members become extreme, or those of another element."""

    def mutate(data: bytes, random: Random) -> bytes:
        root = decode(schema, data)
        for _ in range(random.integers(1, 4)):
            _change(root, random)
        return encode(schema, root)

    return mutate


def rewrite_dense(data: bytes, random: Random) -> bytes:
    """The same of a dense plan."""
    plan = DensePlan.decode(data)
    for _ in range(random.integers(1, 4)):
        part = (plan.vectors, plan.vectors, plan.counts, plan.scalars)[random.integers(4)]
        _change(part, random)
    return plan.encode()


def _change(table: dict[str, Any], random: Random) -> None:
    present = [n for n, v in table.items() if v is not None and not (hasattr(v, "__len__") and len(v) == 0)]
    if not present:
        return
    name = present[random.integers(len(present))]
    value = table[name]
    if isinstance(value, dict):
        _change(value, random)
    elif isinstance(value, list) and isinstance(value[0], str):
        table[name] = [
            value[i] for i in random.integers(len(value), size=len(value) + random.integers(-1, 2))
        ]
    elif isinstance(value, list):
        _change(value[random.integers(len(value))], random)
    elif isinstance(value, np.ndarray):
        table[name] = _changed_vector(value.copy(), random)
    elif isinstance(value, str):
        table[name] = value[:-1] if random.integers(2) else value + "x"
    elif isinstance(value, (bool, np.bool_)):
        table[name] = not value
    elif isinstance(value, int) and value >= 0:
        table[name] = int(random.choice(EXTREMES)) % 2**31


def _changed_vector(vector: np.ndarray, random: Random) -> np.ndarray:
    kind = random.integers(8)
    if kind == 0:
        return vector[: random.integers(len(vector))]
    if kind == 1:
        return np.concatenate([vector, vector])
    members = vector.dtype.names
    column = vector if members is None else vector[members[random.integers(len(members))]]
    at = random.integers(len(column))
    if kind < 4:
        extreme = int(random.choice(EXTREMES)) & (256**column.dtype.itemsize - 1)
        column[at] = np.array([extreme], f"<u{column.dtype.itemsize}").view(column.dtype)[0]
    elif kind < 7:
        column[at] = column[random.integers(len(column))]
    else:
        column[at] += random.integers(0, 3)
    return vector


BLIND = (flip_bytes, replace_number, swap_numbers, cut)
OF_PLANS = (*BLIND, *[rewrite(plan_schema())] * 8)
OF_DENSE_PLANS = (*BLIND, *[rewrite_dense] * 8)
OF_CHECKPOINTS = (*BLIND, *[rewrite(checkpoint_schema())] * 3)


# -------------------------------------------------------------------------------------------------- feeding


def prepare(folder: Path, library: Path, plan: bytes, checkpoint: bytes, train: Any, evaluate: Any) -> Path:
    """Writes what the process needs."""
    folder.mkdir(exist_ok=True)
    (folder / "library").write_text(str(library))
    (folder / "plan").write_bytes(plan)
    (folder / "checkpoint").write_bytes(checkpoint)
    for name, arrays in (("train", train), ("eval", evaluate)):
        np.savez(folder / f"{name}.npz", *arrays)
    return folder


class Victim:
    """A library and undamaged files for it."""

    def __init__(self, folder: Path) -> None:
        device.aligned_copy = guarded  # what the session copies plan and checkpoint with
        self.library = Library(Path((folder / "library").read_text()))
        self.plan, self.checkpoint = (folder / "plan").read_bytes(), (folder / "checkpoint").read_bytes()
        self.batches = []
        for name in ("train", "eval"):
            with np.load(folder / f"{name}.npz") as arrays:
                stored = [arrays[n] for n in arrays.files]
            self.batches.append([guarded(x.tobytes(), 8).view(x.dtype).reshape(x.shape) for x in stored])
        # Room for a few times what the model needs, so that damaged sizes cost no time.
        self.arena = guarded(b"\xff" * (4 * arena_size(self.library, self.plan) // 64 * 64 + 4096))

    def feed(self, plan: bytes, checkpoint: bytes) -> int:
        """Everything a user can do; the status of the first failure, 0 without any."""
        kept = len(_pages)
        self.arena[:] = 0xFF
        try:
            return self._use(plan, checkpoint)
        except TrainerError as error:
            return error.status
        except UnicodeDecodeError:
            return 0  # a name that is no text: Python's concern, not the library's
        finally:
            del _pages[kept:]

    def _use(self, plan: bytes, checkpoint: bytes) -> int:
        session = Session(self.library, plan, checkpoint, arena=self.arena)
        failures = []
        for _ in range(2):
            for step in (
                lambda: session.run(EVAL, self.batches[1]),
                lambda: session.run(TRAIN, self.batches[0]),
                session.optimizer_step,
                lambda: session.checkpoint(True),
                lambda: session.load(self.checkpoint),
            ):
                try:
                    step()
                except TrainerError as error:
                    failures.append(error.status)
                except ValueError:
                    pass  # an output of a type that numpy does not have
        session.close()
        return failures[0] if failures else 0


def mutation(victim: Victim, number: int) -> tuple[bytes, bytes]:
    """Plan and checkpoint number `number`, one of them damaged."""
    random = np.random.default_rng(number)
    if random.integers(4) == 0:
        mutate = OF_CHECKPOINTS[random.integers(len(OF_CHECKPOINTS))]
        return victim.plan, mutate(victim.checkpoint, random)
    mutations = OF_DENSE_PLANS if is_dense(victim.plan) else OF_PLANS
    mutate = mutations[random.integers(len(mutations))]
    return mutate(victim.plan, random), victim.checkpoint


def main(folder: str, first: str, count: str) -> None:
    victim = Victim(Path(folder))
    assert victim.feed(victim.plan, victim.checkpoint) == 0, "the undamaged trainer must work"
    if first == "truncate":
        truncate(victim)
        return
    for number in range(int(first), int(first) + int(count)):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        with np.errstate(all="ignore"):
            victim.feed(*mutation(victim, number))


def truncate(victim: Victim) -> None:
    """Both files, cut at every length. A flatbuffer may end in padding that nobody misses."""
    for which, whole in enumerate((victim.plan, victim.checkpoint)):
        for length in range(len(whole)):
            sys.stdout.write(f"{('plan', 'checkpoint')[which]}-{length}\n")
            sys.stdout.flush()
            files = [victim.plan, victim.checkpoint]
            files[which] = whole[:length]
            refused = victim.feed(*files) != 0
            assert refused or not whole[length:].strip(b"\0"), f"taken when cut to {length} bytes"


if __name__ == "__main__":
    main(*sys.argv[1:])
