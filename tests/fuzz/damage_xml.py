"""Damage to XML trees."""

from __future__ import annotations

import copy
from random import Random
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from tests.fuzz.nasty import MARKS, VALUES

_TAGS = ("object", "bndbox", "name", "xmin", "size", "annotation", "difficult", "a:b", "x" * 3000)
_RAW = (
    "<a>" * 100_000 + "</a>" * 100_000,
    "<![CDATA[<name>dog</name>]]>",
    "&lol;",
    "<!-- c --><?php x?>",
    "&#0;&#xD800;",
)
_DOCTYPES = (
    '<!DOCTYPE a [<!ENTITY lol "lol">]>',
    '<!DOCTYPE a SYSTEM "file:///etc/passwd">',
    '<?xml version="1.0" encoding="utf-16"?>',
    '<?xml version="1.0" encoding="no-such"?>',
    '<?xml version="1.0" encoding="idna"?>',
    '<?xml version="1.0" encoding="hex"?>',
    '<?xml version="1.0" encoding="latin-1"?>',
    "text before",
)


def damage_xml(data: bytes, random: Random) -> bytes:
    """One defect in the tree of a well-formed file; other files as they are."""
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError):
        return data
    if random.random() < 0.1:
        return random.choice(_DOCTYPES).encode() + data
    _change(root, random)
    text = ElementTree.tostring(root, encoding="us-ascii")
    for mark, raw in zip(MARKS, _RAW, strict=True):
        text = text.replace(mark.replace("<", "&lt;").replace(">", "&gt;").encode(), raw.encode())
    return text


def _change(root: Element, random: Random) -> None:
    parents = [element for element in root.iter() if len(element)]
    element = random.choice(list(root.iter()))
    kind = random.randrange(8)
    if kind <= 2 or not parents:
        element.text = str(random.choice(VALUES))
    elif kind == 3:
        element.tag = random.choice(_TAGS)
    elif kind == 4:
        element.set("a", str(random.choice(VALUES)))
    else:
        parent = random.choice(parents)
        child = random.choice(list(parent))
        if kind == 5:
            parent.remove(child)
        elif kind == 6:
            parent.append(copy.deepcopy(child))
        else:
            element.append(copy.deepcopy(child))
