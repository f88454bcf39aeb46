"""Every channel of Postgres NOTIFY. Imports nothing: the gateway also listens, on its own connections."""

#: A revision was committed. Payload: ``epoch``, ``revision``.
CONFIG = "fuseboard_config"
#: An agent or API token was created, changed or revoked. Empty payload.
TOKENS = "fuseboard_tokens"
#: The role of a user changed, or logins ended. Payload: ``user`` or ``logins``.
LOGINS = "fuseboard_logins"
#: Rows of the fleet were written. Payload: ``servers``, ``figures``.
FLEET = "fuseboard_fleet"
#: Transitions of breakers were stored. Payload: ``environment``, ``dependencies``.
BREAKERS = "fuseboard_breakers"
