"""The whole tensors that FSDP2 has gathered from the parts of all ranks.

A forward pass without a backward pass leaves some of them in the modules: those of the outermost
one, at least. The next forward pass would use them, also if somebody has written to the parts
meanwhile. torch's own functions that load weights let go of them first.

Only the training thread calls this module."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mend_optim.model.layout import is_distributed

#: torch's list of the modules that FSDP2 has divided. A module's parameters do not lead to it.
LIST = ("torch.distributed._composable_state", "_module_state_mapping")
#: The class of these modules, which is public.
CLASS = ("torch.distributed.fsdp", "FSDPModule")
UNKNOWN = (
    "this version of torch keeps no list of the modules that FSDP2 has divided where mend_optim "
    "looks for it: a forward pass may use weights from before a merge; call reshard() of all its "
    "modules after each forward pass without a backward pass, such as an evaluation"
)


class Gathered:
    """What was gathered of some parameters.

    Args:
        parameters: as an optimizer has them: the parts.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        parts = {id(p) for p in parameters if is_distributed(p)}
        divided = _divided_modules() if parts else []
        #: Whether FSDP2 may have gathered something that is not found here.
        self.is_blind = bool(parts) and _list() is None and _divides_any()
        for module in divided:
            module.reshard()  # after an evaluation, its parameters are the whole ones
        has_any = [not parts.isdisjoint(map(id, module.parameters())) for module in divided]
        self._modules = [weakref.ref(m) for m, has in zip(divided, has_any, strict=True) if has]

    def let_go(self) -> None:
        """The parts are about to be written to: the next forward pass gathers them anew."""
        for reference in self._modules:
            module = reference()
            if module is not None:
                module.reshard()


def _divided_modules() -> list[Any]:
    return [module for module in list(_list() or ()) if hasattr(module, "reshard")]


def _list() -> Any:
    """The list; None: this version of torch has none, or no module was divided yet."""
    return getattr(sys.modules.get(LIST[0]), LIST[1], None)


def _divides_any() -> bool:
    """Whether FSDP2 has divided a module in this process. It makes a class for each kind."""
    base = getattr(sys.modules.get(CLASS[0]), CLASS[1], None)
    return base is not None and bool(base.__subclasses__())
