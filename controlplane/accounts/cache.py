"""Django's cache in Postgres, as JSON: small values that all web processes share.

Django's own database cache stores pickles, and write access to its table would run code.
"""

import json
from datetime import timedelta
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.db import connection
from django.utils import timezone

from controlplane.accounts.models import Kept

_SET = (
    "INSERT INTO accounts_kept AS k (key, value, expires_at) VALUES (%s, %s, %s)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at"
)
_ADD = _SET + " WHERE k.expires_at <= now()"

#: Part of the keys of used codes: a code works once.
_SPENT_CODE = "mfa.totp.used"
_CODE_S = 120

_FOR_EVER = timedelta(days=3650)
#: One write in this many also removes expired rows.
_SWEEP_EVERY = 100


class PostgresCache(BaseCache):
    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._writes = 0

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        row = Kept.objects.filter(pk=self._name(key, version), expires_at__gt=timezone.now()).first()
        return default if row is None else row.value

    def set(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        self._write(key, value, timeout, version, only_new=False)

    def add(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """True if added; exactly one concurrent caller gets True."""
        if _SPENT_CODE in key:
            # allauth forgets a code after one period, but accepts it for three.
            timeout = _CODE_S
        return self._write(key, value, timeout, version, only_new=True)

    def touch(self, key: str, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        rows = Kept.objects.filter(pk=self._name(key, version), expires_at__gt=timezone.now())
        return bool(rows.update(expires_at=timezone.now() + self._span(timeout)))

    def delete(self, key: str, version: int | None = None) -> bool:
        return bool(Kept.objects.filter(pk=self._name(key, version)).delete()[0])

    def clear(self) -> None:
        Kept.objects.all().delete()

    def _write(
        self, key: str, value: Any, timeout: float | None, version: int | None, *, only_new: bool
    ) -> bool:
        self._sweep()
        expires_at = timezone.now() + self._span(timeout)
        with connection.cursor() as cursor:
            cursor.execute(
                _ADD if only_new else _SET, [self._name(key, version), json.dumps(value), expires_at]
            )
            return bool(cursor.rowcount)

    def _sweep(self) -> None:
        self._writes += 1
        if self._writes % _SWEEP_EVERY == 0:
            Kept.objects.filter(expires_at__lte=timezone.now()).delete()

    def _name(self, key: str, version: int | None) -> str:
        return self.make_and_validate_key(key, version=version)[:255]

    def _span(self, timeout: float | None) -> timedelta:
        seconds = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        return _FOR_EVER if seconds is None else timedelta(seconds=seconds)
