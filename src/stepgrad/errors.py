"""Every error stepgrad raises on purpose. Each message says what was expected, what came, where, and the way out."""


class StepgradError(Exception):
    """Base class: catch this to catch everything stepgrad raises on purpose."""


class InputError(StepgradError, ValueError):
    """An argument has a wrong shape, type, length or range."""


class NonFiniteError(InputError):
    """A NaN or an infinity where a finite number is needed."""


class ConfigError(StepgradError, ValueError):
    """An option has an unknown name or value."""


class DataError(StepgradError, ValueError):
    """A file on disk is missing, damaged or says something impossible."""


class DataWarning(UserWarning):
    """Data that can be used but hardly means what it says; the message says what it may mean."""


class MissingDependencyError(StepgradError, ImportError):
    """An optional package is needed; the message says which extra installs it."""


def suggest(word: str, choices: list[str]) -> str:
    """` Did you mean 'x'?` for the closest choice, or an empty string.

    >>> suggest("voc7", ["voc07", "voc12", "coco"])
    " Did you mean 'voc07'?"
    """
    from difflib import get_close_matches

    close = get_close_matches(str(word), choices, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def one_of(name: str, value: object, choices: list[str]) -> None:
    """Raise ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"Expected {name} to be one of {choices} but got {value!r}.{suggest(str(value), choices)}")
