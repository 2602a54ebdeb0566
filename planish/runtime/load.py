"""From code to something that can be called: the cache is asked first, LLVM only if it has nothing."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from planish import types
from planish.codegen.llvm.emit import llvm_is_loaded, start_llvm
from planish.codegen.llvm.native import NativeCode
from planish.ops.content import Content
from planish.runtime.blob import Blob
from planish.runtime.cache import default_cache, find_blob
from planish.runtime.compiler_memory import leave_llvm, load_llvm
from planish.runtime.constants import arrays_of, leave_sources
from planish.runtime.link import link
from planish.runtime.loader import LoadedCode
from planish.runtime.native import running, runtime, runtime_aside, start_ahead
from planish.runtime.program import NativeProgram
from planish.runtime.room import COMPILER, Room
from planish.runtime.spec import ArraySpec, Dim, DimRef, ProgramSpec
from planish.runtime.threads import get_num_threads
from planish.types import TensorType, is_static

LONG = 1 << 20   # bytes of arguments from which a call lets other Python threads run
MODEL = 4 << 20  # bytes of constants from which the compiler's own memory is worth the time of giving it back


_loaded: WeakValueDictionary[str, LoadedCode] = WeakValueDictionary()  # key -> code that is in memory


def prepare(constants: int, lent: int = 0) -> Room | None:
    """A program with so many bytes of constants is about to be compiled: LLVM is loaded meanwhile, on another
    CPU, and makes the runtime where the cache has none. For a large model this is no hurry: then it goes on
    to take room for constants that are `lent`, which are all laid out."""
    is_model = constants >= MODEL
    room = Room(lent) if lent > COMPILER else None
    steps: list[Callable[[], object]] = []
    if not llvm_is_loaded():
        steps.append(load_llvm if is_model else start_llvm)
    if running() is None:
        steps.append(runtime if room is None else runtime_aside)
        steps += [leave_llvm] * is_model
    if room is not None:
        steps.append(room.take)
    if steps:
        start_ahead(*steps)
    return room


def load_program(code: NativeCode, threads: int = 0, *, keep: bool = True,
                 room: Room | None = None) -> tuple[NativeProgram, bool]:
    """The program ready to be called, and whether its machine code came from the cache. `threads` per call;
    0: as many as the process uses. What is made anew is put into the cache only to `keep` it; constants are
    laid out in `room`, if there is one."""
    key = code.key
    loaded = _known_code(key)
    made = loaded is None
    if loaded is None:
        blob = link(_objects(code))
        if keep:
            default_cache().put(key, blob.to_bytes())
        loaded = _load(key, blob)
    return assemble(loaded, spec_of(code), code.program.contents, threads, keep=keep, room=room), not made


def _objects(code: NativeCode) -> list[bytes]:
    """What LLVM makes of a program; for a model, in little more memory than LLVM needs for it."""
    contents = code.program.contents
    if sum(c.nbytes for c in contents) < MODEL:
        return code.objects()
    leave_sources(contents)
    load_llvm()
    objects = code.objects()
    leave_llvm()
    return objects


def load_beside(code: NativeCode, other: NativeProgram, threads: int = 0) -> NativeProgram:
    """A program over the constants of another one, which has the same; its code is kept nowhere."""
    loaded = LoadedCode(link(_objects(code)), runtime().provided)
    return NativeProgram(loaded, spec_of(code), other.constants, threads)


def load_known(key: str, spec: ProgramSpec, contents: Sequence[Content],
               threads: int = 0) -> NativeProgram | None:
    """A program whose machine code is known by its key; None where the cache has lost it."""
    loaded = _known_code(key)
    return None if loaded is None else assemble(loaded, spec, contents, threads)


def assemble(loaded: LoadedCode, spec: ProgramSpec, contents: Sequence[Content],
             threads: int, *, keep: bool = True, room: Room | None = None) -> NativeProgram:
    """The program of this code, its constants made."""
    constants = arrays_of(contents, threads or get_num_threads(), keep=keep, room=room)
    return NativeProgram(loaded, spec, constants, threads)


def _known_code(key: str) -> LoadedCode | None:
    """Code in memory, or from the cache: programs of the same code share it."""
    found = _loaded.get(key)
    if found is None and (blob := find_blob(key)) is not None:
        found = _load(key, blob)
    return found


def _load(key: str, blob: Blob) -> LoadedCode:
    loaded = LoadedCode(blob, runtime().provided)
    return _loaded.setdefault(key, loaded)


def spec_of(code: NativeCode) -> ProgramSpec:
    """What the program takes and gives, as the call path reads it."""
    inputs = tuple(_array(code, name, type_) for name, type_ in code.input_types)
    outputs = tuple(_array(code, f"output {k}", type_) for k, type_ in enumerate(code.output_types))
    symbols = len(code.program.symbols)
    return ProgramSpec(inputs, outputs, symbols, symbols + len(code.code.derived),
                       _dim(code, code.program.arena_bytes),
                       work=_dim(code, code.code.work), release_gil=_is_long(code),
                       messages={c.code: (c.error, c.message) for c in code.checks} | _ranges(code))


def _ranges(code: NativeCode) -> dict[int, tuple[str, str]]:
    """What planish_derive says of each symbol that is out of its range, and of sizes that are too large."""
    symbols = code.program.symbols
    too_large = {-1 - len(symbols): ("ShapeError", "these sizes need more memory than can be addressed")}
    return too_large | {-1 - i: ("ShapeError", s.requirement) for i, s in enumerate(symbols)}


def _array(code: NativeCode, name: str, type_: TensorType) -> ArraySpec:
    return ArraySpec(name, type_.dtype.name, tuple(_dim(code, d) for d in type_.shape))


def _dim(code: NativeCode, dim: types.Dim) -> Dim:
    return dim if is_static(dim) else DimRef(code.slot(dim))


def _is_long(code: NativeCode) -> bool:
    """Whether a call is worth the cost of letting other threads run."""
    sizes = [t.size * t.dtype.itemsize for t in (*(t for _, t in code.input_types), *code.output_types)]
    return code.code.work != 0 or any(not is_static(s) or s >= LONG for s in sizes)
