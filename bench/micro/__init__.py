"""Benches with one or two learners on one machine: the cost of a single operation, compared with
the least that it can cost."""
