"""Formulas as MathML, which browsers draw themselves: no script, no font, no network."""

from __future__ import annotations

from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

# What the converter does not know, in words that it does.
WORDS = {r"\arg": r"\operatorname{arg}"}


def drawn(latex: str, display: str) -> str:
    for word, known in WORDS.items():
        latex = latex.replace(word, known)
    return convert(latex, display=display)


def inline(translator: Any, node: Any) -> None:
    translator.body.append(drawn(node.astext(), "inline"))
    raise SkipNode


def block(translator: Any, node: Any) -> None:
    translator.body.append(f'<div class="math">{drawn(node.astext(), "block")}</div>')
    raise SkipNode
