"""How the choice is judged: the best is named by one half of the rounds and compared in the other."""

import pytest

from rdmaring.bench.interleaved import Timed
from rdmaring.bench.quality import judge, summary
from rdmaring.choice import Candidate


def candidate(name, predicted_s, measured_s=None):
    return Candidate(name, False, predicted_s, measured_s)


def cell(chosen, other, again, *, predicted_s=1.0, measured_s=None):
    series = [Timed("a", chosen, 0), Timed("b", other, 0), Timed("a", again, 0)]
    return judge("all_reduce", 8, [series], [candidate("a", predicted_s, measured_s), candidate("b", 2.0)])


def test_luck_in_one_half_makes_nobody_the_best():
    # b was quick in rounds 0, 1, 4, 5 alone, which name it; in rounds 2, 3, 6, 7 it is as quick as a
    found = cell((1.0,) * 8, (0.5, 0.5, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0), (1.0,) * 8)
    assert (found.chosen, found.best) == ("a", "b")
    assert found.ratio == 1.0
    assert found.good


def test_a_better_one_is_found():
    found = cell((1.0,) * 5, (0.8,) * 5, (1.0,) * 5)
    assert found.best == "b"
    assert found.ratio == pytest.approx(1.25)
    assert not found.good


def test_what_the_chosen_one_differs_by_from_itself_excuses_as_much():
    assert cell((1.0,) * 5, (0.8,) * 5, (1.3,) * 5).good
    assert not cell((1.0,) * 5, (0.8,) * 5, (1.2,) * 5).good


def test_a_chosen_one_with_wrong_numbers_is_never_good():
    series = [Timed("a", (), 3), Timed("b", (1.0,) * 5, 0), Timed("a", (), 3)]
    found = judge("all_reduce", 8, [series], [candidate("a", 1.0), candidate("b", 2.0)])
    assert not found.good
    assert found.wrong == ("a",)
    assert summary([found]).wrong == 1


def test_predicted_and_expected_are_compared_with_the_measured_time():
    found = cell((2.0,) * 5, (4.0,) * 5, (2.0,) * 5, predicted_s=1.0, measured_s=2.2)
    assert found.error == pytest.approx(0.5)
    assert found.error_expected == pytest.approx(0.1)
    total = summary([found])
    assert (total.good, total.error, total.error_expected) == pytest.approx((1.0, 0.5, 0.1))
    assert total.error_all == pytest.approx(0.5)  # a: 0.5, b: |2 / 4 - 1|


def test_a_time_is_the_mean_over_passes():
    """Another algorithm is the best in each state of the machine: the one that is best on average counts."""
    passes = [
        [Timed("a", (1.0,) * 5, 0), Timed("b", (3.0,) * 5, 0), Timed("a", (1.0,) * 5, 0)],
        [Timed("a", (4.0,) * 5, 0), Timed("b", (3.0,) * 5, 0), Timed("a", (5.0,) * 5, 0)],
    ]
    found = judge("all_reduce", 8, passes, [candidate("a", 1.0), candidate("b", 2.0)])
    assert found.best == "a"
    assert found.spread == pytest.approx(0.2)  # 3 / 2.5
    assert found.times_s == pytest.approx({"a": 2.75, "b": 3.0})


def test_wrong_in_one_pass_is_wrong():
    good = [Timed("a", (1.0,) * 5, 0), Timed("b", (1.0,) * 5, 0), Timed("a", (1.0,) * 5, 0)]
    bad = [Timed("a", (1.0,) * 5, 0), Timed("b", (), 2), Timed("a", (1.0,) * 5, 0)]
    found = judge("all_reduce", 8, [good, bad], [candidate("a", 1.0), candidate("b", 2.0)])
    assert found.wrong == ("b",)
    assert found.good
