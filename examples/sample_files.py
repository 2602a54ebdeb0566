"""Twelve real files of as many kinds: some of this repository, some that the standard library writes, one of
this system.

In: a folder to write to. Out: paths with the label that the magika model should give each.
"""
from __future__ import annotations

import json
import sqlite3
import struct
import sys
import wave
import zipfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OF_THE_REPOSITORY = {
    "README.md": "markdown",
    "Makefile": "makefile",
    "pyproject.toml": "toml",
    "LICENSE": "txt",
    "planish/compiler.py": "python",
    ".ci/run": "shell",
}


def sample_files(folder: Path) -> dict[Path, str]:
    """path -> expected label, twelve of them."""
    made = {folder / f"sample.{end}": label for end, label in
            {"png": "png", "json": "json", "zip": "zip", "sqlite": "sqlite", "wav": "wav"}.items()}
    png, json_, zip_, sqlite, wav = made
    write_png(png, 64, 64)
    files = [{"name": name, "label": label} for name, label in OF_THE_REPOSITORY.items()]
    json_.write_text(json.dumps({"files": files}, indent=2))
    with zipfile.ZipFile(zip_, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(ROOT / "README.md", "README.md")
    write_sqlite(sqlite)
    with wave.open(str(wav), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"".join(struct.pack("<h", (i * 997) % 20000 - 10000) for i in range(4000)))
    return {ROOT / name: label for name, label in OF_THE_REPOSITORY.items()} | made | \
        {Path(sys.executable).resolve(): "elf"}


def write_png(path: Path, width: int, height: int) -> None:
    """A grey gradient (PNG, third edition, W3C: signature, then chunks of length, type, data and CRC)."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(width)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
                     + chunk(b"IEND", b""))


def write_sqlite(path: Path) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("create table files (name text, label text)")
        database.executemany("insert into files values (?, ?)", OF_THE_REPOSITORY.items())
    database.close()
