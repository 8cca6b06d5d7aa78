"""Which store a wait for a flag came after: alike in every run, where the flag's use says so."""

from __future__ import annotations

from cuda_sim.race_flags import Fill, Flag, Store, Wait

SETTER, WAITER = ("stream", 1, 1), ("stream", 2, 1)
ZERO, ONE = (Fill.of(0, 100, 4, (value, 4)) for value in (0, 1))


def store(at_ns: int, node: int, value: int | None = 1, line: tuple[str, int, int] = SETTER) -> Store:
    return Store(at_ns, value, node, line)


def wait(at_ns: int, node: int, seen: int = 1, wanted: int = 1, how: str = "eq") -> Wait:
    return Wait(at_ns, seen, wanted, how, 4, node, WAITER)


def take(at_ns: int, node: int) -> Store:
    return store(at_ns, node, 0, WAITER)


def test_a_late_look_at_a_token_changes_nothing() -> None:
    """Both stores were there when the first wait looked; with other delays it would have gone on behind the first."""
    for looked_ns in (15, 25):
        flag = Flag([store(10, 1), store(20, 2), take(30, 12)], [ZERO], [wait(looked_ns, 11)])
        assert list(flag.came_after()) == [(11, 1)]


def test_tokens_are_taken_in_turn() -> None:
    stores = [store(10, 1), take(12, 12), store(20, 2), take(22, 14)]
    waits = [wait(11, 11), wait(21, 13)]
    assert list(Flag(stores, [ZERO], waits).came_after()) == [(11, 1), (13, 2)]
    assert list(Flag(stores, [ONE], waits).came_after()) == [(13, 1)], "the first found what the fill had left"


def test_a_copy_onto_a_flag_is_a_token() -> None:
    flag = Flag([store(10, 1, None), store(20, 2, None), take(30, 12)], [ZERO], [wait(25, 11)])
    assert list(flag.came_after()) == [(11, 1)]


def test_a_token_of_the_host_is_there_before_all_stores() -> None:
    """Of memory that the host fills: nothing in the log says so."""
    flag = Flag([take(6, 12), store(10, 1), take(12, 14)], [], [wait(5, 11), wait(11, 13)])
    assert list(flag.came_after()) == [(13, 1)]


def test_a_count_has_the_first_store_that_is_enough() -> None:
    stores = [store(10, 1, 1), store(20, 2, 2), store(30, 3, 3)]
    waits = [wait(35, 11, 3, 1, "geq"), wait(36, 12, 3, 3, "geq"), wait(37, 13, 3, 0, "geq")]
    assert list(Flag(stores, [ZERO], waits).came_after()) == [(11, 1), (12, 3)]


def test_a_count_goes_round() -> None:
    top = (1 << 32) - 1
    flag = Flag([store(10, 1, top), store(20, 2, 0)], [Fill.of(0, 100, 4, (top - 1, 4))], [wait(25, 11, 0, 0, "geq")])
    assert list(flag.came_after()) == [(11, 2)]


def test_of_other_flags_the_store_that_was_seen() -> None:
    """Nobody takes the value away, or a fill comes in between."""
    flag = Flag([store(10, 1), store(20, 2), store(30, 3)], [ZERO], [wait(15, 11), wait(25, 12)])
    assert list(flag.came_after()) == [(11, 1), (12, 2)]
    later = Flag([store(10, 1), take(30, 12)], [ZERO, Fill.of(20, 101, 4, (1, 4))], [wait(25, 11)])
    assert list(later.came_after()) == [(11, 101)]


def test_what_ends_a_wait() -> None:
    assert wait(0, 0, wanted=6, how="and").ends_with(4) and not wait(0, 0, wanted=6, how="and").ends_with(1)
    assert wait(0, 0, wanted=1, how="nor").ends_with(2) and not wait(0, 0, wanted=1, how="nor").ends_with((1 << 32) - 2)
    assert wait(0, 0, wanted=2, how="geq").ends_with(3) and not wait(0, 0, wanted=2, how="geq").ends_with(1)


def test_the_value_of_a_fill() -> None:
    assert Fill.of(0, 0, 4, (0x12, 1)).value == 0x12121212
    assert Fill.of(0, 0, 8, (7, 4)).value == 7 << 32 | 7
    assert Fill.of(0, 0, 4, None).value is None
