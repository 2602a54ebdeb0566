"""LLVM IR text to machine code. The only place that loads llvmlite, and only when called.

In: the text of modules and the machine they are for. Out: ELF relocatable objects, or assembly text.
Code is position independent with the small code model: llvmlite's default (jitdefault) means large on x86-64,
where every constant costs a 64-bit move and arithmetic on the global offset table.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from planish.codegen.llvm.host import usable_cpus

Passes = Literal["none", "lite", "rotate"]

# Bytes of IR that make one object. To set up the code generator takes LLVM as long as the code of some 2 KiB;
# with much more than that in an object there would be too few of them for many CPUs.
OBJECT = 16 << 10


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


def start_llvm() -> None:
    """Load LLVM, if it is not loaded yet."""
    _llvm()


def llvm_is_loaded() -> bool:
    return _llvm.cache_info().currsize > 0


@functools.cache
def _foreign_targets() -> None:
    """Those of other machines; 10 MB of code that a compile for this one has no use for."""
    _llvm().initialize_all_targets()
    _llvm().initialize_all_asmprinters()


def emit_object(ir_text: str, triple: str, cpu: str = "", features: str = "", passes: Passes = "lite",
                cg_level: int = 2) -> bytes:
    """The ELF object of a module. `passes`: none; lite = SROA, InstCombine, SimplifyCFG; rotate = lite, and
    loops are tested at their ends. `cg_level` is the effort of code generation, 0 to 3. ValueError shows
    faulty IR. Threads may work at modules of their own side by side."""
    return _object([ir_text], triple, cpu, features, passes, cg_level)


@dataclass(frozen=True)
class Effort:
    """A module, and what LLVM is to do for it: `passes` and `cg_level` of `emit_object`."""

    text: str
    passes: Passes
    cg_level: int


def emit_each(modules: Sequence[Effort], triple: str, *, spare: int = 0) -> list[bytes]:
    """The object of each module, for any CPU of its kind; compiled on all CPUs here but those to `spare`."""
    _llvm()
    with ThreadPoolExecutor(max(1, usable_cpus() - spare)) as pool:
        return list(pool.map(lambda m: emit_object(m.text, triple, "", "", m.passes, m.cg_level), modules))


def emit_assembly(ir_text: str, triple: str, cpu: str = "", features: str = "", passes: Passes = "lite",
                  cg_level: int = 2) -> str:
    """The assembly text of a module; arguments as `emit_object`."""
    module, machine = _optimised([ir_text], triple, cpu, features, passes, cg_level)
    return _emitted(module, machine, is_object=False).decode()


def emit_all(texts: Iterable[Callable[[], str]], triple: str, cpu: str, features: str) -> list[bytes]:
    """The objects of modules, in order, several small modules in one; they are compiled on all CPUs while the
    texts of others are written."""
    _llvm()
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return list(pool.map(lambda group: _object(group, triple, cpu, features), _groups(texts)))


def _groups(texts: Iterable[Callable[[], str]]) -> Iterator[list[str]]:
    """The texts, in groups of OBJECT bytes and more; the last may have fewer."""
    group: list[str] = []
    for text in texts:
        group.append(text())
        if sum(map(len, group)) >= OBJECT:
            yield group
            group = []
    if group:
        yield group


def llvm_version() -> str:
    """LLVM's version, for cache keys and reports."""
    return ".".join(map(str, _llvm().llvm_version_info))


def _object(texts: Sequence[str], triple: str, cpu: str, features: str, passes: Passes = "lite",
            cg_level: int = 2) -> bytes:
    """One object of several modules."""
    module, machine = _optimised(texts, triple, cpu, features, passes, cg_level)
    return _emitted(module, machine, is_object=True)


def _optimised(texts: Sequence[str], triple: str, cpu: str, features: str, passes: Passes,
               cg_level: int) -> tuple[Any, Any]:
    module = _parse(texts, triple)
    if triple.split("-")[0] != _llvm().get_process_triple().split("-")[0]:
        _foreign_targets()
    machine = _llvm().Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=cg_level, reloc="pic", codemodel="small")
    _run_passes(module, machine, passes)
    return module, machine


def _parse(texts: Sequence[str], triple: str) -> Any:
    llvm = _llvm()
    context = llvm.create_context()
    try:
        module, *others = (llvm.parse_assembly(text, context) for text in texts)
        for other in others:
            module.link_in(other)
        module.triple = triple
        module.verify()
    except RuntimeError as error:
        raise ValueError(f"LLVM refuses this module: {error}") from None
    return module


def _run_passes(module: Any, machine: Any, passes: Passes) -> None:
    llvm = _llvm()
    if passes == "none":
        return
    if passes not in ("lite", "rotate"):
        raise ValueError(f"passes is none, lite or rotate, not {passes!r}")
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    if passes == "rotate":
        manager.add_loop_rotate_pass()
    _unlocked("LLVMPY_RunNewModulePassManager")(manager, module, builder)


def _emitted(module: Any, machine: Any, *, is_object: bool) -> bytes:
    """The bytes of a module's object or assembly text, as llvmlite's TargetMachine has them."""
    from llvmlite.binding import ffi

    with ffi.OutputString() as message:
        memory = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, int(is_object), message)
        if not memory:
            raise ValueError(f"LLVM has no code for this module: {message}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(memory), ffi.lib.LLVMPY_GetBufferSize(memory))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(memory)


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of LLVM past llvmlite's lock, which lets one thread in at a time. LLVM takes as many as
    there are contexts, and every module here has its own. An llvmlite whose lock is made otherwise is used
    as it is."""
    from llvmlite.binding import ffi

    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)
