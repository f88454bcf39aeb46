"""The browser of a person, from the User-Agent header of a session."""

#: Browser -> its sign in a User-Agent header. The first that fits: most browsers also name others.
_BROWSERS = {
    "Edge": "Edg",
    "Opera": "OPR/",
    "Firefox": "Firefox/",
    "Chrome": "Chrome/",
    "Safari": "Safari/",
    "curl": "curl/",
}
#: System -> its sign in a User-Agent header, also the first that fits.
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "macOS": "Mac OS X",
    "Linux": "Linux",
}


def browser_words(agent: str) -> str:
    """A User-Agent header as "Chrome on Linux"; a header that names neither stays as it is."""
    names = (name for name, sign in _BROWSERS.items() if sign in agent)
    systems = (name for name, sign in _SYSTEMS.items() if sign in agent)
    return " on ".join(word for word in (next(names, ""), next(systems, "")) if word) or agent[:40]
