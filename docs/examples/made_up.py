"""Made-up clicks of people with tastes, as a data frame, for who has no table at hand.

python made_up.py      writes clicks.csv: 2,000 readers, 346 books of four genres
"""

import numpy as np
import polars as pl


def clicks(
    *, users: int, items: int, each: int = 20, tastes: int = 4, seed: int = 1
) -> pl.DataFrame:
    """Columns user_id, item_id and clicked_at: nine of ten clicks of a user fall into one of
    `tastes` groups of items."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), each)
    own = np.repeat(rng.integers(0, tastes, users), each)
    taste = np.where(rng.random(len(user)) < 0.9, own, rng.integers(0, tastes, len(user)))
    item = taste * (items // tastes) + np.minimum(
        rng.geometric(0.08, len(user)) - 1, items // tastes - 1
    )
    return pl.DataFrame(
        {
            "user_id": [f"user-{n}" for n in user],
            "item_id": item,
            "clicked_at": 1_700_000_000 + rng.permutation(len(user)),
        }
    )


def table() -> pl.DataFrame:
    """Columns reader, book and time; a book is named by its genre."""
    made = clicks(users=2_000, items=400)
    genres = pl.Series(["mystery", "romance", "history", "poetry"])
    genre, number = made["item_id"] // 100, made["item_id"] % 100
    books = genres.gather(genre) + "-" + number.cast(pl.String)
    return pl.DataFrame({"reader": made["user_id"], "book": books, "time": made["clicked_at"]})


if __name__ == "__main__":
    table().write_csv("clicks.csv")
