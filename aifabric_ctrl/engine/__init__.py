"""When: one deterministic loop that turns events into effects.

``Engine.step`` takes one event, ``Engine.flush`` compiles and plans once the queue is empty.  No clock, socket or random
number in here: time comes with each event, entropy once at construction.
"""
