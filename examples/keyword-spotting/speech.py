"""Spoken words in many voices, and the features that a keyword spotter reads.

eSpeak NG speaks: a synthesiser by formants, which the package `espeakng-loader` ships. Voices, accents, pitch and speed
differ as people do, and everybody who runs this gets the same sounds; they are not recordings of people. Recordings of
your own take their place as arrays of samples at 22,050 Hz.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import espeakng_loader
import numpy as np

RATE, FRAME, HOP, BANDS, FRAMES = 22050, 1024, 512, 20, 42  # FRAMES * HOP: one second
_SYNCHRONOUS, _SPEED, _PITCH, _RANGE, _UTF8 = 2, 1, 3, 4, 1  # espeak/speak_lib.h
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Synthesiser:
    """Speaks one word at a time into an array."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(Path(espeakng_loader.get_data_path()).parent).encode()
        if self.library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0) != RATE:
            raise SystemExit("eSpeak NG does not start, or not at 22,050 Hz")
        self.parts: list[np.ndarray] = []
        self.callback = _CALLBACK(self._take)  # kept, or it would be collected while C still calls it
        self.library.espeak_SetSynthCallback(self.callback)

    def _take(self, samples, count, _events) -> int:  # type: ignore[no-untyped-def]
        if samples and count:
            self.parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, word: str, voice: str, speed: int, pitch: int) -> np.ndarray:
        """Samples from -1 to 1; `speed` in words a minute, `pitch` from 0 to 99."""
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"eSpeak NG has no voice {voice}")
        for parameter, value in ((_SPEED, speed), (_PITCH, pitch), (_RANGE, 50)):
            self.library.espeak_SetParameter(parameter, value, 0)
        self.parts = []
        text = word.encode()
        self.library.espeak_Synth(text, len(text) + 1, 0, 1, 0, _UTF8, None, None)
        self.library.espeak_Synchronize()
        return np.concatenate(self.parts).astype(np.float32) / 32768


@lru_cache
def mel_bands() -> np.ndarray:
    """[BANDS, FRAME / 2 + 1]: triangles of equal width on the mel scale, from 60 to 7,600 Hz."""
    mel = np.linspace(1127 * np.log1p(60 / 700), 1127 * np.log1p(7600 / 700), BANDS + 2)
    edges = 700 * np.expm1(mel / 1127)
    at = np.arange(FRAME // 2 + 1) * RATE / FRAME
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(0, np.minimum((at - low) / (middle - low), (high - at) / (high - middle)))


def features(wave: np.ndarray) -> np.ndarray:
    """[1, FRAMES, BANDS]: logarithms of mel energies of one second."""
    starts = np.arange(FRAMES)[:, None] * HOP + np.arange(FRAME)
    padded = np.zeros(FRAMES * HOP + FRAME, np.float32)
    padded[: min(len(wave), RATE)] = wave[:RATE]
    power = np.abs(np.fft.rfft(padded[starts] * np.hanning(FRAME).astype(np.float32))) ** 2
    return (np.log(power @ mel_bands().T + 1e-3) / 4).astype(np.float32)[None]


def recording(speaker: Synthesiser, word: str, voice: str, random: np.random.Generator) -> np.ndarray:
    """Features of a word at a random speed, pitch, loudness and place in its second, in the noise of a room."""
    wave = speaker.say(word, voice, int(random.integers(130, 190)), int(random.integers(35, 65)))
    loud = np.flatnonzero(np.abs(wave) > 0.01)
    wave = wave[loud[0] : loud[-1]][: RATE - 1]
    second = 10 ** random.uniform(-3.2, -2.2) * random.standard_normal(RATE).astype(np.float32)
    start = int(random.integers(0, max(1, (RATE - len(wave)) // 2)))
    second[start : start + len(wave)] += random.uniform(0.3, 1.0) * wave
    return features(second)
