"""Edits of the configuration.

``revise`` makes one revision, ``edits`` are its named functions, ``plans`` are edits from files,
``rows`` is what both write.
"""
