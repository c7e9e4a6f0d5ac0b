"""Used by every package: errors, records, units, random numbers, locks, processes; nothing here loads torch."""
