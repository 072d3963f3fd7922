"""The Flower engine: users keep their rows on nodes, a coordinator adds the answers, Flower only carries messages.

* ``messages``: the asks and answers on the wire; ``keys``: who a node is, and whose asks it answers.
* ``node``: holds rows and answers asks; ``card``: what it publishes about itself; ``kept_heads``: its users' heads;
  ``fleet``: its connection to Flower.
* ``population``: the registered nodes, and whom one must trust; ``coordinator``: asks nodes and adds answers;
  ``inbox``: which answers it accepts; ``link``: Flower's SuperLink with restricted access.
* ``masks``: how the coordinator learns a sum without learning any summand; ``groups``: how many nodes that takes.
* ``version``: the Flower version that all of this was tested with.

The programs that a coordinator and a site run, with their folders and settings, are in :mod:`tacitly.deployment`. Only
``fleet``, ``link`` and :mod:`tacitly.deployment` import Flower.
"""
