"""The record of every change, with its author, time and reason. Rows are only ever added."""
