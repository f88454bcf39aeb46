"""Sends to chat, pagers and mail with apprise, in a process without Django and without secrets of its own.

A program, because libraries that open connections to addresses that a person typed in are confined best as
a process: it gets one job per line, it can be killed, and its audit hook cannot be removed.
"""
