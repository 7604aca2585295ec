"""Workers: the same answers as one encoder gives, whatever happens to a process on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import psutil
import pytest
from dask.distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from helpers import ROOT
from helpers.encode import OnnxEncoder, workers
from helpers.encode.cpu import available_cores
from helpers.encode.load import MINI
from helpers.encode.workers import Layout, encode_ids_many, encode_many, packets
from helpers.errors import InputError

TOKENIZER = MINI / "tokenizer.json"
SENTENCES = ["Turn on the kitchen light", "as is, without warranty of any kind " * 12, "stop", "Mach die Rollos zu"]


@given(st.lists(st.integers(1, 600), max_size=200), st.integers(1, 2000))
def test_packets_hold_every_row_once_and_are_of_equal_work(lengths: list[int], tokens: int) -> None:
    found = packets(lengths, tokens)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    sizes = [sum(lengths[row] for row in rows) for rows in found]
    assert all(size < tokens + max(lengths) for size in sizes)
    firsts = [lengths[rows[0]] for rows in found]
    assert firsts == sorted(firsts, reverse=True), "the longest texts go first"


def test_more_threads_than_cores_are_refused_with_the_numbers() -> None:
    cores = available_cores()
    assert Layout(cores).threads == 1
    for workers_, threads in ((cores + 1, 1), (cores, 2)):
        with pytest.raises(InputError, match=f"{workers_} workers x {threads} threads.* {cores} cores"):
            Layout(workers_, threads)
    with pytest.raises(InputError, match="1 or more of each"):
        Layout(0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes to cores")
def test_a_pinned_process_counts_its_own_cores() -> None:
    code = "from helpers.encode.workers import Layout; print(Layout(1)); Layout(2)"
    done = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "workers=1" in done.stdout and "would share 1 cores" in done.stderr


def test_answers_are_those_of_one_encoder_in_order(mini_report, mini_encoder: OnnxEncoder) -> None:
    texts = SENTENCES * 20
    found = encode_many(texts, mini_report.path, TOKENIZER, packet_tokens=300)
    assert found.dtype == np.float32 and np.array_equal(found, mini_encoder.encode(texts))


def test_ids_longer_than_the_default_cut_are_not_cut(mini_report, mini_encoder: OnnxEncoder) -> None:
    ids = [[1, *range(100, 800), 1], [1, 100, 1]]
    assert np.array_equal(encode_ids_many(ids, mini_report.path), mini_encoder.encode_ids(ids))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[1, 100, 1], [1, 45_169, 1]], "token id 45169 in row 1 is none of the model's 45,169"),
        ([[1, 2**40, 1]], "row 0 is none"),
        (np.array([[1, 2**32 + 500, 1]]), "4294967796 in row 0"),
        ([[1, -1, 1]], "-1 in row 0"),
        ([[1, 100, 1], []], "row 1: give a list of whole numbers"),
        ([[1.0, 500.9, 1]], "row 0: give a list"),
        ([1, 2, 3], "row 0: give a list"),
        (["a text"], "row 0: give a list"),
        ([[[1], [2]]], "row 0: give a list"),
        (None, "not NoneType"),
    ],
)
def test_ids_that_are_not_the_models_are_refused(mini_report, mini_encoder: OnnxEncoder, ids, words: str) -> None:
    """A table in INT4 would answer to any id."""
    for call in (lambda: encode_ids_many(ids, mini_report.path), lambda: mini_encoder.encode_ids(ids)):
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (pd.DataFrame({"text": ["a"], "label": ["b"]}), "not DataFrame: give one column"),
        ({"a": 1}, "not dict"),
        (None, "not NoneType"),
        (["fine", "half \ud800 a character"], "row 1 holds half a character"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(mini_report, texts, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode_many(texts, mini_report.path, TOKENIZER)


@pytest.mark.parametrize("settings", [{"workers": 1.5}, {"workers": True}, {"workers": "2"}, {"threads": None}])
def test_layouts_are_whole_numbers(mini_report, settings: dict) -> None:
    for backend in ("loky", "threading"):
        with joblib.parallel_config(backend=backend), pytest.raises(InputError, match="whole numbers"):
            encode_ids_many([[1, 100, 1]], mini_report.path, **settings)


def test_a_backend_that_gives_no_results_before_the_end_is_refused(mini_report) -> None:
    with joblib.parallel_config(backend="multiprocessing"), pytest.raises(InputError, match="use loky, threading"):
        encode_ids_many([[1, 100, 1]], mini_report.path)


def test_a_file_that_is_replaced_meanwhile_spoils_the_result(mini_report, mini_onnx, tmp_path, monkeypatch) -> None:
    path, run = tmp_path / "model.onnx", workers._run
    path.write_bytes(mini_report.path.read_bytes())

    def replaced(*args):
        for number, found in run(*args):
            (other := tmp_path / "other").write_bytes(mini_onnx.read_bytes())
            other.replace(path)
            yield number, found

    monkeypatch.setattr(workers, "_run", replaced)
    with pytest.raises(InputError, match="written anew while"):
        encode_many(SENTENCES, path, TOKENIZER, workers=1)


def test_calls_of_several_threads_wait_for_each_other(mini_report, mini_encoder: OnnxEncoder) -> None:
    """One tokenizer, other numbers of workers, and one call that fails: each gets what it would get alone."""
    tokenizer, found = mini_encoder.tokenizer, {}

    def call(name: int, texts: list[str], count: int) -> None:
        try:
            found[name] = encode_many(texts, mini_report.path, tokenizer, workers=count)
        except InputError as error:
            found[name] = error

    wanted = [(SENTENCES * 30, 1), (SENTENCES * 30, available_cores()), (["", "a"], available_cores())]
    threads = [threading.Thread(target=call, args=(n, *wanted[n % 3]), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = mini_encoder.encode(SENTENCES * 30)
    for name in (0, 1, 3, 4):
        assert np.array_equal(found[name], expected)
    assert all("row 0 is empty" in str(found[name]) for name in (2, 5))


def test_nothing_to_encode_and_what_cannot_be(mini_report) -> None:
    assert encode_many([], mini_report.path, TOKENIZER).shape == (0, 256)
    for texts, path, words in (
        (["a", ""], mini_report.path, "row 1 is empty"),
        (["a"], Path("nowhere.onnx"), "no model file"),
    ):
        with pytest.raises(InputError, match=words):
            encode_many(texts, path, TOKENIZER)


@pytest.mark.skipif(available_cores() < 2, reason="one worker is this process itself")
def test_few_texts_are_still_shared_by_all_workers(mini_report, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, run = [], workers._run
    monkeypatch.setattr(workers, "_run", lambda left, *rest: sent.append(len(left)) or run(left, *rest))
    encode_many(SENTENCES * 10, mini_report.path, TOKENIZER, workers=2)
    encode_many(["stop"], mini_report.path, TOKENIZER, workers=2)
    assert sent[0] >= 2 * workers.PACKETS_EACH and sent[1] == 1


def test_the_tokenizer_may_be_a_path_or_either_librarys(mini_torch, mini_report) -> None:
    found = encode_many(SENTENCES, mini_report.path, TOKENIZER)
    for tokenizer in (mini_torch[1], mini_torch[1].backend_tokenizer, str(TOKENIZER)):
        assert np.array_equal(encode_many(SENTENCES, mini_report.path, tokenizer), found)


def test_the_model_is_checked_once_and_again_when_its_file_changes(mini_report, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mini_report.path.read_bytes())
    before = workers._size.cache_info()
    for _ in range(2):
        encode_ids_many([[1, 100, 1]], path)
    after = workers._size.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)
    path.write_bytes(b"no model any more")
    with pytest.raises(InputError, match="cannot be run"):
        encode_ids_many([[1, 100, 1]], path)


def kill_a_worker() -> None:
    workers_now = [
        child for child in psutil.Process().children(recursive=True)
        if "loky" in (line := " ".join(child.cmdline())) and "resource_tracker" not in line
    ]  # fmt: skip
    workers_now[0].send_signal(signal.SIGKILL)


@pytest.mark.skipif(available_cores() < 2, reason="one worker is this process itself")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_worker_is_replaced_and_its_packet_done_again(
    mini_report, mini_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, killed, run = [], [], workers._run

    def watched(*args):
        try:
            for done in run(*args):
                if not killed:  # one packet is through, the next ones are with the workers
                    killed.append(done[0])
                    kill_a_worker()
                yield done
        except Exception as error:
            lost.append(error)
            raise

    monkeypatch.setattr(workers, "_run", watched)
    texts = SENTENCES * 400
    found = encode_many(texts, mini_report.path, TOKENIZER, packet_tokens=500)
    assert len(lost) == 1, "a worker was killed in the middle"
    assert np.array_equal(found, mini_encoder.encode(SENTENCES)[np.arange(len(texts)) % len(SENTENCES)])


@pytest.mark.skipif(available_cores() < 2, reason="one worker is this process itself")
def test_a_packet_that_kills_its_workers_ends_it_and_the_rest_is_kept(
    mini_report, mini_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, starts, run = workers._encode_packet, [], workers._run

    def deadly(number: int, *rest):
        if number == 0:
            time.sleep(0.3)
            os._exit(1)
        return encode(number, *rest)

    monkeypatch.setattr(workers, "_encode_packet", deadly)
    monkeypatch.setattr(workers, "_run", lambda *args: starts.append(1) or run(*args))
    texts = [*SENTENCES * 10, "all of the above and then some, " * 60]
    with pytest.raises(workers.WorkersLost, match=r"row 40 of .* tokens: take fewer workers") as error:
        encode_many(texts, mini_report.path, TOKENIZER, packet_tokens=300)
    assert len(starts) <= workers.ATTEMPTS + 1
    done = np.isfinite(error.value.vectors).all(axis=1)
    assert not done[40] and done.sum() >= 30
    assert np.array_equal(error.value.vectors[done], mini_encoder.encode(texts)[done])


@pytest.mark.skipif(available_cores() < 2, reason="one worker is this process itself")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for another process")
def test_an_interrupt_leaves_no_process_behind(mini_report, tmp_path: Path) -> None:
    code = f"""
import sys
from helpers.encode.workers import encode_many
if __name__ == "__main__":
    print("go", flush=True)
    encode_many({SENTENCES!r} * 5000, {str(mini_report.path)!r}, {str(TOKENIZER)!r}, packet_tokens=2000)
"""
    (script := tmp_path / "script.py").write_text(code, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "go\n"
        parent, until = psutil.Process(process.pid), time.monotonic() + 60
        while len(children := parent.children(recursive=True)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(children) >= 2
        time.sleep(1)
        children = parent.children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert process.returncode != 0 and "KeyboardInterrupt" in process.stderr.read()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_the_same_call_runs_on_a_dask_cluster(mini_report, mini_encoder: OnnxEncoder) -> None:
    """Two worker processes; on real machines the model's path must be readable by all, see `encode_many`."""
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1"}
    texts = SENTENCES * 20
    with (
        LocalCluster(**settings, dashboard_address=None) as cluster,
        Client(cluster) as client,
        joblib.parallel_config(backend="dask"),
    ):
        found = encode_many(texts, mini_report.path, TOKENIZER, packet_tokens=300)
        held = client.run(lambda: (os.getpid(), workers._encoder.cache_info().currsize))
    assert np.array_equal(found, mini_encoder.encode(texts))
    assert len(held) == 2 and os.getpid() not in dict(held.values())
    assert any(size == 1 for _, size in held.values()), "a worker made an encoder of its own"
