"""A module with a mixin in front of its class, while it stays the object that it is.

Parameters, buffers, submodules and hooks are untouched, so a `state_dict` fits the stock class both ways, and `isinstance` still
works. Copies and pickles keep the mixin.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Specialised(nn.Module):
    """Base of the mixins. `stock_class` is the class before."""

    stock_class: ClassVar[type[nn.Module]]
    mixin: ClassVar[type[Specialised]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        stock: Any = super().__reduce_ex__(max(2, int(protocol)))  # __newobj__, (class, *arguments), state, ...
        _, (_, *arguments), *state = stock
        return _blank, (self.mixin, self.stock_class, *arguments), *state


def _blank(mixin: type[Specialised], stock_class: type[nn.Module], *arguments: Any) -> nn.Module:
    """An object of the specialised class before its state is put back."""
    kind = _specialised_class(mixin, stock_class)
    blank: nn.Module = kind.__new__(kind, *arguments)
    return blank


_made: dict[tuple[type, type], Any] = {}


def _specialised_class(mixin: type[Specialised], stock_class: type[nn.Module]) -> Any:
    """`stock_class` with `mixin` in front; always the same one for the same two."""
    if (mixin, stock_class) not in _made:
        about = {"stock_class": stock_class, "mixin": mixin, "__doc__": mixin.__doc__, "__module__": mixin.__module__}
        _made[mixin, stock_class] = type(f"{stock_class.__name__}ForMAP", (mixin, stock_class), about)
    return _made[mixin, stock_class]


def specialise(module: M, mixin: type[Specialised]) -> M:
    """The same object with the mixin in front of its class."""
    module.__class__ = _specialised_class(mixin, type(module))
    return module


def despecialise(module: M) -> M:
    """The same object with its stock class."""
    if isinstance(module, Specialised):
        module.__class__ = module.stock_class  # type: ignore[assignment]
    return module
