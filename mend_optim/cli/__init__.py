"""The command `mend`. A user's shell runs it, so it may touch files, processes, clocks and sockets.
It starts no learner in its own process. The modules that compute are pure; those that speak to the
outside are named `command`."""
