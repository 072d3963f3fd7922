"""Privacy auditing: lower bounds on ε from attacks, and worst-case users for any query.

:func:`audit` attacks an estimator, :func:`audit_canaries` one that is expensive to run, :func:`check_sensitivity` a
query; :func:`from_runs`, :func:`from_one_run` and :func:`from_accuracy` turn the results of your own attack into
bounds.
"""

from tacitly.audit.bounds import Bound, from_accuracy, from_counts, from_one_run, from_runs
from tacitly.audit.one_run import audit_canaries, audit_one_run
from tacitly.audit.report import Audit, audit, guessing_allowed
from tacitly.audit.sensitivity import SensitivityReport, check_sensitivity
from tacitly.audit.users import adversarial_users

__all__ = [
    "Audit",
    "Bound",
    "SensitivityReport",
    "adversarial_users",
    "audit",
    "audit_canaries",
    "audit_one_run",
    "check_sensitivity",
    "from_accuracy",
    "from_counts",
    "from_one_run",
    "from_runs",
    "guessing_allowed",
]
