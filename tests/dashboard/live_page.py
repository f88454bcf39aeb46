"""The messages of a live page, taken as the browser takes them."""

import json
import zlib


def unpacked(message):
    return json.loads(zlib.decompress(message))


class LivePage:
    """What a browser knows of the page that it displays."""

    def __init__(self):
        self.rev = None
        self.html = {}
        self.lists = {}

    def take(self, message):
        """Return what the message swaps, as markup; a message after a lost one is refused."""
        found = unpacked(message)
        if found.get("whole"):
            self.html, self.lists = {}, {}
        elif found["rev"] != self.rev + 1:
            raise AssertionError(f"message {found['rev']} after {self.rev}")
        self.rev = found["rev"]
        swaps = dict(found["html"])
        self.html |= swaps
        for target, change in found["lists"].items():
            before = self.lists.get(target, {}).get("order", [])
            order = [item for part in change["order"] for item in _part(part, before)]
            self.lists[target] = {**self.lists.get(target, {}), **change, "order": order}
            for item in set(before) - set(order):
                self.html.pop(item, None)
            for item in order:
                swaps.pop(item, None)
            swaps[target] = self.drawn(target)
        return "".join(
            f"<hx-partial hx-target=\"[id='{target}']\">{html}</hx-partial>" for target, html in swaps.items()
        )

    def drawn(self, target):
        """The element as the page displays it."""
        if target not in self.lists:
            return self.html[target]
        one = self.lists[target]
        return one["head"] + "\n".join(self.html[item] for item in one["order"]) + one["tail"]


def _part(part, before):
    return [part] if isinstance(part, str) else before[slice(*part)]
