"""A pytest plugin that puts `MendOptimizer` around every optimizer that a test constructs.

It runs inside suites that other people wrote, in their environments: `tests.suites` puts this
package and `mend_optim` on their path, and nothing else of this repository. So it imports only
itself, `mend_optim`, pytest and torch."""
