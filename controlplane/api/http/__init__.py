"""HTTP around the routes: authentication, limits, headers, problems, idempotency."""
