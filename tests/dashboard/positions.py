"""Where parts of a page are, all read in one moment."""

from typing import Any, TypedDict

#: Boxes of all elements of each selector. A page that heard nothing for 10 s shows a notice above
#: everything. A slow machine sees it come and go, so that its height is taken away.
BOXES = """selectors => {
  const stale = document.querySelector("#stale")?.getBoundingClientRect().height ?? 0;
  return selectors.map(selector => [...document.querySelectorAll(selector)].map(element => {
    const {x, y, width, height} = element.getBoundingClientRect();
    return {x, y: y - stale, width, height};
  }));
}"""


class Box(TypedDict):
    """Pixels of the window."""

    x: float
    y: float
    width: float
    height: float


def boxes_of_all(page: Any, *selectors: str) -> list[list[Box]]:
    """The boxes of all elements of each CSS selector. Two calls may see two layouts, one call sees one."""
    found: list[list[Box]] = page.evaluate(BOXES, selectors)
    return found


def boxes(page: Any, *selectors: str) -> list[Box]:
    """The box of the first element of each CSS selector."""
    return [found[0] for found in boxes_of_all(page, *selectors)]


def tops(page: Any, *selectors: str) -> list[float]:
    """The upper edge of each, in pixels from the top of the window."""
    return [box["y"] for box in boxes(page, *selectors)]


def distance_down(page: Any, first: str, second: str) -> float:
    """From the upper edge of one to that of the other, in pixels."""
    upper, lower = tops(page, first, second)
    return lower - upper
