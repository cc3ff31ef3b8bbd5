"""Every error stepgrad raises on purpose, and its warnings. Each message says what was expected, what came, where, and how
to fix it."""

from __future__ import annotations

from operator import index


class StepgradError(Exception):
    """Base class: catch this to catch everything stepgrad raises on purpose."""


class InputError(StepgradError, ValueError):
    """An argument has a wrong shape, type, length or range."""


class NonFiniteError(InputError):
    """A NaN or an infinity where a finite number is needed."""


class ConfigError(StepgradError, ValueError):
    """An option has an unknown name or value."""


class UnsupportedTransformError(StepgradError, NotImplementedError):
    """A loss or a layer was called inside torch.func or vmap, which cannot look into it."""


class DataError(StepgradError, ValueError):
    """A file on disk is missing, damaged or says something impossible."""


class MissingDependencyError(StepgradError, ImportError):
    """An optional package is needed; the message says which extra installs it."""


class LikelyMistakeWarning(UserWarning):
    """The input or the data is most likely not what was meant. A loss or an evaluator warns once.

    To silence: `warnings.filterwarnings("ignore", category=stepgrad.errors.LikelyMistakeWarning)`.
    """


def suggest(word: str, choices: list[str]) -> str:
    """` Did you mean 'x'?` for the closest choice, in capitals or not, or an empty string.

    >>> suggest("voc7", ["voc07", "voc12", "coco"]), suggest("RBC", ["WBC", "rbc"])
    (" Did you mean 'voc07'?", " Did you mean 'rbc'?")
    """
    from difflib import get_close_matches

    folded = {
        choice.casefold(): choice for choice in reversed(choices)
    }  # of choices that differ in capitals, the first
    close = get_close_matches(str(word).casefold(), list(folded), n=1)
    return f" Did you mean {folded[close[0]]!r}?" if close else ""


def one_of(name: str, value: object, choices: list[str]) -> None:
    """Raise ConfigError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:  # an array compares entry by entry
        raise ConfigError(f"Expected {name} to be one of {choices} but got {value!r}.{suggest(str(value), choices)}")


def whole_number(name: str, value: object, least: int) -> int:
    """`value` as an int; raises ConfigError unless it is a whole number of an integer type, of Python's, NumPy's or torch's.

    True is refused: where a number is meant, it is a slip.
    """
    if not _is_truth_value(value):
        try:
            number = index(value)  # type: ignore[arg-type]  # refuses 2.0 and "2"
        except TypeError:
            number = least - 1
        if number >= least:
            return number
    raise ConfigError(f"Expected {name} to be a whole number >= {least} but got {value!r}.")


def real_number(name: str, value: object, expected: str = "a number") -> float:
    """`value` as a float; raises ConfigError unless it is a number of Python's, NumPy's or torch's."""
    is_array = getattr(value, "ndim", 0) > 0  # whether a list of one number is that number depends on NumPy's version
    if not is_array and not _is_truth_value(value) and not isinstance(value, (str, bytes)):
        try:
            return float(value)  # type: ignore[arg-type]  # whatever has no float is refused below
        except (TypeError, ValueError, RuntimeError, OverflowError):  # the last for an int of 400 digits
            pass
    raise ConfigError(f"Expected {name} to be {expected} but got {value!r}.")


def positive_number(name: str, value: object, way_out: str = "") -> float:
    """`value` as a float; raises ConfigError unless it is a finite number > 0."""
    number = real_number(name, value, f"a finite number > 0{way_out}")
    if not 0.0 < number < float("inf"):
        raise ConfigError(f"Expected {name} to be a finite number > 0{way_out} but got {value!r}.")
    return number


def not_negative(name: str, value: object) -> float:
    """`value` as a float; raises ConfigError unless it is a finite number of at least 0."""
    number = real_number(name, value, "a finite number >= 0")
    if not 0.0 <= number < float("inf"):
        raise ConfigError(f"Expected {name} to be a finite number >= 0 but got {value!r}.")
    return number


def _is_truth_value(value: object) -> bool:
    """Whether this is True or False, or an array or tensor of such."""
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
