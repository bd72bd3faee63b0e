"""Measurements of mend_optim beside the least that the same work can cost: `make bench`, or `python
-m bench NAME…`.

Every ratio is taken side by side, in one run, on one machine: what is measured and its floor
alternate, and each pair gives one ratio. Every number is one JSON line; see `result.py` for what
its fields say.
"""
