"""Several learners, on slow links or with slow members: what training keeps, and what it comes
to."""
