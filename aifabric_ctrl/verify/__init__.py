"""What the tables do to packets: an executor for one switch and a walk through the whole fabric.

Pure: no clock, no socket, no randomness.  Neither compiles nor changes rules; it only runs them.
"""
