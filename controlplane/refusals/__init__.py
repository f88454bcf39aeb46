"""Explains refusals: the keys of their tokens, and what a token says.

* ``keys``: derived from ``FUSEBOARD_SECRET_KEY``; none is stored.
* ``tokens``: whether a token is genuine, and of which environment and service.
"""
