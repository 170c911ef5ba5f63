import hashlib
from pathlib import Path

import pytest

from attnid import corpus
from attnid.errors import UserError

SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare.txt"


def test_characters_are_numbered_in_order_and_split_nine_to_one() -> None:
    text = corpus.Corpus.of("hello world, hello moon")
    assert text.characters == " ,dehlmnorw"
    assert "".join(text.characters[i] for i in [*text.train, *text.validation]) == "hello world, hello moon"
    assert (len(text.train), len(text.validation)) == (20, 3)


def test_king_james_starts_with_genesis_and_ends_with_revelation(tmp_path: Path) -> None:
    corpus.fetch(corpus.KING_JAMES, tmp_path / "text.txt")
    text = (tmp_path / "text.txt").read_text(encoding="utf-8")
    assert text.startswith("In the beginning God created the heaven and the earth.")
    assert text.rstrip().endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert "[" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    assert corpus.load(tmp_path / "text.txt", 64).vocabulary_size == 66


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no copy of tiny Shakespeare at hand")
def test_the_pinned_checksum_is_that_of_tiny_shakespeare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "TINY_SHAKESPEARE_URL", SHAKESPEARE.as_uri())
    corpus.fetch(corpus.TINY_SHAKESPEARE, tmp_path / "text.txt")
    data = (tmp_path / "text.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest() == corpus.TINY_SHAKESPEARE_SHA256
    assert corpus.load(tmp_path / "text.txt", 256).vocabulary_size == 65


def test_a_download_that_is_another_file_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_text("To be or not to be")
    monkeypatch.setattr(corpus, "TINY_SHAKESPEARE_URL", (tmp_path / "other").as_uri())
    with pytest.raises(UserError, match="holds another file"):
        corpus.fetch(corpus.TINY_SHAKESPEARE, tmp_path / "out" / "text.txt")
    assert not (tmp_path / "out").exists()


def test_a_download_out_of_reach_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "TINY_SHAKESPEARE_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(UserError, match="give corpus the path of a copy"):
        corpus.fetch(corpus.TINY_SHAKESPEARE, tmp_path / "text.txt")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0 different characters"),
        (b"aaaaaaaa" * 1000, "1 different characters"),
        (b"ab" * 100, "a context of 64 needs at least 641"),
        (b"ab\xff" * 1000, r"not UTF-8 \(byte 2\)"),
        (None, "cannot be read"),
    ],
)
def test_a_text_that_cannot_be_trained_on_is_one_sentence(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "text.txt"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        corpus.load(path, 64)


def test_the_shortest_text_that_the_complaint_allows_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("ab" * 325 + "c")
    assert len(corpus.load(path, 64).validation) > 64


def test_a_file_of_ones_own_is_known_by_what_it_holds(tmp_path: Path) -> None:
    first, second = tmp_path / "my text.txt", tmp_path / "deep" / "my text.txt"
    second.parent.mkdir()
    first.write_text("one")
    second.write_text("two")
    labels = [corpus.label(str(path)) for path in (first, second)]
    assert labels == ["my-text-7692c3", "my-text-3fc4cc"]
    assert corpus.label(corpus.KING_JAMES) == corpus.KING_JAMES


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no copy of tiny Shakespeare at hand")
def test_a_copy_of_tiny_shakespeare_is_tiny_shakespeare() -> None:
    assert corpus.label(str(SHAKESPEARE)) == corpus.TINY_SHAKESPEARE


def test_the_shortest_text_that_is_long_enough_is_the_one_named(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab" * 320 + b"\r\n")
    assert len(corpus.load(path, 64).validation) > 64
    path.write_bytes(b"ab" * 320)
    with pytest.raises(UserError, match="640 characters; a context of 64 needs at least 641"):
        corpus.load(path, 64)


def test_a_byte_order_mark_is_no_character(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"ab" * 400)
    assert corpus.load(path, 64).characters == "ab"


def test_named_texts_are_known_to_be_long_enough_without_reading_them() -> None:
    assert len(corpus._king_james()) == corpus.CHARACTERS[corpus.KING_JAMES]
    with pytest.raises(UserError, match="corpus king-james: 4138978 characters; a context of 600000 needs at least"):
        corpus.check(corpus.KING_JAMES, 600_000)
    corpus.check(corpus.TINY_SHAKESPEARE, 256)
