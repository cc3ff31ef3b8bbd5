"""The one way kernels are compiled: cached on disk, without the interpreter lock, and with a word about the wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, event
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

from stepgrad.kernels import uncompiled as _uncompiled
from stepgrad.kernels.cache import find_folder
from stepgrad.kernels.dispatch import KernelDispatcher

logger = logging.getLogger("stepgrad")
F = TypeVar("F", bound=Callable[..., Any])


def _compiled(**options: Any) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        settings = {"nopython": True, "boundscheck": None, "nogil": True, "error_model": "numpy", **options}
        return KernelDispatcher(function, {}, settings)

    return decorate


kernel = _compiled()
inlined = _compiled(forceinline=True)


@intrinsic
def lowest_bit(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


class RefType(types.Type):
    """A tuple of arrays by address. Numba passes tuples by value, seven words per array, and counts references to each
    array it touches; for a scene of sixty arrays that costs more than the work."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(name=f"Ref({inner})")

    def field(self, name: str) -> tuple[int, Any]:
        i = self.inner.fields.index(name)
        return i, self.inner.types[i]


@register_model(RefType)
class _RefModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, ir.IntType(8).as_pointer())


@intrinsic
def by_reference(typingctx: Any, owned: Any) -> Any:
    """The address of a named tuple of arrays; attributes read as usual, nested tuples as addresses too.

    Valid until the calling function returns. The caller keeps the arrays alive with `keep_alive(owned)` after the last use.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(cgutils.alloca_once_value(builder, args[0]), ir.IntType(8).as_pointer())

    return RefType(owned)(owned), codegen


@intrinsic
def keep_alive(typingctx: Any, owned: Any) -> Any:
    """Does nothing; being a use, it keeps its argument from being freed earlier."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.none(owned), codegen


if numba.config.DISABLE_JIT:  # kernels run as Python then, which cannot call intrinsics
    kernel = inlined = _uncompiled.as_python
    lowest_bit = _uncompiled.lowest_bit
    by_reference = _uncompiled.by_reference
    keep_alive = _uncompiled.keep_alive


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
    at = cgutils.gep_inbounds(builder, whole, 0, i)
    if isinstance(kind, types.BaseTuple):
        return builder.bitcast(at, ir.IntType(8).as_pointer())
    value = builder.load(at)
    if isinstance(kind, types.Array):  # borrowed: no owner, no counting
        view = make_array(kind)(context, builder, value=value)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        value = view._getvalue()
    return value


_SECONDS_BEFORE_TELLING = 1.0


class _CompilationNotice(event.Listener):
    """Says once why the first call takes long. numba tells it of kernels it compiles, not of those its cache holds."""

    def __init__(self) -> None:
        self.told = False
        self._compiling = 0
        self._timer: threading.Timer | None = None

    def on_start(self, started: Any) -> None:
        self._compiling += 1
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
_prepared: set[str] = set()


@contextmanager
def explain_wait(needed_by: str | None = None) -> Iterator[None]:
    """Say why the first call takes long, if kernels are compiled for it.

    `needed_by`: a name in uses.json; the kernels needed by it are compiled in several processes then.
    """
    with nullcontext() if _notice.told else event.install_listener("numba:compile", _notice):
        if needed_by is not None and needed_by not in _prepared:
            _prepared.add(needed_by)
            from stepgrad.kernels.warmup import prepare  # knows the kernels, which know this file

            prepare(needed_by)
        yield
