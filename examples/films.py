"""A private film recommender: ``python examples/films.py [FOLDER]``, with a MovieLens folder if you have one."""

import sys

import tacitly
from tacitly.datasets import held_out, load_movielens, make_ratings, rmse

films = load_movielens(sys.argv[1]) if len(sys.argv) > 1 else make_ratings(2000, 200, random_state=0)
users, ids, stars = films.users, films.item_ids[films.items], films.values
test = held_out(users, random_state=0)

model = tacitly.Recommender(1.0, items=films.item_ids, item_features=films.catalogue_features, rating_range=(0.5, 5))
model.fit(users[~test], ids[~test], stars[~test])

print(model.summary())
print(f"error on held-out ratings: {rmse(model.predict(users[test], ids[test]), stars[test]):.3f} stars")
print("for user 7:", model.recommend(7, k=5).items)
print("for somebody new:", model.recommend_new({films.item_ids[0]: 5.0, films.item_ids[3]: 1.0}, k=5).items)
print(str(model.certificate_).splitlines()[0])
