"""Incremental text equals the text of the whole answer, and stop strings cut at their first occurrence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_core.sampling.text import IncrementalDetokenizer, StopStrings


class Bytes:
    """Token i is byte i, as in a byte-level vocabulary; 256 is a special token."""

    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


@given(st.text(max_size=40))
def test_pieces_of_valid_text_join_to_it_and_are_whole_characters(text: str) -> None:
    detokenizer = IncrementalDetokenizer(Bytes())
    pieces = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    if "�" not in text:
        assert all("�" not in piece for piece in pieces)


@given(st.lists(st.integers(0, 256), max_size=40))
def test_broken_bytes_end_and_do_not_stall(ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(Bytes())
    text, pending = "", 0
    for token in ids:
        piece = detokenizer.add(token)
        pending = 0 if piece else pending + 1
        text += piece
        assert pending <= 4 or token == 256 or all(i == 256 for i in ids[-pending:])
    text += detokenizer.flush()
    valid = bytes(i for i in ids if i < 128).decode()
    assert [c for c in text if c < "\x80"] == list(valid)


stops_and_text = st.tuples(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abc", max_size=30),
    st.integers(1, 5),
)


@given(stops_and_text)
def test_the_first_stop_string_cuts_however_the_text_is_split(case) -> None:
    stops, text, size = case
    places = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    expected = text[: min(places)[1]] if places else text
    cutter = StopStrings(stops)
    out, met = "", None
    for begin in range(0, len(text), size):
        piece, met = cutter.add(text[begin : begin + size])
        out += piece
        if met is not None:
            break
    if met is None:
        out += cutter.flush()
    assert out == expected
    assert (met is not None) == bool(places)


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    cutter = StopStrings(["END", "\n\n"])
    assert cutter.add("hello E") == ("hello ", None)
    assert cutter.add("x\n") == ("Ex", None)
    assert cutter.add("yEN") == ("\ny", None)
    assert cutter.add("D more") == ("", "END")
