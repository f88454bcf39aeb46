"""``make release``: builds both distributions, and shows that a stranger can install and use them."""
