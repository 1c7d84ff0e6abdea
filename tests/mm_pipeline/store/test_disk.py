"""Files: restarts, damage of every kind, several processes in one folder, a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from mm_pipeline.store import entry_of, media_of
from mm_pipeline.store.disk import DiskStore
from mm_pipeline.store.disk_format import to_bytes
from tests.mm_pipeline.store.support import HIDDEN, key_of, media, video

BIG = 10**6


def file_of(folder: Path, number: int) -> Path:
    return folder / f"{key_of(number)}.safetensors"


def holds(store: DiskStore, number: int) -> bool:
    lease = store.get(key_of(number))
    if lease is None:
        return False
    with lease:
        assert torch.equal(lease.embeddings, video(number).embeddings)
        assert lease.entry == entry_of(key_of(number), video(number))
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_everything_survives_a_restart(tmp_path: Path, dtype: torch.dtype) -> None:
    store = DiskStore(tmp_path / "new" / "folder", BIG)
    store.put(key_of(1), video(1)).release()
    store.put(key_of(2), media(2, 9, dtype)).release()
    again = DiskStore(tmp_path / "new" / "folder", BIG)
    assert again.stats()["disk"].num_bytes == store.stats()["disk"].num_bytes > 0
    assert holds(again, 1)
    lease = again.get(key_of(2))
    assert lease is not None
    assert torch.equal(media_of(lease).embeddings, media(2, 9, dtype).embeddings)
    again.check()


def test_files_are_plain_safetensors(tmp_path: Path) -> None:
    DiskStore(tmp_path, BIG).put(key_of(1), video(1)).release()
    with safe_open(file_of(tmp_path, 1), "pt") as file:
        assert torch.equal(file.get_tensor("embeddings"), video(1).embeddings)
        assert json.loads(file.metadata()["entry"])["notes"] == list(video(1).notes)


def test_a_smaller_bound_lets_the_least_recently_used_go(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, BIG)
    for number in range(4):
        store.put(key_of(number), video(number)).release()
        os.utime(file_of(tmp_path, number), (number, number))
    assert holds(store, 0)
    one = file_of(tmp_path, 0).stat().st_size
    again = DiskStore(tmp_path, 2 * one + 5)
    again.check()
    assert [holds(again, number) for number in range(4)] == [True, False, False, True]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_is_a_miss_and_is_deleted(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut anywhere, one bit changed anywhere, anything appended: never a wrong embedding, never an error."""
    folder = tmp_path_factory.mktemp("store")
    store = DiskStore(folder, BIG)
    store.put(key_of(1), video(1)).release()
    file = file_of(folder, 1)
    content = bytearray(file.read_bytes())
    kind = data.draw(st.sampled_from(["cut", "flip", "append", "noise"]))
    position = data.draw(st.integers(0, len(content) - 1))
    if kind == "cut":
        content = content[:position]
    elif kind == "flip":
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "append":
        content += data.draw(st.binary(min_size=1, max_size=40))
    else:
        content = bytearray(data.draw(st.binary(max_size=200)))
    file.write_bytes(content)
    found = store.get(key_of(1))
    if found is not None:
        # Padding of the header, or the name of something nobody reads, may change without harm.
        assert kind == "flip"
        assert torch.equal(found.embeddings, video(1).embeddings)
        assert found.entry == entry_of(key_of(1), video(1))
        return
    assert not file.exists()
    store.check()
    stats = store.stats()["disk"]
    assert (stats.lost, stats.num_entries, stats.num_bytes) == (1, 0, 0)
    store.put(key_of(1), video(1)).release()
    assert holds(store, 1)


def test_another_entrys_file_is_a_miss(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, BIG)
    store.put(key_of(1), video(1)).release()
    store.put(key_of(2), video(2)).release()
    file_of(tmp_path, 1).write_bytes(file_of(tmp_path, 2).read_bytes())
    assert store.get(key_of(1)) is None
    assert holds(store, 2)


def test_missing_and_unfinished_files(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, BIG)
    store.put(key_of(1), video(1)).release()
    file_of(tmp_path, 1).unlink()
    assert not holds(store, 1)
    (tmp_path / f"{key_of(2)}.tmp").write_bytes(b"half of it")
    (tmp_path / "README.safetensors").write_bytes(b"not ours")
    again = DiskStore(tmp_path, BIG)
    again.check()
    assert again.stats()["disk"].num_entries == 0
    assert (tmp_path / "README.safetensors").exists()


def test_a_full_disk_stores_nothing_and_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path, BIG)
    store.put(key_of(1), video(1)).release()

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:50])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with store.put(key_of(2), video(2)) as lease:
            assert torch.equal(lease.embeddings, video(2).embeddings)
    store.check()
    assert holds(store, 1)
    assert not holds(store, 2)


def test_a_file_that_cannot_be_deleted_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(to_bytes(entry_of(key_of(1), video(1)), video(1).embeddings))
    store = DiskStore(tmp_path, 2 * one)
    for number in (1, 2):
        store.put(key_of(number), video(number)).release()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        store.put(key_of(3), video(3)).release()
    store.put(key_of(4), video(4)).release()
    store.check()
    assert holds(store, 4)
    assert store.stats()["disk"].num_bytes <= 2 * one


def test_two_stores_share_a_folder_and_its_bound(tmp_path: Path) -> None:
    one = len(to_bytes(entry_of(key_of(1), video(1)), video(1).embeddings))
    first, second = DiskStore(tmp_path, 3 * one), DiskStore(tmp_path, 3 * one)
    first.put(key_of(1), video(1)).release()
    assert holds(second, 1)
    for number in range(2, 12):
        (first, second)[number % 2].put(key_of(number), video(number)).release()
        on_disk = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
        assert sum(on_disk) <= 3 * one
    assert holds(first, 11)
    assert holds(second, 11)
    assert not holds(first, 2)


def test_a_writer_killed_at_any_moment(tmp_path: Path) -> None:
    """Every file left behind is whole or goes; the bound holds after the restart."""
    code = (
        "import sys; from pathlib import Path; from mm_pipeline.store.disk import DiskStore\n"
        "from tests.mm_pipeline.store.support import key_of, video\n"
        "store = DiskStore(Path(sys.argv[1]), 20_000); print('go', flush=True)\n"
        "for number in range(10**6): store.put(key_of(number % 40), video(number % 40)).release()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        while len(list(tmp_path.glob("*.safetensors"))) < 10:
            time.sleep(0.01)
        process.kill()
    store = DiskStore(tmp_path, 20_000)
    store.check()
    assert sum(holds(store, number) for number in range(40)) == store.stats()["disk"].num_entries > 0
    assert store.stats()["disk"].lost == 0


def test_keys_that_are_no_digests_are_refused(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, BIG)
    for key in ("../../etc/passwd", "", key_of(1).upper(), key_of(1) + "0"):
        with pytest.raises(ValueError, match="64 hex digits"):
            store.get(key)


def test_an_empty_item(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, BIG)
    store.put(key_of(0), media(0, 0)).release()
    lease = store.get(key_of(0))
    assert lease is not None
    assert lease.embeddings.shape == (0, HIDDEN)
