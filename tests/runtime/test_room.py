"""Memory that is taken ahead: zeroed, given once, as large as it must be, and no larger in memory."""
from __future__ import annotations

import ctypes
import mmap
import sys
import threading

import numpy as np
import pytest

from planish.ops.content import Content
from planish.runtime import room as room_module
from planish.runtime.constants import arrays_of
from planish.runtime.packing import LINE
from planish.runtime.room import STEP, Room

SIZE = 5 * STEP


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    monkeypatch.setattr(room_module, "COMPILER", 2 * STEP)


def in_memory(room):
    """Bytes of the room's pages that are in memory (mincore(2))."""
    pages = (ctypes.c_ubyte * -(-len(room.memory) // mmap.PAGESIZE))()
    start, size = ctypes.c_void_p(room.memory.ctypes.data), ctypes.c_size_t(len(room.memory))
    assert ctypes.CDLL(None).mincore(start, size, pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is in memory")


@linux
def test_taken_but_for_what_the_compiler_has(monkeypatch):
    room = Room(SIZE)
    room.take()
    assert in_memory(room) == SIZE - 2 * STEP or in_memory(room) == 0  # a system that does not know how
    memory = room.zeroed(SIZE + LINE)
    assert len(memory) == SIZE + LINE and not memory.any() and memory.ctypes.data % LINE == 0
    memory[...] = 3
    room.take()  # nothing is taken after that
    assert (memory == 3).all() and in_memory(room) <= SIZE + mmap.PAGESIZE
    assert room.zeroed(LINE) is None


@linux
def test_what_is_not_used_is_given_back():
    room = Room(SIZE)
    room.take()
    memory = room.zeroed(LINE + 1)
    assert in_memory(room) <= mmap.PAGESIZE and not memory.any()


@linux
@pytest.mark.parametrize("leave", [Room.leave, lambda room: room.zeroed(2 * SIZE)], ids=["left", "too small"])
def test_a_room_that_is_not_used_is_given_back(leave):
    room = Room(SIZE)
    room.take()
    assert leave(room) is None
    room.take()
    assert in_memory(room) == 0 and room.zeroed(SIZE) is None


def test_a_system_that_does_not_know_how(monkeypatch):
    asked = []
    monkeypatch.setattr(room_module, "advise", lambda *a: bool(asked.append(a)))
    room = Room(SIZE)
    room.take()
    assert len(asked) == 1 and not room.zeroed(SIZE).any()


def test_wanted_while_it_is_taken(monkeypatch):
    """Whoever wants it waits for one step at most."""
    begun, go_on, advise = threading.Event(), threading.Event(), room_module.advise
    steps = []

    def slow(start, size, advice):
        steps.append(advice)
        begun.set()
        go_on.wait(10)
        return advise(start, size, advice)

    monkeypatch.setattr(room_module, "advise", slow)
    room = Room(SIZE)
    taker = threading.Thread(target=room.take)
    taker.start()
    begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    assert len(room.zeroed(SIZE)) == SIZE
    taker.join()
    assert steps.count(room_module.POPULATE_WRITE) == 1


def test_constants_are_laid_out_in_it():
    table = np.random.default_rng().normal(size=(1000, 333)).astype(np.float32)
    room = Room(SIZE)
    found, = arrays_of([Content.of(table, is_lent=True)], 2, keep=False, room=room)
    np.testing.assert_array_equal(found, table)
    assert np.may_share_memory(found, room.memory) and found.ctypes.data % LINE == 0
    assert not found.flags.writeable and not room.memory[found.nbytes + LINE:].any()
