"""Damage to arrays, and to the .npz and .mat files that hold them; some would run code if they were unpickled."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.damage_tree import damage_tree
from tests.fuzz.nasty import NUMBERS

_TYPES = ("f2", "f4", "f8", "i1", "u1", "i8", "u8", "?", "c8", "U3", "S2", "M8[s]", "m8[ns]", ">f8", "V4")
_HEADERS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 4), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1,4), 'more': 1}",
    "{'descr': [('a', '<f8', (9999999, 9999999))], 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '|V0', 'fortran_order': True, 'shape': (5, 4), }",
    "{'descr': '<U1000000000', 'fortran_order': True, 'shape': (), }",
    "(" * 3000,
    "-" * 9000 + "1",
    "__import__('os').mkdir('executed')",
)


class Payload:
    """Makes a folder where the case runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def damage_array(array: Any, random: Random) -> Any:
    """Another type, shape or value."""
    array = np.asarray(array)
    kind = random.randrange(8)
    if kind == 0:
        return _cast(array, random.choice(_TYPES))
    if kind == 1:
        return random.choice(
            [
                array.reshape(-1),
                array[None],
                np.atleast_1d(array)[:0],
                array.T,
                np.zeros(()),
                np.zeros((0, 4)),
                np.zeros((3, 0)),
            ]
        )
    if kind == 2:
        return np.zeros(array.shape, dtype=[("a", "f8"), ("b", "U3")])
    if kind in (3, 4) and array.size and array.dtype.kind in "iuf":
        changed = array.astype(np.float64).reshape(-1)
        changed[random.randrange(len(changed))] = random.choice([n for n in NUMBERS if isinstance(n, float)])
        return _cast(changed.reshape(array.shape), array.dtype.str)
    if kind == 5:
        return np.concatenate([array.reshape(-1)] * 2)
    if kind == 6 and array.dtype.kind in "US" and array.size:
        return np.array(damage_tree(array.reshape(-1).tolist(), random, ["", "../x", "\x1b[1m", "A" * 5000, "\ud800"]))
    return np.array([random.choice([Payload(), None, "x", [1], 10**30])], dtype=object)


def _cast(array: Any, dtype: str) -> Any:
    try:
        with np.errstate(all="ignore"):
            return array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(array.shape, dtype=dtype)


def damage_npz(data: bytes, random: Random) -> bytes:
    """One defect of one array, or of the archive that holds them."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception:  # damaged already
        return data
    name = random.choice(sorted(arrays))
    kind = random.randrange(6)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[random.choice(["x", "../x", "", "ids"])] = arrays.pop(name)
    elif kind != 2:
        arrays[name] = damage_array(arrays[name], random)
    members = {f"{key}.npy": _npy(value) for key, value in arrays.items()}
    if kind == 2:
        members[f"{name}.npy"] = _bad_npy(random)
    return _zip(members, random)


def _npy(array: Any) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.asanyarray(array), allow_pickle=True)
    return packed.getvalue()


def _bad_npy(random: Random) -> bytes:
    text = random.choice(_HEADERS).encode()
    version, size = random.choice([(b"\x01\x00", 2), (b"\x02\x00", 4), (b"\x03\x00", 4), (b"\x09\x00", 2)])
    return b"\x93NUMPY" + version + len(text).to_bytes(size, "little") + text + bytes(random.choice([0, 64]))


def _zip(members: dict[str, bytes], random: Random) -> bytes:
    packed = io.BytesIO()
    method = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    data = packed.getvalue()
    if random.random() < 0.15:  # encrypted, a method nobody has, a wrong checksum
        field, value = random.choice([(6, b"\x01\x00"), (8, b"\x63\x00"), (14, b"abcd")])
        directory = data.rfind(b"PK\x01\x02")
        data = data[:field] + value + data[field + len(value) :]
        data = data[: directory + field + 2] + value + data[directory + field + 2 + len(value) :]
    return data


def pickled() -> bytes:
    """What `numpy.load` or `torch.load` would run if it unpickled."""
    return pickle.dumps([Payload()], protocol=2)  # the newest that torch reads


def damage_mat(data: bytes, random: Random) -> bytes:
    """One defect of one array or cell."""
    from scipy.io import savemat

    from stepgrad.data.proposals.mat_file import read_mat

    try:
        arrays = {name: _as_cell(value) for name, value in read_mat(data).items() if name.isidentifier()}
    except (ValueError, NotImplementedError):  # damaged already; SciPy's reader could crash here
        return data
    if not arrays:
        return data
    name = random.choice(sorted(arrays))
    value = arrays[name]
    kind = random.randrange(5)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[random.choice(["x", "boxes", "images"])] = arrays.pop(name)
    elif kind == 2 and value.dtype == object and value.size:
        value.reshape(-1)[random.randrange(value.size)] = random.choice(
            [
                np.zeros((2, 5)),
                np.zeros(0),
                "x",
                np.array(["a", "bc"]),
                {"a": 1},
                1.5,
                np.array([[1j, 2, 3, 4]]),
                np.zeros((0, 0)),
            ]
        )
    elif kind == 3 and value.dtype == object and value.size:
        at = random.randrange(value.size)
        value.reshape(-1)[at] = _plain(damage_array(value.reshape(-1)[at], random))
    else:
        arrays[name] = _plain(damage_array(value, random)) if value.dtype != object else value.reshape(-1)[:1]
    packed = io.BytesIO()
    try:
        savemat(packed, arrays)
    except Exception:  # what SciPy cannot write nobody can hand in
        return data
    return packed.getvalue()


def _as_cell(value: Any) -> np.ndarray:
    """A value as SciPy writes it: lists become cells."""
    if not isinstance(value, list):
        return np.asarray("" if value is None else value)
    cells = np.empty((len(value), 1), dtype=object)
    cells[:, 0] = [np.asarray("" if entry is None else entry) for entry in value]
    return cells


def _plain(array: Any) -> Any:
    """.mat files hold no pickles and no dates."""
    return np.zeros(3) if array.dtype == object or array.dtype.kind in "MmV" else array
