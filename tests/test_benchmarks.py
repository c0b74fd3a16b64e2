"""The benchmarks that compare arithmetic find the same one."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def trainer_benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmarked_trainer", BENCHMARKS / "trainer.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PRODUCT_SIZE", 64)
    return module


def small(benchmark):
    return replace(next(found for found in benchmark.WORKLOADS if found.name == "tiny-skewed"), count=16)


def test_the_trainer_and_the_bare_loop_take_the_same_step(trainer_benchmark, tmp_path, capsys):
    workload = small(trainer_benchmark)
    result = trainer_benchmark.measure(workload, trainer_benchmark.model_directory("tiny", tmp_path), rounds=1)
    assert set(result["ratios"]) == {"bare", "bare_best", "packed"}
    trainer_benchmark.show(result)
    assert "padded is" in capsys.readouterr().out


def test_another_step_is_refused(trainer_benchmark, tmp_path, monkeypatch):
    per_token = partial(trainer_benchmark.Recipe, calculate_per_token_loss=True)
    monkeypatch.setattr(trainer_benchmark, "Recipe", per_token)
    with pytest.raises(SystemExit, match="different gradient norms"):
        trainer_benchmark.measure(small(trainer_benchmark), trainer_benchmark.model_directory("tiny", tmp_path), 1)


@pytest.mark.slow
def test_the_client_benchmark_measures_every_way_to_ask(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCHMARKS / "client.py"), "--in-flight", "20", "--tokens", "16", "--rounds", "1"]
    ended = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=200)
    assert "ms of CPU a request" in ended.stdout, ended.stderr  # its limit is for thousands on a machine of its own
    numbers = json.loads(file.read_text())
    assert numbers["results"][0]["in_flight"] == 20
    assert set(numbers["results"][0]["ratios"]) == {"client", "engine", "router"}
    assert set(numbers["memory_kib"]) == {"bare", "client", "engine", "router"}


@pytest.mark.slow
def test_the_record_benchmarks_measure_runs_and_summaries(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCHMARKS / "records.py"), "--pairs", "1", "--steps", "3", "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert "with records / without" in ended.stdout, ended.stderr
    (pair,) = json.loads(file.read_text())["pairs"]
    assert pair["with"]["rows"] > 0 and pair["without"]["rows"] == pair["with"]["lost"] == 0
    options = ["--rows", "2000", "--prompts", "100", "--rounds", "1", "--json", str(file)]
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / "records_summarize.py"), *options],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(file.read_text())


@pytest.mark.slow
def test_the_replay_buffer_benchmark_opens_what_it_wrote(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCHMARKS / "replay_buffer.py"), "--records", "1200", "--rounds", "1"]
    ended = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    numbers = json.loads(file.read_text())
    assert numbers["records"] == 1200 and 9_000 < numbers["bytes"] / 1200 < 11_000
    assert set(numbers) >= {"ratio", "seconds", "memory_bytes"}


@pytest.mark.slow
def test_the_verifier_benchmark_judges_cases_and_hostile_answers(tmp_path):
    file, cases = tmp_path / "numbers.json", tmp_path / "cases.jsonl"
    rows = [
        {"gold": "85", "answer": r"\boxed{85}", "expected": True, "kind": "integers", "basis": "fact"},
        {"gold": "85", "answer": r"\boxed{86}", "expected": True, "kind": "mislabelled", "basis": "fact"},
        {"gold": "85", "answer": "it is 85", "expected": False, "kind": "unboxed", "basis": "policy"},
    ]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "--cases",
        str(cases),
        "--misses",
        "--deadline",
        "1",
        "--ordinary",
        "20",
        "--cheap",
        "20",
        "--calls",
        "20",
    ]
    command = [sys.executable, str(BENCHMARKS / "verifiers.py"), *options, "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    assert "miss: mislabelled: '85'" in ended.stdout and ended.stdout.count("miss:") == 1
    numbers = json.loads(file.read_text())
    for name in ("math", "math-verify"):
        table = numbers["cases"][name]
        assert (table["facts"], table["accuracy"], table["false_negatives"], table["policies"]) == (2, 0.5, 1, 1)
        mixture = numbers["mixture"][name]
        assert len(mixture["hostile"]) == 8 and sum(mixture["ordinary_states"].values()) == 20
        assert all(one["score"] in (None, 0.0) for one in mixture["hostile"].values())
        assert mixture["orphans"] == 0 and mixture["memory_bytes"] > 0
    assert {"median", "p99", "inline integer"} <= set(numbers["ratios"])


@pytest.mark.slow
def test_the_diagnostics_benchmark_compares_steps_and_publications_of_one_run(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, str(BENCHMARKS / "diagnostics.py"), "--hidden", "64", "--layers", "1", "--steps", "6"]
    ended = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    assert "diagnostic publication:" in ended.stdout
    numbers = json.loads(file.read_text())
    assert numbers["steps"] == 4
    for name in ("step", "publication"):
        item = numbers[name]
        assert item["ratio"] == item["diagnostic_seconds"] / item["plain_seconds"] > 0
