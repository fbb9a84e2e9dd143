"""Usual names of a table's columns, by which a column that was not named is found or suggested."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

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
    """The columns that look like a rating, a thumb or a count."""
    return [name for name in found if plain_name(name) in (*USUAL["rating"], *_OTHER_OPINIONS)]


def meant(role: str, name: str, found: Collection[str]) -> str:
    """A question to whoever named a column that is not there; empty where none is like it."""
    near: Sequence[str] = usual(role, found) or get_close_matches(name, found, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
