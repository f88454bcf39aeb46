"""The API of `Agent` that an application calls: for coroutines, threads, decorators and blocks."""
