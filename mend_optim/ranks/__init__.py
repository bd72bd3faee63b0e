"""A learner of several ranks, the processes that `torch.distributed` runs together on one model.

The training thread of each rank runs it, on its own parts of tensors, and a thread of its own
carries these (`courier`), each on a gloo group of this library's. It must never decide from what one rank alone knows, know the network, or use the user's groups."""
