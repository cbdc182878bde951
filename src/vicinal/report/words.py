"""Numbers and names as the page prints them. Names come from users: cleaned, never trusted."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache, partial
from os.path import commonprefix
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from vicinal.audits.record import significant
from vicinal.checks import plural as plural

# Invisible characters that would reorder or hide the text around them, and controls HTML forbids.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
ALIKE = 14  # no name on the page is cut to fewer characters
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """A user's text without control characters; each leaves a visible mark.

    >>> clean("a\\x00b")
    'a\ufffdb'
    """
    return _CONTROLS.sub("\ufffd", text)


def short(text: str, length: int = 24) -> str:
    """A label for a chart: one line, no direction marks, at most ``length`` characters.

    >>> short("a very long name of a class", 12)
    'a very long…'
    """
    line = " ".join(_DIRECTION.sub("\ufffd", clean(text)).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def name(text: str, length: int = 24, among: Sequence[str] = ()) -> str:
    """A name for a chart, without its middle where it is too long: names often begin alike.

    Of names that end alike as well, the place where one is told from the others stays.

    >>> name("a very long name of a class", 13)
    'a very l…lass'
    >>> both = "the_images_of_cats_from_above", "the_images_of_dogs_from_above"
    >>> [name(text, 18, both) for text in both]
    ['the_i…of_cat…above', 'the_i…of_dog…above']
    """
    line, tail = short(text, 1000), 2 * (length - 1) // 5
    if len(line) <= length:
        return line
    at, side = apart(tuple(among)).get(text), (length - 2) // 3
    if at is None or not length - 1 - tail <= at < len(line) - tail:
        return f"{line[: length - 1 - tail].rstrip()}…{line[-tail:].lstrip()}"
    core = length - 2 - 2 * side
    start = min(at - core // 2, len(line) - side - core)
    return f"{line[:side]}…{line[start : start + core]}…{line[-side:]}"


@lru_cache(maxsize=8)
def apart(names: tuple[str, ...]) -> dict[str, int]:
    """Where a name parts from the one most like it, of those that begin and end alike."""
    groups: dict[tuple[str, str], list[str]] = {}
    for text in sorted(set(names)):
        line = short(text, 1000)
        if len(line) > ALIKE:
            groups.setdefault((line[: ALIKE // 2], line[-ALIKE // 3 :]), []).append(text)
    return {
        text: max(len(commonprefix([short(t, 1000) for t in (text, o)])) for o in near)  # noqa: RUF071
        for group in groups.values()
        for i, text in enumerate(group)
        if (near := [*group[max(i - 1, 0) : i], *group[i + 1 : i + 2]])
    }


def map_words(method: str) -> str:
    """How a map was made, in words.

    >>> map_words("class-Fisher")
    'the two straight directions that part the classes best'
    """
    return {
        "class-Fisher": "the two straight directions that part the classes best",
        "PCA": "the two straight directions of most spread, PCA",
    }.get(method, method)


def sentence(text: str) -> str:
    """A phrase of the record as a sentence of the page.

    >>> sentence("neighbors in the support")
    'Neighbors in the support.'
    """
    text = capital(text.strip())
    return text and text + ("" if text[-1] in ".!?" else ".")


def flags(text: str) -> Markup:
    """A user's text as markup whose command-line flags stay on one line.

    >>> flags("try --prior <x>")
    Markup('try <span class="nowrap">--prior</span> &lt;x&gt;')
    """
    marked = _FLAG.sub(r'<span class="nowrap">\g<0></span>', str(escape(clean(text))))
    return Markup(unbroken(marked))


def unbroken(text: str) -> str:
    """A number stays on one line with its sign of percent."""
    return re.sub(r"(?<=\d) %", "\u00a0%", text)


def capital(text: str) -> str:
    """With a large first letter, unless the word has its own way.

    >>> capital("softmax"), capital("kNN")
    ('Softmax', 'kNN')
    """
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


def fixed(value: float, digits: int) -> str:
    """So many decimals, a tie away from zero, as ``toFixed`` writes what moves on the page.

    >>> fixed(44.5, 0), fixed(-0.25, 1), f"{44.5:.0f}"
    ('45', '-0.3', '44')
    """
    if not math.isfinite(value):
        return f"{value:.{digits}f}"
    step = Decimal(1).scaleb(-digits)
    return str(Decimal(value).quantize(step, rounding=ROUND_HALF_UP))


def percent(share: float | None, digits: int = 1) -> str:
    """
    >>> percent(0.9341), percent(None)
    ('93.4 %', '–')
    """
    return "–" if share is None else f"{fixed(100 * share, digits)} %"


def level(share: float) -> str:
    """An accuracy that was asked for, as it was given.

    >>> level(0.99), level(0.975)
    ('99 %', '97.5 %')
    """
    return f"{100 * share:.4g} %"


def threshold(value: float) -> str:
    """A confidence to accept from: three decimals, and more where it is that near to 1.

    >>> threshold(0.98765), threshold(0.999512)
    ('0.988', '0.99951')
    """
    return fixed(value, 3 if value < 0.995 or value >= 1 else 1 - math.floor(math.log10(1 - value)))


def points(share: float | None, digits: int = 1) -> str:
    """Percentage points without the sign of percent, for columns whose heading has it."""
    return "–" if share is None else fixed(100 * share, digits)


def decimal(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def count(value: int | None) -> str:
    """
    >>> count(50000)
    '50,000'
    """
    return "–" if value is None else f"{value:,}"


def signed(share: float | None, digits: int = 1) -> str:
    """
    >>> signed(0.012), signed(-0.0001)
    ('+1.2', '0.0')
    """
    if share is None:
        return "–"
    text = f"{100 * share:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def lists(
    column: Sequence[Sequence[float]], form: Callable[[Any], NDArray[Any]]
) -> list[list[float]]:
    """Rows of numbers, as long as each is, through ``form`` all at once.

    >>> lists(((0.12345, 0.2), (0.3,)), decimals(2))
    [[0.12, 0.2], [0.3]]
    """
    entries = iter(form(np.array(list(itertools.chain.from_iterable(column)))).tolist())
    return [list(itertools.islice(entries, len(line))) for line in column]


def decimals(digits: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    return lambda values: np.round(values, digits)


four_digits = partial(significant, digits=4)  # enough for a page; JSON prints them short


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
