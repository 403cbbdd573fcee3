"""Whoever sees a chart can tell its colours from what they stand on."""

import re
from pathlib import Path

import pytest

from analysis.display import plots
from analysis.display.plots import CLASS_COLOURS, CONCEPTS, ON_DARK, PALETTE

ANALYSIS = Path(plots.__file__).parents[1]
COLOUR = re.compile(r"#[0-9A-Fa-f]{6}\b")
LEAST = 3.0  # WCAG 2.2, 1.4.11: graphical objects


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def papers() -> tuple[str, str]:
    """The page's background, light and dark."""
    css = (ANALYSIS / "report/page/style.css").read_text()
    light, dark = re.findall(r"--paper: (#[0-9a-f]{6})", css)
    return light, dark


@pytest.mark.parametrize("colour", PALETTE)
def test_the_colour_of_a_line_is_told_from_the_background_in_both_schemes(colour):
    light, dark = papers()
    assert contrast(colour, light) >= LEAST
    assert contrast(ON_DARK.get(colour, colour), dark) >= LEAST


@pytest.mark.parametrize("colours", [CONCEPTS, plots.STAGE_COLOURS, plots.PART_COLOURS])
def test_each_concept_has_a_colour_of_its_own_in_both_schemes(colours):
    light = list(colours.values())
    assert len(set(light)) == len(light) == len({ON_DARK.get(colour, colour) for colour in light})


def test_charts_have_no_other_colours():
    assert {*plots.STAGE_COLOURS.values(), *plots.PART_COLOURS.values()} <= set(CONCEPTS.values())
    shared = {"communication": "communication", "copies": "memcpy", "data": "loader", "update": "optimizer"}
    assert all(CONCEPTS[concept] == CLASS_COLOURS[name] for concept, name in shared.items())
    elsewhere = {
        (path.name, colour)
        for folder in ("display", "report")
        for path in (ANALYSIS / folder).glob("*.py")
        if path.name != "plots.py"
        for colour in COLOUR.findall(path.read_text())
    }
    assert not elsewhere
