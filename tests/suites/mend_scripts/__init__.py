"""Training scripts in the manner of their libraries' own examples, with one line swapped.

Each module has `train(swap, folder, seed)`, which returns the figures that a user of the script
sees, such as losses. They run in an environment with their libraries: `tests.suites` puts this
package and `mend_optim` on its path, and nothing else of this repository."""
