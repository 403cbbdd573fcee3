"""How does what is said become HTML? In pieces, which the page holds once, however many choices need them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.report.filtered import Filtered, Said
from analysis.report.sentences import QUESTIONS, Sentence
from analysis.report.small import Drawing

if TYPE_CHECKING:
    from jinja2 import Environment

ALSO = "Also"  # above what answers none of the questions, if any is answered
NOTHING = "Not available for the chosen configurations."


@dataclass(frozen=True)
class Answer:
    """A question of the first screen, its sentences, and a small drawing."""

    question: str
    sentences: Sequence[Sentence]
    drawing: Drawing | None


def answers(summary: Sequence[Sentence], drawings: Mapping[str, Drawing]) -> list[Answer]:
    """Sentences, and what is drawn, by the question that they answer."""
    by_question: dict[str, list[Sentence]] = {question: [] for question in (*QUESTIONS, "")}
    for sentence in summary:
        by_question[sentence.question].append(sentence)
    found = {question: sentences for question, sentences in by_question.items() if sentences}
    unasked = ALSO if len(found) > 1 else ""
    return [
        Answer(question or unasked, sentences, drawings.get(question))
        for question, sentences in found.items()
    ]


class Pieces:
    """Questions, sentences, drawings and findings as HTML, each made once."""

    def __init__(self, environment: "Environment") -> None:
        self._macros: Any = environment.get_template("opening.html.j2").module
        self._made: dict[Any, str] = {}
        self._numbers: dict[str, int] = {}

    def of_answer(self, answer: Answer, of_all: bool) -> list[str]:
        """An answer's pieces in their order.

        Args:
            of_all: it is of all configurations, which it says as soon as the rest of the page is of some.
        """
        return [
            *([self._piece("question", answer.question)] if answer.question else []),
            *(self._piece("sentence", one, of_all or one.of_all) for one in answer.sentences),
            *([self._piece("drawing", answer.drawing, of_all)] if answer.drawing else []),
        ]

    def _piece(self, macro: str, *arguments: Any) -> str:
        asked = (macro, *arguments)
        if asked not in self._made:
            self._made[asked] = str(getattr(self._macros, macro)(*arguments)).strip()
        return self._made[asked]

    def of_choices(self, filtered: Filtered) -> dict[str, Any]:
        """What page/said.js reads: pieces once each, and by choice their numbers.

        A choice is its numbers joined by commas.
        """
        said = [self._of_said(count, one) for count, one in filtered.said]
        return {
            "configurations": filtered.configurations,
            "depth": filtered.depth,
            "of": {",".join(map(str, choice)): place for choice, place in filtered.of.items()},
            "said": said,
            "pieces": list(self._numbers),
        }

    def _of_said(self, count: int, said: Said) -> dict[str, Any]:
        opening = answers(said.summary, said.drawings) if said.summary is not None else None
        return {
            "configurations": count,
            "opening": opening
            and [[self._number(piece) for piece in self.of_answer(one, of_all=False)] for one in opening],
            "findings": {
                id: self._number(self._piece("finding", text or NOTHING))
                for id, text in said.findings.items()
            },
            "lists": {
                id: [
                    self._number(self._piece("item", one.alone, one.of_all))
                    for one in sentences or [Sentence(NOTHING)]
                ]
                for id, sentences in said.lists.items()
            },
        }

    def _number(self, piece: str) -> int:
        return self._numbers.setdefault(piece, len(self._numbers))
