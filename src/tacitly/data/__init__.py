"""From tables to cohorts: reading, validating and grouping rows by user."""
