"""Optimise and translate each kernel once, in the module of the one that Python calls.

numba makes a library of every function it compiles, also of those that only other functions call: it optimises it, turns it into
machine code, and links the result into each caller, where both happen again. A function ten calls deep is optimised ten times.
Here a function called by a kernel becomes a `Part`: its code as lowered, nothing more. A kernel that Python calls is a
`Whole`: it links all parts below it, each once, and is optimised and translated as one module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.environment import lookup_environment

_ENVIRONMENT = "_ZN08NumbaEnv"  # how numba's names of a function's Python constants start


class _Lowered(JITCodeLibrary):
    """Code is kept as lowered until all of it is there. (numba optimises each module as it comes.)"""

    def add_llvm_module(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)

    def _translate(self) -> None:
        """Optimise what is there and make it machine code."""
        self._codegen._check_llvm_bugs()
        self._optimize_functions(self._final_module)
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name) if variable.name.startswith(_ENVIRONMENT) else None
            if environment is not None:
                self._codegen.set_env(variable.name, environment)

    def _link_all(self) -> None:
        """Take in whatever is called, however far below, each library once."""
        for other in _below(self):
            _inherit(self, other)
            # A library that numba made keeps its module, for others to link; of a part this is a copy.
            own = not isinstance(other, Part)
            module = other._get_module_for_linking() if own else other.as_lowered()
            self._final_module.link_in(module, preserve=own)


class _NoEnvironments:
    def set_env(self, name: str, environment: Any) -> None:
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
        return super().get_pointer_to_function(name)


class Whole(_Lowered):
    """A kernel that Python calls, with all it needs. On disk it is machine code alone: nobody links it."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        own = {function.name for function in self._final_module.functions if not function.is_declaration}
        self._link_all()
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = "internal"  # nobody else calls it: no code is made of what was inlined everywhere
        self._translate()

    def serialize_using_object_code(self) -> Any:
        self._ensure_finalized()
        module = self._final_module
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
        if id(other) not in seen:
            seen.add(id(other))
            yield other
            if isinstance(other, Part):
                waiting.extend(reversed(other._linking_libraries))


@contextmanager
def libraries_are(kind: type[_Lowered], codegen: Any) -> Iterator[None]:
    """Functions compiled or loaded within become this kind of library. For one thread: hold numba's compiler lock."""
    before = codegen.__dict__.get("_library_class")
    codegen._library_class = kind
    try:
        yield
    finally:
        if before is None:
            del codegen._library_class
        else:
            codegen._library_class = before
