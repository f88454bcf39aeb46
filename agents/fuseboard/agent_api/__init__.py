"""What an application calls: the API of `Agent`, for coroutines, threads, decorators and blocks."""
