"""Reserved shares: which part of the ``reserved`` limits each pod may spend without Redis."""
