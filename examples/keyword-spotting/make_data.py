"""Speaks all recordings: base.npz for the backbone, and few.bin and held.bin of new words in voices of other people.

A file has the number of recordings and, for each, the number of its word (int32) and FRAMES * BANDS features (float32).
"""

from __future__ import annotations

import numpy as np
from speech import BANDS, FRAMES, Synthesiser, recording

BASE = (
    *("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"),
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"),
)
NEW = ("lamp", "music", "coffee", "window")
ACCENTS = ("en-US", "en", "en-GB-scotland", "en-GB-x-rp", "en-029", "en-US-nyc")
HEARD = ("m1", "m2", "m3", "m5", "m7", "f1", "f2", "f4", "Annie", "adam", "Lee", "Gene")
FEW = ("m4", "f3")  # the household that teaches the words
HELD = ("m6", "m8", "f5", "Alicia", "Mario", "steph")  # guests, whom nobody has heard yet


def spoken(
    speaker: Synthesiser, words: tuple[str, ...], people: list[str], times: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Features [recordings, 1, FRAMES, BANDS] and numbers of words."""
    random = np.random.default_rng(seed)
    told = [
        (recording(speaker, word, person, random), number)
        for number, word in enumerate(words)
        for person in people
        for _ in range(times)
    ]
    return np.stack([sound for sound, _ in told]), np.array([number for _, number in told])


def write(name: str, sounds: np.ndarray, words: np.ndarray) -> None:
    rows = np.zeros(len(words), np.dtype([("word", "<i4"), ("features", "<f4", FRAMES * BANDS)]))
    rows["word"], rows["features"] = words, sounds.reshape(len(words), -1)
    with open(name, "wb") as file:
        file.write(np.int32(len(words)).astype("<i4").tobytes() + rows.tobytes())


if __name__ == "__main__":
    speaker = Synthesiser()
    people = [f"gmw/{accent}+{voice}" for accent in ACCENTS for voice in HEARD]
    sounds, words = spoken(speaker, BASE, people, 1, 1)
    np.savez("base.npz", sounds=sounds, words=words)
    few = spoken(speaker, NEW, [f"gmw/en-US+{voice}" for voice in FEW], 4, 2)
    held = spoken(
        speaker, NEW, [f"gmw/{accent}+{voice}" for accent in ("en-US", "en") for voice in HELD], 4, 3
    )
    write("few.bin", *few)
    write("held.bin", *held)
    print(
        f"{len(words)} recordings for the backbone, {len(few[1])} to teach with, {len(held[1])} to judge by"
    )
