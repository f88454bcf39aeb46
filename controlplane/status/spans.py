"""Lengths of time in words."""


def span_words(seconds: float) -> str:
    """25 to "25 s", 150 to "2 min 30 s", 7300 to "2 h 1 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
