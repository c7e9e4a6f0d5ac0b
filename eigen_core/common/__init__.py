"""Modules that all packages of Eigen may use: errors, files, process, progress, records and others, without torch."""
