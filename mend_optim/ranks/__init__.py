"""A learner of several ranks, the processes that `torch.distributed` runs together on one model.

The training thread of each rank runs it, on its own parts of tensors. A courier, one more thread of
each rank, carries these. Each of the two has a gloo group of this library's. It must never decide
from what one rank alone knows, know the network, or use the user's groups."""
