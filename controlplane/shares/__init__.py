"""Who may spend which piece of the ``reserved`` limits without Redis."""
