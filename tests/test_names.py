"""Names from data: every name has a file name, a word and a look of its own, and none does harm."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepgrad.errors import InputError
from stepgrad.names import LONGEST, file_name, file_names, key_of, name_in, on_disk, visible, word

ANY = st.text(st.characters(exclude_categories=()), min_size=1, max_size=20)  # surrogates too: JSON can hold them
ORDINARY = [
    "aeroplane",
    "dining table",
    "Käfer",
    "трактор",
    "犬",
    "🐶",
    "2008_000007",
    "a-b_c.d",
    "(1)",
    "a+b, c & d's",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    assert file_name(name) == name
    assert visible(name) == name
    if " " not in name:
        assert word(name) == name


@given(ANY)
@example("..")
@example("x/../../../victim")
@example("a\0b")
@example("nul.txt")
@example("%~")
def test_every_name_is_one_safe_part_of_a_path_and_comes_back(name: str) -> None:
    text = file_name(name)
    assert Path(text).parts == (text,)
    assert not set(text) & set('/\\:*?"<>|')
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in text)
    assert not text.startswith(".")
    assert not text.endswith((".", " "))
    assert os.fsencode(name_in(text)) == os.fsencode(name) if _has_bytes(name) else name_in(text) == name


def _has_bytes(name: str) -> bool:
    """Half characters that stand for bytes of the system are the same as the character of those bytes."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("device", ["CON", "nul", "Aux.txt", "COM1", "lpt9.tar.gz", "con .x"])
def test_no_name_is_a_device_of_windows(device: str) -> None:
    assert file_name(device).startswith("%")
    assert name_in(file_name(device)) == device


def test_long_names_are_cut_and_stay_different() -> None:
    names = ["ä" * 500 + end for end in ("", "a", "b")]
    texts = [file_name(name) for name in names]
    assert len(set(texts)) == 3
    assert all(len(text.encode()) <= LONGEST for text in texts)
    assert len({key_of(name) for name in names}) == 3


@given(st.lists(st.text("aAäÄ\u0308/", min_size=1, max_size=3), unique=True, max_size=12))
def test_no_two_names_share_a_file_where_capitals_do_not_count(names: list[str]) -> None:
    texts = file_names(names)
    assert len({unicodedata.normalize("NFD", text).casefold() for text in texts}) == len(names)
    assert [name_in(text) for text in texts] == names


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"each name once but got \['dog', 'dog'\]"):
        file_names(["dog", "dog"])


@given(ANY)
@example("IMG%207")
@example("\ufeffa")
@example("a\u2028b")
def test_a_word_is_one_word_of_one_line_and_comes_back(name: str) -> None:
    text = word(name)
    assert text.split() == [text]
    assert f"{text} 1\n".splitlines() == [f"{text} 1"]
    assert os.fsencode(name_in(text)) == os.fsencode(name) if _has_bytes(name) else name_in(text) == name


@given(ANY)
def test_what_is_visible_commands_no_terminal_and_can_be_written(name: str) -> None:
    text = visible(name)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)
    text.encode()


def test_a_letter_of_the_c_locale_is_the_letter_it_stands_for() -> None:
    assert file_name("K\udcc3\udcb6ln") == "Köln"
    assert file_name("K\udcf6ln") == "K%F6ln"
    assert name_in("K\udcc3\udcb6ln") == name_in("K%C3%B6ln") == "Köln"
    assert visible("K\udcc3\udcb6ln") == "Köln"
    assert os.fsencode(on_disk("Köln")) == "Köln".encode()
