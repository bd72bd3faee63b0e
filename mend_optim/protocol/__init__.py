"""The messages between learners, as plain data. Any thread may run this package: it has no state
of its own, and its records are immutable. It may touch data and hashes. It must never do I/O, or
import another package of this library.
"""
