"""Tables in, cohorts out: reading, checking, grouping rows by user."""
