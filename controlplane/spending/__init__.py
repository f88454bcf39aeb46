"""The cost of calls to language models: the models, and their prices by date.

This package is below ``policies``, whose document contains it: its tables name the environment's as text.
"""
