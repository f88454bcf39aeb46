"""Why a pod has no Redis, in words of people: it reports the error of its client."""

import re

#: Text for people -> an error of the client of Redis.
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
#: The words of the agent before the error.
_BEFORE_ERROR = re.compile(r".*, last: |never reached: |answers, but: ")


def mode_cause_words(cause: str) -> str:
    """Why a pod decides without Redis. A pod reports the error of its client, which is for programmers."""
    match = _BEFORE_ERROR.match(cause)
    before = match[0] if match else ""
    error = cause[len(before) :]
    return before + next((words for words, sign in _STORE_ERRORS.items() if sign.search(error)), error)
