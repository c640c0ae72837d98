"""Fake switches and fake networks that are stricter than real ones, for tests and dry runs.

Nothing here is used by a running controller.
"""
