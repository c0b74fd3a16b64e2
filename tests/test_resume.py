"""Checkpoints and resumed runs, as a whole."""

import asyncio
import functools
import json
import random
import shutil
import signal
from collections import Counter

import pytest
from driving import RUN, run_and_watch, session_of
from killing import ended, kill_when, run_to_end, whole

from reroll.api import RerollError
from reroll.config import load_run_file
from reroll.launch.start import begin
from reroll.models.digest import state_digest
from reroll.models.files import resolve_model
from reroll.models.load import load_model
from reroll.plan import size_problems
from reroll.plugins import load_plugins
from reroll.rollouts.buffer import CollectionSize
from reroll.rollouts.events import GroupEvents
from reroll.rollouts.replayed import SavedCollections
from reroll.tasks.arithmetic import Addition, ArithmeticConfig

SAVES = ["checkpoint.save_interval=1", "launch.auto_resume=true", "checkpoint.keep_last=10"]
ASYNC = ["async.fully_async=true", "async.max_weight_staleness=1", "serving.publication_mode='refresh'"]


def saved_traces(output):
    """Every trace of the collections that count, one a line of their files."""
    paths = sorted((output / "rollouts").glob("step_*/train_rollouts.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """The run file, the folder of a synchronous run that ended after two collections, and what was seen of it."""
    folder = tmp_path_factory.mktemp("two")
    path = folder / "run.toml"
    path.write_text(RUN)
    return path, folder / "out", run_and_watch(path, folder / "out", "rollout.num_rollout=2", *SAVES)


@pytest.fixture
def begun(run_of_two, tmp_path):
    """The run file, and a copy of that folder to go on in."""
    path, output, _ = run_of_two
    shutil.copytree(output, tmp_path / "out")
    return path, tmp_path / "out"


@pytest.mark.slow
def test_a_resumed_synchronous_run_draws_and_trains_what_an_unbroken_one_does(run_of_two, begun, tmp_path):
    """Generation, scoring and order included; what is saved is what a killed run would find."""
    path, output = begun
    straight = run_and_watch(path, tmp_path / "straight", "rollout.num_rollout=4", *SAVES)
    resumed = run_and_watch(path, output, "rollout.num_rollout=4", *SAVES)
    assert run_of_two[2].weights == straight.weights[:2]
    assert resumed.token_ids == straight.token_ids[2:]
    assert resumed.gradients == straight.gradients[2:]
    assert resumed.weights == straight.weights[2:]
    assert resumed.engine_weights == straight.engine_weights[2:]
    assert resumed.summary.ledger == straight.summary.ledger
    for name in ("generated_tokens", "trained_samples", "trained_tokens", "steps", "collections"):
        assert getattr(resumed.summary, name) == getattr(straight.summary, name)


@pytest.mark.slow
def test_engines_serve_the_restored_policy_first_and_not_the_reference(run_of_two, begun):
    path, output = begun
    reference = ["objective.use_kl_loss=true", "objective.kl_loss_coef=0.1"]

    async def resume():
        async with session_of(path, output, *SAVES, *reference, "rollout.num_rollout=3") as session:
            (engine,) = session.engines
            assert await engine.weight_version() == 2
            assert await engine.weights_digest() == await session.trainer.weights_digest()
            assert await engine.weights_digest() == run_of_two[2].weights[-1]
            async with session.producing():
                (step,) = await session.train(await session.collect())
            return step

    assert asyncio.run(resume())["kl"] > 1e-5, "the reference is the starting checkpoint"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.seed=5", "seeds.data: 0 in the checkpoint, 5 now"),
        ("rollout.seed=5", "seeds.rollout: 0 in the checkpoint, 5 now"),
        ("data.task_set.high=41", "data.task_set.high: 40 in the checkpoint, 41 now"),
    ],
)
def test_another_seed_or_other_data_is_refused_with_the_difference(begun, override, says):
    async def resume():
        async with session_of(*begun, *SAVES, override):
            pass

    with pytest.raises(RerollError, match="is of another run") as caught:
        asyncio.run(resume())
    assert says in str(caught.value)


@pytest.mark.slow
def test_a_changed_file_of_tasks_or_of_the_model_is_refused(run_file, tmp_path):
    model, data, output = tmp_path / "model", tmp_path / "tasks.jsonl", tmp_path / "out"
    shutil.copytree(resolve_model("builtin:tiny-math").directory, model)
    rows = [{"prompt": f"{a}+{a}=", "targets": {"regex": str(2 * a)}} for a in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        f"model.path={str(model)!r}",
        f"data.task_set={{name='file', path={str(data)!r}}}",
        "rollout.group_filters=[]",
        *SAVES,
    ]
    run_and_watch(run_file(), output, "rollout.num_rollout=1", *options)

    async def resume():
        async with session_of(run_file(), output, "rollout.num_rollout=2", *options):
            pass

    rows[3]["targets"]["regex"] = "7"
    unchanged = data.read_text()
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RerollError, match="data.fingerprint: .* in the checkpoint, .* now"):
        asyncio.run(resume())
    data.write_text(unchanged)
    weights = model / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(RerollError, match=r"model.model.safetensors.sha256: .* in the checkpoint, .* now"):
        asyncio.run(resume())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    asyncio.run(resume())


@pytest.mark.slow
def test_a_run_that_starts_from_another_runs_checkpoint_goes_on_with_it(run_file, tmp_path):
    path, options = run_file(), ["rollout.num_rollout=3", "checkpoint.save_interval=1"]
    first = run_and_watch(path, tmp_path / "first", *options)
    folder = tmp_path / "first" / "checkpoints" / "step_2"
    second = run_and_watch(path, tmp_path / "second", *options, f"checkpoint.load={str(folder)!r}")
    assert second.weights == first.weights[2:]
    contexts = [json.loads((tmp_path / name / "context.json").read_text()) for name in ("first", "second")]
    assert contexts[0]["run_id"] != contexts[1]["run_id"]
    assert [(found["fresh"], found["start_version"]) for found in contexts] == [(True, 0), (False, 2)]
    assert not (tmp_path / "second" / "rollouts" / "step_0").exists()


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_told_and_the_run_goes_on(run_file, tmp_path, capfd):
    output = tmp_path / "out"
    output.mkdir()
    (output / "checkpoints").write_text("in the way")
    seen = run_and_watch(run_file(), output, *SAVES)
    assert len(seen.weights) == 3
    assert capfd.readouterr().err.count("could not be written") == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"siblings": 2}, "groups of 4 responses, rollout.n_samples_per_prompt is 2"),
        ({"batch": 0}, "groups to train on, rollout.rollout_batch_size is 0"),
        ({"tokenizer": "0" * 64}, "are of another tokenizer"),
        ({"gap": True}, "step_0 is missing, and later collections are there"),
        ({}, None),
    ],
)
def test_saved_rollouts_of_another_shape_are_not_trained_on(begun, changes, says):
    _, output = begun
    tokenizer = json.loads((output / "context.json").read_text())["protocol"]["tokenizer_sha256"]
    if "gap" in changes:
        shutil.rmtree(output / "rollouts" / "step_0")
    saved = SavedCollections(
        output,
        GroupEvents([], None),
        CollectionSize(changes.get("batch", 4), 4, 1, 0),
        siblings=changes.get("siblings", 4),
        tokenizer_sha256=changes.get("tokenizer", tokenizer),
        collections=2,
    )
    if says is None:
        collection = asyncio.run(saved.collect(0))
        assert collection.rollout_id == 0
        assert [item.group.group_index for item in collection.groups] == list(range(4))
        return
    with pytest.raises(RerollError, match=says):
        asyncio.run(saved.collect(0))


def started(path, output, *overrides, warn=pytest.fail):
    run = load_run_file(path, [f"output.dir={str(output)!r}", *SAVES, *overrides], load_plugins(), [size_problems])
    return begin(run, output, print, warn)


def test_a_first_save_that_was_broken_off_is_no_checkpoint(begun):
    """A run that was killed in its first save begins anew; one whose checkpoints were damaged later is told."""
    path, output = begun
    for step in (1, 2):
        manifest = output / "checkpoints" / f"step_{step}" / "manifest.json"
        manifest.rename(output / f"manifest-{step}.json")
    warnings = []
    assert started(path, output, warn=warnings.append).resumed is None
    assert len(warnings) == 2
    assert all("is not whole: manifest.json is missing" in said for said in warnings)
    (output / "manifest-1.json").rename(output / "checkpoints" / "step_1" / "manifest.json")
    (output / "checkpoints" / "step_1" / "controller.json").write_text("{}")
    with pytest.raises(RerollError, match="holds checkpoints, and none of them is whole") as caught:
        started(path, output, warn=warnings.append)
    assert "step_1 is not whole: controller.json has 2 bytes" in str(caught.value)
    assert "step_2" not in str(caught.value)


def test_starts_are_counted_and_bounded(begun):
    path, output = begun
    start = functools.partial(started, path, output)
    assert start("launch.max_retries=2").resumed.state.version == 2
    attempts = json.loads((output / "attempts.json").read_text())
    assert [(item["number"], item["from_step"]) for item in attempts] == [(1, None), (2, 2)]
    with pytest.raises(RerollError, match=r"launch.max_retries = 2: the run in .* was started 2 times"):
        start("launch.max_retries=2")
    assert len(json.loads((output / "attempts.json").read_text())) == 2
    with pytest.raises(RerollError, match="holds a run already"):
        start("launch.auto_resume=false")
    assert start().attempt.number == 3


@pytest.mark.slow
def test_two_ranks_train_and_publish_what_one_does(run_file, tmp_path):
    """The engines take weights from shards, and every rank's part comes back from a checkpoint of the other size."""
    path, output = run_file(), tmp_path / "out"
    options = ["trainer.lr=1e-4", *SAVES]
    one = run_and_watch(path, tmp_path / "one", *options)
    run_and_watch(path, output, *options, "trainer.num_ranks=2", "rollout.num_rollout=2")
    two = run_and_watch(path, output, *options)
    assert two.token_ids == one.token_ids[2:]
    both = run_and_watch(path, tmp_path / "both", *options, "trainer.num_ranks=2")
    assert both.token_ids == one.token_ids
    assert both.engine_weights == both.weights


def test_the_exported_model_is_the_checkpoints(run_of_two, tmp_path):
    _, output, seen = run_of_two

    def export(step, target):
        arguments = ["export", str(output), "--step", str(step), "--to", str(tmp_path / target)]
        return ended(arguments, tmp_path / "export.log")

    code, said = export(1, "model")
    assert code == 0, said
    assert state_digest(load_model(tmp_path / "model").state_dict().items()) == seen.weights[0] != seen.weights[1]
    assert (tmp_path / "model" / "chat_template.jinja").exists()
    code, said = export(1, "model")
    assert code == 1 and "is not empty" in said
    code, said = export(7, "other")
    assert code == 1 and "holds no checkpoint of step 7; there are: step_2, step_1" in said


@pytest.mark.slow
def test_a_killed_run_on_saved_rollouts_ends_with_equal_weights(run_file, tmp_path):
    """2N steps against N, SIGKILL, resume, N."""
    path, source = run_file(), tmp_path / "source"
    run_to_end(path, source, "rollout.num_rollout=8", *ASYNC)
    replay = [f"debug.load_rollouts={str(source)!r}", *SAVES, "output.export_hf=true"]
    run_to_end(path, tmp_path / "straight", *replay, "rollout.num_rollout=8")
    broken = tmp_path / "broken"
    # More would be trained on than the source holds: it waits for nothing, so it is killed in full run.
    assert kill_when(path, broken, lambda: whole(broken, 4), *replay, "rollout.num_rollout=8")
    says = run_to_end(path, broken, *replay, "rollout.num_rollout=8")
    assert "goes on after" in says
    cold = tmp_path / "cold"
    exported = tmp_path / "exported"
    arguments = ["export", str(tmp_path / "straight"), "--step", "4", "--to", str(exported)]
    assert ended(arguments, tmp_path / "export.log")[0] == 0
    digests = [
        state_digest(load_model(folder / "model").state_dict().items()) for folder in (tmp_path / "straight", broken)
    ]
    assert digests[0] == digests[1]
    rest = tmp_path / "rest"
    for number in range(4):
        (rest / "rollouts").mkdir(parents=True, exist_ok=True)
        (rest / "rollouts" / f"step_{number}").symlink_to(source / "rollouts" / f"step_{number + 4}")
    run_to_end(
        path,
        cold,
        f"model.path={str(exported)!r}",
        f"debug.load_rollouts={str(rest)!r}",
        "output.export_hf=true",
        "rollout.num_rollout=4",
    )
    assert state_digest(load_model(cold / "model").state_dict().items()) != digests[0], "the optimizer counts"


TASKS = 64


def done(output):
    """Collections that were trained on, by their markers."""
    return len(list((output / "rollouts").glob("step_*/train_rollouts.done")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "interval", "stops"),
    [(signal.SIGKILL, 1, 5), (signal.SIGTERM, 1000, 3)],
    ids=["killed", "interrupted"],  # an interrupted run makes a checkpoint, however long the interval
)
def test_an_epoch_survives_with_every_prompt_trained_on_once(run_file, tmp_path, number, interval, stops):
    """64 prompts, very different lengths, asynchronous; stopped at random moments."""
    data, output = tmp_path / "tasks.jsonl", tmp_path / "out"
    draw = random.Random(0)
    tasks = Addition(ArithmeticConfig(high=40, verifier="regex"))
    rows = [
        {"messages": task.prompt, "targets": task.targets, "prepared_sample_id": f"task-{number}"}
        for number, task in ((number, tasks.task(number)) for number in range(TASKS))
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        f"data.task_set={{name='file', path={str(data)!r}}}",
        "data.epochs=1",
        "rollout.num_rollout=1000",
        "rollout.max_empty_collections=1000",
        "rollout.rollout_batch_size=2",
        "rollout.rollout_max_response_len=96",
        "rollout.temperature=1.6",
        *ASYNC,
        *SAVES,
        f"checkpoint.save_interval={interval}",
    ]
    path = run_file()
    for _ in range(stops):
        # Anywhere from the start of the processes to a few collections after the last checkpoint.
        wanted = done(output) + draw.randrange(3)
        reached = functools.partial(lambda count: done(output) >= count, wanted)
        assert kill_when(path, output, reached, *options, delay=draw.uniform(0.0, 0.3), number=number)
    run_to_end(path, output, *options)
    ended = Counter()
    for trace in saved_traces(output):
        stamp = trace["info"]["reroll"]
        if stamp["sibling"] == 0:
            ended[trace["task"]["prepared_sample_id"], stamp["disposition"]] += 1
    assert Counter(name for name, _ in ended.elements()) == Counter(row["prepared_sample_id"] for row in rows)
    ledger = json.loads((output / "summary.json").read_text())["ledger"]
    for disposition in ("consumed", "filtered", "expired", "aborted", "failed"):
        assert ledger[disposition] == sum(count for (_, how), count in ended.items() if how == disposition)
    assert ledger["dispatched"] == TASKS + ledger["returned"]
    staleness = [
        line["staleness/max"]
        for line in map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
        if "staleness/max" in line
    ]
    assert max(staleness) <= 1


@pytest.mark.slow
def test_the_newest_whole_checkpoint_is_taken_and_the_log_says_why_not_a_newer_one(begun):
    path, output = begun
    newest = output / "checkpoints" / "step_2"
    files = sorted(newest.iterdir())
    assert len(files) > 3
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        warnings = []
        assert started(path, output, warn=warnings.append).resumed.state.version == 1
        (said,) = warnings
        assert f"passed over: {newest} is not whole: " in said and file.name in said
        if file != files[-1]:
            file.write_bytes(content)
    says = run_to_end(path, output, "rollout.num_rollout=1", *SAVES)
    assert "at step 1, from" in says
    log = (output / "run.log").read_text().splitlines()
    assert any(f"passed over: {newest} is not whole: " in line and files[-1].name in line for line in log)


@pytest.mark.slow
def test_what_a_killed_run_generated_beyond_its_checkpoint_is_moved_aside(run_file, tmp_path):
    path, output = run_file(), tmp_path / "out"
    options = ["checkpoint.save_interval=2", "launch.auto_resume=true", "rollout.num_rollout=5"]
    done = output / "rollouts" / "step_2" / "train_rollouts.done"
    assert kill_when(path, output, lambda: done.exists() and whole(output, 2), *options)
    says = run_to_end(path, output, *options)
    assert "goes on after 2 collections, at step 2" in says
    superseded = output / "rollouts" / "superseded" / "attempt_1"
    assert "step_2" in {folder.name for folder in superseded.iterdir()}
    steps = [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert json.loads((output / "summary.json").read_text())["collections"] == 5
