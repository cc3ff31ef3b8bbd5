"""A compiled function: called from Python it is a whole of its own, called from another kernel a part of that one.

See linking.py for why. Apart from that, and from its place on the disk, it is numba's own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba import types
from numba.core import compiler, event, sigutils, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.registry import CPUDispatcher

from stepgrad.kernels.cache import KernelCache, cache_of
from stepgrad.kernels.linking import Part, Whole, libraries_are

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


class KernelDispatcher(CPUDispatcher):
    """numba's compiled function, but for what callees become."""

    _compiler: Any
    _place: Any

    def __init__(self, py_func: Callable[..., Any], locals: Any, targetoptions: dict[str, Any], **rest: Any) -> None:
        super().__init__(py_func, locals, targetoptions, **rest)
        inner = {**self.targetoptions, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        self._part_compiler = _Compiler(self._compiler, inner, lambda: None)
        self._compiler = _Compiler(self._compiler, self.targetoptions, self._new_whole)
        self._parts: dict[tuple[Any, ...], Any] = {}

    def _new_whole(self) -> Whole:
        library = Whole(self.targetctx.codegen(), self.py_func.__qualname__)
        library.enable_object_caching()
        return library

    @property
    def _cache(self) -> Any:
        """Found when first needed: most kernels are only ever parts of others."""
        if self._place is None:
            self._place = cache_of(self.py_func)
        return self._place

    @_cache.setter
    def _cache(self, none_yet: Any) -> None:
        self._place = None

    def is_kept(self, args: tuple[Any, ...]) -> bool:
        """Whether the disk holds the code for these types."""
        return isinstance(self._cache, KernelCache) and self._cache.holds(args, self.targetctx)

    def _compilation_chain_init_hook(self) -> None:
        """Nothing yet: numba's own set-up takes half a second, and a kernel that comes from the disk needs none of it."""

    def compile(self, sig: Any) -> Any:
        with _without_collector():
            return super().compile(sig)

    def _ensure_part(self, args: tuple[Any, ...]) -> None:
        with global_compiler_lock, self._compiling_counter:
            if args not in self._parts:
                with event.trigger_event("numba:compile", {"dispatcher": self, "args": args, "return_type": None}):
                    self._parts[args] = self._part_compiler.compile(args, None)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a kernel that calls this one needs to know; numba asks while it compiles that one."""
        pysig, args = self._compiler.fold_argument_types(args, kws)
        args = tuple(widened(kind) for kind in args)
        self._ensure_part(args)
        name = self.py_func.__name__
        signatures = [part.signature for part in self._parts.values()]
        template = typing.make_concrete_template(f"CallTemplate({name})", key=name, signatures=signatures)
        return template, pysig, args, {}

    def get_overload(self, sig: Any) -> Any:
        """By what numba finds the code to call."""
        return self._parts[tuple(sigutils.normalize_signature(sig)[0])].entry_point
