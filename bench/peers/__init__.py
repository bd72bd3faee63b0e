"""Benches of mend_optim next to other libraries: the same model, pace and faults, in one run."""
