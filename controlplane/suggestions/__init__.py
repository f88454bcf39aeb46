"""Suggestions for limits of vendors, with what pods reported as evidence; limits that follow their vendor.

No suggestion changes a limit: a person uses it, with the usual form.
"""
