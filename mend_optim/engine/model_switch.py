"""Finding the others: when a learner may take its first inner step, and whose weights it takes when
they are not its own.

Lineages of one genesis are compared fragment by fragment. Those of different genesis are compared
as whole models, by (Σ tokens, whether anybody steps with it, Σ version, genesis), and taken as
whole models: no learner ends with a mixture of two."""

from __future__ import annotations
