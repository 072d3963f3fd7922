"""Write synthetic ratings in the format of MovieLens 1M, for ``python -m benchmarks.ratings FOLDER``.

Titles, genres and years are those of films up to 2000 in MovieLens latest-small; so is the average relation of features
and ratings. Sizes and skew are those published for MovieLens 1M: 6,040 users with 20 to 2,314 ratings each, and 3,883
films of which a few hundred have most of the million ratings. A rating is a sum of the user's level, the user's genres,
the film, ten factors, and noise. Their sizes were chosen so that a user's mean, user and item means together and a
factorisation without privacy have about the published errors (1.036, 0.929 and 0.873). Users choose films that are
popular, and films that they like.

``python -m benchmarks.like_ml_1m FOLDER --seed 100``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.data import FOLDER, movielens
from tacitly.arrays import Array
from tacitly.datasets.ratings import read_movies

USERS, FILMS, RATINGS, FACTORS = 6_040, 3_883, 1_000_209, 10
# How many ratings the film at each rank of popularity has.
RANKS = (1, 10, 50, 100, 250, 500, 1_000, 1_500, 1_853, 2_300, 2_700, 3_100, 3_500, 3_706, FILMS)
COUNTS = (3_428, 2_700, 2_100, 1_750, 1_200, 780, 400, 205, 123, 60, 27, 10, 2, 1, 0.3)
LEVEL, GENRE, FILM, OWN, NOISE = 0.47, 0.1, 0.5, 0.44, 0.84  # standard deviations
CHOICE = 0.6  # how much stronger a user is drawn to what they like, by one standard deviation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    rng = np.random.default_rng([77, options.seed])
    films, features, effects = catalogue(rng)
    users, items, stars = drawn(rng, features, effects, fame(rng, films))
    write(options.folder, films, users, items, stars)


def catalogue(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return which films there are, their features and what features say about ratings on average."""
    ratings = movielens()
    counts = np.bincount(ratings.items, minlength=len(ratings.item_ids))
    old = np.flatnonzero(ratings.item_features[:, -1] <= 0.0)
    films = old[np.argsort(-np.log(counts[old] + 0.5) - rng.gumbel(size=len(old)))[:FILMS]]
    features, (_, owner) = ratings.catalogue_features, np.unique(ratings.users, return_inverse=True)
    left = ratings.values - (np.bincount(owner, ratings.values) / np.bincount(owner))[owner]
    rows = features[ratings.items] - features[ratings.items].mean(axis=0)
    weights = np.linalg.solve(rows.T @ rows + 50.0 * np.eye(rows.shape[1]), rows.T @ left)
    return films, features[films], 0.7 * features[films] @ weights


def fame(rng: np.random.Generator, films: Array) -> Array:
    """Return the wanted number of ratings of each film, as logarithms: in the order of latest-small, roughly."""
    ratings = movielens()
    counts = np.bincount(ratings.items, minlength=len(ratings.item_ids))[films]
    order = np.argsort(-np.log(counts + 0.5) - 0.5 * rng.normal(size=FILMS))
    found = np.empty(FILMS)
    found[order] = np.interp(np.arange(1, FILMS + 1), RANKS, np.log(COUNTS))
    return found


def drawn(rng: np.random.Generator, features: Array, effects: Array, wanted: Array) -> tuple[Array, Array, Array]:
    """Return users, films and stars."""
    shares = np.exp(wanted) / np.exp(wanted).sum()
    effects = effects + 0.15 * wanted + FILM * rng.standard_t(6, size=FILMS) * np.sqrt(4.0 / 6.0)
    effects -= shares @ effects
    sizes = 0.8 ** np.arange(FACTORS)
    loadings = (features - features.mean(axis=0)) / features.std(axis=0) @ rng.normal(size=(features.shape[1], FACTORS))
    loadings = np.sqrt(0.05) * loadings / loadings.std(axis=0) + np.sqrt(0.95) * rng.normal(size=(FILMS, FACTORS))
    loadings *= OWN * sizes / np.linalg.norm(sizes)
    counts = 20.0 + np.exp(rng.normal(np.log(76.0), 1.14, USERS))
    counts = np.clip(counts * RATINGS / counts.sum(), 20, 2_314).astype(np.int64)
    drawn_to = attraction(rng, wanted, counts)
    tastes = GENRE * np.append(np.ones(features.shape[1] - 2), (0.8, 0.4))  # the last two are the year and its square
    users, items, stars = [], [], []
    for user, count in enumerate(counts):
        liked = features @ (tastes * rng.normal(size=len(tastes))) + loadings @ rng.normal(size=FACTORS)
        liked -= shares @ liked
        keys = drawn_to + CHOICE * liked / liked.std() + rng.gumbel(size=FILMS)
        chosen = np.argpartition(-keys, count - 1)[:count]
        spread = NOISE * np.exp(0.15 * rng.normal())
        users.append(np.full(count, user + 1))
        items.append(chosen)
        stars.append(3.5 + LEVEL * rng.normal() + effects[chosen] + liked[chosen] + spread * rng.normal(size=count))
    return np.concatenate(users), np.concatenate(items), np.clip(np.rint(np.concatenate(stars)), 1, 5)


def attraction(rng: np.random.Generator, wanted: Array, counts: Array) -> Array:
    """Return how films attract users so that numbers of ratings come out as wanted."""
    found, aim = wanted.copy(), np.exp(wanted) * counts.sum() / np.exp(wanted).sum()
    for _ in range(4):
        seen, some = np.zeros(FILMS), rng.choice(counts, 1_500, replace=False)
        for count in some:
            keys = found + CHOICE * rng.normal(size=FILMS) + rng.gumbel(size=FILMS)
            seen[np.argpartition(-keys, count - 1)[:count]] += USERS / len(some)
        found += np.where(aim > 20, np.log(np.clip(aim / np.maximum(seen, 1.0), 0.3, 3.0)), 0.0)
    return found


def write(folder: Path, films: Array, users: Array, items: Array, stars: Array) -> None:
    """Write movies.dat, users.dat and ratings.dat."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, movies = movielens().item_ids, read_movies(FOLDER / "ml-latest-small" / "movies.csv")
    lines = []
    for place, film in enumerate(films):
        title, genres = movies[int(ids[film])]
        lines.append(f"{place + 1}::{title}::{'|'.join(genres) or '(no genres listed)'}")
    (folder / "movies.dat").write_text("\n".join(lines) + "\n", encoding="latin-1", errors="replace")
    people = [f"{user}::{'FM'[user % 2]}::25::{user % 21}::00000" for user in range(1, USERS + 1)]
    (folder / "users.dat").write_text("\n".join(people) + "\n", encoding="latin-1")
    rows = zip(users, items + 1, stars.astype(np.int64), strict=True)
    text = "\n".join(f"{user}::{item}::{star}::0" for user, item, star in rows)
    (folder / "ratings.dat").write_text(text + "\n", encoding="latin-1")


if __name__ == "__main__":
    main()
