"""Columns of a table by usual names, by which one that was not named is found or suggested; ids
without what nobody sees: blanks around them, marks of no width, the Unicode form of an accent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from fedrec.data.delimited import NO_VALUE, is_number
from fedrec.errors import DataError, UnknownIdsWarning, warn

_UNSEEN = ("Cc", "Cf")  # control and format characters: line ends, joiners, marks of direction
_DECIMALS = re.compile(r"\+?(-?[0-9]+)(\.0+)?")
USUAL: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "user_id", "userid", "uid", "visitorid", "customer", "customer_id", "customerid"),
        *("reader", "reader_id", "reviewerid", "member", "member_id", "person", "account_id"),
        *("username", "user_name"),
    ),
    "item": (
        *("item", "item_id", "itemid", "iid", "movieid", "movie_id", "product_id", "productid"),
        *("news_id", "newsid", "article_id", "isbn", "asin", "parent_asin", "business_id", "book"),
        *("book_id", "movie", "film", "product", "article", "track", "track_id", "song", "song_id"),
        *("artist", "artist_id", "artistid"),
    ),
    "rating": (
        *("rating", "ratings", "stars", "star", "star_rating", "score", "scores", "rate", "grade"),
        *("overall", "user_rating", "book-rating", "preference"),
    ),
    "timestamp": ("timestamp", "time", "date", "datetime", "unixreviewtime"),
}
_OTHER_OPINIONS = (
    *("thumb", "thumbs", "thumb_up", "thumbs_up", "vote", "votes", "like", "liked", "likes"),
    *("dislike", "feedback", "label", "clicked", "click", "plays", "playcount", "play_count"),
    *("count", "counts", "listens", "views", "weight", "quantity", "qty", "watch_time"),
    *("watch_ratio", "playtime", "hours", "reaction", "event", "event_type", "action"),
    *("behavior", "behavior_type"),
)
"""Thumbs, counts and kinds of events: what says how much somebody liked an item without being a
rating."""
_WORDS_OF_OPINIONS = (
    *("rated", "upvote", "upvotes", "disliked", "played", "purchases", "purchased", "bought"),
    *("strength", "confidence", "sentiment", "interaction", "implicit", "value", "dwell", "read"),
    *("completed", "watched", "clicks", "points", "interest"),
)
_COUNTS = {
    *("plays", "playcount", "play_count", "count", "counts", "listens", "views", "quantity", "qty"),
    *("watch_time", "playtime", "hours", "clicks", "purchases"),
}
_NO_OPINIONS = {"id", "at", "date", "time", "timestamp", "by", "name", "url", "title"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def plain_id(text: str) -> str:
    """An id as it looks; 7.0 is 7, which a column of numbers with a gap was written as, and blanks
    within are one.

    >>> from fedrec.data.columns import plain_id
    >>> plain_id(" ann\\ufeff")
    'ann'
    """
    if text.isascii() and text.isalnum():
        return text
    if not (text.isascii() and text.isprintable()):
        # of all that NFKC unites only widths are united: x2 and x\u00b2 may be two items
        text = "".join(
            unicodedata.normalize("NFKC", letter)
            if unicodedata.decomposition(letter).startswith(("<wide>", "<narrow>"))
            else letter
            for letter in " ".join(unicodedata.normalize("NFC", text).split())
            if unicodedata.category(letter) not in _UNSEEN
        )
    plain = " ".join(text.split())
    number = _DECIMALS.fullmatch(plain)
    return plain if number is None else number[1]


def person_id(text: str) -> str:
    """A person's id as it looks: as `plain_id`, and what NFKC unites is one. Of items that would
    join two; of people it is the safe side, since whoever is not recognised pays nothing."""
    return plain_id(unicodedata.normalize("NFKC", text))


def require_distinct(ids: Iterable[str], what: str, where: Path | str) -> None:
    """Raises DataError where ids look the same: each would be a person, or an item, of its own."""
    known = set(ids)
    look = person_id if what == "user" else plain_id
    changed = [(given, plain) for given in sorted(known) if (plain := look(given)) != given]
    first = dict[str, str]()
    twins = [
        (first.setdefault(plain, plain if plain in known else given), given)
        for given, plain in changed
    ]
    if same := [(one, other) for one, other in twins if one != other]:
        one, other = same[0]
        raise DataError(
            f"{len(same):,} {what} ids of {where} are another's but for blanks, '.0' or the "
            f"Unicode form, such as {one!r} and {other!r}: each would be {what} of its own",
            "Write one form of each id, without blanks and signs of no width (NFC; 7, not 7.0).",
        )


def require_named(
    known: Iterable[str],
    given: Iterable[str],
    where: Path | str,
    *,
    what: str = "items",
    few: float = 1.0,
) -> str:
    """A note on how many of the known items, or `what`, a table names; empty where it names all.

    Raises DataError where it names none, or one but for blanks or '.0'; warns with
    `UnknownIdsWarning`, and one id of each side, where the share that it names is less than `few`,
    which is 1 but for what usually knows a part: links, public users, words, old news."""
    wanted = dict.fromkeys(known)
    found = dict.fromkeys(given)
    lacking = [item for item in wanted if item not in found]
    if not lacking:
        return ""
    plain = {plain_id(item): item for item in found if item not in wanted}
    if twin := next((item for item in lacking if plain_id(item) in plain), None):
        raise DataError(
            f"{plain[plain_id(twin)]!r} and {twin!r}, ids of {where} and of the data, are the same "
            "but for blanks, '.0' or the Unicode form",
            "Write one form of each id, without blanks and signs of no width (NFC; 7, not 7.0).",
        )
    named = len(wanted) - len(lacking)
    said = f"{where} names {named or 'none'} of the {len(wanted):,} {what}"
    example = next(iter(plain.values()), next(iter(found), ""))
    if not named:
        has = f"It has ids such as {example!r}, the data" if example else "The data has ids"
        raise DataError(said, f"{has} such as {lacking[0]!r}: give ids of one kind.")
    if named < few * len(wanted):
        has = f", and has ids such as {example!r}" if example else ""
        warn(UnknownIdsWarning(f"{said}: it lacks {lacking[0]!r}{has}"))
    return said


def plain_name(column: str) -> str:
    """A column's name without case, type (`rating:float`) and blanks."""
    return column.partition(":")[0].strip().lower().replace(" ", "_")


def usual(role: str, found: Iterable[str]) -> list[str]:
    """The columns that usually hold this role, the usual name first."""
    known = USUAL.get(role, ())
    return sorted(
        (name for name in found if plain_name(name) in known),
        key=lambda name: known.index(plain_name(name)),
    )


def guessed(role: str, found: Sequence[str], taken: str) -> str:
    """The column of users or items where none was named: the one that is called so, or of two
    columns the one that is not `taken` and not called as another role is; empty where there
    is none, or more than one."""
    alike = usual(role, found)
    elsewhere = {name for other in USUAL if other != role for name in usual(other, found)}
    others = [name for name in found if name not in {taken, *elsewhere, *opinions(found)}]
    if not alike and len(found) == 2 and len(others) == 1:
        return others[0]
    return alike[0] if len(alike) == 1 or (alike and plain_name(alike[0]) == role) else ""


def opinions(found: Iterable[str]) -> list[str]:
    """The columns that are called as a rating, a thumb or a count is."""
    return [name for name in found if plain_name(name) in (*USUAL["rating"], *_OTHER_OPINIONS)]


def are_counts(name: str) -> bool:
    """Whether a column is called as plays, views or hours are, which add up."""
    return plain_name(name) in _COUNTS


def like_opinions(found: Iterable[str]) -> list[str]:
    """`opinions`, and the columns with such a word in their name, as rating_x and numPlays: too
    little to take them for ratings, enough to warn of them."""
    known = {*USUAL["rating"], *_OTHER_OPINIONS, *_WORDS_OF_OPINIONS}
    return [
        name
        for name in found
        if opinions([name])
        or (not (words := {*map(str.lower, _WORD.findall(name))}) & _NO_OPINIONS and words & known)
    ]


def like_ratings(columns: Mapping[str, Iterable[object]]) -> list[str]:
    """The one column of numbers, beside times and numbers of something, where its first values are
    steps of a half up to 5 or 10: ratings under whatever name."""
    numbers = {
        name: found
        for name, values in columns.items()
        if not {*map(str.lower, _WORD.findall(name))} & _NO_OPINIONS
        and not usual("timestamp", [name])
        and (found := _numbers(values))
    }
    return [
        name
        for name, found in numbers.items()
        if len(numbers) == 1
        and len(found) > 2
        and min(found) >= 0.5
        and max(found) in (5, 10)
        and all((2 * value).is_integer() for value in found)
    ]


def _numbers(values: Iterable[object]) -> set[float]:
    """Distinct ones, also with a decimal comma; none where a value is no number."""
    given = {str(value) for value in values if value is not None} - {*NO_VALUE}
    texts = {text.replace(",", ".") for text in given}
    return {float(text) for text in texts} if all(map(is_number, texts)) else set()


def meant(role: str, name: str, found: Collection[str]) -> str:
    """A question to whoever named a column that is not there; empty where none is like it."""
    near: Sequence[str] = usual(role, found) or get_close_matches(name, found, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
