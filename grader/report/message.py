"""The parts of a check's message: what was expected, what came, where, why, what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grader.report.plain_text import plain
from grader.result import JobRecord

LABELS = ("Expected", "Got", "Where", "Usual cause", "Next step")
_LINE_LABEL = re.compile(r"\s*(expected|got|where|usual cause|next step)\s*:\s*(.*)", re.IGNORECASE)
_SENTENCE_LABEL = re.compile(r"(?<=[.!?]) +(?=(?:Usual cause|Next step): )")


@dataclass(frozen=True)
class Part:
    """label: one of LABELS, or empty for text that carries none."""

    label: str
    text: str


def parts(message: str) -> tuple[Part, ...]:
    """Split where a line, or for the cause and the next step a sentence, begins with a label.

    A line without one belongs to the part before.
    """
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in _SENTENCE_LABEL.sub("\n", plain(message)).split("\n"):
        labelled = _LINE_LABEL.fullmatch(line)
        if labelled:
            found.append((labelled[1].capitalize(), [labelled[2]]))
        else:
            found[-1][1].append(line)
    split = (Part(label, "\n".join(lines).strip("\n").rstrip()) for label, lines in found)
    return tuple(part for part in split if part.label or part.text)


def without_hangs(message: str, jobs: tuple[JobRecord, ...]) -> str:
    """The message less an explanation at its end that the reports give with the hang itself."""
    shorter = message.strip()
    for job in jobs:
        if job.hang is not None:
            shorter = shorter.removesuffix(job.hang.cause.strip()).rstrip()
    return shorter
