"""The decisions of a learner, as a pure state machine: events and the time go in, effects come out.

It runs under the learner's mutex, on whichever thread has news. It never imports torch, reads a
clock, starts a thread, does I/O or logs: `tests/house/test_architecture.py` holds that."""
