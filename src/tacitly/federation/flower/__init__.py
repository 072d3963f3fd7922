"""Users who keep their rows: a coordinator and nodes, with Flower carrying the messages and doing nothing else.

``messages`` is what is said, ``node`` the half that holds rows, ``coordinator`` the half that adds up, ``inbox`` what
the coordinator believes, ``masks`` how it learns a sum and no summand. ``fleet``, ``server_app`` and ``serve`` know
Flower; nothing else does.
"""
