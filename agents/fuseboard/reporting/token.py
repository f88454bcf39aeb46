"""The agent token. Its file may be replaced while the pod runs."""

import logging
import re
from pathlib import Path

logger = logging.getLogger("fuseboard.sync")

#: A token contains only what an HTTP header can carry.
_TOKEN = re.compile(r"[\x21-\x7e]+")


class TokenSource:
    """Checked before every heartbeat: a changed file is read again, however it is mounted."""

    def __init__(self, token: str, file: Path | None = None) -> None:
        self._token, self._file = token, file
        self._seen = self._stamp()

    def current(self) -> str:
        """The token to send now. While the file is missing, empty or half written: the last good one."""
        stamp = self._stamp()
        if self._file is None or stamp is None or stamp == self._seen:
            return self._token
        try:
            text = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("token.unreadable: %s; the last one is used", type(error).__name__)
            return self._token
        if not _TOKEN.fullmatch(text):
            return self._token
        self._seen = stamp
        if text != self._token:
            self._token = text
            logger.info("token.replaced")
        return self._token

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes with the content, also through links, as Kubernetes replaces them. ``None`` when it is
        missing.
        """
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
