"""Real models, by the session that stands in for ONNX Runtime's: equal to it, and a program that swaps its
session class reads the same text.

Skipped without the packages, whose models are used and whose own dependencies are not:
`pip install --no-deps silero-vad rapidocr-onnxruntime` (and, for the latter's pipeline,
opencv-python-headless pyclipper shapely pillow pyyaml six).
"""
from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planish.onnx

ort = pytest.importorskip("onnxruntime")


def files_of(package: str, folder: str) -> list[Path]:
    """The models in a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return [] if spec is None or spec.origin is None else sorted(
        (Path(spec.origin).parent / folder).glob("*.onnx"))


def both(path: Path) -> tuple[Any, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options), planish.onnx.InferenceSession(path)


def assert_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Both round in float32, each in its own order, over a hundred layers: neither is nearer to float64."""
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * max(1, np.abs(other).max()))


# --- silero_vad: speech or not, chunk by chunk, with a state

def speech(rate: int, rng: np.random.Generator) -> np.ndarray:
    """A second of a voice: pulses of a gliding pitch through three resonances, in syllables, with some noise.
    The formant synthesis of Klatt, 1980, in parallel."""
    time = np.arange(rate) / rate
    pitch = rng.uniform(100, 180) * (1 + 0.2 * np.sin(2 * np.pi * rng.uniform(0.7, 2) * time))
    pulses = np.diff(np.floor(np.cumsum(pitch) / rate), prepend=0) + 0.02 * rng.normal(size=rate)
    voice = np.zeros(rate)
    for low, high, width in ((400, 800, 90), (1000, 1800, 120), (2200, 2900, 180)):
        turn = 2 * np.pi * rng.uniform(low, high) / rate
        ringing = np.exp(-np.pi * width * time) * np.sin(turn * (np.arange(rate) + 1)) / np.sin(turn)
        voice += np.convolve(pulses, ringing[:rate // 16])[:rate]
    voice *= np.sin(2 * np.pi * 3 * time) > -0.5
    return (0.3 * voice / np.abs(voice).max() + 0.001 * rng.normal(size=rate)).astype(np.float32)


def chunks(rate: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """[1, 64 + 512] at 16 kHz, [1, 32 + 256] at 8 kHz: each chunk after the end of the one before."""
    size, context = rate * 512 // 16000, rate * 64 // 16000
    sound = np.concatenate([np.zeros(context, np.float32), speech(rate, rng)])
    for start in range(0, rate - size + 1, size):
        yield sound[None, start:start + context + size]


VOICE = files_of("silero_vad", "data")
RATES = {"silero_vad": (16000, 8000), "silero_vad_op18_ifless": (16000, 8000)}
CASES = [(path, rate) for path in VOICE for rate in RATES.get(path.stem, (16000,))]


@pytest.mark.skipif(not VOICE, reason="needs silero-vad")
@pytest.mark.parametrize("path, rate", CASES, ids=[f"{path.stem}-{rate}" for path, rate in CASES])
def test_voice_activity_over_a_second(path: Path, rate: int) -> None:
    """Each session carries its own state from chunk to chunk."""
    theirs, ours = both(path)
    names = [one.name for one in theirs.get_inputs()]
    rng = np.random.default_rng()
    if "state" not in names:  # all chunks at once
        feeds = {"input": np.concatenate(list(chunks(rate, rng))),
                 **{name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")}}
        assert_close(ours.run(None, feeds), theirs.run(None, feeds))
        return
    state = expected_state = np.zeros((2, 1, 128), np.float32)
    for chunk in chunks(rate, rng):
        feeds = {"input": chunk, "sr": np.array(rate, np.int64)}
        feeds = {name: value for name, value in feeds.items() if name in names}
        expected, expected_state = theirs.run(None, {**feeds, "state": expected_state})
        probability, state = ours.run(None, {**feeds, "state": state})
        assert_close([probability, state], [expected, expected_state])


# --- rapidocr: text in images

READERS = files_of("rapidocr_onnxruntime", "models")
SHAPES = {"det": [(1, 3, 64, 96), (1, 3, 160, 224), (2, 3, 96, 96)],
          "cls": [(1, 3, 48, 192), (6, 3, 48, 192)], "rec": [(1, 3, 48, 320), (3, 3, 48, 101)]}


@pytest.mark.skipif(not READERS, reason="needs rapidocr-onnxruntime")
@pytest.mark.parametrize("path", READERS, ids=[path.stem for path in READERS])
def test_text_models_at_several_shapes(path: Path) -> None:
    theirs, ours = both(path)
    shapes = next(shapes for kind, shapes in SHAPES.items() if f"_{kind}_" in path.stem)
    for shape in shapes:
        feeds = {"x": np.random.default_rng().normal(size=shape).astype(np.float32)}
        assert_close(ours.run(None, feeds), theirs.run(None, feeds))


TEXTS = [(["The quick brown fox", "jumps over the lazy dog."], 24),
         (["Total: 1,284.50 EUR", "Paid in full"], 36),
         (["many small, exact blows"], 18), (["A compiler"], 60)]


def drawn(lines: list[str], size: int) -> np.ndarray:
    """Black text on white, [height, width, 3]."""
    from PIL import Image, ImageDraw, ImageFont
    font: Any = ImageFont.load_default(size)
    width = 40 + max(int(font.getlength(line)) for line in lines)
    image = Image.new("RGB", (width, 40 + int(len(lines) * size * 1.8)), "white")
    for i, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 20 + i * size * 1.8), line, fill="black", font=font)
    return np.array(image)


@pytest.mark.skipif(not READERS, reason="needs rapidocr-onnxruntime")
def test_a_pipeline_with_its_session_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """RapidOCR finds the same boxes and reads the same text."""
    for package in ("cv2", "pyclipper", "shapely", "PIL", "yaml", "six"):
        pytest.importorskip(package)
    from rapidocr_onnxruntime import RapidOCR
    from rapidocr_onnxruntime.utils import infer_engine
    theirs = RapidOCR()
    for name in ("InferenceSession", "SessionOptions", "GraphOptimizationLevel"):
        monkeypatch.setattr(infer_engine, name, getattr(planish.onnx, name))
    ours = RapidOCR()
    assert isinstance(ours.text_det.infer.session, planish.onnx.InferenceSession)
    for lines, size in TEXTS:
        image = drawn(lines, size)
        expected, _ = theirs(image)
        found, _ = ours(image)
        assert expected and [text for _, text, _ in found] == [text for _, text, _ in expected]
        for (corners, _, score), (other, _, other_score) in zip(found, expected, strict=True):
            np.testing.assert_allclose(corners, other, atol=1)
            np.testing.assert_allclose(float(score), float(other_score), atol=1e-3)
