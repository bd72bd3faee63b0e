"""`mend run`: several learners on this machine. `crew`, `seats` and `output` are pure; `supervisor`
has the processes, on the one thread of the command."""
