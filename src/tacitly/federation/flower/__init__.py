"""The Flower engine: users keep their rows on nodes, a coordinator adds the answers, Flower only carries messages.

* ``messages``: the format of requests ("asks") and answers; ``keys``: the identity of nodes and of the coordinator.
* ``node``: holds rows and answers requests; ``card``: what it publishes about itself; ``kept_heads``: its users' heads;
  ``fleet``: its connection to Flower.
* ``population``: the registered nodes and the trust model; ``coordinator``: queries nodes and adds their answers;
  ``inbox``: which answers it accepts; ``link``: Flower's SuperLink with restricted access.
* ``masks``: how the coordinator learns a sum without learning any summand; ``groups``: how many nodes this needs.
* ``version``: the Flower version with which this package was tested.

The programs that a coordinator and a site run, with their folders and settings, are in :mod:`tacitly.deployment`. Only
``fleet``, ``link`` and :mod:`tacitly.deployment` import Flower.
"""
