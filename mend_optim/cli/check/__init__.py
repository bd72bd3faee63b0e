"""`mend check`: whether a learner can be reached at an address. `findings` is pure; `command`
connects, and dials by `transport/visit.py`."""
