"""Do lists at epsilon 5 follow taste? Three people of MovieLens 1M who like one genre each, and the
titles that their lists share.

python three_readers.py ML_1M_FOLDER
"""

import itertools
import sys
from collections import Counter
from pathlib import Path

import fedrec

GENRES, LIKED, K = ("Children's", "Horror", "Film-Noir"), 12, 10


def liked(genre: str, genres: dict[str, list[str]], counts: Counter[str]) -> dict[str, float]:
    """Five stars for well-known films of a genre, the five best known of it left out."""
    known = sorted(
        (film for film in genres if genre in genres[film]), key=lambda film: -counts[film]
    )
    return dict.fromkeys(known[5 : 5 + LIKED], 5.0)


def rows(path: Path) -> list[list[str]]:
    """Fields of a file of MovieLens 1M."""
    return [line.split("::") for line in path.read_text("latin-1").splitlines()]


def main(folder: Path) -> None:
    train, _ = fedrec.Dataset.from_file(folder).split("random", seed=1)
    model = fedrec.MatrixFactorization(epsilon=5, delta=1e-5).fit(train)
    print(model.guarantee)
    genres = {film: kinds.split("|") for film, _, kinds in rows(folder / "movies.dat")}
    counts = Counter(film for _, film, *_ in rows(folder / "ratings.dat"))
    lists = {genre: model.recommend(history=liked(genre, genres, counts), k=K) for genre in GENRES}
    for genre, found in lists.items():
        print(f"{genre}: {', '.join(found['title'])}")
    for one, other in itertools.combinations(GENRES, 2):
        print(
            f"{one} and {other} share "
            f"{len(set(lists[one]['item']) & set(lists[other]['item']))} of {K}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
