"""Mutants of the ways beside the training stream of a GPU."""

from __future__ import annotations

from tests.mutation.mutant_list import Mutant, of

SIDE = of("unit/test_side_copies")
COPIES = of("unit/model/test_copies")
WORKER = of("unit/runtime/test_merge_worker")
TENSORS = "own_tensors"


def mutant(
    name: str, room: str, old: str, new: str, tests: tuple[str, ...] = SIDE, law: int = 10
) -> Mutant:
    return Mutant(name, law, room, old, new, tests)


GPU_MUTANTS = (
    mutant(
        "a-copy-beside-lacks-what-was-rounded-away",
        TENSORS,
        "self._side.take_out(room, out, rounding)",
        "self._side.take_out(room, out)",
    ),
    mutant(
        "what-was-rounded-away-is-read-too-soon",
        TENSORS,
        "        self._settle()\n        return rounding.clone()",
        "        return rounding.clone()",
    ),
    mutant(
        "what-was-rounded-away-is-loaded-too-soon",
        TENSORS,
        "        self._settle()\n        rest = give_back(",
        "        rest = give_back(",
    ),
    mutant(
        "what-was-rounded-away-is-forgotten-too-soon",
        TENSORS,
        "        self._settle()\n        for lost in",
        "        for lost in",
    ),
    mutant(
        "what-is-rounded-away-beside-is-lost",
        TENSORS,
        "            self._side.put_back(there, lost)",
        "            pass",
    ),
    mutant(
        "a-piece-is-read-before-it-is-there",
        "model/side_copies",
        "    event.synchronize()\n    out.copy_(piece)",
        "    out.copy_(piece)",
    ),
    mutant(
        "the-last-pieces-stay-on-the-way",
        "model/side_copies",
        "        for each in underway:\n            _land(each)",
        "        pass",
    ),
    mutant(
        "a-piece-is-used-again-while-it-is-full",
        "model/side_copies",
        "            if len(underway) == len(pieces):\n                _land(underway.pop(0))\n",
        "",
    ),
    mutant(
        "scarce-memory-is-asked-for-at-every-copy",
        "model/side_copies",
        "            self._patience = PATIENCE\n",
        "",
    ),
    mutant(
        "all-of-a-model-is-on-its-way-at-once",
        "model/side_copies",
        " or len(self._taken) >= ROOMS:",
        ":",
    ),
    mutant(
        "room-is-not-given-back",
        "model/side_copies",
        "                self._taken.popleft()\n",
        "",
    ),
    mutant(
        "nothing-is-like-everything",
        "model/copies",
        "devices == {flat.device}",
        "devices <= {flat.device}",
    ),
    mutant(
        "a-class-with-calls-of-its-own-is-as-any",
        "model/many_tensors",
        "    return {*map(type, tensors)} <= PLAIN\n",
        "    return True\n",
        COPIES,
    ),
    mutant(
        "a-batch-loses-what-was-rounded-away",
        "model/copies",
        "        torch._foreach_add_(exact, lost)\n",
        "",
        COPIES,
    ),
    mutant(
        "wide-tensors-beside-narrow-ones-stay",
        "model/copies",
        "    wide = [not is_narrow for is_narrow in narrowed]\n",
        "    wide = [False for _ in narrowed]\n",
        COPIES,
    ),
    mutant(
        "what-is-rounded-away-is-of-the-scripts-mode",
        TENSORS,
        "        with torch.inference_mode(False):\n            return torch.zeros(",
        "        if True:\n            return torch.zeros(",
        of("together/test_torch_modes", "nor_does"),
    ),
    mutant(
        "what-is-rounded-away-is-on-the-scripts-device",
        TENSORS,
        'dtype=torch.float32, device="cpu", pin_memory=is_pinned',
        "dtype=torch.float32, pin_memory=is_pinned",
        of("together/test_torch_modes", "nor_does"),
    ),
    mutant(
        "moments-are-not-brought",
        TENSORS,
        "replace(correction, values=values, moments=moments))",
        "replace(correction, values=values, moments=()))",
    ),
    mutant(
        "brought-memory-is-used-again-too-soon",
        TENSORS,
        "        self._side.use([there.values, *(m.values for m in there.moments)])",
        "        self._side.use([there.values])",
    ),
    mutant(
        "a-correction-is-not-brought",
        "runtime/merge_worker",
        "self.anchors.bring(self._stacked(correction))",
        "self._stacked(correction)",
        WORKER,
    ),
    mutant(
        "a-correction-is-brought-before-it-is-stacked",
        "runtime/merge_worker",
        "self.anchors.bring(self._stacked(correction))",
        "self._stacked(self.anchors.bring(correction))",
        WORKER,
    ),
    mutant(
        "samples-of-copies-are-taken-too-late",
        "ranks/copies_check",
        ".to(torch.float32, copy=True)",
        ".to(torch.float32)",
        of("unit/ranks/test_copies_check"),
    ),
    mutant(
        "the-courier-is-at-work-at-the-end",
        "ranks/courier",
        "            self._thread.join(patience_s)",
        "            pass",
        of("unit/ranks/test_courier"),
    ),
    mutant(
        "the-process-ends-in-mid-errand",
        "ranks/courier",
        "        courier.await_idle(LAST_ERRAND_S)\n",
        "        pass\n",
        of("unit/ranks/test_courier"),
    ),
    mutant(
        "the-courier-waits-for-itself",
        "ranks/courier",
        "if threading.current_thread() is not self._thread:",
        "if True:",
        of("unit/ranks/test_courier"),
    ),
    mutant(
        "the-worker-keeps-the-model",
        "handover",
        "    found = weakref.ref(tensors)",
        "    found = lambda: tensors  # noqa: E731",
        of("together/test_life"),
    ),
)
