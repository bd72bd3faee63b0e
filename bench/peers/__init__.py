"""mend_optim and torchft side by side: the same model, pace and faults, in one run."""
