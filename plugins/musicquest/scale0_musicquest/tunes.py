"""A few short tunes of our own, made from sine waves, so that there is something to listen to at once.

Each tune has a melody over chords on an instrument of its own. The same call makes the same files, byte for byte.
"""

from __future__ import annotations

import math
import wave
from array import array
from collections.abc import Sequence
from operator import add
from pathlib import Path
from sys import byteorder
from typing import Any, Final, NamedTuple

import mutagen
import mutagen.id3

RATE: Final = 22_050
ARTIST: Final = "Scale0 Ensemble"
ALBUM: Final = "Music Quest"

_TABLE_SIZE: Final = 1024
_LOUDEST: Final = 0.8 * 32_767
_RELEASE: Final = 0.05
"""Seconds in which a tone ends."""


class _Instrument(NamedTuple):
    """How a tone sounds: the strength of its overtones, how it comes, how it fades."""

    overtones: tuple[float, ...]
    attack: float
    decay: float


class _Tune(NamedTuple):
    """A melody in steps of a scale, its chords' roots, its beat in seconds, and what plays it."""

    title: str
    instrument: _Instrument
    scale: tuple[int, ...]
    key: int
    beat: float
    melody: tuple[int, ...]
    roots: tuple[int, ...]


_BELL = _Instrument((1.0, 0.0, 0.4, 0.0, 0.25, 0.0, 0.1), 0.004, 3.0)
_ORGAN = _Instrument((1.0, 0.5, 0.3, 0.25, 0.0, 0.1), 0.03, 0.3)
_PLUCKED = _Instrument((1.0, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05), 0.003, 4.0)
_FLUTE = _Instrument((1.0, 0.2, 0.05), 0.06, 0.5)
_MUSIC_BOX = _Instrument((1.0, 0.1, 0.0, 0.3, 0.0, 0.0, 0.15), 0.002, 5.0)

_MAJOR = (0, 2, 4, 5, 7, 9, 11)
_MINOR = (0, 2, 3, 5, 7, 8, 10)
_FIVE_TONES = (0, 2, 4, 7, 9)

_TUNES: Final = (
    _Tune("Morning Sockets", _BELL, _MAJOR, 60, 0.4, (4, 2, 0, 2, 4, 7, 4, 2, 5, 3, 1, 3, 4, 2, 0, 0), (0, 5, 3, 0)),
    _Tune(
        "The Patient Router", _ORGAN, _MINOR, 57, 0.5, (0, 2, 4, 3, 2, 1, 0, -1, 0, 4, 5, 4, 3, 2, 1, 0), (0, 3, 4, 0)
    ),
    _Tune(
        "Heartbeat Waltz", _PLUCKED, _MAJOR, 55, 0.33, (0, 4, 4, 2, 4, 4, 1, 3, 3, 0, 2, 4, 5, 4, 2), (0, 0, 4, 0, 3)
    ),
    _Tune(
        "Lost Father, Found", _FLUTE, _MINOR, 62, 0.45, (4, 5, 4, 2, 0, 2, 3, 1, 4, 7, 5, 4, 2, 1, 0, 0), (0, 5, 2, 0)
    ),
    _Tune("Little Lantern Quest", _MUSIC_BOX, _FIVE_TONES, 72, 0.25, (0, 2, 4, 2, 3, 5, 4, 2, 1, 3, 2, 0), (0, 3, 1)),
)


def make_tunes(folder: Path, count: int = 5, seconds: float = 8.0) -> list[Path]:
    """Write tunes as WAV files with tags into a folder, and give their paths; those that are there are written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_tune(folder, number, seconds) for number in range(count)]


def _write_tune(folder: Path, number: int, seconds: float) -> Path:
    tune, round_number = _TUNES[number % len(_TUNES)], number // len(_TUNES)
    title = tune.title if not round_number else f"{tune.title} {round_number + 1}"
    path = folder / f"{number + 1:02d} {title}.wav"
    # the same melodies again, in another key
    samples = _play(tune._replace(key=tune.key + (5 * round_number) % 12), max(0, round(seconds * RATE)))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    _write_tags(path, title, number)
    return path


def _write_tags(path: Path, title: str, number: int) -> None:
    file: Any = mutagen.File(path)
    file.add_tags()
    for frame, text in (
        (mutagen.id3.TIT2, title),
        (mutagen.id3.TPE1, ARTIST),
        (mutagen.id3.TALB, ALBUM),
        (mutagen.id3.TRCK, str(number + 1)),
    ):
        file.tags.add(frame(encoding=3, text=[text]))
    file.save()


def _play(tune: _Tune, length: int) -> array[int]:
    """Give the samples of a tune, which begins again until the time is over."""
    mix = [0.0] * length
    beat = max(1, round(tune.beat * RATE))
    bar = len(tune.melody) // len(tune.roots)
    melody, chords = _Voice(tune, 2 * beat, 0.5), _Voice(tune, bar * beat, 0.17)
    for step, start in enumerate(range(0, length, beat)):
        melody.add(mix, start, tune.melody[step % len(tune.melody)])
        if step % bar == 0:
            root = tune.roots[step // bar % len(tune.roots)] - len(tune.scale)
            for note in (root, root + 2, root + 4):
                chords.add(mix, start, note)
    return _as_samples(mix)


class _Voice:
    """Tones of one length and volume; each is made once, however often it is played."""

    def __init__(self, tune: _Tune, length: int, volume: float) -> None:
        self._tune = tune
        self._wave = _one_wave(tune.instrument.overtones)
        self._shape = _shape(tune.instrument, length, volume)
        self._tones: dict[int, list[float]] = {}

    def add(self, mix: list[float], start: int, note: int) -> None:
        """Add a note of the tune's scale to what is heard."""
        tone = self._tones.get(note)
        if tone is None:
            tone = self._tones[note] = self._make(note)
        end = start + len(tone)
        mix[start:end] = map(add, mix[start:end], tone)  # as far as there is time left

    def _make(self, note: int) -> list[float]:
        pace, one_wave, mask = _pitch(self._tune, note) * _TABLE_SIZE / RATE, self._wave, _TABLE_SIZE - 1
        return [one_wave[int(at * pace) & mask] * height for at, height in enumerate(self._shape)]


def _shape(instrument: _Instrument, length: int, volume: float) -> list[float]:
    """Say how loud a tone is from its beginning to its end."""
    attack, release, decay = instrument.attack * RATE, _RELEASE * RATE, instrument.decay / RATE
    return [volume * math.exp(-decay * at) * min(1.0, at / attack, (length - at) / release) for at in range(length)]


def _pitch(tune: _Tune, step: int) -> float:
    """Give the frequency of a step of a tune's scale."""
    octave, degree = divmod(step, len(tune.scale))
    return float(440.0 * 2 ** ((tune.key + 12 * octave + tune.scale[degree] - 69) / 12))


def _one_wave(overtones: Sequence[float]) -> list[float]:
    """Give one wave of an instrument, from which all its tones are read at their own pace."""
    total = sum(overtones)
    turns = [2 * math.pi * at / _TABLE_SIZE for at in range(_TABLE_SIZE)]
    return [sum(s * math.sin(turn * (n + 1)) for n, s in enumerate(overtones)) / total for turn in turns]


def _as_samples(mix: list[float]) -> array[int]:
    """Give 16-bit samples, as loud as they can be without being cut."""
    ending = min(len(mix), int(_RELEASE * RATE))
    for left in range(ending):  # what is cut off at the end would click
        mix[-1 - left] *= left / ending
    loudest = max(map(abs, mix), default=0.0) or 1.0
    factor = _LOUDEST / loudest
    samples = array("h", (int(value * factor) for value in mix))
    if byteorder == "big":
        samples.byteswap()
    return samples
