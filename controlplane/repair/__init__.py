"""What puts Redis right when it differs from Postgres: the sweep, the reconciler, restores."""
