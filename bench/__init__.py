"""Measurements of mend_optim, each compared with the least that the same work can cost: `make
bench`, or `python -m bench NAME`."""
