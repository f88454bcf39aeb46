"""Turns the error of a pod's Redis client into words for people."""

import re

#: Words for people -> the pattern of an error of the Redis client.
_STORE_ERRORS = {
    "connection refused": re.compile(r"ConnectionRefused|Errno 111|Connection refused"),
    "connection reset": re.compile(r"ConnectionReset|BrokenPipe|Errno 104|Connection (reset|closed|lost)"),
    "host name unknown": re.compile(r"gaierror|Name or service|nodename|Temporary failure in name"),
    "host unreachable": re.compile(r"Errno (101|113)\b|No route to host|Network is unreachable"),
    "wrong password or user": re.compile(r"WRONGPASS|NOAUTH|invalid username-password"),
    "function missing": re.compile(r"function \S+ is missing"),
    "permission missing": re.compile(r"NOPERM"),
    "a script blocks Redis": re.compile(r"\bBUSY\b"),
    "Redis cannot save its data": re.compile(r"\bMISCONF\b"),
    "Redis loads its data": re.compile(r"\bLOADING\b"),
    "Redis is read-only": re.compile(r"\bREADONLY\b"),
    "Redis is out of memory": re.compile(r"\bOOM\b"),
    "certificate not accepted": re.compile(r"SSL|CERTIFICATE"),
    "no answer in time": re.compile(r"Timeout|timed out"),
}
#: The words that the agent puts before the error. fuseboard/store/health.py writes them.
_BEFORE_ERROR = re.compile(r".*, last: |never reached: |answers, but: ")


def store_error_words(cause: str) -> str:
    """Why a pod decides locally. Errors without words here stay as they are."""
    match = _BEFORE_ERROR.match(cause)
    before = match[0] if match else ""
    error = cause[len(before) :]
    return before + next((words for words, pattern in _STORE_ERRORS.items() if pattern.search(error)), error)
