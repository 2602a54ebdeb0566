"""The thread pool, as LLVM IR: native threads that run one body side by side.

Exports (all addresses of one process-wide pool live in `planish_pool`):
    planish_parallel(ptr pool, ptr body, ptr frame, i64 threads)
        Runs body(frame, tid, threads) on the caller as tid 0 and on threads - 1 workers, and returns when all
        have. When the pool is in use, by another caller or by the caller's own caller, the body runs as
        body(frame, 0, 1): right, not blocked, and serial. So it does when the system gives no more threads.
    planish_barrier(ptr pool, i64 tid, i64 threads)
        Inside a body: no thread passes before all have come. Nothing to do for one thread.
    planish_claim(ptr pool, i64 launch, i64 owner, i64 total, i1 front) -> i64
        Inside a body: the next of `total` units of a launch that are `owner`'s (a tid) by right, from their
        front or from their back; `total` once all are taken. Each is given once. `launch` is below LAUNCHES
        and tells apart the launches that no barrier stands between.
    planish_elsewhere
        What runs programs that are to share the threads of another library, called as `planish_parallel`,
        which it is at first and in a child after a fork (openmp.py).
    planish_start_pool()
        Once per process: after a fork the child's pool is empty and starts its own workers when first used.

Each worker has its own slot on its own cache lines: a word that the caller counts up for every job, and the
job. A waiter spins for `spins` rounds, then sleeps in a futex; a waker makes the system call only if someone
sleeps. Workers are detached, block the signals that Python handles, and never touch the interpreter.
"""
from __future__ import annotations

from dataclasses import dataclass

MAX_THREADS = 256


@dataclass(frozen=True)
class Words:
    """What differs between machines: how a spin loop yields, and the number of the futex system call."""

    triple: str
    pause: str
    declare_pause: str
    futex: int


WORDS = {
    "x86_64": Words("x86_64-unknown-linux-gnu", "call void @llvm.x86.sse2.pause()",
                    "declare void @llvm.x86.sse2.pause()", 202),
    "aarch64": Words("aarch64-unknown-linux-gnu", "call void @llvm.aarch64.hint(i32 1)",
                     "declare void @llvm.aarch64.hint(i32)", 98),
}

# Byte offsets. Words that different threads write lie 128 bytes apart: adjacent lines are fetched in pairs.
PENDING, PENDING_SLEEPERS = 128, 132         # at 0: whether the pool is in use
ARRIVED, GENERATION, GENERATION_SLEEPERS = 256, 384, 388
SPINS, LIMIT = 512, 516
SLOTS, SLOT_BYTES = 1024, 128
SLEEPING, BODY, FRAME, THREADS, POOL, TID, STARTED = 4, 8, 16, 24, 32, 40, 48
CLAIMS, LAUNCHES = 64, 8  # a word for each launch: the barriers passed so far, units taken in front, behind
POOL_BYTES = SLOTS + SLOT_BYTES * MAX_THREADS

# All signals but those a fault in the thread itself raises: SIGILL 4, SIGBUS 7, SIGFPE 8, SIGSEGV 11.
_SIGNALS = ~(1 << 3 | 1 << 6 | 1 << 7 | 1 << 10)


def ir(machine: str) -> str:
    """The module's text for "x86_64" or "aarch64"."""
    words = WORDS[machine]
    return _WAITING.format(**vars(words)) + _POOL.format(
        pool_bytes=POOL_BYTES, pending=PENDING, pending_sleepers=PENDING_SLEEPERS, arrived=ARRIVED,
        generation=GENERATION, generation_sleepers=GENERATION_SLEEPERS, spins=SPINS, limit=LIMIT, slots=SLOTS,
        slot_bytes=SLOT_BYTES, sleeping=SLEEPING, body=BODY, frame=FRAME, threads=THREADS, pool=POOL, tid=TID,
        started=STARTED, signals=_SIGNALS, slots_bytes=SLOT_BYTES * MAX_THREADS, pause=words.pause,
        claims=SLOTS + CLAIMS, claims_bytes=8 * LAUNCHES)


# planish_wait_while: return once *word != value. planish_wake: the word has changed, rouse who sleeps.
# The sleeper counts itself, then lets the kernel compare; the waker writes the word, then reads the count:
# one of the two sees.
_WAITING = """\
target triple = "{triple}"
{declare_pause}
declare i64 @syscall(i64, ...)

define void @planish_wait_while(ptr %word, i32 %value, ptr %sleepers, i32 %spins) nounwind {{
entry:
  br label %look
look:
  %round = phi i32 [0, %entry], [%next, %spin]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, %value
  br i1 %changed, label %done, label %still
still:
  %tired = icmp uge i32 %round, %spins
  br i1 %tired, label %sleep, label %spin
spin:
  {pause}
  %next = add i32 %round, 1
  br label %look
sleep:
  %before = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %code = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 128, i32 %value, ptr null, ptr null, i64 0)
  %after = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %then = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %then, %value
  br i1 %same, label %sleep, label %done
done:
  ret void
}}

define void @planish_wake(ptr %word, ptr %sleepers) nounwind {{
entry:
  %count = load atomic i32, ptr %sleepers seq_cst, align 4
  %someone = icmp ne i32 %count, 0
  br i1 %someone, label %rouse, label %done
rouse:
  %code = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 129, i64 2147483647, ptr null, ptr null,
  i64 0) br label %done
done:
  ret void
}}
"""

_POOL = """\
@planish_pool = global [{pool_bytes} x i8] zeroinitializer, align 128
@planish_threads = global i64 1, align 8
@planish_elsewhere = global ptr @planish_parallel, align 8
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @__register_atfork(ptr, ptr, ptr, ptr)
declare void @planish_lock_memory()
declare void @planish_unlock_memory()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal ptr @worker(ptr %slot) nounwind {{
entry:
  %pool_at = getelementptr i8, ptr %slot, i64 {pool}
  %pool = load ptr, ptr %pool_at, align 8
  %tid_at = getelementptr i8, ptr %slot, i64 {tid}
  %tid = load i64, ptr %tid_at, align 8
  %sleeping = getelementptr i8, ptr %slot, i64 {sleeping}
  %body_at = getelementptr i8, ptr %slot, i64 {body}
  %frame_at = getelementptr i8, ptr %slot, i64 {frame}
  %threads_at = getelementptr i8, ptr %slot, i64 {threads}
  %spins_at = getelementptr i8, ptr %pool, i64 {spins}
  %pending = getelementptr i8, ptr %pool, i64 {pending}
  %pending_sleepers = getelementptr i8, ptr %pool, i64 {pending_sleepers}
  br label %wait
wait:
  %seen = phi i32 [0, %entry], [%job, %run], [%job, %last]
  %spins = load atomic i32, ptr %spins_at monotonic, align 4
  call void @planish_wait_while(ptr %slot, i32 %seen, ptr %sleeping, i32 %spins)
  br label %run
run:
  %job = add i32 %seen, 1
  %body = load ptr, ptr %body_at, align 8
  %frame = load ptr, ptr %frame_at, align 8
  %threads = load i64, ptr %threads_at, align 8
  call void %body(ptr %frame, i64 %tid, i64 %threads)
  %left = atomicrmw sub ptr %pending, i32 1 seq_cst
  %is_last = icmp eq i32 %left, 1
  br i1 %is_last, label %last, label %wait
last:
  call void @planish_wake(ptr %pending, ptr %pending_sleepers)
  br label %wait
}}

; true once the slot has a running worker
define internal i1 @start_worker(ptr %pool, ptr %slot, i64 %tid) nounwind {{
entry:
  %started_at = getelementptr i8, ptr %slot, i64 {started}
  %started = load i32, ptr %started_at, align 4
  %is_started = icmp ne i32 %started, 0
  br i1 %is_started, label %yes, label %create
create:
  %thread = alloca i64, align 8
  %blocked = alloca [128 x i8], align 8
  %old = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr %blocked, i8 -1, i64 128, i1 false)
  store i64 {signals}, ptr %blocked, align 8
  %pool_at = getelementptr i8, ptr %slot, i64 {pool}
  store ptr %pool, ptr %pool_at, align 8
  %tid_at = getelementptr i8, ptr %slot, i64 {tid}
  store i64 %tid, ptr %tid_at, align 8
  %m1 = call i32 @pthread_sigmask(i32 2, ptr %blocked, ptr %old)
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %slot)
  %m2 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %is_failed = icmp ne i32 %failed, 0
  br i1 %is_failed, label %no, label %detach
detach:
  %id = load i64, ptr %thread, align 8
  %d = call i32 @pthread_detach(i64 %id)
  store i32 1, ptr %started_at, align 4
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}

define void @planish_parallel(ptr %pool, ptr %body, ptr %frame, i64 %wanted) nounwind {{
entry:
  %alone = icmp sle i64 %wanted, 1
  br i1 %alone, label %serial, label %claim
claim:
  %claimed = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic
  %ok = extractvalue {{i32, i1}} %claimed, 1
  br i1 %ok, label %size, label %serial
serial:
  call void %body(ptr %frame, i64 0, i64 1)
  ret void
size:
  %limit_at = getelementptr i8, ptr %pool, i64 {limit}
  %limit32 = load atomic i32, ptr %limit_at monotonic, align 4
  %limit = sext i32 %limit32 to i64
  %over = icmp sgt i64 %wanted, %limit
  %most = select i1 %over, i64 %limit, i64 %wanted
  %slots = getelementptr i8, ptr %pool, i64 {slots}
  br label %hire
hire:
  %h = phi i64 [1, %size], [%h1, %hired]
  %enough = icmp sge i64 %h, %most
  br i1 %enough, label %begin, label %hire_one
hire_one:
  %hire_offset = mul i64 %h, {slot_bytes}
  %hire_slot = getelementptr i8, ptr %slots, i64 %hire_offset
  %up = call i1 @start_worker(ptr %pool, ptr %hire_slot, i64 %h)
  br i1 %up, label %hired, label %begin
hired:
  %h1 = add i64 %h, 1
  br label %hire
begin:
  %threads = phi i64 [%h, %hire], [%h, %hire_one]
  call void @planish_clear_claims(ptr %pool, i64 %threads)
  %pending = getelementptr i8, ptr %pool, i64 {pending}
  %pending_sleepers = getelementptr i8, ptr %pool, i64 {pending_sleepers}
  %workers = add i64 %threads, -1
  %workers32 = trunc i64 %workers to i32
  store atomic i32 %workers32, ptr %pending seq_cst, align 4
  br label %give
give:
  %g = phi i64 [1, %begin], [%g1, %give_one]
  %given = icmp sge i64 %g, %threads
  br i1 %given, label %run, label %give_one
give_one:
  %offset = mul i64 %g, {slot_bytes}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %body_at = getelementptr i8, ptr %slot, i64 {body}
  store ptr %body, ptr %body_at, align 8
  %frame_at = getelementptr i8, ptr %slot, i64 {frame}
  store ptr %frame, ptr %frame_at, align 8
  %threads_at = getelementptr i8, ptr %slot, i64 {threads}
  store i64 %threads, ptr %threads_at, align 8
  %job = atomicrmw add ptr %slot, i32 1 seq_cst
  %sleeping = getelementptr i8, ptr %slot, i64 {sleeping}
  call void @planish_wake(ptr %slot, ptr %sleeping)
  %g1 = add i64 %g, 1
  br label %give
run:
  call void %body(ptr %frame, i64 0, i64 %threads)
  %spins_at = getelementptr i8, ptr %pool, i64 {spins}
  %spins = load atomic i32, ptr %spins_at monotonic, align 4
  br label %join
join:
  %left = load atomic i32, ptr %pending acquire, align 4
  %all_done = icmp eq i32 %left, 0
  br i1 %all_done, label %done, label %join_wait
join_wait:
  call void @planish_wait_while(ptr %pending, i32 %left, ptr %pending_sleepers, i32 %spins)
  br label %join
done:
  store atomic i32 0, ptr %pool release, align 4
  ret void
}}

; before a region: nothing is claimed. Within it a word of an earlier generation counts as nothing.
define hidden void @planish_clear_claims(ptr %pool, i64 %threads) nounwind {{
entry:
  %claims = getelementptr i8, ptr %pool, i64 {claims}
  br label %clear
clear:
  %i = phi i64 [0, %entry], [%i1, %clear]
  %offset = mul i64 %i, {slot_bytes}
  %words = getelementptr i8, ptr %claims, i64 %offset
  call void @llvm.memset.p0.i64(ptr align 64 %words, i8 0, i64 {claims_bytes}, i1 false)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %threads
  br i1 %more, label %clear, label %done
done:
  ret void
}}

; what the units are made of is handed over by barriers: no order but that of the word itself is needed
define i64 @planish_claim(ptr %pool, i64 %launch, i64 %owner, i64 %total, i1 %front) nounwind {{
entry:
  %generation_at = getelementptr i8, ptr %pool, i64 {generation}
  %generation = load atomic i32, ptr %generation_at monotonic, align 4
  %wide = zext i32 %generation to i64
  %tag = shl i64 %wide, 32
  %claims = getelementptr i8, ptr %pool, i64 {claims}
  %offset = mul i64 %owner, {slot_bytes}
  %words = getelementptr i8, ptr %claims, i64 %offset
  %at = getelementptr i64, ptr %words, i64 %launch
  %first = load atomic i64, ptr %at monotonic, align 8
  %step = select i1 %front, i64 65536, i64 1
  br label %look
look:
  %seen = phi i64 [%first, %entry], [%other, %take]
  %seen_tag = and i64 %seen, -4294967296
  %is_fresh = icmp eq i64 %seen_tag, %tag
  %seen_counts = and i64 %seen, 4294967295
  %counts = select i1 %is_fresh, i64 %seen_counts, i64 0
  %ahead = lshr i64 %counts, 16
  %behind = and i64 %counts, 65535
  %taken = add i64 %ahead, %behind
  %is_over = icmp sge i64 %taken, %total
  br i1 %is_over, label %over, label %take
take:
  %more = add i64 %counts, %step
  %new = or i64 %tag, %more
  %pair = cmpxchg ptr %at, i64 %seen, i64 %new monotonic monotonic
  %other = extractvalue {{i64, i1}} %pair, 0
  %ok = extractvalue {{i64, i1}} %pair, 1
  br i1 %ok, label %mine, label %look
mine:
  %left = sub i64 %total, %behind
  %last = add i64 %left, -1
  %unit = select i1 %front, i64 %ahead, i64 %last
  ret i64 %unit
over:
  ret i64 %total
}}

; the generation is read before arriving: it can't change until this thread has arrived
define void @planish_barrier(ptr %pool, i64 %tid, i64 %threads) nounwind {{
entry:
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %done, label %arrive
arrive:
  %arrived = getelementptr i8, ptr %pool, i64 {arrived}
  %generation = getelementptr i8, ptr %pool, i64 {generation}
  %sleepers = getelementptr i8, ptr %pool, i64 {generation_sleepers}
  %mine = load atomic i32, ptr %generation acquire, align 4
  %before = atomicrmw add ptr %arrived, i32 1 acq_rel
  %threads32 = trunc i64 %threads to i32
  %count = add i32 %before, 1
  %is_last = icmp eq i32 %count, %threads32
  br i1 %is_last, label %open, label %wait
open:
  store atomic i32 0, ptr %arrived monotonic, align 4
  %old = atomicrmw add ptr %generation, i32 1 seq_cst
  call void @planish_wake(ptr %generation, ptr %sleepers)
  br label %done
wait:
  %spins_at = getelementptr i8, ptr %pool, i64 {spins}
  %spins = load atomic i32, ptr %spins_at monotonic, align 4
  call void @planish_wait_while(ptr %generation, i32 %mine, ptr %sleepers, i32 %spins)
  br label %done
done:
  ret void
}}

; only the forking thread lives on in the child: no worker, nobody in a region, nobody at the barrier
define internal void @in_child() nounwind {{
entry:
  call void @planish_unlock_memory()
  call void @llvm.memset.p0.i64(ptr align 128 @planish_pool, i8 0, i64 {spins}, i1 false)
  %slots = getelementptr i8, ptr @planish_pool, i64 {slots}
  call void @llvm.memset.p0.i64(ptr align 128 %slots, i8 0, i64 {slots_bytes}, i1 false)
  store ptr @planish_parallel, ptr @planish_elsewhere, align 8
  ret void
}}

define void @planish_start_pool() nounwind {{
entry:
  %r = call i32 @__register_atfork(ptr @planish_lock_memory, ptr @planish_unlock_memory, ptr @in_child, ptr
  null) ret void
}}

; `rounds` of the waiting loop's spinning, to know their length
define void @planish_spin(ptr %word, i32 %rounds) nounwind {{
entry:
  br label %look
look:
  %round = phi i32 [0, %entry], [%next, %spin]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, 0
  br i1 %changed, label %done, label %still
still:
  %tired = icmp uge i32 %round, %rounds
  br i1 %tired, label %done, label %spin
spin:
  {pause}
  %next = add i32 %round, 1
  br label %look
done:
  ret void
}}
"""
