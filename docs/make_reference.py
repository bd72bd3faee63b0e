"""Write docs/reference.md from the docstrings of the public names.

python docs/make_reference.py            write it
python docs/make_reference.py --check    exit with status 1 if it is stale
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
WIDTH = 100
GROUPS = {
    "The optimizer": "MendOptimizer LearnerState close_all",
    "Security": "Credentials",
    "Ranks": "Split megatron",
    "Policies": "AutoPeriod Adoption Timing Limits Quorum Grace Nesterov DiLoCoNesterov"
    " MomentSchedule Moment FailSlow",
    "Codecs": "Int8 Int4 Float4 Sparse PowerSGD",
    "What a learner tells you": "Status FragmentStatus PeerStatus Refused RoundRecord MemberRecord"
    " Event",
    "Errors": "MendError UsageError PeerError ClosedError",
}
CALLED = GROUPS["The optimizer"].split()  # you call their methods; those of the rest are internal
INTRO = """\
# Reference

<!-- docs/make_reference.py writes this page. Change the docstrings, then run it again. -->

Every public name of `mend_optim`, from its docstring. [Operations](operations.md#arguments) has all
arguments of `MendOptimizer` in one table."""
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Examples?|Notes?|References):")
ENTRY = re.compile(r"(\*{0,2}\w[\w., ]*?(?: \([^)]*\))?):\s+(\S.*)", re.DOTALL)
ALIGNED = re.compile(r"\S {3,}\S")  # columns, which wrapping would destroy


def filled(text: str, first: str = "", rest: str = "") -> str:
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=first, subsequent_indent=rest)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.fill(" ".join(text.split()))


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{textwrap.dedent(text).strip()}\n```"


def paragraphs(text: str) -> Iterator[str]:
    """Wrap prose and the items of lists; leave doctests, and what is indented or aligned."""
    for block in filter(str.strip, re.split(r"\n\s*\n", text.strip("\n"))):
        if block.startswith(">>>"):
            yield fenced(block)
        elif all(line.startswith("    ") for line in block.splitlines()) or ALIGNED.search(block):
            yield fenced(block, "text")
        elif block.startswith("- "):
            yield "\n".join(filled(item, "- ", "  ") for item in re.split(r"(?:^|\n)- ", block)[1:])
        else:
            yield filled(block)


def entries(body: str) -> Iterator[str]:
    """Each `name: text` stands at the margin, with its other lines further in."""
    for entry in re.split(r"\n(?=\S)", body):
        found = ENTRY.fullmatch(entry)
        text = f"**`{found[1]}`**: {found[2]}" if found else entry
        first, *others = re.split(r"\n\s*\n", text)
        yield filled(first, "- ", "  ")
        yield from ("\n" + filled(other, "  ", "  ") for other in others)


def section(title: str, body: str) -> str:
    body = textwrap.dedent(body).strip()
    if title.startswith("Example"):
        return f"**{title}**\n\n{fenced(body)}"
    if title in ("Args", "Attributes", "Raises"):
        return f"**{title}**\n\n" + "\n".join(entries(body))
    return f"**{title}**\n\n" + "\n\n".join(paragraphs(body))


def markdown(docstring: str | None) -> str:
    """A docstring in Google's style as Markdown: prose and sections, in their order."""
    prose, parts, lines = "", [], inspect.cleandoc(docstring or "").splitlines()
    while lines:
        line = lines.pop(0)
        if found := SECTION.fullmatch(line):
            body = ""
            while lines and (not lines[0].strip() or lines[0].startswith(" ")):
                body += lines.pop(0) + "\n"
            parts += [*paragraphs(prose), section(found[1], body)]
            prose = ""
        else:
            prose += line + "\n"
    return "\n\n".join([*parts, *paragraphs(prose)])


def signature(name: str, function: object) -> str:
    """`name(a, *, b: int = 1)`, on one line where it fits, with annotations as they are written."""
    known = inspect.signature(function)  # type: ignore[arg-type]
    written: list[str] = []
    for parameter in known.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        written += [text] if parameter.name != "self" else []
    short = f"{name}({', '.join(written)})"
    if len(short) > WIDTH - 8:
        short = f"{name}(\n" + "".join(f"    {text},\n" for text in written) + ")"
    result = known.return_annotation
    return short if result in (known.empty, None, "None") else f"{short} -> {result}"


def describe(name: str, public: object) -> Iterator[str]:
    """How you make one or call it, what it is, and the methods that you call."""
    if not isinstance(public, type):
        yield from (f"### {name}", fenced(signature(name, public)), markdown(public.__doc__))
        return
    cls = public
    bases = ", ".join(base.__name__ for base in cls.__bases__)
    made = f"class {name}({bases})" if issubclass(cls, Exception) else signature(name, cls)
    yield from (f"### {name}", fenced(made), markdown(cls.__doc__))
    own = [base for base in reversed(cls.__mro__) if base.__module__.startswith("mend_optim")]
    members = {attribute: value for base in own for attribute, value in vars(base).items()}
    for attribute, value in members.items() if name in CALLED else ():
        method = inspect.isfunction(value)
        if attribute.startswith("_") or not (method or isinstance(value, property)):
            continue
        call = fenced(signature(attribute, value)) if method else "*Property.*"
        yield f"#### {name}.{attribute}\n\n{call}\n\n{markdown(value.__doc__)}"


def render() -> str:
    import mend_optim

    groups = {title: names.split() for title, names in GROUPS.items()}
    groups["Others"] = sorted(set(mend_optim.__all__) - {n for ns in groups.values() for n in ns})
    parts = [INTRO]
    for title, names in groups.items():
        parts += [f"## {title}"] if names else []
        for name in names:
            parts += describe(name, getattr(mend_optim, name))
    return "\n\n".join(filter(None, parts)) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != render():
        sys.exit("docs/reference.md is stale: run python docs/make_reference.py")
