"""`rdmaring simulate` as a user meets it, and the sweep behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rdmaring.cli import simulate_options as options
from rdmaring.cli.main import main
from rdmaring.schedule import generate
from rdmaring.schedule.cluster import Cluster, Costs, LevelCost
from rdmaring.schedule.cost import predict
from rdmaring.schedule.rows import sent_by_rows
from rdmaring.schedule.simulate_presets import PRESETS
from rdmaring.schedule.simulate_scaled import Scaled
from rdmaring.schedule.simulate_sweep import Cell, compare, crossings, textbook

Outcome = tuple[int, str, str]
NS = 1e-9
BARE = Costs(LevelCost(0.0, NS), LevelCost(0.0, NS), 0.0, 0.0, 0.0, slice_bytes=1 << 40)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """run("--ranks", "8"): exit code, standard output, standard error."""

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(["simulate", *arguments])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return call


def test_one_world_is_a_table_of_sizes_with_crossings(run: Callable[..., Outcome]) -> None:
    code, out, err = run("--ranks", "8", "--bytes", "8:64M:x8", "--algorithm", "ring,direct,direct1")
    assert (code, err) == (0, "")
    heads = next(line for line in out.splitlines() if line.strip().startswith("bytes"))
    assert heads.split() == ["bytes", "ring", "direct", "direct1", "%", "of", "bound"]
    assert "8 ranks on 1 node" in out
    assert "8 ranks: direct1, from " in out


def test_many_worlds_are_a_map_of_who_is_fastest(run: Callable[..., Outcome]) -> None:
    some = "--algorithm", "ring,direct,direct1,hierarchical"
    code, out, _ = run("--ranks", "2:512:x4", "--nodes-of", "8", "--bytes", "8:1G:x64", "--preset", "dgx-h100", *some)
    assert code == 0
    assert "the fastest, by ranks" in out
    assert "512" in out
    assert "closed form, simulated, scaled" in out


def test_json_is_one_document_and_what_predict_says(run: Callable[..., Outcome]) -> None:
    arguments = "--ranks 4,131072 --nodes-of 4 --bytes 1M --algorithm ring,hierarchical --json"
    code, out, _ = run(*arguments.split(), "--latency", "1us", "--rate", "20GB/s", "--rails", "4")
    found = json.loads(out)
    assert code == 0
    assert found["method"] == "closed form, scaled"
    assert [cell["method"] for cell in found["cells"]] == ["closed form"] * 3 + ["scaled"]
    assert found["costs"]["near"] == {"latency_s": 1e-6, "s_per_byte": 1 / 20e9, "cpu_s_per_byte": 1 / 8e9}
    costs = Costs(
        LevelCost(**found["costs"]["near"]),
        LevelCost(**found["costs"]["far"]),
        **{name: value for name, value in found["costs"].items() if name not in ("near", "far")},
    )
    assert [(cell["ranks"], cell["algorithm"]) for cell in found["cells"]] == [
        (4, "ring"),
        (4, "hierarchical"),
        (131072, "ring"),
        (131072, "hierarchical"),
    ]
    for cell in found["cells"]:
        nodes = (4,) * (cell["ranks"] // 4)
        if cell["method"] == "closed form":
            assert cell["seconds"] == predict("all_reduce", cell["algorithm"], 1 << 20, nodes, costs)
        else:
            assert cell["seconds"] == Scaled("all_reduce", cell["algorithm"], costs).find(1 << 20, nodes)[0]


def test_what_is_slow_is_simulated(run: Callable[..., Outcome]) -> None:
    arguments = ("--ranks", "8", "--bytes", "16M", "--algorithm", "ring", "--json")
    plain, slow, late = (
        json.loads(run(*arguments, *more)[1])
        for more in ((), ("--slow-link", "3-4:5"), ("--straggler", "2:3", "--jitter", "0.5", "--seed", "3"))
    )
    assert slow["method"] == late["method"] == "simulated"
    assert slow["slow_links"] == [[3, 4, 5.0]]
    assert (late["stragglers"], late["jitter"], late["seed"]) == ([[2, 3.0]], 0.5, 3)
    assert slow["cells"][0]["seconds"] > 3 * plain["cells"][0]["seconds"]
    assert late["cells"][0]["seconds"] > 2 * plain["cells"][0]["seconds"]


def test_the_textbook_table(run: Callable[..., Outcome]) -> None:
    """naive: the root's bytes grow with N. ring: 2(N - 1) steps, below two vectors a rank, flat."""
    code, out, _ = run("--textbook", "--ranks", "2:4096", "--bytes", "64M")
    assert code == 0
    assert "why rings" in out
    lines = textbook((2, 8, 64, 4096), 1 << 26, 4096, BARE)
    assert [line.naive_root for line in lines] == [1, 7, 63, 4095]
    assert [line.ring_steps for line in lines] == [2, 14, 126, 8190]
    assert [line.ring_rank for line in lines] == [2 * (n - 1) / n for n in (2, 8, 64, 4096)]
    assert [line.counted for line in lines] == [True, True, True, False]
    for line in lines:
        assert line.naive_seconds == pytest.approx(2 * (line.ranks - 1) * (1 << 26) * NS)
        assert line.ring_seconds == pytest.approx(line.ring_rank * (1 << 26) * NS)


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_what_the_textbook_takes_from_formulas_is_what_rows_say(algorithm: str) -> None:
    for world in (2, 3, 8, 17):
        schedule = generate("all_reduce", algorithm, world)
        assert schedule.sent(0) == sent_by_rows(schedule.rows(0), schedule.chunk_count)


def test_crossings_lie_between_sizes() -> None:
    def cell(nbytes: int, algorithm: str, seconds: float) -> Cell:
        return Cell(8, 1, nbytes, algorithm, seconds, 1.0, "closed form")

    # a: 10 at any size; b: 1 a byte: equal at 10
    cells = [cell(size, name, time) for size in (4, 16) for name, time in (("a", 10.0), ("b", float(size)))]
    (found,) = crossings(cells)
    assert (found.ranks, found.before, found.after) == (8, "b", "a")
    assert found.nbytes == pytest.approx(10)


def test_a_picture_is_drawn(run: Callable[..., Outcome], tmp_path: Path) -> None:
    target = tmp_path / "time.svg"
    code, _, _ = run("--ranks", "2:8", "--bytes", "8:1M:x16", "--algorithm", "ring,tree", "--plot", str(target))
    assert code == 0
    assert target.read_text().lstrip().startswith("<?xml")


def test_constants_come_from_a_tuning_file(run: Callable[..., Outcome], tmp_path: Path) -> None:
    level = {"latency_s": 2e-6, "s_per_byte": 1e-10, "cpu_s_per_byte": 0.0}
    rows = {"near": level, "far": level, "reduce_s_per_byte": 1e-11, "row_s": 1e-7, "slice_s": 1e-7}
    for document in (rows, {"format": "rdmaring tuning", "constants": {"rows": rows}}):
        path = tmp_path / "costs.json"
        path.write_text(json.dumps(document))
        code, out, _ = run("--costs", str(path), "--ranks", "4", "--bytes", "1K", "--algorithm", "ring", "--json")
        assert code == 0
        costs = Costs(LevelCost(2e-6, 1e-10), LevelCost(2e-6, 1e-10), 1e-11, 1e-7, 1e-7)
        assert json.loads(out)["cells"][0]["seconds"] == predict("all_reduce", "ring", 1024, [4], costs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ranks", "0"), "numbers of ranks"),
        (("--ranks", "9999999"), "up to 1048576"),
        (("--bytes", "many"), "no size"),
        (("--algorithm", "star"), "ring, biring"),
        (("--latency", "soon"), "no time"),
        (("--rate", "0"), "no rate"),
        (("--slow-link", "3-3:5"), "A-B:FACTOR"),
        (("--slow-link", "3-9:5"), "rank 9 is slow"),
        (("--straggler", "5"), "RANK:FACTOR"),
        (("--costs", "nowhere.json"), "cannot be read"),
        (("--plot", "time.xyz"), "no kind of picture"),
    ],
)
def test_wrong_usage_is_named(run: Callable[..., Outcome], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_what_cannot_be_simulated_is_an_error(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdmaring.schedule.simulate.EVENT_ROWS_MAX", 10)
    code, _, err = run("--ranks", "12", "--bytes", "1K", "--algorithm", "tree", "--events")
    assert code == 1
    assert "not regular" in err


def test_units() -> None:
    assert options.seconds("3us") == options.seconds("3") == pytest.approx(3e-6)
    assert options.seconds("500ns") == pytest.approx(5e-7)
    assert options.seconds_per_byte("400Gb/s") == options.seconds_per_byte("50GB/s") == pytest.approx(1 / 50e9)
    assert options.ranks("2:8,12") == (2, 4, 8, 12)


def test_presets_state_their_source() -> None:
    for preset in PRESETS.values():
        assert len(preset.source) > 20
        assert preset.per_node >= 1


def test_measured_beside_predicted() -> None:
    cluster = Cluster(BARE, (4,))
    (found,) = compare("all_reduce", [("ring", 4000, 7e-6)], cluster)
    # 6 steps of 1000 bytes
    assert (found.measured, found.nbytes, found.algorithm) == (7e-6, 4000, "ring")
    assert found.closed == pytest.approx(6e-6)
    assert found.simulated == pytest.approx(6e-6)
