"""Answers on planted inputs have the numbers that were recorded (anew: python -m tests.golden.record)."""

import pytest

from tests.golden.cases import ANSWERS, answers, commands, differences


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(answers(tmp_path_factory.mktemp("golden")))


@pytest.mark.parametrize("name", [*dict(commands(ANSWERS)), "convert.tables"])
def test_numbers_are_as_recorded(computed, name):
    assert differences((ANSWERS / f"{name}.csv").read_text(), computed[name]) == []


def test_a_changed_number_a_row_and_a_column_are_seen():
    recorded = "name,x,x_low,x_high\na,1,0,2\nb,3,2,4\n"
    assert differences(recorded, "new,name,x,x_low,x_high\n,b,3,2.1,4\n,a,1,0,2\n") == []
    assert len(differences(recorded, recorded.replace("a,1,", "a,1.00001,"))) == 1
    assert len(differences(recorded, recorded.replace("3,2,", "3,2.3,"))) == 1
    assert len(differences(recorded, recorded.replace("b,3,", "b,,"))) == 1
    assert len(differences(recorded, "name,x,x_low,x_high\na,1,0,2\n")) == 1
    assert len(differences(recorded, "name,x,x_low\na,1,0\nb,3,2\n")) == 1
