"""Compiling kernels in half the time: each is optimised and translated once, in the module of the kernel that Python calls.

numba makes a library of every function it compiles, also of those that only other functions call: it optimises it, turns it into
machine code, and links the result into each caller, where both happen again. A function ten calls deep is optimised ten times.
Here a function called by a kernel becomes a `Part`: its code as lowered, nothing more. A kernel that Python calls is a
`Whole`: it links all parts below it, each once, and is optimised and translated as one module.

All of this leans on the inside of numba, and nothing but the time depends on it: where a name it needs is missing, or a
compilation fails for that reason, numba compiles in its own way, and one warning says so.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import types
from numba.core import codegen as numba_codegen
from numba.core import compiler, dispatcher, environment, event, sigutils, typing
from numba.core.compiler_lock import global_compiler_lock

logger = logging.getLogger("stepgrad")
_ENVIRONMENT = "_ZN08NumbaEnv"  # how numba's names of a function's Python constants start
_Library: Any = getattr(numba_codegen, "JITCodeLibrary", object)
_FunctionCompiler: Any = getattr(dispatcher, "_FunctionCompiler", object)
NEEDED: list[tuple[Any, str]] = [
    (numba_codegen, "JITCodeLibrary"),
    (dispatcher, "_FunctionCompiler"),
    (environment, "lookup_environment"),
    *((_Library, name) for name in ("_optimize_final_module", "_finalize_final_module", "_get_module_for_linking")),
    *((_Library, name) for name in ("_finalize_dynamic_globals", "_ensure_finalized", "_raise_if_finalized")),
    *((_Library, name) for name in ("_get_compiled_object", "_set_compiled_object", "enable_object_caching")),
    (_FunctionCompiler, "_compile_core"),
    (_FunctionCompiler, "fold_argument_types"),
]
"""The names of numba's that are used here; tests hide them one by one."""


class _Switch:
    """Whether the accelerator is used in this process."""

    def __init__(self) -> None:
        missing = [name for owner, name in NEEDED if not hasattr(owner, name)]
        self.is_on = not missing
        self.told = False
        if missing:
            self.why = f"it has no {missing[0]}"

    def turn_off(self, why: str) -> None:
        """Leave compilation to numba from now on."""
        self.is_on = False
        self.why = why

    def tell(self) -> None:
        """Say once that the accelerator is off."""
        if not self.is_on and not self.told:
            self.told = True
            logger.warning(
                f"numba {numba_version()} is not as stepgrad knows it ({self.why}): kernels are compiled in numba's own way, "
                "which takes about twice as long, once. Results are the same."
            )


def numba_version() -> str:
    """The version of numba that is installed."""
    import numba

    return str(numba.__version__)


switch = _Switch()


class Accelerated:
    """Mixin in front of numba's dispatcher: what a kernel becomes when another one calls it."""

    _compiler: Any
    targetoptions: dict[str, Any]
    targetctx: Any
    py_func: Any
    _compiling_counter: Any

    def __init__(self, py_func: Callable[..., Any], locals: Any, targetoptions: dict[str, Any], **rest: Any) -> None:
        super().__init__(py_func, locals, targetoptions, **rest)  # type: ignore[call-arg]
        self._numbas_compiler = self._compiler
        self._parts: dict[tuple[Any, ...], Any] = {}
        # A part is called by compiled code only: without the wrappers by which Python and C would call it.
        if switch.is_on:
            inner = {**self.targetoptions, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
            self._part_compiler = _Compiler(self._numbas_compiler, inner, lambda: None)
            self._compiler = _Compiler(self._numbas_compiler, self.targetoptions, self._new_whole)

    def _new_whole(self) -> Whole:
        library = Whole(self.targetctx.codegen(), self.py_func.__qualname__)
        library.enable_object_caching()
        return library

    def compile(self, sig: Any) -> Any:
        """Compile for a signature: accelerated if that works, else in numba's own way."""
        with _without_collector():
            if switch.is_on:
                try:
                    return super().compile(sig)  # type: ignore[misc]
                except (AttributeError, TypeError, NotImplementedError) as error:
                    switch.turn_off(f"{type(error).__name__}: {error}")
            switch.tell()
            self._compiler = self._numbas_compiler
            return super().compile(sig)  # type: ignore[misc]

    def _compilation_chain_init_hook(self) -> None:
        """Nothing yet: numba's own set-up takes half a second, and a kernel that comes from the disk needs none of it."""

    def _ensure_part(self, args: tuple[Any, ...]) -> None:
        # numba's own lock: two threads may meet the same part while each compiles a kernel of its own.
        with global_compiler_lock, self._compiling_counter:
            if args not in self._parts:
                with event.trigger_event("numba:compile", {"dispatcher": self, "args": args, "return_type": None}):
                    self._parts[args] = self._part_compiler.compile(args, None)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a kernel that calls this one needs to know; numba asks while it compiles that one."""
        if not switch.is_on:
            self._compiler = self._numbas_compiler
            return super().get_call_template(args, kws)  # type: ignore[misc]
        pysig, args = self._compiler.fold_argument_types(args, kws)
        # All integers are int64 between kernels, so that each kernel is compiled once.
        args = tuple(widened(kind) for kind in args)
        self._ensure_part(args)
        name = self.py_func.__name__
        # numba chooses among all signatures that are offered, so those of earlier callers are listed too.
        signatures = [part.signature for part in self._parts.values()]
        template = typing.make_concrete_template(f"CallTemplate({name})", key=name, signatures=signatures)
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """By what numba finds the code to call."""
        if not switch.is_on:
            return super().get_overload(sig)  # type: ignore[misc]
        return self._parts[tuple(sigutils.normalize_signature(sig)[0])].entry_point


@contextmanager
def _without_collector() -> Iterator[None]:
    """The compiler makes millions of objects and hardly any garbage in cycles; looking for it takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def widened(kind: Any) -> Any:
    """One type for all signed whole numbers: a kernel is not compiled once for int32, once for int64 and once for 0.

    >>> [str(widened(kind)) for kind in (types.int32, types.literal(0), types.uint64, types.float32)]
    ['int64', 'int64', 'uint64', 'float32']
    """
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


_ONE_FOR_ALL = hash(compiler.Flags())  # numba's hash of flags does not depend on them


class _Flags(compiler.Flags):
    """numba compares flags whenever it looks up a function, a tenth of its time, by making two tables of all options."""

    __slots__ = ()

    def __hash__(self) -> int:
        return _ONE_FOR_ALL

    def __eq__(self, other: object) -> bool:
        return (type(other) is _Flags and self._values == other._values) or super().__eq__(other)


class _Compiler(_FunctionCompiler):
    """Makes parts; given a library, a whole."""

    def __init__(self, like: Any, options: dict[str, Any], library: Callable[[], Any]) -> None:
        super().__init__(like.py_func, like.targetdescr, options, like.locals, like.pipeline_class)
        self._library = library

    def _compile_core(self, args: Any, return_type: Any) -> Any:
        flags = _Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        context = self.targetdescr.target_context
        context.refresh()  # what numba compiles for itself while it sets up is no part of ours
        library = self._library()
        # Whatever is compiled on the way, numba's own functions included, becomes a part.
        with libraries_are(Part, context.codegen()):
            return compiler.compile_extra(
                self.targetdescr.typing_context,
                context,
                self.py_func,
                args=args,
                return_type=return_type,
                flags=flags,
                locals=self.locals,
                library=library,
                pipeline_class=self.pipeline_class,
            )


class _Lowered(_Library):
    """Code is kept as lowered until all of it is there. (numba optimises each module as it comes.)"""

    def add_llvm_module(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)

    def _translate(self) -> None:
        """Optimise what is there and make it machine code."""
        self._final_module.data_layout = self._codegen._data_layout
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()
        for variable in self._final_module.global_variables:
            # Python constants of the code (its *environment*) were found by name; now they have an address.
            bound = variable.name.startswith(_ENVIRONMENT) and environment.lookup_environment(variable.name)
            if bound:
                self._codegen.set_env(variable.name, bound)

    def _link_all(self) -> None:
        """Take in whatever is called, however far below, each library once."""
        for other in _below(self):
            _inherit(self, other)
            # A library that numba made keeps its module, for others to link; of a part this is a copy.
            own = not isinstance(other, Part)
            module = other._get_module_for_linking() if own else other.as_lowered()
            self._final_module.link_in(module, preserve=own)


class _NoEnvironments:
    def set_env(self, name: str, bound: Any) -> None:
        """A part stands nowhere in memory; the whole it goes into binds its environment."""


class Part(_Lowered):
    """The code of one function. It becomes a library of its own only if code compiled elsewhere calls it.

    That may happen: numba keeps what it compiles of its own functions, `np.zeros` say, for all who call them later.
    """

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._complete = False

    @property
    def codegen(self) -> Any:
        return self._codegen if self._complete else _NoEnvironments()

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        for library in self._linking_libraries:
            _inherit(self, library)
        self._finalized = True

    def as_lowered(self) -> Any:
        """A copy to link: this function alone."""
        module = self._final_module.clone()
        # Two wholes in one process may hold the same part: the linker takes one copy, and does not complain.
        for function in module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        return module

    def _completed(self) -> None:
        if not self._complete:
            self._complete = True
            self._link_all()
            self._translate()

    def _get_module_for_linking(self) -> Any:
        self._ensure_finalized()
        self._completed()
        return super()._get_module_for_linking()

    def get_pointer_to_function(self, name: str) -> int:
        """0 if there is no such function: numba asks for the one that Python would call, and a part has none."""
        self._ensure_finalized()
        if not any(function.name == name for function in self._final_module.functions):
            return 0
        self._completed()
        return int(super().get_pointer_to_function(name))


class Whole(_Lowered):
    """A kernel that Python calls, with all it needs. On disk it is machine code alone: nobody links it."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        # The functions that Python calls keep their names; all others become internal and may vanish.
        own = {function.name for function in self._final_module.functions if not function.is_declaration}
        self._link_all()
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = "internal"  # nobody else calls it: no code is made of what was inlined everywhere
        self._translate()

    def serialize_using_object_code(self) -> Any:
        self._ensure_finalized()
        module = self._final_module
        # Loaded code must be found by name again, as if it had been compiled here.
        named = [*module.functions, *module.global_variables]
        symbols = [value.name for value in named if not value.is_declaration and value.linkage != llvm.Linkage.internal]
        return self.name, self._get_compiled_object(), symbols

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Whole:
        name, machine_code, symbols = state
        self = cls(codegen, name)
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()
        # Without this numba would look for these names in the process, and fail.
        codegen._engine._defined_symbols.update(symbols)
        return self


def _inherit(library: Any, other: Any) -> None:
    """What must run before the code of `other`, loaded from disk, does. (Older versions of numba keep it elsewhere.)"""
    if hasattr(library, "_reload_init"):
        library._reload_init.update(other._reload_init)


def _below(library: Any) -> Iterator[Any]:
    """Every library that this one needs, once. Those that are not parts hold all they need themselves."""
    seen = {id(library)}
    waiting = list(reversed(library._linking_libraries))
    while waiting:
        other = waiting.pop()
        # A part that two others call is linked once: a second copy would be a second definition.
        if id(other) not in seen:
            seen.add(id(other))
            yield other
            if isinstance(other, Part):
                waiting.extend(reversed(other._linking_libraries))


@contextmanager
def libraries_are(kind: type[_Lowered], codegen: Any) -> Iterator[None]:
    """Functions compiled or loaded within become this kind of library. For one thread: hold numba's compiler lock."""
    # An attribute of this one object hides that of its class, and is removed in the end.
    before = codegen.__dict__.get("_library_class")
    codegen._library_class = kind
    try:
        yield
    finally:
        if before is None:
            del codegen._library_class
        else:
            codegen._library_class = before
