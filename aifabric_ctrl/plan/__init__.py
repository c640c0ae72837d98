"""What to change: the difference between what should be on a switch and what is, in an order that loses no packet.

Knows nothing of time, sessions or bytes.
"""
