"""For every package: errors, files, processes, progress, random numbers, records, text; none of it imports torch."""
