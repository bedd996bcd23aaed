"""SVG elements as safe markup. Lengths along the page are in percent and text has a fixed size: a figure fits a phone and
stays readable."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

Length = float | str


def element(name: str, *children: Markup | str, **attributes: Length) -> Markup:
    """One element; `class_` stands for `class`, and `_` within a name for `-`. Text and values are escaped."""
    said = Markup(" ").join(
        Markup('{}="{}"').format(key.rstrip("_").replace("_", "-"), number(value)) for key, value in attributes.items()
    )
    if not children:
        return Markup("<{0} {1}/>").format(Markup(name), said)
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}{2}>{3}</{0}>").format(Markup(name), Markup(" ") if said else "", said, inside)


def number(value: Length) -> str:
    """A coordinate as short as it may be."""
    return value if isinstance(value, str) else f"{value:.1f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A part of the figure's width, of 0 to 1."""
    return f"{number(100 * share)}%"


def figure(label: str, children: Iterable[Markup], **size: Length) -> Markup:
    """The whole picture, with the sentence that stands for it where it cannot be seen."""
    return element("svg", *children, role="img", aria_label=label, **size)


def text(content: str, x: Length, y: float, **attributes: Length) -> Markup:
    """A short line of text, its base at `y`."""
    return element("text", content, x=x, y=y, **attributes)
