"""`@kernel` compiles a function with numba, keeps its code on disk, and holds Ctrl-C back while it runs.
Records of arrays go from kernel to kernel by address (`lend`): numba passes them by value, seven words per array, and
counts references to each array it touches, which for a scene of sixty arrays costs more than the work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, event
from numba.core.imputils import lower_getattr_generic
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

from stepgrad import threads
from stepgrad.engine import accelerator
from stepgrad.engine.cache import cache_of, find_folder
from stepgrad.threads import without_interrupt

logger = logging.getLogger("stepgrad")
F = TypeVar("F", bound=Callable[..., Any])
_SECONDS_BEFORE_TELLING = 1.0
_run = CPUDispatcher.__call__  # numba's own way to call a kernel


class _NotCompiledYet(Exception):
    """A kernel was called with arguments (`args`, all by position) of types that it has no code for."""


class Kernel(accelerator.Accelerated, CPUDispatcher):
    """numba's compiled function, but for where its code is kept, how fast it is compiled, and when a Ctrl-C takes effect."""

    _place: Any
    _compiles_later = False

    @property
    def _cache(self) -> Any:
        """Found when first needed: most kernels are only ever parts of others."""
        if self._place is None:
            self._place = cache_of(self.py_func)
        return self._place

    @_cache.setter
    def _cache(self, none_yet: Any) -> None:
        self._place = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the kernel; a Ctrl-C waits for its end, but not for the compiler."""
        # Classes are ranked on other threads: for their thousands of small kernels even the call of a function here counts.
        if get_ident() != threads.main_thread or threads.held():
            return _run(self, *args, **named)
        # First without the compiler: numba may be entered only while Ctrl-C is held back, and compiling takes too long for that.
        self._compiles_later = True
        try:
            return without_interrupt(_run, self, *args, **named)
        except _NotCompiledYet as call:
            self._compiles_later = False
            self._compile_for_args(*call.args)
            return without_interrupt(_run, self, *args, **named)
        finally:
            self._compiles_later = False

    def _compile_for_args(self, *args: Any, **named: Any) -> Any:
        """numba calls this from within a call of the kernel; compilation may take seconds, so it is left to `__call__`."""
        if self._compiles_later and get_ident() == threads.main_thread:
            raise _NotCompiledYet(*args)
        return super()._compile_for_args(*args, **named)


def _compiled(**options: Any) -> Callable[[F], F]:
    """A decorator that compiles; where numba is switched off (NUMBA_DISABLE_JIT), kernels run as Python."""

    def decorate(function: F) -> F:
        # nogil: classes are worked on by threads. error_model: a division by zero gives inf or nan, as in NumPy.
        settings = {"nopython": True, "boundscheck": None, "nogil": True, "error_model": "numpy", **options}
        return Kernel(function, {}, settings)

    return _as_python if numba.config.DISABLE_JIT else decorate


def _as_python(function: F) -> F:
    """A kernel as it stands; like compiled ones it divides by zero and lets words overflow without a warning."""

    @wraps(function)
    def silent(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return silent  # type: ignore[return-value]


kernel = _compiled()
inlined = _compiled(forceinline=True)


@intrinsic
def _lowest_bit(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # 1: the word is not zero, so the machine's own instruction can be used as it is.
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


class RefType(types.Type):
    """The address of a named tuple of arrays."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(name=f"Ref({inner})")

    def field(self, name: str) -> tuple[int, Any]:
        """The number and the type of a field."""
        i = self.inner.fields.index(name)
        return i, self.inner.types[i]


@register_model(RefType)
class _RefModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.IntType(8).as_pointer())


@intrinsic
def _lend(typingctx: Any, owned: Any) -> Any:
    """The address of a named tuple of arrays; attributes read as usual, nested tuples as addresses too.

    Valid until the calling function returns. The arrays live until `take_back(owned)`: a record that is not taken back is
    never freed, which a test notices, while one that is not lent would be freed too early, which would crash.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # One reference for the whole record, instead of one for each array at each call.
        context.nrt.incref(builder, owned, args[0])
        return builder.bitcast(cgutils.alloca_once_value(builder, args[0]), ir.IntType(8).as_pointer())

    return RefType(owned)(owned), codegen


@intrinsic
def _take_back(typingctx: Any, owned: Any) -> Any:
    """End what `lend` began: once for each, after the last use of the address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        context.nrt.decref(builder, owned, args[0])
        return context.get_dummy_value()

    return types.none(owned), codegen


if numba.config.DISABLE_JIT:  # Python cannot call intrinsics

    def lowest_bit(word: Any) -> int:
        """Index of the lowest set bit of a non-zero uint64."""
        return (int(word) & -int(word)).bit_length() - 1

    def lend(owned: Any) -> Any:
        """The record itself: Python passes by reference anyway."""
        return owned

    def take_back(owned: Any) -> None:
        """Nothing: Python counts references by itself."""

else:
    lowest_bit, lend, take_back = _lowest_bit, _lend, _take_back


@infer_getattr
class _RefAttribute(AttributeTemplate):
    key = RefType

    def generic_resolve(self, ref: RefType, name: str) -> Any:
        _, kind = ref.field(name)
        return RefType(kind) if isinstance(kind, types.BaseTuple) else kind


@lower_getattr_generic(RefType)
def _read_field(context: Any, builder: Any, ref: RefType, address: Any, name: str) -> Any:
    i, kind = ref.field(name)
    whole = builder.bitcast(address, context.get_value_type(ref.inner).as_pointer())
    # A field of the record in memory; a record inside it is passed on by its own address.
    at = cgutils.gep_inbounds(builder, whole, 0, i)
    # No copy: the inner record lies inside the outer one, which stays where it is.
    if isinstance(kind, types.BaseTuple):
        return builder.bitcast(at, ir.IntType(8).as_pointer())
    value = builder.load(at)
    if isinstance(kind, types.Array):  # borrowed: no owner, no counting
        view = make_array(kind)(context, builder, value=value)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        value = view._getvalue()
    return value


class _CompilationNotice(event.Listener):
    """Says once why the first call takes long. numba tells it of kernels it compiles, not of those its cache holds."""

    def __init__(self) -> None:
        self.told = False
        self._compiling = 0
        self._timer: threading.Timer | None = None

    def on_start(self, started: Any) -> None:
        self._compiling += 1
        # One kernel compiles others on its way; only the outermost starts the clock.
        if self._compiling == 1 and not self.told:
            self._timer = threading.Timer(_SECONDS_BEFORE_TELLING, self._tell)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, ended: Any) -> None:
        self._compiling -= 1
        if self._compiling == 0 and self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        if not self.told:
            self.told = True
            how_often = "once; later runs use the cache" if find_folder()[0] else "in each run"
            logger.warning(f"stepgrad is compiling its kernels for this machine: 10 to 30 seconds, {how_often}.")


_notice = _CompilationNotice()


@contextmanager
def explain_wait() -> Iterator[None]:
    """Say why the first call takes long, if kernels are compiled for it."""
    with nullcontext() if _notice.told else event.install_listener("numba:compile", _notice):
        yield
