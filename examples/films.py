"""Films by viewer: a private recommender.

Which films are good, which are popular, and how tastes vary is learned from the ratings of all viewers. Your own tastes
and the list of films that you have seen stay with you. It runs on generated ratings, or on a MovieLens folder if you
have one: ``python examples/films.py ml-1m``.
"""

import sys

import tacitly
from tacitly.datasets import held_out, load_movielens, make_ratings, rmse

films = load_movielens(sys.argv[1]) if len(sys.argv) > 1 else make_ratings(2000, 200, random_state=0)
users, ids, stars = films.users, films.item_ids[films.items], films.values
test = held_out(users, random_state=0)

# The catalogue and its features (genres, year) are public. They are given, never read from the ratings.
model = tacitly.Recommender(1.0, items=films.item_ids, item_features=films.catalogue_features, rating_range=(0.5, 5))
model.fit(users[~test], ids[~test], stars[~test])
print(model.summary())

# Computed from private ratings: fine to look at here, not for publication.
print(f"error on held-out ratings: {rmse(model.predict(users[test], ids[test]), stars[test]):.3f} stars")

# Recommendations for somebody in the table, and for somebody new who names two films.
print("for user 7:", model.recommend(7, k=5).items)
print("for somebody new:", model.recommend_new({films.item_ids[0]: 5.0, films.item_ids[3]: 1.0}, k=5).items)
print(str(model.certificate_).splitlines()[0])
