"""One learner or two on one machine: what a single operation costs, beside the least that it can
cost."""
