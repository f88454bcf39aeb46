"""Contenders side by side: everything ``tests/bench/decisions.py`` measures."""
