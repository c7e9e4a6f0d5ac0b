"""What every package uses: errors, records, units, random numbers, locks, processes; nothing here loads torch."""
