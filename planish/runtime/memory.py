"""The recycling memory pool, as LLVM IR, and its Python side: `stats`, `trim`, `set_limit`.

Fresh memory is slow memory: mapping and first touch of a page cost more than a kernel that fills it. So a
large output's block comes back here when its array dies, and is handed out again while it is warm. A block
belongs to one array (or one running call's arena) at a time: a result is never overwritten while it is alive.

Blocks are kept in size classes, eight per power of two, each a list with the latest freed in front. Below 1
MiB they come from the C library, above from mmap; from 2 MiB they are aligned to and ask for huge pages. Data
starts on a cache line. Large blocks start at eight places of a page in turn, 384 bytes apart and not near its
beginning, where the arrays of others start: a load of the place in its page that was stored to just before
waits for the store (up to 1.7 times as long was measured for a chain read from 16 bytes into a page and
written to 128 bytes into one). Free bytes stay under a limit: the longest unused blocks go
back to the system. Safe from any thread, with or without the interpreter's lock.

Exports: planish_alloc(i64 bytes) -> ptr (null when there is no memory), planish_free(ptr), planish_trim(i64
keep), planish_start_memory(), planish_lock_memory(), planish_unlock_memory(), planish_memory (the counters).
"""
from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from planish import knobs
from planish.runtime.pool import WORDS


class Counters(ctypes.Structure):
    """The layout of `planish_memory`."""

    _fields_ = [
        ("lock", ctypes.c_int32), ("sleepers", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in (
            "limit", "live_bytes", "live_blocks", "free_bytes", "free_blocks", "reused", "created",
            "released"))]


@dataclass(frozen=True)
class Stats:
    """Bytes and blocks in use and kept for reuse; how many requests were met warm, how many blocks were made
    and given back."""

    live_bytes: int
    live_blocks: int
    free_bytes: int
    free_blocks: int
    reused: int
    created: int
    released: int
    limit: int


def default_limit() -> int:
    """Most free bytes to keep: the knob `pool_bytes`, else an eighth of the machine's memory and 1 GiB at
    most."""
    chosen = knobs.pool_bytes
    if chosen is not None:
        return int(chosen)
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8, 1 << 30)


def stats() -> Stats:
    """The pool's counters now."""
    from planish.runtime.native import runtime

    counters = runtime().memory
    return Stats(**{name: getattr(counters, name) for name in Stats.__dataclass_fields__})


def trim(keep: int = 0) -> None:
    """Give free memory back to the system until at most `keep` bytes are kept for reuse."""
    from planish.runtime.native import runtime

    runtime().trim(keep)


def set_limit(limit: int) -> None:
    """Keep at most `limit` free bytes from now on. ValueError for a negative size."""
    from planish.runtime.native import runtime

    if limit < 0:
        raise ValueError(f"the limit is a number of bytes from 0 up, not {limit}")
    runtime().memory.limit = limit
    runtime().trim(limit)


def ir(machine: str) -> str:
    """The module's text for "x86_64" or "aarch64"."""
    return _MEMORY.replace("{triple}", WORDS[machine].triple)


# A block's header lies in the 64 bytes before its data:
#   0 next, 8 previous in its class's list; 16 next, 24 previous in the list by age; 32 mapping, 40 its bytes,
# 48 class. Lists are circular with a head {next, previous}: no empty case. Free lists' heads: @classes, of
# all free blocks: @by_age.
_MEMORY = """\
target triple = "{triple}"
%Counters = type { i32, i32, i64, i64, i64, i64, i64, i64, i64, i64 }
%Link = type { ptr, ptr }
@planish_memory = global %Counters zeroinitializer, align 64
@classes = internal global [384 x %Link] zeroinitializer, align 64
@by_age = internal global %Link zeroinitializer, align 64
@colour = internal global i64 0, align 8
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @planish_wait_while(ptr, i32, ptr, i32)
declare void @planish_wake(ptr, ptr)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare ptr @llvm.ptrmask.p0.i64(ptr, i64)

define void @planish_lock_memory() nounwind {
entry:
  br label %try
try:
  %r = cmpxchg ptr @planish_memory, i32 0, i32 1 acquire monotonic
  %ok = extractvalue {i32, i1} %r, 1
  br i1 %ok, label %done, label %wait
wait:
  call void @planish_wait_while(ptr @planish_memory, i32 1, ptr getelementptr (%Counters, ptr @planish_memory,
  i64 0, i32 1), i32 200) br label %try
done:
  ret void
}
define void @planish_unlock_memory() nounwind {
entry:
  store atomic i32 0, ptr @planish_memory seq_cst, align 4
  call void @planish_wake(ptr @planish_memory, ptr getelementptr (%Counters, ptr @planish_memory, i64 0, i32
  1)) ret void
}
define internal void @count(i64 %offset, i64 %by) alwaysinline nounwind {
entry:
  %at = getelementptr i8, ptr @planish_memory, i64 %offset
  %old = load i64, ptr %at, align 8
  %new = add i64 %old, %by
  store i64 %new, ptr %at, align 8
  ret void
}
define internal void @make_empty(ptr %head) nounwind {
entry:
  store ptr %head, ptr %head, align 8
  %previous = getelementptr %Link, ptr %head, i64 0, i32 1
  store ptr %head, ptr %previous, align 8
  ret void
}
define internal void @insert(ptr %head, ptr %link) nounwind {
entry:
  %first = load ptr, ptr %head, align 8
  store ptr %first, ptr %link, align 8
  %link_previous = getelementptr %Link, ptr %link, i64 0, i32 1
  store ptr %head, ptr %link_previous, align 8
  %first_previous = getelementptr %Link, ptr %first, i64 0, i32 1
  store ptr %link, ptr %first_previous, align 8
  store ptr %link, ptr %head, align 8
  ret void
}
define internal void @remove(ptr %link) nounwind {
entry:
  %next = load ptr, ptr %link, align 8
  %previous_at = getelementptr %Link, ptr %link, i64 0, i32 1
  %previous = load ptr, ptr %previous_at, align 8
  store ptr %next, ptr %previous, align 8
  %next_previous = getelementptr %Link, ptr %next, i64 0, i32 1
  store ptr %previous, ptr %next_previous, align 8
  ret void
}
; take a free block out of both lists; the lock is held
define internal void @unlist(ptr %block) nounwind {
entry:
  call void @remove(ptr %block)
  %age = getelementptr i8, ptr %block, i64 16
  call void @remove(ptr %age)
  %bytes_at = getelementptr i8, ptr %block, i64 40
  %bytes = load i64, ptr %bytes_at, align 8
  %less = sub i64 0, %bytes
  call void @count(i64 32, i64 %less)
  call void @count(i64 40, i64 -1)
  ret void
}
define void @planish_start_memory() nounwind {
entry:
  call void @make_empty(ptr @by_age)
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %next]
  %head = getelementptr [384 x %Link], ptr @classes, i64 0, i64 %i
  call void @make_empty(ptr %head)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 384
  br i1 %more, label %next, label %done
done:
  ret void
}
; header of a new block of `total` bytes in all, or null
define internal ptr @create(i64 %total, i64 %class) nounwind {
entry:
  %small = icmp ult i64 %total, 1048576
  br i1 %small, label %library, label %pages
library:
  %lib = call ptr @aligned_alloc(i64 64, i64 %total)
  %no_lib = icmp eq ptr %lib, null
  br i1 %no_lib, label %none, label %made
pages:
  %huge = icmp uge i64 %total, 2097152
  %slack = select i1 %huge, i64 2097152, i64 0
  %span = add i64 %total, %slack
  %raw = call ptr @mmap(ptr null, i64 %span, i32 3, i32 34, i32 -1, i64 0)
  %raw_number = ptrtoint ptr %raw to i64
  %failed = icmp eq i64 %raw_number, -1
  br i1 %failed, label %none, label %mapped
mapped:
  br i1 %huge, label %align, label %coloured
align:
  %up = getelementptr i8, ptr %raw, i64 2097151
  %aligned = call ptr @llvm.ptrmask.p0.i64(ptr %up, i64 -2097152)
  %aligned_number = ptrtoint ptr %aligned to i64
  %before = sub i64 %aligned_number, %raw_number
  %after = sub i64 2097152, %before
  %end = getelementptr i8, ptr %aligned, i64 %total
  %has_before = icmp ne i64 %before, 0
  br i1 %has_before, label %cut_before, label %cut_after
cut_before:
  %u1 = call i32 @munmap(ptr %raw, i64 %before)
  br label %cut_after
cut_after:
  %has_after = icmp ne i64 %after, 0
  br i1 %has_after, label %cut_end, label %advise
cut_end:
  %u2 = call i32 @munmap(ptr %end, i64 %after)
  br label %advise
advise:
  %a = call i32 @madvise(ptr %aligned, i64 %total, i32 14)
  br label %coloured
coloured:
  %base = phi ptr [%raw, %mapped], [%aligned, %advise]
  %turn = atomicrmw add ptr @colour, i64 1 monotonic
  %thrice = mul i64 %turn, 3
  %eighth = and i64 %thrice, 7
  %steps = mul i64 %eighth, 384
  %shift = add i64 %steps, 512
  %shifted = getelementptr i8, ptr %base, i64 %shift
  br label %made
made:
  %mapping = phi ptr [%lib, %library], [%base, %coloured]
  %block = phi ptr [%lib, %library], [%shifted, %coloured]
  %mapping_at = getelementptr i8, ptr %block, i64 32
  store ptr %mapping, ptr %mapping_at, align 8
  %bytes_at = getelementptr i8, ptr %block, i64 40
  store i64 %total, ptr %bytes_at, align 8
  %class_at = getelementptr i8, ptr %block, i64 48
  store i64 %class, ptr %class_at, align 8
  ret ptr %block
none:
  ret ptr null
}
define internal void @destroy(ptr %block) nounwind {
entry:
  %mapping_at = getelementptr i8, ptr %block, i64 32
  %mapping = load ptr, ptr %mapping_at, align 8
  %bytes_at = getelementptr i8, ptr %block, i64 40
  %bytes = load i64, ptr %bytes_at, align 8
  %small = icmp ult i64 %bytes, 1048576
  br i1 %small, label %library, label %pages
library:
  call void @free(ptr %mapping)
  ret void
pages:
  %r = call i32 @munmap(ptr %mapping, i64 %bytes)
  ret void
}
define void @planish_trim(i64 %keep) nounwind {
entry:
  br label %look
look:
  call void @planish_lock_memory()
  %free = load i64, ptr getelementptr (i8, ptr @planish_memory, i64 32), align 8
  %over = icmp sgt i64 %free, %keep
  %oldest = load ptr, ptr getelementptr (%Link, ptr @by_age, i64 0, i32 1), align 8
  %any = icmp ne ptr %oldest, @by_age
  %go = and i1 %over, %any
  br i1 %go, label %release, label %done
release:
  %block = getelementptr i8, ptr %oldest, i64 -16
  call void @unlist(ptr %block)
  call void @count(i64 64, i64 1)
  call void @planish_unlock_memory()
  call void @destroy(ptr %block)
  br label %look
done:
  call void @planish_unlock_memory()
  ret void
}
define ptr @planish_alloc(i64 %bytes) nounwind {
entry:
  %silly = icmp ugt i64 %bytes, 70368744177664
  br i1 %silly, label %none, label %measure
measure:
  ; header, and room for the colour of large blocks
  %large = icmp uge i64 %bytes, 1045312
  %extra = select i1 %large, i64 3264, i64 64
  %plain = add i64 %bytes, %extra
  %need = call i64 @llvm.umax.i64(i64 %plain, i64 4096)
  ; eight classes between powers of two
  %below = sub i64 %need, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %below, i1 true)
  %log = sub i64 63, %zeros
  %shift = sub i64 %log, 3
  %step = shl i64 1, %shift
  %low = sub i64 %step, 1
  %filled = or i64 %below, %low
  %total = add i64 %filled, 1
  %eighth = lshr i64 %below, %shift
  %octave = shl i64 %log, 3
  %sum = add i64 %octave, %eighth
  %class = sub i64 %sum, 8
  %head = getelementptr [384 x %Link], ptr @classes, i64 0, i64 %class
  call void @planish_lock_memory()
  %first = load ptr, ptr %head, align 8
  %has = icmp ne ptr %first, %head
  br i1 %has, label %warm, label %fresh
warm:
  call void @unlist(ptr %first)
  call void @count(i64 48, i64 1)
  br label %account
fresh:
  call void @planish_unlock_memory()
  %new = call ptr @create(i64 %total, i64 %class)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %retry, label %relock
retry:
  call void @planish_trim(i64 0)
  %second = call ptr @create(i64 %total, i64 %class)
  %no_memory = icmp eq ptr %second, null
  br i1 %no_memory, label %none, label %relock
relock:
  %created = phi ptr [%new, %fresh], [%second, %retry]
  call void @planish_lock_memory()
  call void @count(i64 56, i64 1)
  br label %account
account:
  %block = phi ptr [%first, %warm], [%created, %relock]
  call void @count(i64 16, i64 %total)
  call void @count(i64 24, i64 1)
  call void @planish_unlock_memory()
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
none:
  ret ptr null
}
define void @planish_free(ptr %data) nounwind {
entry:
  %block = getelementptr i8, ptr %data, i64 -64
  %bytes_at = getelementptr i8, ptr %block, i64 40
  %bytes = load i64, ptr %bytes_at, align 8
  %class_at = getelementptr i8, ptr %block, i64 48
  %class = load i64, ptr %class_at, align 8
  %head = getelementptr [384 x %Link], ptr @classes, i64 0, i64 %class
  %age = getelementptr i8, ptr %block, i64 16
  %less = sub i64 0, %bytes
  call void @planish_lock_memory()
  call void @insert(ptr %head, ptr %block)
  call void @insert(ptr @by_age, ptr %age)
  call void @count(i64 16, i64 %less)
  call void @count(i64 24, i64 -1)
  call void @count(i64 32, i64 %bytes)
  call void @count(i64 40, i64 1)
  %free = load i64, ptr getelementptr (i8, ptr @planish_memory, i64 32), align 8
  %limit = load i64, ptr getelementptr (i8, ptr @planish_memory, i64 8), align 8
  call void @planish_unlock_memory()
  %over = icmp sgt i64 %free, %limit
  br i1 %over, label %shrink, label %done
shrink:
  call void @planish_trim(i64 %limit)
  br label %done
done:
  ret void
}
"""
