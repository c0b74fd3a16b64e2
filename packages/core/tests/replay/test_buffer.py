"""The replay buffer: what it offers, offline and online, while steps come, change and go."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter

import pytest
from replay_forests import FILE, MARKER, answered, hand_made, node, record_of, write_step

from reroll.api import Anchor, Derivation
from reroll.replay import Forest, buffer
from reroll.replay.buffer import ReplayBuffer


class Final(Derivation):
    """One candidate a record."""

    name = "final"

    def prompt(self, record, anchor):
        raise NotImplementedError


class Everywhere(Final):
    """One candidate a node that was sampled."""

    name = "everywhere"

    def anchors(self, record, seed):
        forest = Forest(record["nodes"])
        return [Anchor(index) for index in range(len(forest.nodes)) if forest.sampled(index)]


class Chosen(Final):
    """One candidate a record, at a place that follows from the seed."""

    name = "chosen"

    def anchors(self, record, seed):
        return [Anchor(seed % 1000)]


class Halves(Final):
    name = "halves"

    def label(self, reward):
        return "high" if reward >= 0.5 else "low"


def opened(folder, derivation=None, **options):
    warnings = []
    settings = {"source_envs": None, "online": False, "seed": 0, "warn": warnings.append, **options}
    made = ReplayBuffer(folder, derivation or Final(), **settings)
    made.warnings = warnings
    return made


def records(*identities, **more):
    return [record_of(answered(identity), identity, **more) for identity in identities]


def offered(found):
    """The offered candidates, in order."""
    return [found.pick(index).source_id for index in range(len(found))]


def texts(found):
    """What reading every candidate gives."""
    return [record and record["nodes"][1]["message"]["content"] for record in map(found.read, picks(found))]


def picks(found):
    return [handle for handle in map(found.pick, range(len(found))) if handle]


def test_newest_step_first_and_in_the_files_order_within(tmp_path):
    for step in (9, 10, 2):
        write_step(tmp_path, step, records(f"{step}a", f"{step}b"))
    assert offered(opened(tmp_path)) == ["10a", "10b", "9a", "9b", "2a", "2b"]


def test_a_handle_says_where_its_record_is_and_what_it_was_worth(tmp_path):
    path = write_step(tmp_path, 3, records("a", "b", reward=0.25, env_name="sums"))
    handle = opened(tmp_path).pick(1)
    assert path.read_bytes()[handle.offset :][: handle.length] == path.read_bytes().splitlines(True)[1]
    assert handle[3:] == (3, 0.25, "b", "sums", None)


def test_every_handle_round_trips(tmp_path):
    for step in range(3):
        write_step(tmp_path, step, [record_of(hand_made(), f"{step}-{number}") for number in range(4)])
    found = opened(tmp_path, Everywhere())
    assert [found.read(handle)["id"] for handle in picks(found)] == [handle.source_id for handle in picks(found)]
    assert len(found) == 3 * 4 * 4


def test_one_candidate_an_anchor(tmp_path):
    write_step(tmp_path, 0, [record_of(hand_made())])
    assert [handle.node for handle in picks(opened(tmp_path, Everywhere()))] == [2, 6, 7, 13]


def test_picks_are_stable_and_wrap(tmp_path):
    write_step(tmp_path, 0, records(*"abc"))
    found = opened(tmp_path)
    assert [found.pick(index).source_id for index in range(7)] == list("abcabca")
    assert [found.pick(1, attempt).source_id for attempt in range(3)] == list("bca")
    assert found.pick(2) == opened(tmp_path).pick(2)


def test_an_empty_buffer_gives_nothing(tmp_path):
    for found in (opened(tmp_path / "absent"), opened(tmp_path / "absent", online=True)):
        assert (len(found), found.pick(0), found.draw(0)) == (0, None, None)


def test_markers_are_seen_online_and_ignored_offline(tmp_path):
    write_step(tmp_path, 0, records("a"))
    write_step(tmp_path, 1, records("b"), marker=False)
    assert offered(opened(tmp_path)) == ["b", "a"]
    found = opened(tmp_path, online=True)
    assert offered(found) == ["a"]
    (tmp_path / "step_1" / MARKER).write_text("{}")
    found.refresh(force=True)
    assert offered(found) == ["b", "a"]


def test_offline_is_indexed_once(tmp_path):
    write_step(tmp_path, 0, records("a"))
    found = opened(tmp_path)
    write_step(tmp_path, 1, records("b"))
    found.refresh(force=True)
    assert offered(found) == ["a"]


def test_a_rescan_waits_its_time_unless_forced(tmp_path, monkeypatch):
    found = opened(tmp_path, online=True)
    write_step(tmp_path, 0, records("a"))
    found.refresh()
    assert offered(found) == []
    monkeypatch.setattr(buffer, "RESCAN_SECONDS", 0.0)
    found.refresh()
    assert offered(found) == ["a"]


def test_other_folders_are_not_steps(tmp_path):
    write_step(tmp_path, 0, records("a"))
    for name in ("step_01", "step_x", "superseded", "step_1.partial"):
        shutil.copytree(tmp_path / "step_0", tmp_path / name)
    (tmp_path / "step_5").write_text("a file")
    (tmp_path / "step_6").mkdir()
    assert offered(opened(tmp_path)) == ["a"]


def test_reading_stops_at_the_capacity_and_older_ones_leave(tmp_path):
    for step in range(3):
        write_step(tmp_path, step, records(f"{step}a", f"{step}b"))
    (tmp_path / "step_0" / FILE).write_text("never read\n")
    found = opened(tmp_path, online=True, capacity=3)
    assert offered(found) == ["2a", "2b", "1a"] and not found.warnings
    assert found.describe().lines == 3
    write_step(tmp_path, 3, records("3a", "3b"))
    found.refresh(force=True)
    assert offered(found) == ["3a", "3b", "2a"]
    shutil.rmtree(tmp_path / "step_3")
    shutil.rmtree(tmp_path / "step_2")
    write_step(tmp_path, 0, records("0a"))
    found.refresh(force=True)
    assert offered(found) == ["1a", "1b", "0a"], "what left for want of room comes back when there is room"


def test_a_record_whose_anchors_pass_the_capacity_is_cut(tmp_path):
    write_step(tmp_path, 0, [record_of(hand_made())])
    assert len(opened(tmp_path, Everywhere(), capacity=2)) == 2


def test_a_step_that_is_written_again_is_seen_and_its_old_handles_are_discarded(tmp_path):
    write_step(tmp_path, 0, records("a", "b"))
    found = opened(tmp_path, online=True)
    old = picks(found)
    write_step(tmp_path, 0, records("longer-than-before", "b"))
    assert [found.read(handle) for handle in old] == [None, None]
    found.refresh(force=True)
    assert offered(found) == ["longer-than-before", "b"]
    assert texts(found) == ["longer-than-before", "b"]


def test_a_step_whose_marker_alone_is_new_is_read_again(tmp_path):
    """Written in place under the old marker, it may have been read half."""
    path = write_step(tmp_path, 0, records("a"))
    found = opened(tmp_path, online=True)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"z"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found.refresh(force=True)
    assert offered(found) == ["a"]
    (tmp_path / "step_0" / MARKER).write_text("{ }")
    found.refresh(force=True)
    assert offered(found) == ["z"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: shutil.rmtree(path.parent),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" + path.read_bytes()),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"errors": []', b'"errors": 11')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"id": "a"', b'"id": "b"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"sampled": true', b'"sampled": null')),
    ],
)
def test_a_stale_handle_reads_as_none_and_is_offered_no_more(tmp_path, damage):
    path = write_step(tmp_path, 0, records("a"))
    found = opened(tmp_path, online=True)
    handle = found.pick(0)
    assert found.read(handle)["id"] == "a"
    damage(path)
    assert found.read(handle) is None
    assert len(found) == 0 and found.draw(0) is None


def test_a_vanished_step_is_dropped(tmp_path):
    for step in range(2):
        write_step(tmp_path, step, records(str(step)))
    found = opened(tmp_path, online=True)
    shutil.rmtree(tmp_path / "step_1")
    found.refresh(force=True)
    assert offered(found) == ["0"]


def test_a_discarded_candidate_stays_out_while_its_file_is_unchanged(tmp_path):
    write_step(tmp_path, 0, records("a", "b"))
    found = opened(tmp_path, online=True)
    handle = found.pick(0)
    found.discard(handle)
    found.discard(handle)
    assert offered(found) == ["b"] and found.read(handle) is None
    (tmp_path / "step_0").rename(tmp_path / "aside")
    found.refresh(force=True)
    (tmp_path / "aside").rename(tmp_path / "step_0")
    found.refresh(force=True)
    assert offered(found) == ["b"]
    write_step(tmp_path, 0, records("a", "b"))
    found.refresh(force=True)
    assert offered(found) == ["a", "b"], "it was written again, and may be right now"


@pytest.mark.parametrize("online", [True, False])
def test_a_file_that_cannot_be_read_for_a_while_costs_no_candidates(tmp_path, online):
    write_step(tmp_path, 1, records("c"))
    write_step(tmp_path, 0, records("a", "b"))
    found = opened(tmp_path, online=online)
    handles = picks(found)
    (tmp_path / "step_0").rename(tmp_path / "aside")
    assert [found.read(handle) is None for handle in handles] == [False, True, True]
    assert offered(found) == (["c"] if online else ["c", "a", "b"]), "online others are drawn meanwhile"
    (tmp_path / "aside").rename(tmp_path / "step_0")
    found.refresh(force=True)
    assert offered(found) == ["c", "a", "b"] and texts(found) == ["c", "a", "b"]


def test_a_candidate_discarded_while_a_scan_goes_on_does_not_come_back_through_it(tmp_path):
    actions = []

    class Scanning(Final):
        def anchors(self, record, seed):
            while actions and record["id"] == "0 again":
                actions.pop()()
            return [Anchor()]

    write_step(tmp_path, 1, records("1a", "1b"))
    write_step(tmp_path, 0, records("0"))
    found = opened(tmp_path, Scanning(), online=True)
    handle = found.pick(0)
    write_step(tmp_path, 0, records("0 again"))
    actions.append(lambda: found.discard(handle))
    found.refresh(force=True)
    assert not actions
    assert offered(found) == ["1b", "0 again"]


def test_what_is_discarded_makes_room_for_older_ones(tmp_path):
    write_step(tmp_path, 0, records("a", "b", "c"))
    found = opened(tmp_path, online=True, capacity=2)
    found.discard(found.pick(0))
    found.refresh(force=True)
    assert offered(found) == ["b", "c"]


def test_offline_a_discarded_candidate_keeps_its_place_and_reads_as_none(tmp_path):
    write_step(tmp_path, 0, records("a", "b"))
    found = opened(tmp_path)
    found.discard(found.pick(0))
    assert offered(found) == ["a", "b"]
    assert texts(found) == [None, "b"]


def test_draws_follow_from_seed_request_and_attempt_and_reach_everything_alike(tmp_path):
    write_step(tmp_path, 0, records(*"abcd"))
    first, again, other = opened(tmp_path), opened(tmp_path), opened(tmp_path, seed=1)
    drawn = [first.draw(request).source_id for request in range(4000)]
    assert drawn == [again.draw(request).source_id for request in range(4000)]
    assert drawn != [other.draw(request).source_id for request in range(4000)]
    assert drawn != [first.draw(request, 1).source_id for request in range(4000)]
    assert all(abs(count - 1000) < 150 for count in Counter(drawn).values())


def test_malformed_and_unusable_lines_are_skipped_and_warned_about_once_a_step(tmp_path):
    bad = ["{", "[]", json.dumps(record_of([], "x")), json.dumps(record_of(answered(), "y", errors=["gone"]))]
    write_step(tmp_path, 0, ["", bad[0], *records("a"), *bad[1:], "", *records("b")])
    found = opened(tmp_path, online=True)
    assert offered(found) == ["a", "b"]
    (warning,) = found.warnings
    assert "4 of 6 lines are skipped, first line 2: it is no JSON" in warning and str(tmp_path) in warning
    write_step(tmp_path, 1, records("c"))
    found.refresh(force=True)
    assert len(found.warnings) == 1


def test_a_derivation_that_fails_on_a_record_skips_it(tmp_path):
    class Fails(Final):
        def anchors(self, record, seed):
            return [Anchor()] if record["id"] == "a" else record["absent"]

    write_step(tmp_path, 0, records("a", "b"))
    found = opened(tmp_path, Fails())
    assert offered(found) == ["a"]
    assert "'final' failed: KeyError: 'absent'" in found.warnings[0]


def chain(tmp_path):
    """Rollouts of two data sources, and of one whose tasks were derived."""
    lineage = {"source_id": "s", "source_task": {"prompt": "q"}}
    write_step(
        tmp_path, 0,
        [*records("s", env_name="sums"), *records("p", env_name="products"),
         *records("r", env_name="check", task={"prompt": "c", **lineage}), *records("n", env_name=None)],
    )  # fmt: skip


def test_derived_records_are_skipped_by_default_and_kept_when_named(tmp_path):
    chain(tmp_path)
    assert offered(opened(tmp_path)) == ["s", "p", "n"]
    assert offered(opened(tmp_path, source_envs=["check"])) == ["r"]
    assert offered(opened(tmp_path, source_envs=["check", "sums"])) == ["s", "r"]
    assert offered(opened(tmp_path, source_envs=[])) == []


def test_a_peers_records_are_selected_by_their_own_stamp(tmp_path):
    peers = [record_of(answered(), "x", info={"prime_rl": {"env_name": name}}) for name in ("math", "code")]
    write_step(tmp_path, 0, peers, marker=False)
    (handle,) = picks(opened(tmp_path, source_envs=["code"]))
    assert (handle.env_name, handle.reward) == ("code", 1.0)


def test_a_buffer_describes_what_it_holds(tmp_path):
    chain(tmp_path)
    write_step(tmp_path, 1, ["{"])
    found = opened(tmp_path, source_envs=["check", "sums"]).describe()
    assert (found.steps, found.lines, found.usable, found.derived, found.skipped) == (2, 5, 4, 1, 2)
    assert (found.candidates, found.offered) == (2, 2)
    assert found.env_names == {"sums": 1, "products": 1, "check": 1, "": 1}


def scored(*rewards):
    return [record_of(answered(), f"{index}:{reward}", reward=reward) for index, reward in enumerate(rewards)]


def test_as_many_of_each_label_are_offered_newest_first_and_in_turns(tmp_path):
    write_step(tmp_path, 0, scored(0.0, 1.0, 0.9))
    write_step(tmp_path, 1, scored(0.1, 0.2, 0.3, 0.8))
    found = opened(tmp_path, Halves(), online=True)
    assert offered(found) == ["3:0.8", "0:0.1", "1:1.0", "1:0.2", "2:0.9", "2:0.3"]
    assert (found.describe().candidates, found.describe().offered) == (7, 6)


def test_what_one_balanced_view_drops_may_pair_up_in_a_later_one(tmp_path):
    write_step(tmp_path, 0, scored(0.0, 0.1, 0.2, 1.0))
    found = opened(tmp_path, Halves(), online=True)
    assert offered(found) == ["3:1.0", "0:0.0"]
    write_step(tmp_path, 1, scored(0.9, 0.8))
    found.refresh(force=True)
    assert offered(found) == ["0:0.9", "0:0.0", "1:0.8", "1:0.1", "3:1.0", "2:0.2"]


def test_with_one_label_only_everything_is_offered_with_one_warning(tmp_path):
    write_step(tmp_path, 0, scored(0.0, 0.1))
    found = opened(tmp_path, Halves(), online=True)
    write_step(tmp_path, 1, scored(0.2))
    found.refresh(force=True)
    assert len(found) == 3
    (warning,) = found.warnings
    assert "'low'" in warning


def test_a_candidate_without_a_reward_has_no_label(tmp_path):
    write_step(tmp_path, 0, scored(0.0, None, 1.0))
    assert offered(opened(tmp_path, Halves())) == ["2:1.0", "0:0.0", "1:None"]


def test_seeds_differ_between_records_without_ids_and_between_users_seeds(tmp_path):
    nameless = [record_of(answered(str(number)), None) for number in range(20)]
    write_step(tmp_path, 0, nameless)
    nodes = [[handle.node for handle in picks(opened(tmp_path, Chosen(), seed=seed))] for seed in (0, 0, 1)]
    assert nodes[0] == nodes[1] != nodes[2]
    assert len(set(nodes[0])) > 15


def test_a_record_without_a_parent_key_at_its_root_is_read(tmp_path):
    nodes = answered()
    del nodes[0]["parent"]
    write_step(tmp_path, 0, [record_of(nodes, "a")])
    found = opened(tmp_path, Everywhere())
    assert found.read(found.pick(0))["id"] == "a"


def test_a_file_that_ends_anywhere_offers_its_whole_lines(tmp_path):
    path = write_step(tmp_path, 0, records("a", "b"))
    content = path.read_bytes()
    first = content.index(b"\n")
    for end in range(len(content)):
        path.write_bytes(content[:end])
        found = opened(tmp_path)
        whole = [identity for identity, line_end in (("a", first), ("b", len(content) - 1)) if end >= line_end]
        assert offered(found) == whole
        assert texts(found) == whole
        torn = end not in (0, first, first + 1, len(content) - 1)
        assert len(found.warnings) == torn


PICKING = """
import sys
from pathlib import Path
from reroll.api import Anchor, Derivation
from reroll.replay.buffer import ReplayBuffer

class Chosen(Derivation):
    name = "chosen"
    def anchors(self, record, seed):
        return [Anchor(seed % 1000)]
    def prompt(self, record, anchor):
        raise NotImplementedError
    def label(self, reward):
        return str(reward)

found = ReplayBuffer(Path(sys.argv[1]), Chosen(), source_envs=None, online=False, seed=5, warn=print)
print([found.pick(index) for index in range(50)], [found.draw(index) for index in range(50)])
"""


def test_offline_picks_are_equal_in_processes_with_different_hash_seeds(tmp_path):
    for step in range(3):
        write_step(tmp_path, step, scored(*(number % 2 for number in range(9))))
    said = {
        subprocess.run(
            [sys.executable, "-c", PICKING, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4294967295")
    }
    assert len(said) == 1 and "source_id" in said.pop()


def test_threads_may_refresh_read_discard_and_rewrite_at_once(tmp_path):
    """Whoever draws gets the record that the handle names, or nothing."""
    for step in range(4):
        write_step(tmp_path, step, records(*(f"{step}-{number}" for number in range(6))))
    found = opened(tmp_path, online=True, capacity=18)
    stop, failures = threading.Event(), []

    def work(action, seed):
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                action(chance)
        except BaseException as error:
            failures.append(error)

    def draw(chance):
        handle = found.draw(chance.getrandbits(40))
        record = handle and found.read(handle)
        assert record is None or record["id"] == handle.source_id

    def discard(chance):
        handle = found.draw(chance.getrandbits(40))
        if handle and handle.step != 3:
            found.discard(handle)
            assert found.read(handle) is None
            assert handle not in picks(found)

    actions = [draw, draw, discard, lambda chance: found.refresh(force=True)]
    threads = [threading.Thread(target=work, args=(action, number)) for number, action in enumerate(actions)]
    for thread in threads:
        thread.start()
    for length in range(1, 25):
        write_step(tmp_path, 3, records(*(f"{length} {number}" for number in range(length % 7))))
        found.refresh(force=True)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    found.refresh(force=True)
    assert offered(found)[:3] == ["24 0", "24 1", "24 2"]
    assert None not in texts(found)


def test_a_folder_that_cannot_be_listed_for_a_while_keeps_what_was_found(tmp_path):
    folder = tmp_path / "rollouts"
    write_step(folder, 0, records("a"))
    found = opened(folder, online=True)
    folder.rename(tmp_path / "aside")
    folder.symlink_to(folder)
    for _ in range(2):
        found.refresh(force=True)
    assert offered(found) == ["a"]
    (warning,) = found.warnings
    assert "cannot be listed" in warning


def test_a_step_that_cannot_be_read_is_warned_about_once_and_the_others_are_offered(tmp_path):
    write_step(tmp_path, 0, records("a"))
    write_step(tmp_path, 1, records("b"))
    (tmp_path / "step_1" / FILE).unlink()
    (tmp_path / "step_1" / FILE).mkdir()
    found = opened(tmp_path, online=True)
    found.refresh(force=True)
    assert offered(found) == ["a"]
    (warning,) = found.warnings
    assert "step_1 cannot be read" in warning


def test_no_node_is_kept(tmp_path):
    """A handle is all that stays of a record."""
    write_step(tmp_path, 0, [record_of([node(None, "user", "q" * 10_000), node(0, "assistant", "x")])])
    assert len(repr(opened(tmp_path).pick(0))) < 1000


NESTED = "@" * 8


@pytest.mark.parametrize(
    "stamp", [[], {}, [1], 7, {"deep": NESTED}], ids=["list", "table", "full list", "number", "deep table"]
)
@pytest.mark.parametrize("envs", [None, ["sums"]])
def test_a_data_source_that_is_no_name_is_none_and_the_lines_beside_it_are_offered(tmp_path, stamp, envs):
    odd = json.dumps(record_of(answered(), "odd", env_name=stamp))
    odd = odd.replace(f'"{NESTED}"', '{"a":' * 900 + "1" + "}" * 900)
    write_step(tmp_path, 0, [odd, *records("good")])
    for online in (False, True):
        found = opened(tmp_path, source_envs=envs, online=online)
        assert offered(found) == (["good"] if envs else ["odd", "good"])


def test_a_line_that_cannot_even_be_told_is_skipped_with_a_warning(tmp_path):
    failed = json.dumps(record_of(answered(), "failed", errors=[NESTED]))
    failed = failed.replace(f'"{NESTED}"', "[" * 900 + "]" * 900)
    write_step(tmp_path, 0, [failed, *records("good")])
    found = opened(tmp_path)
    assert offered(found) == ["good"] and "1 of 2 lines are skipped" in found.warnings[0]


@pytest.mark.parametrize("online", [False, True])
def test_a_pipe_in_place_of_a_steps_file_is_not_waited_for(tmp_path, online):
    write_step(tmp_path, 0, records("good"))
    path = write_step(tmp_path, 1, records("other"))
    path.unlink()
    os.mkfifo(path)
    found = opened(tmp_path, online=online)
    assert offered(found) == ["good"] and "is no file" in found.warnings[0]
