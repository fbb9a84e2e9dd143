"""Columns of a table by usual names, by which one that was not named is found or suggested."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from fedrec.data.delimited import NO_VALUE, is_number

USUAL: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "user_id", "userid", "uid", "visitorid", "customer", "customer_id", "customerid"),
        *("reader", "reader_id", "reviewerid", "member", "member_id", "person", "account_id"),
        *("username", "user_name", "kunde", "kundennummer", "nutzer", "benutzer"),
    ),
    "item": (
        *("item", "item_id", "itemid", "iid", "movieid", "movie_id", "product_id", "productid"),
        *("news_id", "newsid", "article_id", "isbn", "asin", "parent_asin", "business_id", "book"),
        *("book_id", "movie", "film", "product", "article", "track", "track_id", "song", "song_id"),
        *("artist", "artist_id", "artistid", "artikel", "artikelnummer", "produkt", "buch"),
    ),
    "rating": (
        *("rating", "ratings", "stars", "star", "star_rating", "score", "scores", "rate", "grade"),
        *("overall", "user_rating", "book-rating", "preference", "bewertung", "sterne"),
    ),
    "timestamp": ("timestamp", "time", "date", "datetime", "unixreviewtime", "datum", "zeit"),
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
