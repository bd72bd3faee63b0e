"""Benches with several learners, on slow links or with slow members: the throughput they keep, and
the loss they reach."""
